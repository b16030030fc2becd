//! What is written down about a model.

use std::{collections::BTreeMap, path::PathBuf};

use engine_provider_api::{Artifact, ArtifactState, ModelFacts, ModelShape};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::source::Versions;

/// A model that is here.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// What it is called here: a name for people and the first digits of its digest.
    pub id: String,
    /// References that it was asked for by.
    pub names: Vec<Name>,
    /// Whether it is a file or a directory.
    pub shape: ModelShape,
    /// What an engine reads.
    pub path: PathBuf,
    /// `sha256:…` of the file, or of the listing of the directory.
    pub digest: String,
    /// A digest of another algorithm that it was compared with and held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub also: Option<String>,
    /// Bytes of all its files.
    pub size_bytes: u64,
    /// Its files, sorted by name.
    pub files: Vec<EntryFile>,
    /// Commit, version or strong `ETag`, where the source has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Licence, where the source says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub licence: Option<String>,
    /// What its own files say that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<ModelFacts>,
    /// Whether new engines may be started with it.
    pub state: State,
    /// When it was first here.
    pub added: Timestamp,
    /// Where its content came from and who said that it is right.
    pub provenance: Provenance,
}

/// A reference that a model was asked for by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Name {
    /// The reference as it was written, without secrets.
    pub reference: String,
    /// What it was then: a reference that never means anything else.
    pub pinned: String,
    /// Versions of its files then, where that reference leaves them open and their place keeps older ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub versions: BTreeMap<String, String>,
    /// When its source was asked.
    #[schemars(with = "String")]
    pub resolved: Timestamp,
    /// Quantisation that was picked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant: Option<String>,
    /// Patterns of the files that were taken from a repository.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Patterns of the files that were left.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// What it is looked up by.
    #[serde(default)]
    #[schemars(skip)]
    pub key: String,
}

/// A file of a model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EntryFile {
    /// Path in the model.
    pub name: String,
    /// SHA-256, 64 hexadecimal digits.
    pub sha256: String,
    /// Size.
    pub size_bytes: u64,
    /// Where it lies, where that is not the store: a user's own file, never changed and never removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<PathBuf>,
}

/// Where a model's content came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Provenance {
    /// What kind of place.
    pub origin: Origin,
    /// URLs and paths that gave it, without secrets: of each place that of the first file.
    pub from: Vec<String>,
    /// Who said what it must be.
    pub trust: Trust,
}

/// What kind of place a model came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// This program.
    Builtin,
    /// A user's own file or directory.
    File,
    /// A plain URL.
    Url,
    /// A Hugging Face hub.
    Hub,
    /// An S3 bucket.
    S3,
    /// An OCI registry.
    Oci,
}

/// Who said what a model must be, the strongest first.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Trust {
    /// The operator: a checksum in the pool file or on the command line.
    Checksum,
    /// Its source: a digest that it publishes beside the content.
    Source,
    /// Nobody: what came first is what it must be from then on.
    FirstUse,
}

/// Whether new engines may be started with a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// They may.
    Active,
    /// They may not; it goes as soon as nothing uses it and a clean-up comes by.
    Retired,
}

/// A time as people read it.
pub(crate) fn moment(time: Timestamp) -> String {
    time.strftime("%F %TZ").to_string()
}

impl State {
    /// The word shown to people.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Retired => "retired",
        }
    }
}

impl Entry {
    /// What a step that wanted it is given.
    pub(in crate::model) fn artifact(&self) -> Artifact {
        Artifact {
            state: ArtifactState::Obtained,
            path: Some(self.path.to_string_lossy().into_owned()),
            digest: Some(self.digest.clone()),
            size_bytes: Some(self.size_bytes),
            model: self.facts.clone(),
            ..Artifact::default()
        }
    }

    /// Whether it was compared with this digest, in whichever algorithm, and held.
    pub(in crate::model) fn is_known_as(&self, digest: &str) -> bool {
        self.digest == digest || self.also.as_deref() == Some(digest)
    }

    /// The name that is looked up by this key.
    pub(in crate::model) fn name(&self, key: &str) -> Option<&Name> {
        self.names.iter().find(|name| name.key == key)
    }

    /// Its files with the versions that they were under this name; empty where none has one.
    pub(in crate::model) fn versions(&self, key: &str) -> Versions {
        let versions = self.name(key).map(|name| &name.versions);
        let Some(versions) = versions.filter(|versions| !versions.is_empty()) else {
            return Versions::new();
        };
        let files = self.files.iter();
        let files = files.map(|file| (file.name.clone(), versions.get(&file.name).cloned()));
        files.collect()
    }

    /// SHA-256 of the files that lie in the store.
    pub(super) fn blobs(&self) -> impl Iterator<Item = &str> {
        let own = self.files.iter().filter(|file| file.place.is_none());
        own.map(|file| file.sha256.as_str())
    }
}
