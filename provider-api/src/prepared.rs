//! An engine that is ready to be started: what exactly is run, and how it is judged.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Mode, Profile, Template};

/// Everything the host needs to start, judge and stop one engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PreparedEngine {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Engine family.
    pub engine: String,
    /// What was provisioned: `<commit, 12 digits>-<back end>` for source. `(known after build)`
    /// while it depends on results that are only expected.
    pub engine_version: String,
    /// How it came onto the machine.
    pub provisioning_mode: Mode,
    /// How it is started.
    pub launch: Launch,
    /// Small files placed for the engine before it starts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<PlacedFile>,
    /// How it is asked whether it is ready, and what it is.
    pub probes: Probes,
    /// How it is stopped.
    #[serde(default)]
    pub stop: Stop,
    /// What it will take of the machine.
    #[serde(default)]
    pub resources: Resources,
    /// The model it serves.
    pub model: Model,
    /// Normalised engine flags, for the handoff.
    #[serde(default)]
    pub flags: Vec<String>,
    /// Requests it serves at the same time.
    pub slots_total: u32,
    /// What it can be asked to do, for example `completion`, `chat`.
    #[serde(default)]
    pub workloads: Vec<String>,
    /// What it is tuned for.
    #[serde(default)]
    pub profile: Profile,
    /// Known failures: what the log says, what it means, what helps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diagnoses: Vec<Diagnosis>,
    /// How it is proven that the engine sits on the GPU; absent where it need not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_evidence: Option<GpuEvidence>,
    /// Protocol it speaks, for example `openai`.
    pub dialect: String,
    /// GPUs it may see, as driver ids. Empty: none or all, as the launch says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub device_mask: Vec<String>,
    /// What went into it, long form, for the record.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub build_record: BTreeMap<String, String>,
    /// What the operator should worry about, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// How an engine is started. A reader refuses a kind it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Launch {
    /// As a process of this machine.
    Process(ProcessLaunch),
    /// In a container.
    Container(ContainerLaunch),
    /// Not at all: it runs already.
    External(ExternalLaunch),
}

impl Launch {
    /// Features that a reader must have to start it, as they stand in `requires`.
    fn features(&self) -> Vec<&'static str> {
        match self {
            Self::Process(launch) if !launch.more_ports.is_empty() => vec!["launch.ports@1.1.0"],
            Self::Process(_) => Vec::new(),
            Self::Container(_) => vec!["launch.container@1.1.0"],
            Self::External(_) => vec!["launch.external@1.1.0"],
        }
    }
}

impl PreparedEngine {
    /// Names in `requires` every feature that the launch and the proof of the GPU rely on. Called on
    /// everything that crosses the boundary, so that a provider cannot forget one.
    pub(crate) fn announce(&mut self) {
        let mut needed = self.launch.features();
        if let Some(evidence) = &self.gpu_evidence
            && (evidence.driver_memory || !evidence.proofs.is_empty())
        {
            needed.push("gpu-evidence.driver@1.1.0");
        }
        crate::version::announce(&mut self.requires, needed);
    }
}

/// A process. It starts from an empty environment plus the host's allow-list plus `env`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessLaunch {
    /// Program: a path below a step's result, `{STEP.path}/…`.
    pub program: Template,
    /// Arguments. Must use `{address.host}` and `{address.port}`.
    pub args: Vec<Template>,
    /// Environment; the only place for `{secret.NAME}`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// Port that is usual for the engine; the host tries the pool's ports, else this one upward.
    pub usual_port: u16,
    /// Ports beside the one that answers requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub more_ports: Vec<ExtraPort>,
}

/// A port beside the one that answers requests: `{port.NAME}` in arguments, environment and files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExtraPort {
    /// Name, `[a-z0-9-]{1,63}`, for example `grpc`; a key of `endpoints` in the handoff.
    pub name: String,
    /// Port that is usual for it; the host takes this one or one above it. In a container it is the
    /// port that the engine listens on inside.
    pub usual_port: u16,
}

/// A container. The host adds what does not depend on the engine: its name and labels, the published
/// address, devices, limits and everything that is taken away from it.
///
/// The engine must listen on `{address.host}` and `{address.port}`, which are those inside the
/// container. The environment is the image's plus `env`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ContainerLaunch {
    /// Step that pulled the image.
    pub image: String,
    /// Program inside the image and what comes before the arguments; empty: the image's own.
    pub entrypoint: Vec<String>,
    /// Arguments. Nothing here can name a path of this machine: models and caches are mounted.
    pub args: Vec<Template>,
    /// Environment, added to the image's; the only place for `{secret.NAME}`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// Directories and files of this machine.
    pub mounts: Vec<Mount>,
    /// Port inside the container that answers requests.
    pub port: u16,
    /// Port of this machine that is usual for the engine; 0: the one inside. The host tries the
    /// pool's ports, else this one upward.
    pub usual_port: u16,
    /// Ports beside the one that answers requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub more_ports: Vec<ExtraPort>,
    /// User and group inside the container, numbers, for example `2000:0`; absent: the image's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Size of `/dev/shm` in bytes; 0: the runtime's default of 64 MiB.
    pub shm_bytes: u64,
    /// Whether it wants to lock as much memory as it likes.
    pub unlimited_memlock: bool,
    /// Whether it bears a root file system that cannot be written.
    pub read_only_root: bool,
    /// Directories inside that are kept in memory and can be written, beside `/tmp`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tmpfs: Vec<String>,
}

