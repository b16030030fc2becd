//! A source tree at one commit.
//!
//! The commit is its own digest: whichever mirror gives it, the tree is the same. What is kept is
//! the tree alone, without git's directory.
//!
//! | ingredient of the key | why |
//! |---|---|
//! | `commit` | names every byte of the tree |
//! | `submodules` | whether theirs are there too |

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::{Artifact, ArtifactState, Checkout, Mirror, Step};
use serde::{Deserialize, Serialize};

use super::{
    ACTOR, ActError, Context, Expected, MirrorFailure, Outlook, begin, blocking,
    git::{self, Git},
    publish, unpack,
};
use crate::{
    fault::{Exit, Fault as _, hint},
    net::{self, Digest, NetError, Transfer},
    process::Network,
    store::{self, Begin, Entry, Ingredients, Kind, Work},
};

/// Longest time for a question to a local repository.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Bytes that a source distribution may have.
const ARCHIVE_LIMIT_BYTES: u64 = 4 << 30;

/// What is remembered of a checkout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Result_ {
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
                let reason = crate::narrate::chain(&error);
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

async fn finish(step: &Step, work: Work, result: &Result_) -> Result<Artifact, ActError> {
    publish(step, work, result)
        .await
        .map(|entry| artifact(&entry))
}

fn artifact(entry: &Entry) -> Artifact {
    let result: Option<Result_> = serde_json::from_value(entry.manifest.result.clone()).ok();
    Artifact {
        state: ArtifactState::Obtained,
        path: Some(entry.path.to_string_lossy().into_owned()),
        commit: result.map(|result| result.commit),
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
) -> Result<Result_, ActError> {
    let scratch = work
        .scratch(context.run_as())
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
            local = from_index(context, step, mirror, &scratch).await?;
            local.to_str().ok_or_else(|| ActError::Plan {
                reason: "the store's path is not UTF-8".to_owned(),
            })?
        }
    };
    let repository = Repository {
        context,
        git: Git::new(context, step, url)?,
        step,
        path: scratch.join("tree"),
        url,
        commit: act.commit.to_ascii_lowercase(),
    };
    repository.fetch(&scratch).await?;
    let human = format!("checking out {}", short(&act.commit));
    context.narrator.say(ACTOR, "git-checkout", &from, human);
    let tree = repository.check_out(&from).await?;
    if act.submodules {
        repository.submodules().await?;
    }
    export(step, work, &scratch, repository.path).await?;
    Ok(Result_ {
        commit: repository.commit,
        tree,
        from,
    })
}

/// A repository in the making.
struct Repository<'a> {
    context: &'a Context,
    git: Git<'a>,
    step: &'a Step,
    path: PathBuf,
    url: &'a str,
    commit: String,
}

impl Repository<'_> {
    /// Fetches exactly the commit; where the server does not give single commits, everything.
    async fn fetch(&self, scratch: &Path) -> Result<(), ActError> {
        self.git
            .run(
                "git-init",
                scratch,
                &["init", "--quiet", "--", "tree"],
                Network::None,
            )
            .await?;
        // Relative submodule URLs start here.
        let add = ["remote", "add", "--", "origin", self.url];
        self.git
            .run("git-init", &self.path, &add, Network::None)
            .await?;
        let one = [
            "fetch",
            "--progress",
            "--no-tags",
            "--depth",
            "1",
            "--",
            "origin",
            &self.commit,
        ];
        let network = self.network();
        match self.git.run("git-clone", &self.path, &one, network).await {
            Err(ActError::Command { failure, .. }) if refuses_single_commits(&failure.tail) => {}
            other => return other,
        }
        let all = [
            "fetch",
            "--progress",
            "--force",
            "--",
            "origin",
            "+refs/heads/*:refs/remotes/origin/*",
            "+refs/tags/*:refs/tags/*",
        ];
        self.git.run("git-clone", &self.path, &all, network).await?;
        let commit = format!("{}^{{commit}}", self.commit);
        let there = ["cat-file", "-e", &commit];
        match self
            .git
            .run("git-lookup", &self.path, &there, Network::None)
            .await
        {
            Err(ActError::Command { .. }) => Err(ActError::Reference {
                step: self.step.id.clone(),
                reason: format!("{} has no commit {}", git::shown(self.url), self.commit),
                hints: vec![hint(
                    "see which branches and tags there are",
                    Some(&format!("git ls-remote -- {}", git::shown(self.url))),
                )],
            }),
            other => other,
        }
    }

    /// Checks the commit out and gives the digest of its tree.
    async fn check_out(&self, from: &str) -> Result<String, ActError> {
        let args = ["checkout", "--quiet", "--force", "--detach", &self.commit];
        self.git
            .run("git-checkout", &self.path, &args, Network::None)
            .await?;
        let ask = ["rev-parse", "HEAD", "HEAD^{tree}"];
        let answer = self
            .git
            .output(
                "git-rev-parse",
                &self.path,
                &ask,
                Network::None,
                ANSWER_LIMIT,
            )
            .await?;
        match answer.split_whitespace().collect::<Vec<_>>().as_slice() {
            [commit, tree] if *commit == self.commit => Ok((*tree).to_owned()),
            other => Err(ActError::WrongCommit {
                from: from.to_owned(),
                expected: self.commit.clone(),
                actual: other.first().copied().unwrap_or("nothing").to_owned(),
            }),
        }
    }

    /// Checks submodules out, after asking policy about every host that the tree itself names.
    async fn submodules(&self) -> Result<(), ActError> {
        if !self.path.join(".gitmodules").is_file() {
            return Ok(());
        }
        let ask = [
            "config",
            "--file",
            ".gitmodules",
            "--get-regexp",
            r"^submodule\..*\.url$",
        ];
        let listed = self
            .git
            .output(
                "git-submodules",
                &self.path,
                &ask,
                Network::None,
                ANSWER_LIMIT,
            )
            .await?;
        for url in listed.lines().filter_map(|line| line.split_once(' ')) {
            let url = url.1;
            if !url.starts_with("./") && !url.starts_with("../") {
                Git::new(self.context, self.step, url)?;
            }
        }
        let update = [
            "submodule",
            "update",
            "--init",
            "--recursive",
            "--depth",
            "1",
            "--progress",
        ];
        self.git
            .run("git-submodules", &self.path, &update, Network::Host)
            .await
    }

    fn network(&self) -> Network {
        match git::scheme_of(self.url) {
            Some(git::Scheme::File) => Network::None,
            _ => Network::Host,
        }
    }
}

