//! What a step obtained, or will obtain.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Facts, Mode, ModelFacts, Pool};

/// The result of a step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Artifact {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Whether it is there.
    pub state: ArtifactState,
    /// Absolute path, where it has one and it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Digest of its content, `sha256:…`, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Size in bytes, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Full commit, of a checkout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// What was printed, of an observation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Output>,
    /// Labels of a build, and other small facts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Which attempt of a build succeeded, counted from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// What a container image is, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<Image>,
    /// What a model is, as far as its own files say. Since contract 1.2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelFacts>,
}

/// A container image, by what its registry says of it before its layers are fetched.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Image {
    /// Name by digest, for example `docker.io/vllm/vllm-openai@sha256:…`; empty while the digest is
    /// not known.
    pub reference: String,
    /// Digest of this platform's image, `sha256:…`; empty while it is not known.
    pub digest: String,
    /// Tag it was asked for by, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Labels of its configuration, for example `org.opencontainers.image.version`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What it asks of the driver: value of `NVIDIA_REQUIRE_CUDA`, for example `cuda>=12.9`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requires_cuda: Option<String>,
    /// User it runs as, for example `2000:0`; empty: root.
    pub user: String,
    /// What it runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
}

impl Image {
    /// `org.opencontainers.image.version` where the image says it, else the tag it was asked by.
    #[must_use]
    pub fn version(&self) -> Option<&str> {
        self.labels
            .get("org.opencontainers.image.version")
            .or(self.tag.as_ref())
            .map(String::as_str)
    }
}

/// Whether an artifact is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ArtifactState {
    /// Planned; its path may be known, its content is not.
    #[default]
    Expected,
    /// There and verified.
    Obtained,
}

/// What an observed program printed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Output {
    /// Exit code; absent when a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// Standard output, at most 1 MiB.
    pub stdout: String,
    /// Standard error, at most 1 MiB.
    pub stderr: String,
}

/// What a provider is asked to prepare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PrepareRequest {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// The pool, as it was planned.
    pub pool: Pool,
    /// The mode that was planned.
    pub mode: Mode,
    /// The machine, as it was planned for.
    pub facts: Facts,
    /// Results by step id; all `expected` while only a plan is shown.
    pub artifacts: BTreeMap<String, Artifact>,
}

impl PrepareRequest {
    /// The artifact of a step.
    #[must_use]
    pub fn artifact(&self, step: &str) -> Option<&Artifact> {
        self.artifacts.get(step)
    }

    /// What is known of the image that a step pulled; `None` while nothing is.
    #[must_use]
    pub fn image(&self, step: &str) -> Option<&Image> {
        self.artifact(step)?.image.as_ref()
    }

    /// What an observation printed; `None` while it is only expected.
    #[must_use]
    pub fn output(&self, step: &str) -> Option<&Output> {
        self.artifact(step)?.output.as_ref()
    }
}
