//! The pool file as it is written: the one source of its schema, its checks and its manual.

use std::collections::BTreeMap;

use engine_provider_api::{
    Binary, Container, Device, External, GpuPolicy, Mode, ModelSource, Package, Profile,
    Source as SourceSettings,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{duration, notify::NotifyWritten, schema, supervision::SupervisionWritten};
use crate::policy::PolicyFile;

/// A pool file: the engines wanted here and what may be done to get them.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(title = "Pool file")]
#[schemars(extend("x-help" = "it begins with `pools:`"))]
pub struct PoolFile {
    /// The pools. At least one.
    #[schemars(length(min = 1))]
    pub pools: Vec<PoolWritten>,
    /// What all pools of this file ask of the policy. The machine's policy is a ceiling.
    #[serde(default)]
    pub policy: Option<PolicyFile>,
    /// Whom a daemon tells of handoffs, beside their files.
    #[serde(default)]
    pub notify: Option<NotifyWritten>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub catalog: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub queue: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub admission: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub timeouts: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub sampler_profile_version: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub require_same_engine_version: Option<Value>,
}

/// Fields that are looked for beside a pool's own, each with where it stands.
fn elsewhere() -> Value {
    let below = |map: &str, names: &[&str]| {
        let place = |name: &&str| ((*name).to_owned(), format!("`{map}.{name}`").into());
        names.iter().map(place).collect::<Map<_, _>>()
    };
    let provisioning = [
        "mode",
        "source",
        "container",
        "package",
        "binary",
        "external",
        "ports",
        "env",
        "flags",
        "allow_package_installs",
        "allow_binary_downloads",
    ];
    let mut all = below("provisioning", &provisioning);
    all.extend(below("provisioning.model", &["ref", "checksum", "mirrors"]));
    all.extend(below("readiness", &["stall_timeout", "timeout"]));
    all.extend(below("stop", &["grace"]));
    all.insert("port".to_owned(), "`provisioning.ports`".into());
    for name in ["run_as", "network", "tools"] {
        let place = format!("`policy.{name}`, beside `pools`");
        all.insert(name.to_owned(), place.into());
    }
    Value::Object(all)
}

/// One engine with one model and its settings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pool", extend("x-elsewhere" = elsewhere()))]
pub struct PoolWritten {
    /// Name of the pool: lower-case letters, digits and `-`, at most 63.
    #[schemars(regex(pattern = r"^[a-z0-9-]{1,63}$"))]
    #[schemars(extend("x-help" = "use 1 to 63 lower-case letters, digits and `-`"))]
    pub id: String,
    /// Engine family: the name of its provider, for example `llamacpp`.
    #[schemars(regex(pattern = r"^[a-z0-9-]{1,63}$"))]
    #[schemars(extend("x-help" = "use the name of a provider, for example `llamacpp`"))]
    pub engine: String,
    /// Public name of the model, as clients ask for it. Default: derived from its reference. Where
    /// `provisioning.model` is missing, a reference that stands here is taken for it.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub model: Option<String>,
    /// Quantisation to pick where a reference offers several, for example `Q4_K_M`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub quant: Option<String>,
    /// Context length in tokens. Default: from the model.
    #[serde(default)]
    #[schemars(range(min = 1))]
    pub ctx: Option<u32>,
    /// GPUs to use, by driver index or id (`GPU-…`, `MIG-…`). Default: all that are usable.
    #[serde(default)]
    pub devices: Vec<Device>,
    /// Share of the model per device, in the order of `devices`; any positive scale.
    #[serde(default)]
    pub tensor_split: Vec<f64>,
    /// Whether a daemon starts the pool at once or on demand. Default: `true`.
    #[serde(default)]
    pub preload: Option<bool>,
    /// What the engine is tuned for. Default: `deterministic`.
    #[serde(default)]
    pub profile: Option<Profile>,
    /// Settings of this engine only, checked against its provider's schema.
    #[serde(default)]
    pub options: Map<String, Value>,
    /// Whether a GPU must, may or must not be used. Default: `require`.
    #[serde(default)]
    pub gpu: Option<GpuPolicy>,
    /// Number of engines to run. Default: 1.
    #[serde(default)]
    #[schemars(range(min = 1, max = 1000))]
    pub replicas: Option<u32>,
    /// How long loading may take.
    #[serde(default)]
    pub readiness: Option<ReadinessWritten>,
    /// How the engine is stopped.
    #[serde(default)]
    pub stop: Option<StopWritten>,
    /// How a daemon keeps the pool up.
    #[serde(default)]
    pub supervision: Option<SupervisionWritten>,
    /// Where engine and model come from.
    #[serde(default)]
    pub provisioning: Option<ProvisioningWritten>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub catalog: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub queue: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub admission: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub timeouts: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub sampler_profile_version: Option<Value>,
    /// Of an orchestrator; accepted and not used.
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    pub require_same_engine_version: Option<Value>,
}

/// How long loading may take.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Readiness")]
pub struct ReadinessWritten {
    /// Longest silence accepted from a loading engine, counted from its last sign of progress.
    /// Default: `120s`.
    #[serde(default)]
    pub stall_timeout: Option<DurationText>,
    /// Longest time from the engine's start until it is ready, whatever progress it makes: some write
    /// their log for as long as they wait. Default: `6h`.
    #[serde(default)]
    pub timeout: Option<DurationText>,
}

/// How the engine is stopped.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Stop")]
pub struct StopWritten {
    /// Time between TERM and KILL. Default: `5s`.
    #[serde(default)]
    pub grace: Option<DurationText>,
}

/// A duration with its unit, for example `500ms`, `120s`, `1m30s`, `2h`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[schemars(rename = "Duration", extend(
    "pattern" = duration::PATTERN,
    "x-help" = "write a duration with its unit, for example `500ms`, `120s`, `1m30s` or `2h`"
))]
pub struct DurationText(pub String);

