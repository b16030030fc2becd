//! The static description that a provider carries in an ELF note.
//!
//! The host reads it without executing anything. The note has name [`NOTE_NAME`], type
//! [`NOTE_TYPE`], sits in section [`NOTE_SECTION`], and its descriptor is the JSON of a
//! [`Manifest`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Mode;

/// Section that holds the note.
pub const NOTE_SECTION: &str = ".note.engine-provider";
/// Owner name of the note, without its terminating zero.
pub const NOTE_NAME: &str = "EngineProvider";
/// Type number of the note.
pub const NOTE_TYPE: u32 = 1;

/// What a provider is, readable without running it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Manifest {
    /// Provider name, `[a-z0-9-]{1,63}`, as given to `--provider`.
    pub name: String,
    /// Version of the provider (semver).
    pub version: String,
    /// Contract version it was built against (semver).
    pub contract: String,
    /// One sentence for listings.
    #[serde(default)]
    pub description: String,
    /// Modes it can plan, its default first. Modes that the reader does not know are left out.
    #[serde(deserialize_with = "crate::pool::known_modes")]
    pub modes: Vec<Mode>,
    /// Operations its `extension` entry understands.
    #[serde(default)]
    pub ops: Vec<String>,
}
