//! A pool: one engine with one model and its settings, every default already filled in.
//!
//! The host reads pool files, checks them, applies policy and flags, and hands the result to the
//! provider in this shape. A field that stands here is honoured or refused with a reason.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{IntoDeserializer as _, value::StringDeserializer},
};

/// One engine, one model, their settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pool {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Name of the pool, `[a-z0-9-]{1,63}`.
    pub id: String,
    /// Engine family: the name of the provider that serves it.
    pub engine: String,
    /// Public name of the model, as clients will ask for it. Default: derived from its reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Quantisation to pick where a reference offers several, for example `Q4_K_M`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant: Option<String>,
    /// Context length in tokens. Default: the engine's, from the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ctx: Option<u32>,
    /// GPUs to use. Empty: all that are usable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<Device>,
    /// Share of the model per device, in the order of `devices`; any positive scale.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tensor_split: Vec<f64>,
    /// Whether a daemon starts the pool at once (`true`) or on demand.
    #[serde(default = "yes")]
    pub preload: bool,
    /// What the engine is tuned for.
    #[serde(default)]
    pub profile: Profile,
    /// Settings of this engine only; checked against the provider's schema.
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub options: serde_json::Map<String, serde_json::Value>,
    /// Whether a GPU must, may or must not be used. Policy and flags are already applied.
    #[serde(default)]
    pub gpu: GpuPolicy,
    /// Number of engines to run.
    #[serde(default = "one")]
    pub replicas: u32,
    /// How long loading may take.
    #[serde(default)]
    pub readiness: Readiness,
    /// How the engine is stopped.
    #[serde(default)]
    pub stop: StopSettings,
    /// Where engine and model come from.
    #[serde(default)]
    pub provisioning: Provisioning,
}

impl Pool {
    /// A pool with every setting at its default.
    pub fn new(id: impl Into<String>, engine: impl Into<String>) -> Self {
        Self {
            requires: Vec::new(),
            id: id.into(),
            engine: engine.into(),
            model: None,
            quant: None,
            ctx: None,
            devices: Vec::new(),
            tensor_split: Vec::new(),
            preload: yes(),
            profile: Profile::default(),
            options: serde_json::Map::new(),
            gpu: GpuPolicy::default(),
            replicas: one(),
            readiness: Readiness::default(),
            stop: StopSettings::default(),
            provisioning: Provisioning::default(),
        }
    }
}

fn yes() -> bool {
    true
}

fn one() -> u32 {
    1
}

/// A GPU as an operator names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Device {
    /// Index in the driver's order.
    Index(u32),
    /// Driver-assigned id, `GPU-…` or `MIG-…`.
    Uuid(String),
}

/// What an engine is tuned for.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Equal requests with equal seeds give equal texts.
    #[default]
    Deterministic,
    /// As many tokens per second as the machine gives.
    Throughput,
}

/// Whether a GPU must, may or must not be used.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum GpuPolicy {
    /// GPU or failure: decided before anything is fetched, proven after the start.
    #[default]
    Require,
    /// GPU where there is one, else the processor, said aloud.
    Prefer,
    /// Processor only.
    Forbid,
}

/// How an engine comes onto the machine.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Built here from source.
    Source,
    /// Run from a container image.
    Container,
    /// Installed from a package manager.
    Package,
    /// Downloaded as a program.
    Binary,
    /// Already running elsewhere: attach only.
    External,
}

impl Mode {
    /// The word used in pool files and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Container => "container",
            Self::Package => "package",
            Self::Binary => "binary",
            Self::External => "external",
        }
    }
}

/// Reads a list of modes and leaves out those of later contract versions: a provider that offers more
/// than this side knows still offers the rest.
pub(crate) fn known_modes<'de, D: Deserializer<'de>>(source: D) -> Result<Vec<Mode>, D::Error> {
    let words = Vec::<String>::deserialize(source)?;
    let known = |word: String| {
        let word: StringDeserializer<serde::de::value::Error> = word.into_deserializer();
        Mode::deserialize(word).ok()
    };
    Ok(words.into_iter().filter_map(known).collect())
}

impl std::fmt::Display for Mode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// How long loading may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Readiness {
    /// Longest silence accepted from a loading engine, in milliseconds since its last sign of
    /// progress (log growth or bytes read), not since its start.
    pub stall_timeout_ms: u64,
    /// Longest time from its start until it is ready, in milliseconds, whatever progress it makes;
    /// `None`: the host's own limit. Since contract 1.2.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl Default for Readiness {
    fn default() -> Self {
        Self {
            stall_timeout_ms: 120_000,
            timeout_ms: None,
        }
    }
}

/// How the engine is stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StopSettings {
    /// Time between TERM and KILL, in milliseconds.
    pub grace_ms: u64,
}

impl Default for StopSettings {
    fn default() -> Self {
        Self { grace_ms: 5_000 }
    }
}

/// Where engine and model come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Provisioning {
    /// How the engine comes onto the machine. Default: the provider's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// Settings of mode `source`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Settings of mode `container`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<Container>,
    /// Settings of mode `package`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package: Option<Package>,
    /// Settings of mode `binary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<Binary>,
    /// Settings of mode `external`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub external: Option<External>,
    /// The model to stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelSource>,
    /// Ports to try in this order. Empty: the engine's usual port, then upward.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<u16>,
    /// Environment of the engine, added to the allow-list's.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Arguments for the engine, added to those the provider manages.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<String>,
}

/// Settings of mode `source`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Source {
    /// Git URL. Default: the engine's own repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// Full commit, tag or branch. Default: the provider's pinned commit.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Whether submodules are checked out too.
    pub submodules: bool,
    /// How it is built.
    pub build: Build,
}

/// How source is built.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Build {
    /// Arguments for cmake's configure run, after the provider's own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cmake_flags: Vec<String>,
    /// Generator for cmake. Default: Ninja where it is found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generator: Option<String>,
    /// Directory of the compiler cache. Default: one under the host's root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<String>,
}

/// Settings of mode `container`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Container {
    /// Image repository.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Digest, `sha256:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Container runtime: `podman` or `docker`. Default: podman where it works, else docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<String>,
    /// Processors the engine may run on, for example `0-7,16-23`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<String>,
    /// Memory nodes (NUMA) it may use, for example `0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa_nodes: Option<String>,
    /// Size of its `/dev/shm` in bytes, instead of what its provider says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shm_bytes: Option<u64>,
}

/// Settings of mode `package`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Package {
    /// Package name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Exact version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Repository it must come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
}

/// Settings of mode `binary`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Binary {
    /// Where it is downloaded from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Where it can be downloaded from as well, in this order: the same bytes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Image that it is taken out of instead, without running it; needs its digest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<Container>,
    /// Upstream's own version, recorded beside the checksum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Path of the program in the archive or image. Default: where the engine's own releases have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Expected digest, `sha256:…` or `sha512:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Where it is installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_dir: Option<String>,
}

/// Settings of mode `external`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct External {
    /// URL of the running engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// The model to stage.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ModelSource {
    /// Reference: `builtin:haiku`, `file:/abs/model.gguf`, `./model.gguf`, `https://…`, `hf:…`.
    #[serde(rename = "ref")]
    pub reference: String,
    /// Where the file behind a URL can be had as well, in this order: the same bytes, told by `checksum`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Directory to stage it into instead of the host's store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<String>,
    /// Expected digest, `sha256:…`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checksum: Option<String>,
    /// Patterns of the files to take from a repository, `*` for any text, `/` included; empty: those
    /// that an engine needs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Patterns of the files to leave; they win over `include`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
}