fn refuses_single_commits(lines: &[String]) -> bool {
    const WORDS: [&str; 4] = [
        "not our ref",
        "unadvertised object",
        "does not support shallow",
        "couldn't find remote ref",
    ];
    lines
        .iter()
        .any(|line| WORDS.iter().any(|words| line.contains(words)))
}

/// Removes git's directories and moves the tree into the result.
async fn export(
    step: &Step,
    work: &Work,
    scratch: &Path,
    repository: PathBuf,
) -> Result<(), ActError> {
    blocking(move || store::remove_named(&repository, ".git"))
        .await
        .map_err(|source| ActError::store(step, source))?;
    work.take_all(&scratch.join("tree"))
        .map_err(|source| ActError::store(step, source))
}

/// Fetches a source distribution and makes a bare repository of the git objects in it.
async fn from_index(
    context: &Context,
    step: &Step,
    mirror: &Mirror,
    scratch: &Path,
) -> Result<PathBuf, ActError> {
    let Mirror::Index {
        project,
        version,
        sha256,
        git_directory,
    } = mirror
    else {
        unreachable!("called for index mirrors only");
    };
    let index = context
        .package_index
        .as_ref()
        .ok_or_else(|| ActError::Reference {
            step: step.id.clone(),
            reason: "this machine names no Python package index".to_owned(),
            hints: Vec::new(),
        })?;
    let digest = Digest::parse(&format!("sha256:{sha256}")).map_err(|source| ActError::Digest {
        step: step.id.clone(),
        source,
    })?;
    let lock_name = format!("blob-{}", digest.hex());
    let patience = store::Patience {
        limit: super::FLIGHT_LIMIT,
        cancel: &context.cancel,
        on_wait: &|_| {},
    };
    let lock_path = context.store.lock_path(&lock_name);
    let _lock = store::lock(&lock_path, &format!("fetching {project}"), patience)
        .await
        .map_err(|source| ActError::store(step, source))?;
    let net_error = |source| ActError::net(step, source);
    let file = net::find_sdist(&context.net, index, project, version, &context.cancel)
        .await
        .map_err(net_error)?;
    if let Some(claimed) = file.sha256.filter(|claimed| claimed != digest.hex()) {
        return Err(net_error(NetError::Mismatch {
            url: net::shown(&file.url),
            expected: digest,
            actual: Digest::Sha256(claimed),
        }));
    }
    let transfer = Transfer {
        url: file.url,
        named_by: index.host_str().map(str::to_owned),
        digest: Some(digest.clone()),
        size_bytes: None,
        limit_bytes: Some(ARCHIVE_LIMIT_BYTES),
        partial: context
            .store
            .prepare_partial(digest.hex())
            .map_err(|source| ActError::store(step, source))?,
        task: "download".to_owned(),
    };
    let shown = net::shown(&transfer.url);
    context
        .narrator
        .say(ACTOR, "download", &shown, format!("downloading {shown}"));
    let fetched = context
        .net
        .fetch(&transfer, &context.narrator, &context.cancel)
        .await
        .map_err(net_error)?;
    let repository = scratch.join("mirror.git");
    let (archive, target, inside) = (fetched.path, repository.clone(), git_directory.clone());
    let owner = context.run_as();
    let unpacked = blocking(move || {
        unpack::git_objects(&archive, &inside, &target)?;
        if let Some(owner) = owner {
            store::give_to(&target, owner)?;
        }
        // Its objects are all that was wanted of it.
        Ok(store::remove_tree(&archive)?)
    })
    .await;
    unpacked.map_err(|refusal| super::download::refused(step, &shown, refusal))?;
    Ok(repository)
}
