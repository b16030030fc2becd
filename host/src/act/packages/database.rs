//! What the package manager's database says. Asked anew each time: nothing here is remembered.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{Family, Target, family::is_version, install::find};
use crate::{
    act::{Context, command::PATH},
    process::{self, Answer, ProcessError, Question},
};

/// Longest time for a question to the database.
const ASK_LIMIT: Duration = Duration::from_secs(20);

/// Names of directories that programs lie in.
const PROGRAM_DIRECTORIES: [&str; 3] = ["bin", "sbin", "games"];

/// The database of this machine's package manager.
pub(in crate::act) struct Database<'a> {
    context: &'a Context,
    pub(in crate::act) family: Family,
    manager: &'a Path,
}

/// What a repository has of a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::act) enum Offered {
    /// This version.
    Version { version: String, repository: String },
    /// Nothing.
    Nothing,
    /// That is not known before an installation is tried.
    Unknown,
}

impl<'a> Database<'a> {
    /// The database, where there is a package manager that is known.
    pub(in crate::act) fn of(context: &'a Context) -> Option<Self> {
        let manager = context.facts.package_manager.as_ref()?;
        Some(Self {
            context,
            family: Family::of(&manager.family)?,
            manager: Path::new(&manager.path),
        })
    }

    /// Versions of those of these packages that are installed, by name.
    pub(in crate::act) async fn installed(
        &self,
        names: &[String],
    ) -> Result<BTreeMap<String, String>, ProcessError> {
        let fixed: &[&str] = match self.family {
            Family::Apt => &[
                "-W",
                "-f",
                "${Package}\\t${Version}\\t${db:Status-Status}\\n",
            ],
            Family::Dnf => &[
                "-q",
                "--qf",
                "%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n",
            ],
            Family::Pacman => &["-Q"],
        };
        let text = match self.ask(fixed, names).await? {
            Some(answer) => answer.stdout,
            None => return Ok(BTreeMap::new()),
        };
        let versions = text
            .lines()
            .filter_map(|line| parse_version(self.family, line))
            // pacman also answers for packages that provide the name.
            .filter(|(name, _)| names.contains(name));
        Ok(versions.collect())
    }

    /// Programs of an installed package: absolute paths.
    pub(in crate::act) async fn programs(&self, name: &str) -> Result<Vec<PathBuf>, ProcessError> {
        let fixed: &[&str] = match self.family {
            Family::Apt => &["-L"],
            Family::Dnf => &["-q", "-l"],
            Family::Pacman => &["-Ql"],
        };
        let answer = self.ask(fixed, &[name.to_owned()]).await?;
        let text = answer.map(|answer| answer.stdout).unwrap_or_default();
        let files = text
            .lines()
            .filter_map(|line| parse_file(self.family, name, line));
        Ok(files.filter(|path| is_program(path)).collect())
    }

    /// What a repository has of a package, where that can be asked without network.
    pub(in crate::act) async fn offered(&self, target: &Target) -> Result<Offered, ProcessError> {
        if self.family != Family::Pacman {
            return Ok(Offered::Unknown);
        }
        let word = self.family.word(target);
        Ok(match self.ask(&["-Si"], &[word]).await? {
            None => Offered::Unknown,
            Some(answer) => parse_offered(&answer),
        })
    }

    /// The version that would be installed now, of those lists of packages that are here; `None` where
    /// they do not tell. Asks no server.
    pub(in crate::act) async fn candidate(
        &self,
        target: &Target,
    ) -> Result<Option<String>, ProcessError> {
        let words = candidate_words(self.family, target);
        let program = match self.family {
            Family::Apt => self.manager.with_file_name("apt-cache"),
            Family::Dnf => self.manager.to_owned(),
            Family::Pacman => {
                return Ok(match self.offered(target).await? {
                    Offered::Version { version, .. } => Some(version),
                    Offered::Nothing | Offered::Unknown => None,
                });
            }
        };
        // Facts may describe another machine.
        if !program.is_file() {
            return Ok(None);
        }
        let answer = process::ask(&self.question(program, words)).await?;
        Ok(parse_candidate(self.family, &answer.stdout))
    }