/// Where engine and model come from.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Provisioning")]
pub struct ProvisioningWritten {
    /// How the engine comes onto the machine. Default: the only one whose settings stand here,
    /// else the provider's.
    pub mode: Option<Mode>,
    /// Whether distribution packages may be installed for this pool. Default: `false`.
    pub allow_package_installs: Option<bool>,
    /// Whether programs may be downloaded for this pool. Default: `false`.
    pub allow_binary_downloads: Option<bool>,
    /// Settings of mode `source`.
    pub source: Option<SourceSettings>,
    /// Settings of mode `container`.
    pub container: Option<Container>,
    /// Settings of mode `package`.
    pub package: Option<Package>,
    /// Settings of mode `binary`.
    pub binary: Option<Binary>,
    /// Settings of mode `external`.
    pub external: Option<External>,
    /// The model to stage.
    pub model: Option<ModelWritten>,
    /// Ports to try in this order. Default: the engine's usual port, then upward.
    #[schemars(inner(range(min = 1)))]
    pub ports: Vec<u16>,
    /// Environment of the engine. `{secret.NAME}` is filled in when the engine starts.
    pub env: BTreeMap<String, String>,
    /// Arguments for the engine, added to those the provider manages.
    pub flags: Vec<String>,
}

/// The model to stage.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Model", extend("x-help" = "write `model: {ref: builtin:haiku}`"))]
pub struct ModelWritten {
    /// Reference: `builtin:haiku`, `file:/abs/model.gguf`, `./model.gguf` (from the directory of
    /// this file), `https://…`, `hf:organisation/repository[/file]`, `s3://…`, `oci://…`.
    #[serde(rename = "ref")]
    #[schemars(length(min = 1))]
    pub reference: String,
    /// Where the file behind an `https://` reference can be had as well, in this order: the same bytes,
    /// told by `checksum`.
    #[serde(default)]
    pub mirrors: Vec<String>,
    /// Directory to stage it into instead of the host's store.
    #[serde(default)]
    pub cache_dir: Option<String>,
    /// Expected digest, `sha256:…`.
    #[serde(default)]
    pub checksum: Option<String>,
    /// Patterns of the files to take from a repository, `*` for any text, `/` included; default:
    /// those that an engine needs.
    #[serde(default)]
    pub include: Vec<String>,
    /// Patterns of the files to leave; they win over `include`.
    #[serde(default)]
    pub exclude: Vec<String>,
}

impl From<ModelWritten> for ModelSource {
    fn from(written: ModelWritten) -> Self {
        Self {
            reference: written.reference,
            mirrors: written.mirrors,
            cache_dir: written.cache_dir,
            checksum: written.checksum,
            include: written.include,
            exclude: written.exclude,
        }
    }
}

/// JSON Schema (2020-12) of pool files, saying exactly what the check accepts.
#[must_use]
pub fn pool_file_schema() -> Value {
    let mut value = schemars::schema_for!(PoolFile).to_value();
    schema::close(&mut value);
    value
}
