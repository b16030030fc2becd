//! What has to be done before an engine can run: a directed acyclic graph of steps.
//!
//! A provider names steps; the host carries them out, with its own locking, caching, verification
//! and policy. An edge is a placeholder such as `{checkout.path}` or an entry in `after`. Steps
//! without an edge between them run at the same time.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Facts, Mode, Pool, Template};

/// What a provider is asked to plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlanRequest {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// The pool, every default filled in, policy and flags applied.
    pub pool: Pool,
    /// How the engine is to come onto the machine.
    pub mode: Mode,
    /// The machine.
    pub facts: Facts,
}

/// What has to be done, and what an operator should know about it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Features the reader must have; see [`crate::version`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Steps in the order they are shown.
    pub steps: Vec<Step>,
    /// What was decided and how to change it, one line each, for example the profile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// What the operator should worry about, one line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

impl Plan {
    /// Names in `requires` every feature that the steps rely on. Called on everything that crosses
    /// the boundary, so that a provider cannot forget one.
    pub(crate) fn announce(&mut self) {
        let needed = self.steps.iter().flat_map(|step| step.act.features());
        crate::version::announce(&mut self.requires, needed);
    }
}

/// One step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Name, `[a-z0-9-]{1,63}`, unique in the plan and none of the reserved placeholder words
    /// (`tool`, `work`, `jobs`, `cache`, `address`, `secret`, `files`). Shown to operators and used in
    /// placeholders.
    pub id: String,
    /// Steps that must be finished first although nothing of theirs is referred to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<String>,
    /// What is to be done.
    #[serde(flatten)]
    pub act: Act,
}

/// What a step does. A reader refuses a kind it does not know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Act {
    /// See that tools are there; install them where policy allows.
    RequireTools(RequireTools),
    /// Obtain one commit of a source tree.
    Checkout(Checkout),
    /// Obtain files by URL and digest.
    Download(Download),
    /// Run commands that turn inputs into outputs.
    Build(Build),
    /// Run an obtained program with fixed arguments and keep what it prints.
    Observe(Observe),
    /// Obtain the model.
    StageModel(StageModel),
    /// Obtain a container image.
    PullImage(PullImage),
    /// Take files out of a container image, without running it.
    ExtractImage(ExtractImage),
    /// See that a program is installed by the distribution's package manager.
    InstallPackages(InstallPackages),
}

impl Act {
    /// The word that stands in `kind`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::RequireTools(_) => "require-tools",
            Self::Checkout(_) => "checkout",
            Self::Download(_) => "download",
            Self::Build(_) => "build",
            Self::Observe(_) => "observe",
            Self::StageModel(_) => "stage-model",
            Self::PullImage(_) => "pull-image",
            Self::ExtractImage(_) => "extract-image",
            Self::InstallPackages(_) => "install-packages",
        }
    }

    /// Features that a reader must have to carry this out, as they stand in `requires`.
    fn features(&self) -> Vec<&'static str> {
        match self {
            Self::PullImage(_) => vec!["step.pull-image@1.1.0"],
            Self::ExtractImage(_) => vec!["step.extract-image@1.1.0"],
            Self::InstallPackages(_) => vec!["step.install-packages@1.1.0"],
            Self::Build(build) if build.fixed_path => vec!["build.fixed-path@1.1.0"],
            Self::Download(download) if download.program => vec!["download.program@1.1.0"],
            Self::Observe(observe) if !observe.env.is_empty() => {
                vec!["observe.environment@1.1.0"]
            }
            Self::StageModel(model) if model.shape == ModelShape::Directory => {
                vec!["model.directory@1.1.0"]
            }
            _ => Vec::new(),
        }
    }
}

/// Tools that later steps need. Its artifact has no path; later steps write `{tool.NAME}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RequireTools {
    /// The tools.
    pub tools: Vec<ToolRequirement>,
}

/// One tool that must be there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ToolRequirement {
    /// Name as in `ProviderInfo::tools`.
    pub name: String,
    /// What it is needed for, for the message when it is missing.
    pub purpose: String,
    /// Oldest version that will do, compared by numbers. Empty: any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub minimum_version: String,
    /// Packages that carry it, by package family (`apt`, `dnf`, `pacman`, `aur`).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub packages: BTreeMap<String, Vec<String>>,
    /// Whether the plan works without it: then it is installed where that is allowed, and its
    /// absence is no failure.
    #[serde(default)]
    pub optional: bool,
}