    /// How one version compares with another; `None` where nothing here can tell.
    pub(in crate::act) async fn compare(&self, one: &str, other: &str) -> Option<Ordering> {
        if ![one, other].into_iter().all(is_version) {
            return None;
        }
        match self.family {
            Family::Pacman => {
                let words = [one.to_owned(), other.to_owned()];
                let answer = self.ask_program("vercmp", &[], &words).await?;
                Some(answer.stdout.trim().parse::<i32>().ok()?.cmp(&0))
            }
            Family::Dnf => {
                let question = format!("%{{lua:print(rpm.vercmp('{one}','{other}'))}}");
                let answer = self.ask_program("rpm", &["--eval"], &[question]).await?;
                Some(answer.stdout.trim().parse::<i32>().ok()?.cmp(&0))
            }
            Family::Apt => {
                for (word, ordering) in [("lt", Ordering::Less), ("gt", Ordering::Greater)] {
                    let words = [one, word, other].map(str::to_owned);
                    let answer = self
                        .ask_program("dpkg", &["--compare-versions"], &words)
                        .await?;
                    if answer.exited.success() {
                        return Some(ordering);
                    }
                }
                Some(Ordering::Equal)
            }
        }
    }

    async fn ask(&self, fixed: &[&str], names: &[String]) -> Result<Option<Answer>, ProcessError> {
        let program = match self.family {
            Family::Apt => self.manager.with_file_name("dpkg-query"),
            Family::Dnf => self.manager.with_file_name("rpm"),
            Family::Pacman => self.manager.to_owned(),
        };
        // Facts may describe another machine.
        if !program.is_file() {
            return Ok(None);
        }
        let mut args: Vec<String> = fixed.iter().map(|&word| word.to_owned()).collect();
        args.push("--".to_owned());
        args.extend(names.iter().cloned());
        process::ask(&self.question(program, args)).await.map(Some)
    }

    async fn ask_program(&self, name: &str, fixed: &[&str], words: &[String]) -> Option<Answer> {
        let beside = self.manager.with_file_name(name);
        let program = match beside.is_file() {
            true => beside,
            false => find(self.context, name)?,
        };
        let args = fixed.iter().map(|&word| word.to_owned());
        let args = args.chain(words.iter().cloned()).collect();
        process::ask(&self.question(program, args)).await.ok()
    }

    fn question(&self, program: PathBuf, args: Vec<String>) -> Question {
        let env = [("PATH", PATH), ("LC_ALL", "C"), ("HOME", "/root")];
        Question {
            program,
            args,
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            identity: None,
            limit: ASK_LIMIT,
        }
    }
}

/// The question for the version that would be installed. Names were checked: none is an option.
fn candidate_words(family: Family, target: &Target) -> Vec<String> {
    let fixed: &[&str] = match family {
        Family::Apt => &["policy"],
        Family::Dnf => &[
            "-q",
            "--cacheonly",
            "repoquery",
            "--latest-limit=1",
            "--qf",
            "%{epoch}:%{version}-%{release}\n",
        ],
        Family::Pacman => &[],
    };
    let mut words: Vec<String> = fixed.iter().map(|&word| word.to_owned()).collect();
    if let (Family::Apt, Some(suite)) = (family, &target.repository) {
        words.extend(["-t".to_owned(), suite.clone()]);
    }
    words.push(target.name.clone());
    words
}

/// What `apt-cache policy` (in the C locale) or `dnf repoquery` say would be installed.
fn parse_candidate(family: Family, text: &str) -> Option<String> {
    let version = match family {
        Family::Apt => text
            .lines()
            .find_map(|line| line.trim().strip_prefix("Candidate: "))?,
        Family::Dnf => {
            let line = text.lines().find(|line| !line.trim().is_empty())?.trim();
            // No epoch and epoch 0 are the same.
            line.strip_prefix("0:").unwrap_or(line)
        }
        Family::Pacman => return None,
    };
    is_version(version).then(|| version.to_owned())
}

/// Name and version in a line about an installed package.
fn parse_version(family: Family, line: &str) -> Option<(String, String)> {
    let (name, version) = match family {
        Family::Apt => {
            let (name, rest) = line.split_once('\t')?;
            (name, rest.strip_suffix("\tinstalled")?)
        }
        Family::Dnf => {
            let (name, version) = line.split_once('\t')?;
            // No epoch and epoch 0 are the same.
            (name, version.strip_prefix("0:").unwrap_or(version))
        }
        Family::Pacman => line.split_once(' ')?,
    };
    Some((name.to_owned(), version.to_owned()))
}

/// A file in a line about a package's content.
fn parse_file(family: Family, name: &str, line: &str) -> Option<PathBuf> {
    let path = match family {
        Family::Pacman => line.strip_prefix(name)?.strip_prefix(' ')?,
        _ => line,
    };
    path.starts_with('/').then(|| PathBuf::from(path))
}

