//! What operations are asked with and what they answer, beside the documents of [`crate::pool`].
//!
//! The description of the API is made from these types: their comments are read by its users.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pool::{Health, PoolStatus};

/// Shortest time that a lease can be asked for.
pub(super) const SHORTEST_LEASE_MS: u64 = 100;

/// Longest time that a lease can be asked for: who lives renews it.
pub(super) const LONGEST_LEASE_MS: u64 = 60 * 60 * 1000;

/// No query.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}

/// Of what takes time.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Waiting {
    /// Whether to answer once it is done (default) or at once, with 202.
    #[serde(default, deserialize_with = "switch")]
    #[schemars(with = "bool")]
    pub wait: Option<bool>,
}

/// Of draining.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Draining {
    /// Whether to answer once it is done (default) or at once, with 202.
    #[serde(default, deserialize_with = "switch")]
    #[schemars(with = "bool")]
    pub wait: Option<bool>,
    /// Longest time leases are waited for. Default: the pool's own.
    #[serde(default)]
    #[schemars(with = "u64")]
    pub deadline_ms: Option<u64>,
}

/// Of a log.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LogPart {
    /// Replica, for example `r1`. Default: the first one.
    #[serde(default)]
    #[schemars(with = "String")]
    pub replica: Option<String>,
    /// Lines from the end of the log. Default: 100.
    #[serde(default)]
    #[schemars(with = "u64")]
    pub lines: Option<u64>,
    /// Whether to go on with what is added, until the engine is gone.
    #[serde(default, deserialize_with = "switch")]
    #[schemars(with = "bool")]
    pub follow: Option<bool>,
}

/// Of events.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EventsOf {
    /// Only what this pool is about.
    #[serde(default)]
    #[schemars(with = "String")]
    pub pool: Option<String>,
    /// Only what this job is about.
    #[serde(default)]
    #[schemars(with = "String")]
    pub job: Option<String>,
}

/// Of the events of one pool.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolEventsOf {
    /// Only what this job is about.
    #[serde(default)]
    #[schemars(with = "String")]
    pub job: Option<String>,
}

/// Of metrics.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MetricsOf {
    /// Whether to add the engines' own metrics, with `pool` and `replica`.
    #[serde(default, deserialize_with = "switch")]
    #[schemars(with = "bool")]
    pub engines: Option<bool>,
}

/// Of a lease.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseFor {
    /// How long it holds unless it is renewed. Default: a minute, or as before.
    #[serde(default)]
    #[schemars(with = "u64", range(min = SHORTEST_LEASE_MS, max = LONGEST_LEASE_MS))]
    pub ttl_ms: Option<u64>,
}

/// On or off: `1` and `0` as well as `true` and `false`.
fn switch<'de, D: serde::Deserializer<'de>>(given: D) -> Result<Option<bool>, D::Error> {
    match String::deserialize(given)?.as_str() {
        "1" | "true" => Ok(Some(true)),
        "0" | "false" => Ok(Some(false)),
        _ => Err(serde::de::Error::custom(
            "expected `1`, `0`, `true` or `false`",
        )),
    }
}

/// The daemon itself.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DaemonHealth {
    /// Always `true`: a daemon that cannot answer does not.
    pub live: bool,
    /// Whether every pool that is wanted up is ready.
    pub ready: bool,
    /// Version of this program.
    pub version: String,
}

/// Pools, by name.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolList {
    /// All of them.
    pub pools: Vec<PoolStatus>,
}

/// Whether a pool can serve.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct PoolHealth {
    /// Pool.
    pub pool_id: String,
    /// Its process runs and answers.
    pub live: bool,
    /// Requests may come.
    pub ready: bool,
    /// The last failure, in one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// What was provisioned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
}

/// What the engines of all pools can do.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct CapabilityList {
    /// Of each pool.
    pub pools: Vec<Capabilities>,
}

/// What a pool's engines can do.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Capabilities {
    /// Pool.
    pub pool_id: String,
    /// Engine family.
    pub engine: String,
    /// What was provisioned.
    pub engine_version: Option<String>,
    /// Public name of its model.
    pub model: Option<String>,
    /// Requests that its ready replicas serve at the same time.
    pub concurrency: u32,
    /// What it can be asked for, for example `chat`.
    pub workloads: Vec<String>,
    /// Protocol it speaks, for example `openai`.
    pub dialect: Option<String>,
    /// Whether it can serve now.
    pub health: Health,
}

/// The right to send one request to an engine, until it expires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseStatus {
    /// By which it is renewed and given back.
    pub lease_id: String,
    /// Pool.
    pub pool_id: String,
    /// Replica that keeps a slot for it.
    pub replica_id: String,
    /// Where the request goes.
    pub url: String,
    /// How long it holds from each renewal on, in milliseconds.
    pub ttl_ms: u64,
    /// When it expires unless it is renewed.
    #[schemars(with = "String")]
    pub expires_at: Timestamp,
    /// Who took it: a user of the socket or a token, as logs name it.
    pub held_by: String,
}

/// The leases of a pool that were taken over this API, the first to expire first.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct LeaseList {
    /// All of them.
    pub leases: Vec<LeaseStatus>,
}

/// The daemon ends.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct DaemonEnds {
    /// Whether its engines run on.
    pub engines_run_on: bool,
}
