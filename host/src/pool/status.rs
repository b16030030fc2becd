//! What is known of pools and replicas, as it is shown, served and subscribed to.

use std::collections::BTreeMap;

use engine_provider_api::{Hint, Mode};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A pool and everything that runs for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PoolStatus {
    /// Pool.
    pub pool_id: String,
    /// Engine family.
    pub engine: String,
    /// What is wanted of it.
    pub want: Want,
    /// Whether it can serve.
    pub health: Health,
    /// All replicas together.
    pub slots: Slots,
    /// Leases held now.
    pub leases: u32,
    /// Its replicas, in the order of their numbers.
    pub replicas: Vec<ReplicaStatus>,
    /// The last failure of the pool as a whole, for example a pool file that does not hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
}

/// What is wanted of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Want {
    /// It runs.
    Up,
    /// It runs while it is used.
    OnDemand,
    /// It takes nothing new and ends when what runs is finished.
    Draining,
    /// It does not run.
    Down,
}

/// Whether something can serve.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Health {
    /// Its process runs and answers.
    pub live: bool,
    /// Provider, verified model, prepared engine and passed probe: requests may come.
    pub ready: bool,
}

/// Requests that can be served at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Slots {
    /// All.
    pub total: u32,
    /// Not leased.
    pub free: u32,
}

/// One engine of a pool.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ReplicaStatus {
    /// Replica of the pool, for example `r0`.
    pub replica_id: String,
    /// How far it is.
    pub state: ReplicaState,
    /// Since when.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Why, in one sentence.
    pub reason: String,
    /// Whether it can serve.
    pub health: Health,
    /// Where it answers, while it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// What was provisioned, once it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// What the running engine says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_version: Option<String>,
    /// Version of the provider that prepared it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_version: Option<String>,
    /// How it came onto the machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Public name of its model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it can be asked for, for example `chat`.
    #[serde(default)]
    pub workloads: Vec<String>,
    /// Protocol it speaks, for example `openai`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dialect: Option<String>,
    /// Digest of its model, for example `sha256:744c…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// GPUs it may see, as driver ids.
    #[serde(default)]
    pub device_mask: Vec<String>,
    /// Device memory that was reserved for it, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<u64>,
    /// Requests it serves at the same time.
    pub slots: Slots,
    /// Leases held now.
    pub leases: u32,
    /// Process id of the engine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// When it was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// When it last answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub heartbeat: Option<Timestamp>,
    /// Starts after a failure, since the pool was brought up or its engine adopted.
    pub restarts: u32,
    /// The same by what made it fall: `exit`, `oom`, `gpu-error`, `liveness`, `start`, `stopped`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub restarts_by: BTreeMap<String, u32>,
    /// Whether starts are still tried.
    pub breaker: BreakerState,
    /// When the next start is tried, while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub next_start: Option<Timestamp>,
    /// The last failure; cleared once it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<LastError>,
    /// Log of the current or last start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<std::path::PathBuf>,
}

/// How far a replica is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ReplicaState {
    /// It does not run and is not meant to.
    Stopped,
    /// Engine and model are obtained.
    Preparing,
    /// It loads.
    Starting,
    /// It serves.
    Ready,
    /// It serves what it has and takes nothing new.
    Draining,
    /// It is being ended.
    Stopping,
    /// It fell; the next start waits.
    BackingOff,
    /// It fell too often; one start is tried when the pause is over.
    Broken,
    /// Trying again would not help: something must be changed first.
    Failed,
}

impl ReplicaState {
    /// Every state, for metrics.
    pub const ALL: &[Self] = &[
        Self::Stopped,
        Self::Preparing,
        Self::Starting,
        Self::Ready,
        Self::Draining,
        Self::Stopping,
        Self::BackingOff,
        Self::Broken,
        Self::Failed,
    ];

    /// The word shown to people and machines.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stopped => "stopped",
            Self::Preparing => "preparing",
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Draining => "draining",
            Self::Stopping => "stopping",
            Self::BackingOff => "backing-off",
            Self::Broken => "broken",
            Self::Failed => "failed",
        }
    }
}

/// The circuit breaker of a replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum BreakerState {
    /// Starts are tried.
    #[default]
    Closed,
    /// No start is tried for a while.
    Open,
    /// One start is on trial.
    HalfOpen,
}

impl BreakerState {
    /// Every state, for metrics.
    pub const ALL: &[Self] = &[Self::Closed, Self::Open, Self::HalfOpen];

    /// The word shown to people and machines.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
        }
    }
}

/// A failure, as it is kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastError {
    /// Stable word for its kind, for example `digest-mismatch`.
    pub kind: String,
    /// What went wrong, with its causes, in one sentence.
    pub message: String,
    /// Where to look: places in files, logs, commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Evidence>,
    /// What helps, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixes: Vec<Hint>,
    /// When.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// Something to look at, beside a failure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// Short label, for example `where`, `command`, `log`.
    pub label: String,
    /// Text, may have several lines.
    pub text: String,
}

/// Something changed in a pool. What exactly is in the new status.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// Counts the changes of a manager; a gap means that some were not delivered.
    pub sequence: u64,
    /// The pool as it is now; `None` in `status` when it is no longer known.
    pub pool_id: String,
    /// The pool as it is now; absent when it is no longer in the pool file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<PoolStatus>,
}