/// A file or directory of this machine inside a container.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Mount {
    /// `{STEP.path}` or something below it, `{files}` or something below it, or `{cache.NAME}`. Only
    /// a cache can be written. The first part of a split GGUF model, `NAME-00001-of-00003.gguf`, brings
    /// the others with it, beside it, where the target is named in the same way.
    pub source: Template,
    /// Absolute path inside the container.
    pub target: String,
}

/// An engine that runs already: it is probed and handed off, never started nor stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExternalLaunch {
    /// Where it answers, `http://…`, as in the pool.
    pub url: String,
}

/// A small text placed for the engine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacedFile {
    /// Path relative to the instance's directory, `{files}/…` in the launch; never leaves it.
    pub path: String,
    /// Content.
    pub text: Template,
}

/// How a running engine is asked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probes {
    /// Whether it is ready.
    pub readiness: ReadinessProbe,
    /// What it says it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionProbe>,
    /// Path of its Prometheus metrics, where they are switched on; checked once when it is ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<String>,
    /// Name of the extra port that has the metrics; absent: they are beside the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<String>,
}

/// HTTP request that tells whether an engine is ready.
///
/// Refused, reset and closed connections always mean *not yet*, as long as the engine lives.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReadinessProbe {
    /// Path, for example `/health`.
    pub path: String,
    /// Status codes that mean ready.
    pub ok: Vec<u16>,
    /// Status codes that mean not yet. Any other code is an error at once.
    pub loading: Vec<u16>,
}

/// HTTP request that tells what an engine says it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VersionProbe {
    /// Path, for example `/props`.
    pub path: String,
    /// JSON pointer (RFC 6901) into the answer, for example `/build_info`.
    pub pointer: String,
}

/// How an engine is stopped: drained, then TERM, then after the pool's grace time KILL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stop {
    /// How it is seen that no request is in flight; absent: TERM at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<DrainProbe>,
    /// Whether a second TERM makes it end at once.
    #[serde(default)]
    pub second_term_ends_at_once: bool,
}

/// HTTP request whose answer tells how many requests are in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DrainProbe {
    /// Path of Prometheus metrics, for example `/metrics`.
    pub path: String,
    /// Gauge that is 0 when idle, for example `llamacpp:requests_processing`.
    pub gauge: String,
    /// Name of the extra port that has it; absent: beside the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<String>,
}

/// What an engine will take of the machine.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Resources {
    /// Device memory in bytes, over all devices; 0 for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vram_bytes: Option<u64>,
    /// Main memory in bytes, without which it would not run or only by swapping; absent: not known. It is
    /// not started where less is available.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}

/// The model an engine serves.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Model {
    /// Public name.
    pub id: String,
    /// Absolute path, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Digest, `sha256:…`, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A known failure.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Regular expression searched in the engine's log, line by line.
    pub pattern: String,
    /// What it means, one sentence; `$name` is filled from the pattern's named groups.
    pub meaning: String,
    /// What helps.
    pub fix: String,
    /// Whether another port may help: the host then tries the next one.
    #[serde(default)]
    pub port_taken: bool,
    /// What it was that failed, where that is no matter of the engine's own; told apart where engines
    /// that fell are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<DiagnosisKind>,
}

/// What failed, where it was not the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DiagnosisKind {
    /// A GPU or its driver.
    Gpu,
    /// Memory was full: the GPU's or the machine's.
    Memory,
    /// Something that only later versions tell apart.
    #[serde(other)]
    Other,
}

/// How it is proven that an engine sits on the GPU. Every part that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GpuEvidence {
    /// Devices, in the engine's own names, that must each hold something, for example `CUDA0`.
    pub devices: Vec<String>,
    /// Regular expressions over the log, each with the groups `device` and `mib`. Empty: the log does
    /// not tell which device holds what.
    pub buffers: Vec<String>,
    /// Least share of all buffer bytes named in the log that must lie on `devices`, 0 to 100. What
    /// an engine keeps on the host by design (an input layer) is allowed for here.
    pub least_percent: u8,
    /// Regular expressions over the log, none of which may match, for example a line that says that
    /// a layer's cache lies in main memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disproofs: Vec<String>,
    /// Regular expressions over the log, each of which must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proofs: Vec<String>,
    /// Whether the driver must say that the engine holds device memory. Without it the driver is
    /// asked too, but may know nothing.
    #[serde(default)]
    pub driver_memory: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Document as _;

    fn announced(text: &str) -> Vec<String> {
        let mut engine = PreparedEngine::read(text).unwrap();
        engine.requires.clear();
        engine.announce();
        // Whoever writes it can read it.
        PreparedEngine::read(&engine.write()).unwrap();
        engine.requires
    }

    #[test]
    fn every_launch_of_contract_1_1_is_announced_with_the_version_that_brought_it() {
        let evidence = "gpu-evidence.driver@1.1.0";
        for (text, launch) in [
            (
                include_str!("../tests/documents/1.1/PreparedEngine.json"),
                "launch.container@1.1.0",
            ),
            (
                include_str!("../tests/documents/1.1/PreparedEngine.process.json"),
                "launch.ports@1.1.0",
            ),
            (
                include_str!("../tests/documents/1.1/PreparedEngine.external.json"),
                "launch.external@1.1.0",
            ),
        ] {
            assert_eq!(announced(text), [launch, evidence]);
        }
    }

    #[test]
    fn a_launch_that_contract_1_0_had_is_not_announced() {
        let all = include_str!("../tests/documents/1.0/PreparedEngine.json");
        let least = include_str!("../tests/documents/1.0/PreparedEngine.least.json");
        assert!(announced(all).is_empty());
        assert!(announced(least).is_empty());
    }
}
