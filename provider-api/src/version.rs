//! The contract's own version, its features, and the rule by which two sides agree.
//!
//! The contract has a semver of its own, apart from any crate or product version. Within a major
//! version documents only grow: new fields are optional, unknown *descriptive* fields are ignored.
//! What must **not** be ignored is a *feature*: a document that relies on one lists its id in
//! `requires`, and a reader that lacks it refuses the document before looking at the rest.

use semver::Version;
use serde::{Deserialize, Serialize};

/// Contract version that this crate speaks.
///
/// 1.0: processes from source. 1.1: containers, packages, downloaded programs and running engines, each
/// a feature below. 1.2: fields that describe and may be ignored, so that it brings no feature:
/// `Artifact.model`, `include`, `exclude`, `mirrors` and `layout` of models, `kind` of diagnoses, and
/// `readiness.timeout_ms`.
pub const CONTRACT_VERSION: &str = "1.2.0";

/// Something a document may rely on and a reader may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Feature {
    /// Name as it stands in `requires`, for example `step.pull-image`.
    pub id: &'static str,
    /// First contract version that has it.
    pub since: &'static str,
    /// What it means, one line.
    pub meaning: &'static str,
}

/// Features that this crate's contract version knows, oldest first.
///
/// This table is the contract's history: a feature is added with the version that brings it and
/// never removed within a major version.
pub const FEATURES: &[Feature] = &[
    Feature {
        id: "build.attempts",
        since: "1.0.0",
        meaning: "a build step tries ordered attempts, each with a condition",
    },
    Feature {
        id: "gpu-evidence",
        since: "1.0.0",
        meaning: "the host proves after the start that the engine really sits on the GPU",
    },
    Feature {
        id: "step.pull-image",
        since: "1.1.0",
        meaning: "a step obtains a container image by digest",
    },
    Feature {
        id: "step.extract-image",
        since: "1.1.0",
        meaning: "a step takes files out of a container image without running it",
    },
    Feature {
        id: "step.install-packages",
        since: "1.1.0",
        meaning: "a step obtains a program from the distribution's packages",
    },
    Feature {
        id: "build.fixed-path",
        since: "1.1.0",
        meaning: "a build makes its result where it stays",
    },
    Feature {
        id: "download.program",
        since: "1.1.0",
        meaning: "a download holds programs, which policy must allow",
    },
    Feature {
        id: "observe.environment",
        since: "1.1.0",
        meaning: "an observed program is given variables, for example where its libraries lie",
    },
    Feature {
        id: "model.directory",
        since: "1.1.0",
        meaning: "a model is a directory",
    },
    Feature {
        id: "launch.container",
        since: "1.1.0",
        meaning: "an engine runs in a container",
    },
    Feature {
        id: "launch.external",
        since: "1.1.0",
        meaning: "an engine that runs already is attached to",
    },
    Feature {
        id: "launch.ports",
        since: "1.1.0",
        meaning: "an engine listens on more than one port",
    },
    Feature {
        id: "gpu-evidence.driver",
        since: "1.1.0",
        meaning: "log lines and the driver's word prove that the engine sits on the GPU",
    },
];

/// Adds features to `requires`, each once, as `id@version`.
pub(crate) fn announce(requires: &mut Vec<String>, needed: impl IntoIterator<Item = &'static str>) {
    for entry in needed {
        let id = entry.split_once('@').map_or(entry, |(id, _)| id);
        let names = |one: &String| one.split_once('@').map_or(one.as_str(), |(id, _)| id) == id;
        if !requires.iter().any(names) {
            requires.push(entry.to_owned());
        }
    }
}

/// Why a document cannot be read by this side.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    /// The document relies on a feature that this side does not have.
    #[error(
        "{document} requires feature `{feature}`, which contract {have} does not have{}",
        hint(since.as_deref())
    )]
    MissingFeature {
        /// Kind of document, for example `Plan`.
        document: &'static str,
        /// Feature id that was asked for.
        feature: String,
        /// Version that has it, where the document says so.
        since: Option<String>,
        /// Contract version of this side.
        have: &'static str,
    },
    /// The two sides speak different major versions, or what was given is no version.
    #[error("contract `{theirs}` cannot be served by a host that speaks {ours}")]
    Incompatible {
        /// Version of the other side as it was written.
        theirs: String,
        /// Version of this side.
        ours: &'static str,
    },
}

fn hint(since: Option<&str>) -> String {
    since.map_or_else(String::new, |version| {
        format!("; it came with contract {version}: use a host that speaks it")
    })
}

/// Checks that a provider built against contract `theirs` can be driven by this side.
///
/// Same major version: yes, in both directions, because documents only grow. Anything else: no.
pub fn check_contract(theirs: &str) -> Result<(), VersionError> {
    let ours = Version::parse(CONTRACT_VERSION).expect("the contract version is a semver");
    match Version::parse(theirs) {
        Ok(version) if version.major == ours.major => Ok(()),
        _ => Err(VersionError::Incompatible {
            theirs: theirs.to_owned(),
            ours: CONTRACT_VERSION,
        }),
    }
}

/// The part of every document that is read first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Preamble {
    #[serde(default)]
    requires: Vec<String>,
}

impl Preamble {
    /// Refuses the first feature that this side lacks.
    ///
    /// An entry is `id` or `id@version`, the version being the one that brought the feature, so
    /// that an older reader can name it.
    pub(crate) fn check(&self, document: &'static str) -> Result<(), VersionError> {
        for entry in &self.requires {
            let (id, since) = match entry.split_once('@') {
                Some((id, since)) => (id, Some(since.to_owned())),
                None => (entry.as_str(), None),
            };
            if !FEATURES.iter().any(|feature| feature.id == id) {
                return Err(VersionError::MissingFeature {
                    document,
                    feature: id.to_owned(),
                    since,
                    have: CONTRACT_VERSION,
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn same_major_is_served_in_both_directions() {
        assert!(check_contract("1.0.0").is_ok());
        assert!(check_contract("1.7.3").is_ok());
        assert!(check_contract("2.0.0").is_err());
        assert!(check_contract("0.9.0").is_err());
        assert!(check_contract("one").is_err());
    }

    #[test]
    fn every_feature_names_a_version_of_this_major() {
        for feature in FEATURES {
            assert!(check_contract(feature.since).is_ok(), "{}", feature.id);
        }
    }
}
