//! What a provider says about itself once it is open.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Mode, Pool};

/// A provider's self-description.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ProviderInfo {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Provider name, equal to the manifest's.
    pub name: String,
    /// Provider version (semver), equal to the manifest's.
    pub version: String,
    /// Modes it can plan, its default first. Modes that the reader does not know are left out.
    #[serde(deserialize_with = "crate::pool::known_modes")]
    pub modes: Vec<Mode>,
    /// Tools it wants to know about: the host probes these and no others.
    #[serde(default)]
    pub tools: Vec<ToolProbe>,
    /// JSON Schema of `options{}` in a pool of this engine; `null` accepts no options.
    #[serde(default)]
    pub options_schema: serde_json::Value,
    /// Pool used when no pool file is given.
    pub default_pool: Pool,
    /// Where to read more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub homepage: Option<String>,
}

/// How the host finds a tool and learns its version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolProbe {
    /// Name under which the tool appears in [`crate::Facts::tools`].
    pub name: String,
    /// Program names to look for, best first.
    pub programs: Vec<String>,
    /// Arguments that make it print its version; empty: only its path is recorded.
    #[serde(default)]
    pub version_args: Vec<String>,
    /// Directories searched after `PATH`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_directories: Vec<String>,
    /// Which modes need it, for `doctor`; empty: none needs it, it only helps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needed_by: Vec<Mode>,
    /// Packages that carry it, by package family (`apt`, `dnf`, `pacman`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, Vec<String>>,
}
