//! What a manager refuses, with the code that clients act on.

use std::time::Duration;

use engine_provider_api::Hint;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    engine::Finding,
    fault::{Because, Detail, Exit, Fault, hint},
};

/// What a client can act on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Code {
    /// There is nothing that could serve, or this machine cannot run the pool.
    PoolUnavailable,
    /// It will serve, not yet.
    PoolUnready,
    /// What was asked makes no sense.
    InvalidParams,
    /// A defect, or something outside this program's hands.
    Internal,
}

impl Code {
    /// The word in documents.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PoolUnavailable => "POOL_UNAVAILABLE",
            Self::PoolUnready => "POOL_UNREADY",
            Self::InvalidParams => "INVALID_PARAMS",
            Self::Internal => "INTERNAL",
        }
    }
}

/// What a manager refuses or could not do.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// No pool has this name.
    #[error("there is no pool `{pool}`{}", known(pools))]
    NoSuchPool {
        /// As asked.
        pool: String,
        /// Those there are.
        pools: Vec<String>,
    },
    /// Nothing of the pool runs.
    #[error("pool {pool} is down")]
    Down {
        /// Pool.
        pool: String,
    },
    /// It takes nothing new.
    #[error("pool {pool} is draining and takes nothing new")]
    Draining {
        /// Pool.
        pool: String,
    },
    /// It is coming up, or waits before it is tried again.
    #[error("pool {pool} is not ready: {reason}")]
    Unready {
        /// Pool.
        pool: String,
        /// Why, in one sentence.
        reason: String,
        /// When asking again makes sense.
        retry_after: Option<Duration>,
    },
    /// Nothing serves, and what fell is not tried again soon, or not by itself.
    #[error("pool {pool} cannot serve: {reason}")]
    Unavailable {
        /// Pool.
        pool: String,
        /// Why, in one sentence.
        reason: String,
        /// When one start is on trial; `None`: somebody must bring it up.
        retry_after: Option<Duration>,
    },
    /// Every slot is leased.
    #[error("all {total} slots of pool {pool} are taken")]
    Busy {
        /// Pool.
        pool: String,
        /// Slots of its ready replicas.
        total: u32,
    },
    /// A replica could not be brought up, and trying again by itself does not help or was not asked for.
    #[error("replica {replica} of pool {pool} did not come up")]
    NotUp {
        /// Pool.
        pool: String,
        /// Replica.
        replica: String,
        /// Why.
        source: Because,
    },
    /// It runs and does not answer.
    #[error("replica {replica} of pool {pool} did not answer {asked} times in a row: {said}")]
    Hung {
        /// Pool.
        pool: String,
        /// Replica.
        replica: String,
        /// Questions.
        asked: u32,
        /// What its probe said last.
        said: String,
        /// What its provider knows of what its log says.
        finding: Option<Box<Finding>>,
    },
    /// Somebody stopped its engine, for example with `host stop`.
    #[error("the engine of replica {replica} of pool {pool} was stopped from elsewhere")]
    StoppedElsewhere {
        /// Pool.
        pool: String,
        /// Replica.
        replica: String,
    },
    /// Another command replaced this one, or the manager ends.
    #[error("{what} of pool {pool} was given up: {by}")]
    Superseded {
        /// Pool.
        pool: String,
        /// What was asked.
        what: &'static str,
        /// By what.
        by: &'static str,
    },
    /// A new engine was refused or did not come up; what serves now is in `serving`.
    #[error("pool {pool} was not reloaded; {serving}")]
    NotReloaded {
        /// Pool.
        pool: String,
        /// What serves now, in words.
        serving: String,
        /// Why.
        source: Because,
    },
    /// A handoff that cannot be taken in.
    #[error("the handoff for pool {pool} cannot be used: {message}")]
    Handoff {
        /// Pool.
        pool: String,
        /// Why.
        message: String,
    },
    /// The pool file cannot be used.
    #[error("the pools cannot be read")]
    Config {
        /// Why.
        source: Because,
    },
    /// Whom the pool file names cannot be told.
    #[error("`notify` of the pool file cannot be used")]
    Notify {
        /// Why.
        source: Because,
    },
}

fn known(pools: &[String]) -> String {
    match pools {
        [] => "; no pool is configured".to_owned(),
        names => format!("; there are: {}", names.join(", ")),
    }
}

fn bring_up(pool: &str) -> Hint {
    ask("bring it up", "up", pool)
}

/// Advice to run a command about a pool.
fn ask(text: &str, command: &str, pool: &str) -> Hint {
    hint(text, Some(&format!("{{host}} {command} {pool}")))
}

