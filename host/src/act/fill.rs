//! Placeholders and what they are filled with.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use engine_provider_api::{Artifact, BuildStep, Command, Step, Template};

use super::{ActError, Artifacts, Context};
use crate::store::Store;

/// Values for the templates of one step.
pub(super) struct Values<'a> {
    pub(super) context: &'a Context,
    pub(super) step: &'a Step,
    pub(super) inputs: &'a Artifacts,
    /// `{work}`, where the step has one.
    pub(super) work: Option<&'a Path>,
}

impl Values<'_> {
    /// Fills in a template.
    pub(super) fn fill(&self, template: &Template) -> Result<String, ActError> {
        template
            .render(|name| self.value(name))
            .map_err(|source| ActError::Template {
                step: self.step.id.clone(),
                source,
            })
    }

    fn value(&self, name: &str) -> Option<String> {
        match name {
            "work" => Some(self.work?.to_string_lossy().into_owned()),
            "jobs" => Some(jobs(self.context).to_string()),
            _ => match name.split_once('.')? {
                ("tool", tool) => Some(self.context.tools.get(tool)?.path),
                ("cache", cache) => {
                    let path = self.context.home.cache(cache);
                    Some(path.to_string_lossy().into_owned())
                }
                (step, "path") => self.inputs.get(step)?.path.clone(),
                _ => None,
            },
        }
    }
}

/// Memory that one compiler is counted with.
const MEMORY_PER_JOB_BYTES: u64 = 1 << 30;

/// Parallel jobs: one per thread, as far as memory goes.
pub(super) fn jobs(context: &Context) -> u64 {
    let threads = match context.facts.cpu.threads {
        0 => std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64),
        threads => u64::from(threads),
    };
    match context.facts.memory.available_bytes {
        0 => threads,
        available => threads.min(available / MEMORY_PER_JOB_BYTES).max(1),
    }
}

/// Every template of a command.
pub(super) fn templates(command: &Command) -> impl Iterator<Item = &Template> {
    std::iter::once(&command.program)
        .chain(&command.args)
        .chain(command.env.values())
        .chain(&command.directory)
}

/// Names in the placeholders of a build that begin with `prefix.`, for example its tools.
pub(super) fn names<'a>(build: &'a BuildStep, prefix: &str) -> BTreeSet<&'a str> {
    build
        .attempts
        .iter()
        .flat_map(|attempt| &attempt.commands)
        .flat_map(templates)
        .flat_map(|template| template.placeholders().unwrap_or_default())
        .filter_map(|name| name.strip_prefix(prefix)?.strip_prefix('.'))
        .collect()
}

/// The step that a placeholder such as `checkout.path` refers to.
pub(super) fn step_of(placeholder: &str) -> Option<&str> {
    placeholder.strip_suffix(".path")
}

/// What tells a result from others, for keys that are made of it: the same whether it is there or
/// only expected.
pub(super) fn identity(store: &Store, artifact: &Artifact) -> Option<String> {
    let path = artifact.path.as_deref().map(Path::new);
    path.and_then(|path| entry_name(store, path))
        .or_else(|| package_name(artifact))
        .or_else(|| artifact.commit.clone())
        .or_else(|| artifact.digest.clone())
        .or_else(|| artifact.path.clone())
}

/// Name, version and path of a program of the distribution's packages.
fn package_name(artifact: &Artifact) -> Option<String> {
    let (package, version) = (
        artifact.labels.get("package")?,
        artifact.labels.get("version")?,
    );
    Some(format!("{package} {version} {}", artifact.path.as_deref()?))
}

/// `build/0123…` of a path in the store.
fn entry_name(store: &Store, path: &Path) -> Option<String> {
    let mut parts = path.strip_prefix(store.root()).ok()?.iter();
    let kind = parts.next()?.to_str()?;
    let name = parts.next()?.to_str()?;
    Some(match kind {
        "blobs" => format!("{name}:{}", parts.next()?.to_str()?),
        _ => format!("{kind}/{name}"),
    })
}

/// Splits a filled-in path into the step whose result it lies in, and the path inside.
pub(super) fn locate<'a>(
    program: &Template,
    inputs: &'a Artifacts,
) -> Option<(&'a str, &'a Artifact, String)> {
    let name = program.placeholders().ok()?.into_iter().find_map(step_of)?;
    let (name, artifact) = inputs.get_key_value(name)?;
    let inside = program
        .render(|placeholder| (step_of(placeholder) == Some(name)).then(String::new))
        .ok()?;
    Some((name, artifact, inside))
}

/// The file that the log of a step's command goes to. Its directory exists.
pub(super) fn log_path(context: &Context, step: &Step, command: &str) -> Result<PathBuf, ActError> {
    context
        .logs
        .path(&step.id, command)
        .map_err(|source| ActError::store(step, source))
}