/// One commit of a source tree. Its artifact is the directory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Checkout {
    /// Where it can be had, best first; each gives the same commit.
    pub mirrors: Vec<Mirror>,
    /// Full commit id (40 hexadecimal digits), or a branch or tag that the host resolves to one
    /// through the first git mirror that answers.
    pub commit: String,
    /// Whether submodules are checked out too.
    #[serde(default)]
    pub submodules: bool,
    /// Words for the events of this step.
    #[serde(default)]
    pub narration: Narration,
}

/// A place that has a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Mirror {
    /// A git repository.
    Git {
        /// Its URL.
        url: String,
    },
    /// Git objects inside a source distribution of the Python package index that the facts name.
    ///
    /// The archive is verified and read; nothing in it is executed or obeyed.
    Index {
        /// Project name, for example `llama-cpp-python`.
        project: String,
        /// Exact version.
        version: String,
        /// SHA-256 of the archive, 64 hexadecimal digits.
        sha256: String,
        /// Directory of the git objects inside the archive, below its top directory.
        git_directory: String,
    },
}

/// Files by URL and digest. Its artifact is the file, or the directory it was unpacked into.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Download {
    /// Where it can be had, best first; each gives the same bytes.
    pub urls: Vec<String>,
    /// Expected digest, `sha256:…` or `sha512:…`.
    pub digest: String,
    /// How it is unpacked, if at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unpack: Option<Unpack>,
    /// Whether programs in it are run: then policy must allow the download of programs, and a file
    /// that is not unpacked is made executable. What was downloaded without it is never run.
    #[serde(default)]
    pub program: bool,
    /// Words for the events of this step.
    #[serde(default)]
    pub narration: Narration,
}

/// How a download is unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Unpack {
    /// A gzip-compressed tar archive.
    TarGz,
    /// A tar archive compressed with Zstandard.
    TarZst,
    /// A tar archive compressed with xz.
    TarXz,
    /// A zip archive.
    Zip,
}

/// Commands that turn inputs into outputs. Its artifact is a directory with the outputs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Build {
    /// Ways to build, tried in order; the first has no `when`.
    pub attempts: Vec<Attempt>,
    /// Files and directories kept, relative to `{work}`; everything else is thrown away.
    pub outputs: Vec<String>,
    /// Hosts the commands may reach. Empty: no network at all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub network: Vec<String>,
    /// Whether the result is tuned to this processor, so that its features belong in the key.
    #[serde(default)]
    pub native: bool,
    /// Labels recorded with the result, for example the back end; part of the key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Whether the result may not be moved, such as a virtual environment: `{work}` is then its final
    /// place.
    #[serde(default)]
    pub fixed_path: bool,
    /// Texts that the commands read, by path relative to `{work}`, for example a list of packages
    /// with their hashes; part of the key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, String>,
}

/// One way to build. Each attempt starts in an empty `{work}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// What is different about it, for people, for example `with gcc-12 for CUDA`.
    pub title: String,
    /// What the previous attempt must have failed with for this one to make sense.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<When>,
    /// Commands in order; each must succeed.
    pub commands: Vec<Command>,
}

/// A condition on a failed command. All parts given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct When {
    /// Regular expression searched in the failed command's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<String>,
    /// Its exit code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// Id of the command that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
}

/// One command of a build.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Command {
    /// Name shown to operators and given to its log, for example `cmake-configure`.
    pub id: String,
    /// Program: `{tool.NAME}` or a path below a step's result.
    pub program: Template,
    /// Arguments.
    #[serde(default)]
    pub args: Vec<Template>,
    /// Environment, added to the host's pass-through.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// Working directory. Default: `{work}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<Template>,
    /// How progress can be read from its output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
    /// Words for its events.
    #[serde(default)]
    pub narration: Narration,
}

/// How progress can be read from a command's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Progress {
    /// `[12/345]` at the start of a line (Ninja).
    Counter,
    /// `[ 12%]` at the start of a line (GNU make under cmake).
    Percent,
}

/// Action names for the events of a step or command. Empty: the host's own word.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Narration {
    /// When it starts, for example `cmake-configure`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub start: String,
    /// When it starts again in a later attempt, for example `cmake-retry`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub retry: String,
    /// When it failed, for example `cmake-failed`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub failed: String,
}

/// A program run for what it prints. Its artifact is the text.
///
/// Runs without network, with a limit, and is cached by the digest of the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Observe {
    /// Program below a step's result.
    pub program: Template,
    /// Fixed arguments.
    pub args: Vec<Template>,
    /// Environment, for example where its libraries lie; part of the key.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, Template>,
    /// Whether the answer depends on driver and GPUs, so that they belong in the key.
    #[serde(default)]
    pub asks_devices: bool,
    /// Longest it may take, in milliseconds.
    #[serde(default = "observe_timeout_ms")]
    pub timeout_ms: u64,
}

