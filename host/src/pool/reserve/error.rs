//! What is told of reservations: who holds what, and why a replica has no place.

use engine_provider_api::{Gpu, Hint};
use jiff::Timestamp;
use serde::Serialize;

use super::book::{Entry, Share};
use crate::{
    fault::{Detail, Exit, Fault, hint},
    process::ProcessIdentity,
    store::{StoreError, human_bytes},
};

/// A reservation, as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// Pool.
    pub pool_id: String,
    /// Replica of the pool.
    pub replica_id: String,
    /// The engine, or the host while it starts.
    pub owner: ProcessIdentity,
    /// Whether the engine has its memory.
    pub allocated: bool,
    /// How much of which GPU.
    pub devices: Vec<Share>,
    /// Main memory that it is about to take, in bytes; 0: it has it, or it is not known.
    pub memory_bytes: u64,
    /// Since when.
    pub since: Timestamp,
}

impl Holding {
    pub(super) fn of(entry: &Entry) -> Self {
        Self {
            pool_id: entry.pool_id.clone(),
            replica_id: entry.replica_id.clone(),
            owner: entry.owner,
            allocated: entry.allocated,
            devices: entry.devices.clone(),
            memory_bytes: entry.memory.map_or(0, |claim| claim.bytes),
            since: entry.since,
        }
    }
}

/// What one GPU has room for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// Index in the driver's order.
    pub index: u32,
    /// Driver-assigned id.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Whether this is a MIG slice.
    pub mig: bool,
    /// Device memory in bytes; 0: not known.
    pub total_bytes: u64,
    /// What its driver calls free.
    pub free_bytes: u64,
    /// Everything that is reserved of it.
    pub reserved_bytes: u64,
    /// What of that the driver cannot know yet.
    pub pending_bytes: u64,
    /// Replicas of the same pool on it.
    pub siblings: usize,
    /// Engines on it.
    pub engines: usize,
}

impl Room {
    pub(super) fn of(gpu: &Gpu) -> Self {
        Self {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            name: gpu.name.clone(),
            mig: gpu.mig,
            total_bytes: gpu.memory_total_bytes,
            free_bytes: gpu.memory_free_bytes,
            reserved_bytes: 0,
            pending_bytes: 0,
            siblings: 0,
            engines: 0,
        }
    }

    /// Bytes for another engine: what the driver calls free less what it cannot know yet, and never
    /// more than what is not promised. The latter also holds where figures are a moment old or a driver
    /// does not say what is free.
    #[must_use]
    pub fn available(&self) -> u64 {
        let free = self.free_bytes.saturating_sub(self.pending_bytes);
        free.min(self.total_bytes.saturating_sub(self.reserved_bytes))
    }

    /// Whether so much fits. A GPU of unknown size bears everything.
    pub(super) fn has(&self, bytes: u64) -> bool {
        self.total_bytes == 0 || bytes <= self.available()
    }

    fn in_words(&self) -> String {
        let kind = if self.mig { "slice of GPU" } else { "GPU" };
        let others = match self.engines {
            0 => String::new(),
            1 => format!(
                ", {} reserved for an engine",
                human_bytes(self.reserved_bytes)
            ),
            engines => format!(
                ", {} reserved for {engines} engines",
                human_bytes(self.reserved_bytes)
            ),
        };
        format!(
            "{kind} {} ({}, {}): room for {} of {}; free by its driver {}{others}",
            self.index,
            self.name,
            self.uuid,
            human_bytes(self.available()),
            human_bytes(self.total_bytes),
            human_bytes(self.free_bytes),
        )
    }
}

/// A replica fits nowhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoRoom {
    /// Pool.
    pub pool: String,
    /// Replica.
    pub replica: String,
    /// Device memory it takes; 0: not known.
    pub bytes: u64,
    /// What was looked at.
    pub rooms: Vec<Room>,
}

/// Why a replica has no place.
#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// It fits nowhere.
    #[error("no GPU has room for replica {} of pool {}{}", .0.replica, .0.pool, needed(.0.bytes))]
    NoRoom(Box<NoRoom>),
    /// This machine has no GPU that works.
    #[error("pool {pool} requires a GPU, and {}", no_gpu(*broken))]
    NoGpu {
        /// Pool.
        pool: String,
        /// Whether there is one whose driver does not work.
        broken: bool,
    },
    /// The pool names one that is not there.
    #[error("pool {pool} names the GPU `{device}`, which is not there")]
    NoSuchGpu {
        /// Pool.
        pool: String,
        /// As the pool has it.
        device: String,
        /// Ids of those there are.
        there_are: Vec<String>,
    },
    /// It takes more main memory than is available.
    #[error(
        "replica {replica} of pool {pool} takes {} of main memory, and {} are available{}",
        human_bytes(*needed),
        human_bytes(*available),
        promised_in_words(*promised)
    )]
    NoMemory {
        /// Pool.
        pool: String,
        /// Replica.
        replica: String,
        /// Bytes it takes, by its provider's word.
        needed: u64,
        /// Bytes that are available now.
        available: u64,
        /// What of them engines that are starting will take.
        promised: u64,
    },
    /// Reservations cannot be read or written.
    #[error("GPUs cannot be reserved")]
    Store(#[from] StoreError),
}

fn needed(bytes: u64) -> String {
    match bytes {
        0 => String::new(),
        bytes => format!(", which takes {}", human_bytes(bytes)),
    }
}

fn no_gpu(broken: bool) -> &'static str {
    match broken {
        true => "this machine's GPU driver does not work",
        false => "this machine has none",
    }
}

fn promised_in_words(promised: u64) -> String {
    match promised {
        0 => String::new(),
        bytes => format!(
            ", {} of them promised to engines that are starting",
            human_bytes(bytes)
        ),
    }
}

impl Fault for ReserveError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoRoom(_) | Self::NoMemory { .. } | Self::NoGpu { .. } => Exit::Unavailable,
            Self::NoSuchGpu { .. } => Exit::Config,
            Self::Store(source) => source.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NoRoom(_) => vec![
                hint("see which engines run, and stop one", Some("host ps")),
                hint(
                    "take a smaller model or context, fewer `replicas`, or other `devices`",
                    None,
                ),
            ],
            Self::NoMemory { .. } => vec![
                hint("see which engines run, and stop one", Some("host ps")),
                hint(
                    "take a smaller model or a shorter context, or fewer `replicas`",
                    None,
                ),
            ],
            Self::NoGpu { broken: true, .. } => {
                vec![hint("see what the driver says", Some("nvidia-smi"))]
            }
            Self::NoGpu { .. } => vec![hint(
                "let it run on the processor: set `gpu: prefer` in the pool",
                None,
            )],
            Self::NoSuchGpu { there_are, .. } => {
                vec![hint(format!("there are: {}", there_are.join(", ")), None)]
            }
            Self::Store(source) => source.hints(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NoRoom(none) => {
                let rooms = none.rooms.iter();
                rooms
                    .map(|room| Detail::new("gpu", room.in_words()))
                    .collect()
            }
            Self::Store(source) => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoRoom(_) => "no-device-memory",
            Self::NoMemory { .. } => "no-memory",
            Self::NoGpu { .. } => "no-gpu",
            Self::NoSuchGpu { .. } => "no-such-gpu",
            Self::Store(source) => source.kind(),
        }
    }
}
