//! A source tree at one commit.
//!
//! The commit is its own digest: whichever mirror gives it, the tree is the same. What is kept is
//! the tree alone, without git's directory.
//!
//! | ingredient of the key | why |
//! |---|---|
//! | `commit` | names every byte of the tree |
//! | `submodules` | whether theirs are there too |

mod index;
mod repository;

use std::path::Path;

use engine_provider_api::{Artifact, ArtifactState, Checkout, Mirror, Step};
use serde::{Deserialize, Serialize};

use repository::Repository;

use super::{
    ACTOR, ActError, Context, Expected, MirrorFailure, Outlook, begin, blocking,
    git::{self, Git, Scheme},
    publish,
};
use crate::{
    fault::{Exit, Fault as _},
    store::{Begin, Entry, Ingredients, Kind, Work},
};

/// Where the tree is checked out, in the scratch directory.
const TREE: &str = "tree";

/// What is remembered of a checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Checked {
    commit: String,
    /// Digest of the tree, as git computes it.
    tree: String,
    /// Where it came from.
    from: String,
}

/// Whether a text is a commit in full.
pub(crate) fn is_full_commit(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn ingredients(act: &Checkout) -> Ingredients {
    Ingredients::new()
        .with("commit", act.commit.to_ascii_lowercase())
        .with("submodules", act.submodules)
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &Checkout,
) -> Result<Expected, ActError> {
    let fetch = Outlook::Fetch {
        from: act
            .mirrors
            .iter()
            .map(|mirror| place(context, mirror))
            .collect(),
        size_bytes: None,
        refused: None,
    };
    if !is_full_commit(&act.commit) {
        return Ok(Expected {
            artifact: Artifact::default(),
            outlook: fetch,
        });
    }
    let key = ingredients(act).key(Kind::Source);
    let entry = context
        .store
        .find(&key)
        .map_err(|source| ActError::store(step, source))?;
    Ok(match entry {
        Some(entry) => Expected {
            artifact: artifact(&entry),
            outlook: Outlook::Cached,
        },
        None => Expected {
            artifact: Artifact {
                path: Some(context.store.path_of(&key).to_string_lossy().into_owned()),
                commit: Some(act.commit.to_ascii_lowercase()),
                ..Artifact::default()
            },
            outlook: fetch,
        },
    })
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &Checkout,
) -> Result<Artifact, ActError> {
    if !is_full_commit(&act.commit) {
        return Err(ActError::Plan {
            reason: format!(
                "`{}` of `{}` was not resolved to a commit",
                act.commit, step.id
            ),
        });
    }
    let doing = format!("checking out {}", act.commit);
    let work = match begin(context, Kind::Source, step, ingredients(act), &doing).await? {
        Begin::Hit(entry) => {
            let human = format!("source {} is here already", short(&act.commit));
            context.narrator.say(ACTOR, "cached", &step.id, human);
            return Ok(artifact(&entry));
        }
        Begin::Work(work) => work,
    };
    let mut failures: Vec<MirrorFailure> = Vec::new();
    for mirror in &act.mirrors {
        let place = place(context, mirror);
        match obtain(context, step, act, mirror, &work).await {
            Ok(result) => return finish(step, work, &result).await,
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error) => {
                let reason = error.brief();
                let human = format!("{place} did not give {}: {reason}", short(&act.commit));
                context.narrator.warn(ACTOR, "mirror-failed", &place, human);
                failures.push(MirrorFailure {
                    place,
                    error: Box::new(error),
                });
            }
        }
    }
    Err(match failures.pop() {
        // A refusal or a wrong commit says more than that nothing came.
        Some(only) if failures.is_empty() && only.error.exit() != Exit::Step => *only.error,
        last => ActError::Mirrors {
            what: format!("commit {}", act.commit),
            failures: failures.into_iter().chain(last).collect(),
        },
    })
}

async fn finish(step: &Step, work: Work, result: &Checked) -> Result<Artifact, ActError> {
    publish(step, work, result)
        .await
        .map(|entry| artifact(&entry))
}

fn artifact(entry: &Entry) -> Artifact {
    let result: Option<Checked> = serde_json::from_value(entry.manifest.result.clone()).ok();
    Artifact {
        state: ArtifactState::Obtained,
        path: Some(entry.path.to_string_lossy().into_owned()),
        commit: result.as_ref().map(|result| result.commit.clone()),
        labels: result
            .into_iter()
            .map(|result| ("tree".to_owned(), result.tree))
            .collect(),
        ..Artifact::default()
    }
}

fn short(commit: &str) -> &str {
    commit.get(..12).unwrap_or(commit)
}

/// A mirror, for people.
fn place(context: &Context, mirror: &Mirror) -> String {
    match mirror {
        Mirror::Git { url } => git::shown(url),
        Mirror::Index {
            project, version, ..
        } => {
            let index = context.facts.package_index.as_deref();
            let index = index.map_or("the Python package index".to_owned(), git::shown);
            format!("{project} {version} of {index}")
        }
    }
}

/// Obtains the commit from one mirror: the tree is in the work afterwards.
async fn obtain(
    context: &Context,
    step: &Step,
    act: &Checkout,
    mirror: &Mirror,
    work: &Work,
) -> Result<Checked, ActError> {
    let scratch = work
        .scratch(context.run_as(), &[])
        .map_err(|source| ActError::store(step, source))?;
    let from = place(context, mirror);
    let start = match act.narration.start.as_str() {
        "" => "git-clone",
        word => word,
    };
    let human = format!("fetching commit {} from {from}", short(&act.commit));
    context.narrator.say(ACTOR, start, &from, human);
    let local;
    let url = match mirror {
        Mirror::Git { url } => url.as_str(),
        Mirror::Index { .. } => {
            local = index::fetch(context, step, mirror, work.beside("mirror.git")).await?;
            local.to_str().ok_or_else(|| ActError::Plan {
                reason: "the store's path is not UTF-8".to_owned(),
            })?
        }
    };
    let repository = Repository {
        context,
        git: Git::new(context, step, url)?,
        step,
        path: scratch.join(TREE),
        local: matches!(mirror, Mirror::Git { url } if git::scheme_of(url) == Some(Scheme::File)),
        commit: act.commit.to_ascii_lowercase(),
    };
    repository.fetch(&scratch).await?;
    let human = format!("checking out {}", short(&act.commit));
    context.narrator.say(ACTOR, "git-checkout", &from, human);
    let tree = repository.check_out(&from).await?;
    if let Some(expected) = context.trees.get(&repository.commit)
        && *expected != tree
    {
        return Err(ActError::WrongTree {
            commit: repository.commit,
            expected: expected.clone(),
            actual: tree,
        });
    }
    if act.submodules {
        repository.submodules().await?;
    }
    export(context, step, work).await?;
    Ok(Checked {
        commit: repository.commit,
        tree,
        from,
    })
}

/// Copies the tree into the result, without git's directories.
async fn export(context: &Context, step: &Step, work: &Work) -> Result<(), ActError> {
    let outputs = work.outputs(context.run_as());
    blocking(move || outputs.take_all(Path::new(TREE), ".git"))
        .await
        .map_err(|source| ActError::store(step, source))
}
