//! Who uses how much of which GPU, and who is about to take main memory: reservations, so that pools,
//! replicas and hosts respect each other.
//!
//! A driver tells what is free now. What an engine that is still loading will take, it cannot tell:
//! two engines that are started together would both see the same free memory. So a replica's place is
//! written down before it is started, in `state/devices.json`, under a lock.
//!
//! The rules that keep it sound:
//!
//! * A reservation has an owner, a process with its start time: the host while the engine starts, the
//!   engine from then on. When the owner is gone the reservation means nothing, whoever reads it next
//!   drops it, and nobody has to clean up after a `kill -9`.
//! * Until the engine is ready, its reservation is taken off what the driver calls free; from then on
//!   the driver sees it. Together, reservations never promise more than a GPU has.
//! * Main memory is reserved until the engine is ready; from then on the machine's own figure tells. An
//!   engine that does not say what it takes reserves none.
//! * The file is a note about processes of this boot: it is not synced, and one that cannot be read is
//!   as good as none. What this process holds it writes down again.
//!
//! What a replica needs is for its provider to say ([`Need`]); which GPUs it gets is decided by a pure
//! function in `choose`.

mod book;
mod choose;
mod error;
mod reserved;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use engine_provider_api::{Facts, Pool};
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

pub use book::Share;
use book::{Book, Claim, Entry};
pub use error::{Holding, NoRoom, ReserveError, Room};
pub use reserved::Reserved;

use crate::{
    config::paths::Home,
    process::ProcessIdentity,
    store::{Lock, Patience, lock, try_lock},
};

/// Longest wait for whoever else reads or writes reservations: each does for milliseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(10);

/// What the lock says its holder does.
const DOING: &str = "reserving GPUs";

/// What is asked for one replica.
#[derive(Debug, Clone, Copy)]
pub struct Placement<'a> {
    /// Its pool, policy applied: `gpu`, `devices`, `tensor_split` and `replicas` decide.
    pub pool: &'a Pool,
    /// The replica, for example `r0`.
    pub replica: &'a str,
    /// What it takes of GPUs.
    pub need: Need,
    /// Main memory it takes, in bytes; 0: not known. Reserved while it starts.
    pub memory_bytes: u64,
}

/// What a replica takes of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Not known before it is prepared for certain GPUs: it gets its share of them by number. Say it
    /// with [`Reserved::settle`] once it is known.
    Unknown,
    /// These bytes over all its GPUs, as `resources.vram_bytes` says; 0: it uses none. Of several
    /// replicas none gets more than its share of the GPUs; one that is said to take more than such a
    /// share could ever hold was prepared for all of them, and is placed as if it were not known.
    Bytes(u64),
}

/// The reservations of one home. Cheap to clone; clones hold the same.
#[derive(Debug, Clone)]
pub struct Reservations {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    document: PathBuf,
    lock: PathBuf,
    /// One task of this process at a time asks for the lock, so that nobody waits for a poll.
    turn: tokio::sync::Mutex<()>,
    held: Mutex<Held>,
}

/// What this process knows for sure, whatever the file says.
#[derive(Debug, Default)]
struct Held {
    /// What guards hold.
    entries: BTreeMap<String, Entry>,
    /// What was given back and may still be in the file.
    returned: Vec<String>,
    /// What was left to its engine, where the file may still say that this process holds it.
    left: Vec<String>,
}

impl Reservations {
    /// Those of a home; creates nothing.
    #[must_use]
    pub fn of(home: &Home) -> Self {
        let state = home.state();
        Self {
            shared: Arc::new(Shared {
                document: state.join("devices.json"),
                lock: state.join("devices.lock"),
                turn: tokio::sync::Mutex::default(),
                held: Mutex::default(),
            }),
        }
    }

    /// Chooses the GPUs of a replica and reserves them for it, on behalf of this process, and the main
    /// memory that it is said to take. `facts` are of a moment ago.
    ///
    /// Where an engine of this replica runs that a host before this one has left, its place is taken
    /// over, so that it can be adopted or followed by one in the same place.
    ///
    /// Cancelled by dropping the future: either it is reserved and the guard came back, or not at all.
    pub async fn place(
        &self,
        want: &Placement<'_>,
        facts: &Facts,
    ) -> Result<Reserved, ReserveError> {
        let entry = self
            .change(|book| {
                let memory = in_main_memory(want, facts, book)?;
                let this = ProcessIdentity::of_this_process();
                let left = book.left_behind(&want.pool.id, want.replica);
                let left = left.filter(|it| choose::may_stay(want, &it.devices, &facts.gpus));
                let entry = match left {
                    Some(left) => Entry {
                        owner: this,
                        holder: Some(this),
                        memory,
                        ..left
                    },
                    None => Entry {
                        id: new_id(),
                        pool_id: want.pool.id.clone(),
                        replica_id: want.replica.to_owned(),
                        owner: this,
                        holder: Some(this),
                        allocated: false,
                        devices: choose::choose_or_share(want, &facts.gpus, &book.reservations)?,
                        memory,
                        since: Timestamp::now(),
                    },
                };
                book.put(entry.clone());
                Ok(entry)
            })
            .await?;
        Ok(Reserved::new(self, entry))
    }