impl PoolError {
    /// The code for clients.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Self::NoSuchPool { .. } | Self::Handoff { .. } | Self::Config { .. } => {
                Code::InvalidParams
            }
            Self::Down { .. }
            | Self::Unavailable { .. }
            | Self::Hung { .. }
            | Self::StoppedElsewhere { .. } => Code::PoolUnavailable,
            Self::Draining { .. } | Self::Unready { .. } | Self::Busy { .. } => Code::PoolUnready,
            Self::NotUp { source, .. }
            | Self::NotReloaded { source, .. }
            | Self::Notify { source } => code_of(source.exit()),
            Self::Superseded { .. } => Code::PoolUnready,
        }
    }

    /// When asking again makes sense; `None` where it does not help by itself.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        const SOON: Duration = Duration::from_secs(1);
        match self {
            Self::Unready { retry_after, .. } => Some(retry_after.unwrap_or(SOON)),
            Self::Unavailable { retry_after, .. } => *retry_after,
            Self::Busy { .. } | Self::Draining { .. } | Self::Superseded { .. } => Some(SOON),
            _ => None,
        }
    }
}

/// The code of a failure of the journey, by how the program would end because of it.
#[must_use]
pub(super) fn code_of(exit: Exit) -> Code {
    match exit {
        Exit::Usage | Exit::Config => Code::InvalidParams,
        Exit::Internal => Code::Internal,
        Exit::Busy => Code::PoolUnready,
        _ => Code::PoolUnavailable,
    }
}

impl Fault for PoolError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoSuchPool { .. } => Exit::NotFound,
            Self::Handoff { .. } => Exit::Config,
            Self::Down { .. }
            | Self::Draining { .. }
            | Self::Unready { .. }
            | Self::Unavailable { .. } => Exit::Unavailable,
            Self::Hung { .. } | Self::StoppedElsewhere { .. } => Exit::Engine,
            Self::Busy { .. } | Self::Superseded { .. } => Exit::Busy,
            Self::NotUp { source, .. }
            | Self::NotReloaded { source, .. }
            | Self::Config { source }
            | Self::Notify { source } => source.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NotUp { source, .. }
            | Self::NotReloaded { source, .. }
            | Self::Config { source }
            | Self::Notify { source } => source.hints(),
            Self::NoSuchPool { .. } => vec![hint("see what there is", Some("{host} status"))],
            Self::Down { pool } | Self::StoppedElsewhere { pool, .. } => vec![bring_up(pool)],
            Self::Draining { pool } => vec![
                ask("see when it is down", "status --watch", pool),
                ask("bring it up again then", "up", pool),
            ],
            Self::Unready { pool, .. } => vec![ask("see how far it is", "status --watch", pool)],
            Self::Unavailable { pool, .. } => {
                vec![ask("see why", "status", pool), bring_up(pool)]
            }
            Self::Hung { pool, finding, .. } => {
                let fix = finding.as_ref().map(|it| hint(&it.fix, None));
                let look = ask("see what it said last", "logs", pool);
                fix.into_iter().chain([look]).collect()
            }
            Self::Superseded { pool, .. } => {
                vec![ask("see what became of it", "status", pool)]
            }
            Self::Busy { pool, .. } => vec![ask("see its slots", "status", pool)],
            Self::Handoff { .. } => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NotUp { source, .. }
            | Self::NotReloaded { source, .. }
            | Self::Config { source }
            | Self::Notify { source } => source.details(),
            Self::Hung {
                finding: Some(finding),
                ..
            } => vec![
                Detail::new("said", &finding.line),
                Detail::new("why", &finding.meaning),
            ],
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoSuchPool { .. } => "no-such-pool",
            Self::Handoff { .. } => "bad-handoff",
            Self::Down { .. } => "pool-down",
            Self::Draining { .. } => "pool-draining",
            Self::Unready { .. } => "pool-unready",
            Self::Unavailable { .. } => "pool-unavailable",
            Self::Busy { .. } => "pool-busy",
            Self::Hung { .. } => "engine-hung",
            Self::StoppedElsewhere { .. } => "stopped-elsewhere",
            Self::Superseded { .. } => "superseded",
            Self::NotUp { source, .. }
            | Self::NotReloaded { source, .. }
            | Self::Config { source }
            | Self::Notify { source } => source.kind(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_refused_reads_what_to_type_next() {
        let pool = || "chat".to_owned();
        let refusals = [
            (PoolError::Down { pool: pool() }, "{host} up chat"),
            (
                PoolError::StoppedElsewhere {
                    pool: pool(),
                    replica: "r0".to_owned(),
                },
                "{host} up chat",
            ),
            (
                PoolError::Draining { pool: pool() },
                "{host} status --watch chat",
            ),
            (
                PoolError::Unavailable {
                    pool: pool(),
                    reason: "it fell".to_owned(),
                    retry_after: None,
                },
                "{host} status chat",
            ),
            (
                PoolError::NoSuchPool {
                    pool: pool(),
                    pools: Vec::new(),
                },
                "{host} status",
            ),
        ];
        for (refusal, command) in refusals {
            let hints = refusal.hints();
            assert_eq!(hints[0].command.as_deref(), Some(command), "{refusal}");
        }
    }
}
