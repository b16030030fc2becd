//! The two sides of an instance: how a new engine comes up beside the one that serves.
//!
//! An instance has room for two engines: each side has a record, a directory, a container's name of its
//! own, and both share the instance's lock. There is one handoff, and whose it is decides which engine
//! *stands*: a new one comes up without, and takes over by writing its own in one rename. A host that is
//! killed anywhere in between leaves both in their records; the next start, adoption or stop of that
//! instance deals with both, and the one whose handoff stands stays.

use serde::{Deserialize, Serialize};

use super::Instance;

/// Which of an instance's two places an engine has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The usual one.
    #[default]
    First,
    /// The one beside it.
    Second,
}

/// What the second side's names end in. An instance's own name never does: it ends in eight digits.
const SUFFIX: &str = "-b";

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::First, Self::Second];

    /// The other one.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }

    /// Whether it is the usual one, which records need not mention.
    #[must_use]
    pub fn is_first(&self) -> bool {
        *self == Self::First
    }

    /// Name of this side in file names.
    pub(super) fn key(self, instance: &str) -> String {
        match self {
            Self::First => instance.to_owned(),
            Self::Second => format!("{instance}{SUFFIX}"),
        }
    }
}

/// Name of the instance that a side belongs to.
pub(super) fn instance_of(key: &str) -> &str {
    key.strip_suffix(SUFFIX).unwrap_or(key)
}

/// The engine that stands, of those of one instance: one that stays, and that the handoff speaks of
/// where there are two.
pub(super) fn standing(sides: &[Instance]) -> Option<&Instance> {
    let staying = sides.iter().filter(|side| side.stays());
    staying.max_by_key(|side| (side.is_handed_off(), side.started_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sides_of_an_instance_share_its_name() {
        let own = "chat-r0-0123456b";
        for side in Side::BOTH {
            assert_eq!(instance_of(&side.key(own)), own);
            assert_ne!(side.key(own), side.other().key(own));
        }
        assert_eq!(Side::First.key(own), own);
    }
}
