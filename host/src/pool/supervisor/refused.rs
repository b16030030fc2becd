//! Why a command was not carried out.

use crate::{
    fault::Because,
    pool::{PoolError, turn::Turn},
};

/// Why a command was not carried out; for everybody who asked for it.
#[derive(Debug, Clone)]
pub(super) enum Refused {
    Down,
    Superseded {
        what: &'static str,
        by: &'static str,
    },
    NotUp {
        replica: String,
        source: Because,
    },
    NotReloaded {
        serving: String,
        source: Because,
    },
}

impl Refused {
    /// The failure behind it, where there is one.
    pub(super) fn because(&self) -> Option<&Because> {
        match self {
            Self::NotUp { source, .. } | Self::NotReloaded { source, .. } => Some(source),
            Self::Down | Self::Superseded { .. } => None,
        }
    }

    /// Given up, for the reason that came to this turn.
    pub(super) fn superseded(what: &'static str, turn: &Turn) -> Self {
        let by = turn.because();
        Self::Superseded { what, by }
    }

    pub(super) fn into_error(self, pool: &str) -> PoolError {
        let pool = pool.to_owned();
        match self {
            Self::Down => PoolError::Down { pool },
            Self::Superseded { what, by } => PoolError::Superseded { pool, what, by },
            Self::NotUp { replica, source } => PoolError::NotUp {
                pool,
                replica,
                source,
            },
            Self::NotReloaded { serving, source } => PoolError::NotReloaded {
                pool,
                serving,
                source,
            },
        }
    }
}
