//! What a lock file pins is put into a plan, before anything is asked or done.
//!
//! Only what was written the same way is pinned: a pool that names another branch, tag or model than the
//! one that was locked is not held to it, which is said; with `--locked` it is refused.
//!
//! | file | job |
//! |---|---|
//! | `steps` | pins of commits, images and packages |
//! | `model` | pins of the model |
//! | `hold` | what `--locked` and a machine without network refuse |

mod hold;
mod model;
mod steps;

use std::path::{Path, PathBuf};

use engine_provider_api::{Act, ExtractImage, Plan, PullImage, Step};

pub(super) use model::is_immutable;

use super::{Chosen, LockUse, Request, view::word};
use crate::{
    act::Context,
    config::select::{USUAL_FILE, file_of},
    fault::Failure,
    lock::{self, LockError, Part, PoolLock, StepLock},
    process::quote,
    provider::Isolation,
};

/// What is locked for one pool in one mode, and how strictly it is meant.
#[derive(Debug, Clone)]
pub(super) struct Pins {
    path: PathBuf,
    /// Command that locks this pool, without the program.
    pub(super) command: String,
    pool: Option<PoolLock>,
    used: LockUse,
}

/// A plan with its pins, and what is to be said of them.
pub(super) struct Pinned {
    pub(super) plan: Plan,
    pub(super) notes: Vec<String>,
    pub(super) warnings: Vec<String>,
}

/// Where the lock file of a request lies: beside its pool file, else here.
#[must_use]
pub fn lock_path(request: &Request) -> PathBuf {
    let selection = &request.selection;
    let file = file_of(selection).unwrap_or_else(|| PathBuf::from(USUAL_FILE));
    lock::path_beside(&selection.directory.join(file))
}

/// The command that locks what a request is about, without the program: with the flags that decide what
/// is planned. Not with `--offline`: what is written down is asked for.
#[must_use]
pub fn lock_command(request: &Request) -> String {
    let (selection, overlay) = (&request.selection, &request.overlay);
    let mut words = vec!["lock".to_owned()];
    let mut flag = |name: &str, value: &str| words.extend([name.to_owned(), quote(value)]);
    match (&selection.config, &selection.provider) {
        (Some(file), _) => flag("--config", &file.to_string_lossy()),
        (None, Some(provider)) if file_of(selection).is_none() => flag("--provider", provider),
        _ => {}
    }
    if let Some(mode) = overlay.mode {
        flag("--mode", &mode.to_string());
    }
    if let Some(runtime) = &overlay.container_runtime {
        flag("--container-runtime", runtime);
    }
    if let Some(gpu) = &overlay.gpu {
        flag("--gpu", &word(gpu));
    }
    for directory in &request.provider_path {
        flag("--provider-path", &directory.to_string_lossy());
    }
    if request.isolation == Isolation::InProcess {
        flag("--isolation", "in-process");
    }
    let allowed = [
        ("--allow-package-installs", overlay.allow_package_installs),
        ("--allow-binary-downloads", overlay.allow_binary_downloads),
    ];
    let allowed = allowed.into_iter().filter(|(_, is_given)| *is_given);
    words.extend(allowed.map(|(flag, _)| flag.to_owned()));
    words.join(" ")
}

impl Pins {
    /// Reads what is locked; an error where `--locked` was given and there is no lock file.
    pub(super) fn of(chosen: &Chosen, request: &Request) -> Result<Self, LockError> {
        let path = lock_path(request);
        let command = lock_command(request);
        let document = lock::read(&path)?;
        if document.is_none() && request.lock == LockUse::Exact {
            return Err(LockError::Absent { path, command });
        }
        let id = &chosen.wanted.pool.id;
        Ok(Self {
            pool: document.and_then(|mut document| document.pools.remove(id)),
            path,
            command,
            used: request.lock.clone(),
        })
    }