fn observe_timeout_ms() -> u64 {
    20_000
}

/// The model. Its artifact is the file or the directory, as `shape` says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StageModel {
    /// Model reference, as in the pool.
    pub reference: String,
    /// Where the file behind a URL can be had as well, in this order, as in the pool; needs a digest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// Quantisation to pick where the reference offers several, as in the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quant: Option<String>,
    /// Expected digest, `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Directory to stage it into instead of the host's store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_dir: Option<String>,
    /// Patterns of the files to take from a repository, as in the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<String>,
    /// Patterns of the files to leave, as in the pool.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// File formats the engine reads, by name suffix, for example `gguf`; a directory must hold a file
    /// of one of them. Empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub formats: Vec<String>,
    /// Where a directory must have a file: at one of these paths in it, part by part. `*` stands for any
    /// part, `#` for one of digits alone; a path that ends with `/` for all that lies below it. Empty:
    /// anywhere.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layout: Vec<String>,
    /// Whether the engine reads a file or a directory.
    #[serde(default)]
    pub shape: ModelShape,
}

/// What a model is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ModelShape {
    /// One file.
    #[default]
    File,
    /// A directory, for example a repository of the Hugging Face hub.
    Directory,
}

/// An image by name.
///
/// The digest decides; a tag alone is resolved to the digest it has now, and said aloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ImageName {
    /// Repository with its registry, for example `docker.io/vllm/vllm-openai`.
    pub repository: String,
    /// Tag, for example `v0.20.1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Expected digest of the image, or of the index that lists it per platform: `sha256:…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
}

/// A container image. Its artifact has no path: [`crate::Artifact::image`] says what it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PullImage {
    /// Which image.
    pub image: ImageName,
    /// Words for the events of this step.
    #[serde(default)]
    pub narration: Narration,
}

/// Files out of a container image. Its artifact is a directory in which they lie under the paths that
/// they have in the image.
///
/// Nothing of the image is run. Policy must allow the download of programs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExtractImage {
    /// Which image; it must have a digest.
    pub image: ImageName,
    /// Absolute paths in the image: files, or directories with all that is in them.
    pub paths: Vec<String>,
    /// Program among them that is run later, as an absolute path in the image: whether this machine's
    /// C library is new enough for it is checked at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Words for the events of this step.
    #[serde(default)]
    pub narration: Narration,
}

/// A program from the distribution's packages. Its artifact's path is the program; the label
/// `version` is the installed package's version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct InstallPackages {
    /// Packages by family (`apt`, `dnf`, `pacman`, `aur`), the one that carries the program first.
    pub packages: BTreeMap<String, Vec<String>>,
    /// Exact version of the first package; absent: what is installed, else the newest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Repository that the first package must come from, where the family knows repositories.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repository: Option<String>,
    /// Bare name of the program, for example `llama-server`; it must belong to the first package.
    pub program: String,
    /// Words for the events of this step.
    #[serde(default)]
    pub narration: Narration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Document as _;

    fn announced(mut plan: Plan) -> Vec<String> {
        plan.announce();
        plan.requires
    }

    fn step(act: Act) -> Step {
        Step {
            id: "x".to_owned(),
            after: Vec::new(),
            act,
        }
    }

    #[test]
    fn every_step_of_contract_1_1_is_announced_with_the_version_that_brought_it() {
        let text = include_str!("../tests/documents/1.1/Plan.json");
        let plan = Plan::read(text).unwrap();
        assert_eq!(
            announced(plan),
            [
                "build.attempts@1.0.0",
                "download.program@1.1.0",
                "build.fixed-path@1.1.0",
                "observe.environment@1.1.0",
                "model.directory@1.1.0",
                "step.pull-image@1.1.0",
                "step.extract-image@1.1.0",
                "step.install-packages@1.1.0",
            ]
        );
    }

    #[test]
    fn steps_that_contract_1_0_had_are_not_announced() {
        let text = include_str!("../tests/documents/1.0/Plan.least.json");
        assert!(announced(Plan::read(text).unwrap()).is_empty());
    }

    #[test]
    fn what_a_provider_announced_itself_is_not_said_twice() {
        let pull = || step(Act::PullImage(PullImage::default()));
        for own in ["step.pull-image", "step.pull-image@1.1.0"] {
            let plan = Plan {
                requires: vec![own.to_owned()],
                steps: vec![pull(), pull()],
                ..Plan::default()
            };
            assert_eq!(announced(plan), [own]);
        }
    }
}
