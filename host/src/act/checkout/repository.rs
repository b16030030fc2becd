//! A repository that is thrown away once its tree is out.

use std::{path::PathBuf, time::Duration};

use engine_provider_api::Step;

use crate::{
    act::{
        ActError, Context,
        git::{self, Git, Scheme},
    },
    fault::hint,
    process::Network,
};

/// Longest time for a question to a local repository.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);

/// Submodules of one tree, nested ones included.
const SUBMODULE_LIMIT: usize = 1000;

/// A repository in the making.
pub(super) struct Repository<'a> {
    pub(super) context: &'a Context,
    pub(super) git: Git<'a>,
    pub(super) step: &'a Step,
    pub(super) path: PathBuf,
    /// Whether it is fetched from a repository of this machine that the plan names, so that its
    /// submodules may be such as well.
    pub(super) local: bool,
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
        let add = ["remote", "add", "--", "origin", self.git.url()];
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
                reason: format!(
                    "{} has no commit {}",
                    git::shown(self.git.url()),
                    self.commit
                ),
                hints: vec![hint(
                    "see which branches and tags there are",
                    Some(&git::list_command(self.git.url())),
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

    /// Checks submodules out, level by level: what is nested is known once what it is nested in is
    /// there. Policy is asked about every URL before it is reached.
    pub(super) async fn submodules(&self) -> Result<(), ActError> {
        let mut waiting = vec![String::from(".")];
        let mut seen = 0;
        while let Some(at) = waiting.pop() {
            waiting.extend(self.submodules_of(&at).await?);
            seen += 1;
            if seen > SUBMODULE_LIMIT {
                return Err(ActError::Reference {
                    step: self.step.id.clone(),
                    reason: format!("the tree has more than {SUBMODULE_LIMIT} submodules"),
                    hints: Vec::new(),
                });
            }
        }
        Ok(())
    }

    /// Checks the submodules of one tree out, those in them not yet; gives their places.
    async fn submodules_of(&self, at: &str) -> Result<Vec<String>, ActError> {
        if !self
            .ask(at, &["rev-parse", "--show-prefix"])
            .await?
            .trim()
            .is_empty()
        {
            // A submodule that was left out: this is its parent.
            return Ok(Vec::new());
        }
        let listed = self.ask(at, &["ls-files", "--stage", "-z"]).await?;
        let (places, described) = submodule_places(&listed);
        if places.is_empty() || !described {
            return Ok(Vec::new());
        }
        // Resolves relative URLs, which may lead to another host, and writes down what will be
        // reached.
        let init = ["-C", at, "submodule", "--quiet", "init"];
        self.git
            .run("git-submodules", &self.path, &init, Network::None)
            .await?;
        let urls = [
            "config",
            "--local",
            "-z",
            "--get-regexp",
            r"^submodule\..*\.url$",
        ];
        let mut network = Network::None;
        for url in submodule_urls(&self.ask(at, &urls).await?) {
            if self.check_submodule(url)? != Scheme::File {
                network = Network::Host;
            }
        }
        let update = [
            "-C",
            at,
            "submodule",
            "update",
            "--depth",
            "1",
            "--progress",
        ];
        self.git
            .run("git-submodules", &self.path, &update, network)
            .await?;
        Ok(places.iter().map(|place| format!("{at}/{place}")).collect())
    }

    /// Asks policy about a submodule. What came from elsewhere may not name files of this machine.
    fn check_submodule(&self, url: &str) -> Result<Scheme, ActError> {
        if git::scheme_of(url) == Some(Scheme::File) && !self.local {
            return Err(ActError::Reference {
                step: self.step.id.clone(),
                reason: format!("a submodule is `{url}`, a file of this machine"),
                hints: Vec::new(),
            });
        }
        git::check_url(self.context, self.step, url)
    }

    /// What git says about a tree in the repository.
    async fn ask(&self, at: &str, question: &[&str]) -> Result<String, ActError> {
        let args: Vec<&str> = ["-C", at].iter().chain(question).copied().collect();
        let id = "git-submodules-list";
        self.git
            .output(id, &self.path, &args, Network::None, ANSWER_LIMIT)
            .await
    }

    fn network(&self) -> Network {
        match git::scheme_of(self.git.url()) {
            Some(Scheme::File) => Network::None,
            _ => Network::Host,
        }
    }
}

/// Places of submodules in what `git ls-files --stage -z` printed, and whether `.gitmodules` is
/// there.
fn submodule_places(listed: &str) -> (Vec<String>, bool) {
    let files = || {
        listed
            .split('\0')
            .filter_map(|entry| entry.split_once('\t'))
    };
    let places = files()
        .filter(|(about, _)| about.starts_with("160000 "))
        .map(|(_, path)| path.to_owned())
        .collect();
    (places, files().any(|(_, path)| path == ".gitmodules"))
}

/// Values in what `git config -z --get-regexp` printed. Names may hold spaces, values line ends.
fn submodule_urls(printed: &str) -> impl Iterator<Item = &str> {
    printed
        .split('\0')
        .filter_map(|entry| entry.split_once('\n'))
        .map(|(_, url)| url)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_spaces_do_not_hide_where_a_submodule_is() {
        let printed = "submodule.x ./y.url\nhttps://evil.test/x\0submodule.z.url\n../z\0";
        let urls: Vec<&str> = submodule_urls(printed).collect();
        assert_eq!(urls, ["https://evil.test/x", "../z"]);
        let listed = "100644 abc 0\t.gitmodules\x00160000 abc 0\tlib/a b\x00100644 abc 0\tx\0";
        assert_eq!(submodule_places(listed), (vec!["lib/a b".to_owned()], true));
    }
}
