//! Whether an engine that answers is still the one that listens.
//!
//! An engine can close its port and live on, and a stranger's server that takes the port answers for it.
//! Readiness asks once whose the listening socket is; an engine that serves is asked for as long as it
//! lives, hundreds of them every few seconds. What is cheap is asked each time: whether the sockets that
//! listen there are the ones that were found to be its own before. One look of a moment ago tells that
//! for all of them; a new one, and a walk through processes, is for those where something has changed.
//! Where processes may not be looked into, that walk is taken once a minute.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use super::{
    Instance,
    asking::address_of,
    ownership::{self, Listener},
    sockets::Listeners,
};
use crate::{
    container::Runtime,
    process::{Identity, Keeper, ProcessError, ProcessIdentity},
};

/// How old a look may be that shows that nothing has changed.
const SEEN_AGE: Duration = Duration::from_secs(5);

/// How long an engine is let alone of which it could not be seen whose port it is: looking walks through all
/// processes.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Who listened a moment ago, for all whose engines are asked again and again.
#[derive(Debug, Default)]
pub struct Listening {
    seen: Mutex<Option<(Instant, Arc<Listeners>)>>,
}

impl Listening {
    fn at(&self, address: SocketAddr, age: Duration) -> BTreeSet<u64> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let listeners = match &*seen {
            Some((when, listeners)) if when.elapsed() < age => Arc::clone(listeners),
            _ => {
                let listeners = Arc::new(Listeners::now());
                *seen = Some((Instant::now(), Arc::clone(&listeners)));
                listeners
            }
        };
        drop(seen);
        listeners.at(address)
    }
}

/// What is known of an engine's sockets.
#[derive(Debug, Default)]
pub(super) struct OwnSockets(Mutex<Known>);

#[derive(Debug, Clone, Default)]
struct Known {
    /// Those that it was found to listen with; none as long as it was not.
    own: BTreeSet<u64>,
    /// When it was found that this cannot be seen.
    unseen: Option<Instant>,
}

impl OwnSockets {
    fn get(&self) -> Known {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone()
    }

    fn set(&self, own: BTreeSet<u64>, unseen: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Known { own, unseen };
    }
}

/// Whether it is this engine that listens on its port; `Err` says in words who does. Ready it was because it
/// listened itself, whoever has started it: where another one listens now, that is no longer so. Nothing is
/// said of docker's containers, whose ports its daemon holds, and of processes that may not be looked into.
pub(super) async fn is_its_own(
    instance: &Instance,
    known: &OwnSockets,
    keeper: &Keeper,
    listening: &Listening,
) -> Result<(), String> {
    let (Some(roots), Some(address)) = (Roots::of(instance), address_of(&instance.url)) else {
        return Ok(());
    };
    let Known { own, unseen } = known.get();
    if unseen.is_some_and(|when| when.elapsed() < LOOK_AGAIN) {
        return Ok(());
    }
    let usual = |found: &BTreeSet<u64>| !own.is_empty() && found.is_subset(&own);
    let recent = listening.at(address, SEEN_AGE);
    if !recent.is_empty() && usual(&recent) {
        return Ok(());
    }
    // The first look at an engine: hundreds that come up together are found at one look.
    if own.is_empty()
        && let Ok(Listener::Ours) = roots.whose(&recent, keeper).await
    {
        known.set(recent, None);
        return Ok(());
    }
    // Nobody's port is nobody's answer: what answered a moment ago has closed it since.
    let now = listening.at(address, Duration::ZERO);
    if usual(&now) {
        return Ok(());
    }
    match roots.whose(&now, keeper).await {
        Ok(Listener::Ours) => {
            known.set(now, None);
            Ok(())
        }
        Ok(Listener::Unseen) if own.is_empty() => {
            known.set(own, Some(Instant::now()));
            Ok(())
        }
        Ok(Listener::Foreign | Listener::Unseen) => {
            let port = address.port();
            Err(format!(
                "its port {port} is another process's now (see: ss -ltnp 'sport = :{port}')"
            ))
        }
        Ok(Listener::Nobody) | Err(_) => Ok(()),
    }
}

/// Where the processes of an engine hang that can hold its socket.
struct Roots {
    /// Looked at first.
    first: Vec<ProcessIdentity>,
    root: ProcessIdentity,
    identity: Option<Identity>,
}

impl Roots {
    fn of(instance: &Instance) -> Option<Self> {
        if instance.is_external() {
            return None;
        }
        match &instance.container {
            None => Some(Self {
                first: vec![instance.process],
                root: instance.process,
                identity: user_of(instance.process),
            }),
            // Its monitor, or what forwards its port, comes to the minder.
            Some(container) if container.runtime == Runtime::Podman.name() => Some(Self {
                first: Vec::new(),
                root: instance.minder?,
                identity: None,
            }),
            Some(_) => None,
        }
    }

    /// Whose these sockets are.
    async fn whose(
        &self,
        sockets: &BTreeSet<u64>,
        keeper: &Keeper,
    ) -> Result<Listener, ProcessError> {
        let tree = || self.root.tree();
        ownership::whose(sockets, &self.first, tree, keeper, self.identity).await
    }
}

/// Whose a process is, where it is not this process's own user's.
fn user_of(process: ProcessIdentity) -> Option<Identity> {
    let of = fs::metadata(format!("/proc/{}", process.pid)).ok()?;
    let own = rustix::process::geteuid().as_raw();
    let (uid, gid) = (of.uid(), of.gid());
    (uid != own).then_some(Identity { uid, gid })
}