fn is_program(path: &Path) -> bool {
    let directory = path.parent().and_then(Path::file_name);
    let usual = PROGRAM_DIRECTORIES
        .iter()
        .any(|name| directory.is_some_and(|directory| directory == *name));
    let executable = |path: &Path| {
        std::fs::metadata(path)
            .is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    usual && executable(path)
}

/// What `pacman -Si` says (in the C locale).
fn parse_offered(answer: &Answer) -> Offered {
    let field = |name: &str| {
        let mut lines = answer.stdout.lines();
        lines.find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    match (field("Version"), field("Repository")) {
        (Some(version), Some(repository)) => Offered::Version {
            version,
            repository,
        },
        // Nothing was ever fetched that could tell.
        _ if answer.stderr.contains("database file for") => Offered::Unknown,
        _ => Offered::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Exited;

    #[test]
    fn answers_of_every_family_are_read() {
        let parse = |family, line| {
            parse_version(family, line).map(|(name, version)| format!("{name} {version}"))
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(
            parse(Family::Apt, "toy\t1:2-3\tinstalled"),
            some("toy 1:2-3")
        );
        assert_eq!(parse(Family::Apt, "toy\t1:2-3\tconfig-files"), None);
        assert_eq!(parse(Family::Apt, "toy\t\tnot-installed"), None);
        assert_eq!(parse(Family::Dnf, "toy\t0:2-3.fc42"), some("toy 2-3.fc42"));
        assert_eq!(parse(Family::Dnf, "toy\t1:2-3"), some("toy 1:2-3"));
        assert_eq!(parse(Family::Dnf, "package toy is not installed"), None);
        assert_eq!(parse(Family::Pacman, "toy b123-1"), some("toy b123-1"));

        let file = |family, line| parse_file(family, "toy", line);
        let path = Some(PathBuf::from("/usr/bin/toy"));
        assert_eq!(file(Family::Apt, "/usr/bin/toy"), path);
        assert_eq!(file(Family::Apt, "diverted by x to: /usr/bin/toy"), None);
        assert_eq!(file(Family::Dnf, "(contains no files)"), None);
        assert_eq!(file(Family::Pacman, "toy /usr/bin/toy"), path);
        assert_eq!(file(Family::Pacman, "toy-more /usr/bin/toy"), None);
    }

    #[test]
    fn the_version_that_would_be_installed_is_read() {
        let apt =
            "toy:\n  Installed: 1:2-2\n  Candidate: 1:2-3\n  Version table:\n     1:2-3 500\n";
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(parse_candidate(Family::Apt, apt), some("1:2-3"));
        let none = "toy:\n  Installed: (none)\n  Candidate: (none)\n  Version table:\n";
        assert_eq!(parse_candidate(Family::Apt, none), None);
        assert_eq!(parse_candidate(Family::Apt, ""), None);
        let dnf = |text| parse_candidate(Family::Dnf, text);
        assert_eq!(dnf("0:2-3.fc42\n"), some("2-3.fc42"));
        assert_eq!(dnf("1:2-3.fc42\n1:2-3.fc42\n"), some("1:2-3.fc42"));
        assert_eq!(dnf("\n"), None);
        assert_eq!(dnf("Error: no metadata"), None);
        let target = Target {
            repository: some("bookworm-backports"),
            ..Target::any("toy")
        };
        let words = candidate_words(Family::Apt, &target);
        assert_eq!(words, ["policy", "-t", "bookworm-backports", "toy"]);
    }

    #[test]
    fn what_a_repository_offers_is_read() {
        let answer = |stdout: &str, stderr: &str| Answer {
            exited: Exited::Code(1),
            stdout: stdout.to_owned(),
            stderr: stderr.to_owned(),
        };
        let text = "Repository      : extra\nName            : toy\nVersion         : 1:2-3\nURL : http://x\n";
        assert_eq!(
            parse_offered(&answer(text, "")),
            Offered::Version {
                version: "1:2-3".to_owned(),
                repository: "extra".to_owned()
            }
        );
        let missing = "error: package 'toy' was not found\n";
        assert_eq!(parse_offered(&answer("", missing)), Offered::Nothing);
        let never = format!("warning: database file for 'extra' does not exist\n{missing}");
        assert_eq!(parse_offered(&answer("", &never)), Offered::Unknown);
    }
}
