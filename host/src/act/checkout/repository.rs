//! A repository that is thrown away once its tree is out.

use std::{path::PathBuf, time::Duration};

use engine_provider_api::Step;

use crate::{
    act::{
        ActError, Context,
        git::{self, Git},
    },
    fault::hint,
    process::Network,
};

/// Longest time for a question to a local repository.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// A repository in the making.
pub(super) struct Repository<'a> {
    pub(super) context: &'a Context,
    pub(super) git: Git<'a>,
    pub(super) step: &'a Step,
    pub(super) path: PathBuf,
    pub(super) url: &'a str,
    pub(super) commit: String,
}

impl Repository<'_> {
    /// Fetches exactly the commit; where the server does not give single commits, everything.
    pub(super) async fn fetch(&self, scratch: &std::path::Path) -> Result<(), ActError> {
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
    pub(super) async fn check_out(&self, from: &str) -> Result<String, ActError> {
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
    pub(super) async fn submodules(&self) -> Result<(), ActError> {
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