    /// Whether a replica fits beside all that runs now: whether a reload can start the new engine before
    /// the old one ends. Reserves nothing.
    pub async fn fits(&self, want: &Placement<'_>, facts: &Facts) -> Result<bool, ReserveError> {
        let chosen = self
            .change(|book| {
                let fits = in_main_memory(want, facts, book);
                let chosen =
                    fits.and_then(|_| choose::choose(want, &facts.gpus, &book.reservations));
                Ok(chosen)
            })
            .await?;
        match chosen {
            Ok(_) => Ok(true),
            Err(ReserveError::NoRoom(_) | ReserveError::NoMemory { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes over the reservation of an engine that runs already, for example after a restart of the
    /// daemon. Where none is written down, `otherwise` is.
    pub async fn adopt(
        &self,
        pool: &str,
        replica: &str,
        engine: ProcessIdentity,
        otherwise: Vec<Share>,
    ) -> Result<Reserved, ReserveError> {
        let entry = self
            .change(|book| {
                let mut known = book.reservations.iter();
                let known = known.find(|entry| entry.owner == engine).cloned();
                let entry = Entry {
                    holder: Some(ProcessIdentity::of_this_process()),
                    ..known.unwrap_or_else(|| Entry {
                        id: new_id(),
                        pool_id: pool.to_owned(),
                        replica_id: replica.to_owned(),
                        owner: engine,
                        holder: None,
                        allocated: true,
                        devices: otherwise,
                        memory: None,
                        since: Timestamp::now(),
                    })
                };
                book.put(entry.clone());
                Ok(entry)
            })
            .await?;
        Ok(Reserved::new(self, entry))
    }

    /// Everything that is reserved now, whoever holds it.
    pub async fn list(&self) -> Result<Vec<Holding>, ReserveError> {
        self.change(|book| Ok(book.reservations.iter().map(Holding::of).collect()))
            .await
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.shared.held.lock().expect("no holder panics")
    }

    /// Reads the book, stale reservations dropped, lets it be changed and writes it, all under the lock.
    async fn change<T>(
        &self,
        work: impl FnOnce(&mut Book) -> Result<T, ReserveError>,
    ) -> Result<T, ReserveError> {
        let _turn = self.shared.turn.lock().await;
        let patience = Patience {
            limit: LOCK_LIMIT,
            cancel: &CancellationToken::new(),
            on_wait: &|_| {},
        };
        let lock = lock(&self.shared.lock, DOING, patience).await?;
        self.change_under(&lock, work)
    }

    fn change_under<T>(
        &self,
        _lock: &Lock,
        work: impl FnOnce(&mut Book) -> Result<T, ReserveError>,
    ) -> Result<T, ReserveError> {
        let mut book = Book::read(&self.shared.document)?;
        let before = book.clone();
        book.drop_stale();
        let (returned, left) = {
            let held = self.held();
            book.settle(&held.entries, &held.returned, &held.left);
            (held.returned.clone(), held.left.clone())
        };
        let result = work(&mut book);
        if book != before {
            book.write(&self.shared.document)?;
        }
        let mut held = self.held();
        held.returned.retain(|id| !returned.contains(id));
        held.left.retain(|id| !left.contains(id));
        result
    }

    /// Writes down that something was given back or left, at once if nobody else has the lock.
    fn write_soon(&self) {
        if let Ok(Some(lock)) = try_lock(&self.shared.lock, DOING)
            && self.change_under(&lock, |_| Ok(())).is_ok()
        {
            return;
        }
        // Waiting would block the runtime; whatever is asked next of these reservations writes it down
        // as well, and the end of this process says the same.
        let this = self.clone();
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(async move { this.change(|_| Ok(())).await }));
        }
    }
}

/// A name that no other reservation has, of this host or another.
fn new_id() -> String {
    // The keys of the standard hasher are random.
    format!("{:016x}", RandomState::new().build_hasher().finish())
}

/// What a replica claims of main memory; one that takes more than there is for it is refused.
fn in_main_memory(
    want: &Placement<'_>,
    facts: &Facts,
    book: &Book,
) -> Result<Option<Claim>, ReserveError> {
    let (bytes, available) = (want.memory_bytes, facts.memory.available_bytes);
    // Where what is available is not known nothing is refused.
    if bytes == 0 || available == 0 {
        return Ok(None);
    }
    let room = book.memory_left(available);
    match room.checked_sub(bytes) {
        Some(left) => Ok(Some(Claim { bytes, left })),
        None => Err(ReserveError::NoMemory {
            pool: want.pool.id.clone(),
            replica: want.replica.to_owned(),
            needed: bytes,
            available,
            promised: available - room,
        }),
    }
}