    /// Puts the pins into a plan.
    pub(super) fn apply(
        &self,
        chosen: &Chosen,
        context: &mut Context,
        plan: &Plan,
    ) -> Result<Pinned, Failure> {
        let mut pinned = Pinned {
            plan: plan.clone(),
            notes: Vec::new(),
            warnings: Vec::new(),
        };
        let Some(pool) = &self.pool else {
            return Ok(pinned);
        };
        if self.used == LockUse::Pins {
            let edits = self.edits(&chosen.wanted.pool.id);
            let warnings = edits.iter().map(|edit| self.edited(&edit.what));
            pinned.warnings.extend(warnings);
        }
        let steps = pool.engine.get(chosen.mode.as_str());
        for (index, step) in plan.steps.iter().enumerate() {
            let act = &mut pinned.plan.steps[index].act;
            let said = match (act, self.renews(&step.act)) {
                (_, true) => None,
                (Act::StageModel(model), _) => self.model(context, pool.model.as_ref(), model),
                (act, _) => match steps.and_then(|steps| steps.get(&step.id)) {
                    Some(lock) => self.step(context, step, act, lock)?,
                    None => None,
                },
            };
            match said {
                Some(Said::Note(text)) => pinned.notes.push(text),
                Some(Said::Warning(text)) => pinned.warnings.push(text),
                None => {}
            }
        }
        if let Some(steps) = steps.filter(|_| !self.used.renews(Part::Engine)) {
            let known = steps.values();
            let trees = known.filter_map(|lock| Some((lock.commit.clone()?, lock.tree.clone()?)));
            context.trees = std::sync::Arc::new(trees.collect());
        }
        Ok(pinned)
    }

    fn renews(&self, act: &Act) -> bool {
        self.used.renews(match act {
            Act::StageModel(_) => Part::Model,
            _ => Part::Engine,
        })
    }

    fn step(
        &self,
        context: &Context,
        step: &Step,
        act: &mut Act,
        lock: &StepLock,
    ) -> Result<Option<Said>, Failure> {
        match act {
            Act::Checkout(act) => Ok(self.checkout(step, act, lock)?),
            Act::PullImage(PullImage { image, .. })
            | Act::ExtractImage(ExtractImage { image, .. }) => {
                Ok(self.image(context, step, image, lock)?)
            }
            Act::InstallPackages(act) => self.package(context, step, act, lock),
            _ => Ok(None),
        }
    }

    fn note(&self, text: String) -> Said {
        Said::Note(format!("{text}, by {}", lock::FILE))
    }

    fn not_the_same(&self, now: &str, locked: &str) -> Said {
        Said::Warning(format!(
            "`{now}` is not pinned: {} has `{locked}` in its place",
            lock::FILE
        ))
    }

    fn edited(&self, what: &str) -> String {
        format!("{}: `{what}` was edited since it was locked", lock::FILE)
    }

    fn value(&self, step: &Step, what: &str, value: &str, reason: &'static str) -> LockError {
        LockError::Value {
            path: self.path.clone(),
            what: format!("{}.{what}", step.id),
            value: value.to_owned(),
            reason,
        }
    }

    /// The lock file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// What is to be said of a pin.
enum Said {
    Note(String),
    Warning(String),
}

#[cfg(test)]
mod tests {
    use engine_provider_api::{GpuPolicy, Mode};

    use super::*;
    use crate::config::select::{Overlay, Selection};

    #[test]
    fn the_command_that_locks_has_the_flags_that_decide_what_is_planned() {
        let directory = tempfile::tempdir().unwrap();
        let request = Request {
            selection: Selection {
                provider: Some("llamacpp".to_owned()),
                directory: directory.path().to_owned(),
                ..Selection::default()
            },
            overlay: Overlay {
                mode: Some(Mode::Container),
                container_runtime: Some("docker".to_owned()),
                gpu: Some(GpuPolicy::Prefer),
                allow_binary_downloads: true,
                offline: true,
                ..Overlay::default()
            },
            provider_path: vec![PathBuf::from("/srv/my providers")],
            isolation: Isolation::InProcess,
            ..Request::default()
        };
        insta::assert_snapshot!(lock_command(&request), @"lock --provider llamacpp --mode container --container-runtime docker --gpu prefer --provider-path '/srv/my providers' --isolation in-process --allow-binary-downloads");
        assert_eq!(
            lock_command(&Request {
                selection: request.selection,
                ..Request::default()
            }),
            "lock --provider llamacpp"
        );
    }
}
