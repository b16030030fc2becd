//! What version tools and libraries are: asked with a limit, in parallel, and remembered.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{roots::Roots, system::version_in};
use crate::{
    process::{Answer, Exited, Identity, ProcessError, Question, ask},
    store::{read_document, write_document},
};

/// Longest time a tool may take to print its version.
pub const VERSION_LIMIT: Duration = Duration::from_secs(3);

/// How much longer than its limit any question may take before it is given up unanswered: a process
/// stuck in a driver cannot even be killed.
const GIVE_UP_AFTER: Duration = Duration::from_secs(1);

/// Version of the remembered document.
const SCHEMA: u32 = 1;

/// Something that answers questions: processes, or a test.
pub trait Ask: Send + Sync {
    /// Asks.
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ProcessError>>;
}

/// Asks real programs.
#[derive(Debug, Clone, Copy, Default)]
pub struct Processes;

impl Ask for Processes {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ProcessError>> {
        Box::pin(async move { ask(&question).await })
    }
}

/// Asks with a limit that holds whatever the program does.
pub(super) async fn bounded(asker: &dyn Ask, question: Question) -> Result<Answer, ProcessError> {
    let program = question.program.to_string_lossy().into_owned();
    let limit = question.limit;
    tokio::time::timeout(limit + GIVE_UP_AFTER, asker.ask(question))
        .await
        .unwrap_or(Err(ProcessError::TimedOut { program, limit }))
}

/// What a tool said of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// Its version; empty where it told none.
    Version(String),
    /// It cannot be used, and why.
    Unusable(String),
}

/// Finds versions of tools and libraries, and remembers those of files that did not change.
pub(super) struct Versions<'a> {
    pub asker: &'a dyn Ask,
    pub roots: &'a Roots,
    pub identity: Option<Identity>,
    memory: Memory,
}

/// Remembered versions, in a file below the host's state.
struct Memory {
    path: Option<PathBuf>,
    inner: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    versions: BTreeMap<String, Entry>,
    changed: bool,
}

/// A remembered version and what the file looked like when it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    file: String,
    version: String,
}

#[derive(Default, Serialize, Deserialize)]
struct Document {
    versions: BTreeMap<String, Entry>,
}

impl<'a> Versions<'a> {
    /// `memory`: file in which versions are remembered; `None` remembers nothing.
    pub(super) fn new(
        asker: &'a dyn Ask,
        roots: &'a Roots,
        identity: Option<Identity>,
        memory: Option<PathBuf>,
    ) -> Self {
        // What cannot be read is asked again.
        let document: Option<Document> = memory
            .as_ref()
            .and_then(|path| read_document(path, SCHEMA).ok()?);
        Self {
            asker,
            roots,
            identity,
            memory: Memory {
                path: memory,
                inner: Mutex::new(Remembered {
                    versions: document.unwrap_or_default().versions,
                    changed: false,
                }),
            },
        }
    }

    /// What a program says its version is; no arguments: it is not asked.
    pub(super) async fn of(&self, program: &Path, args: &[String]) -> Said {
        if args.is_empty() {
            return Said::Version(String::new());
        }
        let uid = self
            .identity
            .map_or_else(|| "-".to_owned(), |id| id.uid.to_string());
        let key = format!("{uid} {} {}", program.display(), args.join(" "));
        let Some(file) = looks(&self.roots.real(program)) else {
            return Said::Unusable("it is gone".to_owned());
        };
        if let Some(version) = self.memory.recall(&key, &file) {
            return Said::Version(version);
        }
        match bounded(self.asker, self.question(program, args, VERSION_LIMIT)).await {
            Ok(answer) => {
                let said = judge(&answer);
                if let Said::Version(version) = &said {
                    self.memory.remember(key, file, version.clone());
                }
                said
            }
            Err(ProcessError::TimedOut { limit, .. }) => {
                tracing::debug!(program = %program.display(), ?limit, "no version in time");
                Said::Version(String::new())
            }
            Err(error) => Said::Unusable(crate::narrate::chain(&error)),
        }
    }

    /// A version that stands in a file, found there by `find`.
    pub(super) fn within(
        &self,
        path: &Path,
        find: impl FnOnce(&[u8]) -> Option<String>,
    ) -> Option<String> {
        let real = self.roots.real(path);
        let (key, file) = (format!("within {}", path.display()), looks(&real)?);
        if let Some(version) = self.memory.recall(&key, &file) {
            return Some(version);
        }
        let version = find(&fs::read(real).ok()?)?;
        self.memory.remember(key, file, version.clone());
        Some(version)
    }

    /// A question that runs as whoever will use the tool, with next to no environment.
    pub(super) fn question(&self, program: &Path, args: &[String], limit: Duration) -> Question {
        let path = std::env::join_paths(self.roots.search_path()).unwrap_or_default();
        let mut env = BTreeMap::from([
            ("LC_ALL".to_owned(), "C".to_owned()),
            ("PATH".to_owned(), path.to_string_lossy().into_owned()),
        ]);
        // Some tools (ccache) refuse to tell their version without a home.
        let home = self.roots.environment().get("HOME");
        let home = home.filter(|_| self.identity.is_none());
        env.insert("HOME".to_owned(), home.unwrap_or("/nonexistent").to_owned());
        Question {
            program: self.roots.real(program),
            args: args.to_vec(),
            env,
            identity: self.identity,
            limit,
        }
    }

    /// Writes down what was learned. Failing to is no failure of the facts.
    pub(super) fn save(&self) {
        self.memory.save();
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Remembered> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recall(&self, key: &str, file: &str) -> Option<String> {
        let remembered = self.lock();
        let entry = remembered.versions.get(key)?;
        (entry.file == file).then(|| entry.version.clone())
    }

    fn remember(&self, key: String, file: String, version: String) {
        let mut remembered = self.lock();
        remembered.versions.insert(key, Entry { file, version });
        remembered.changed = true;
    }

    fn save(&self) {
        let remembered = self.lock();
        let (Some(path), true) = (&self.path, remembered.changed) else {
            return;
        };
        let document = Document {
            versions: remembered.versions.clone(),
        };
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .map_err(|error| error.to_string())
            .and_then(|()| {
                write_document(path, SCHEMA, 0o644, &document).map_err(|error| error.to_string())
            });
        if let Err(reason) = written {
            tracing::debug!(path = %path.display(), reason, "versions are not remembered");
        }
    }
}

fn judge(answer: &Answer) -> Said {
    let version = version_in(&answer.stdout).or_else(|| version_in(&answer.stderr));
    match (answer.exited, version) {
        // A shim without anything behind it: 126 and 127 are the shell's codes for that.
        (Exited::Code(code @ (126 | 127)), _) => {
            let said = answer.stderr.lines().next().unwrap_or("").trim();
            Said::Unusable(format!("it ends with exit code {code}: {said}"))
        }
        (Exited::Signal(_), None) => Said::Unusable(format!("it ends with {}", answer.exited)),
        (_, version) => Said::Version(version.unwrap_or_default()),
    }
}

/// What a file looks like from outside: another file, or another content, looks different.
pub(super) fn looks(path: &Path) -> Option<String> {
    let it = fs::metadata(path).ok()?;
    Some(format!(
        "{}:{}:{}:{}.{:09}:{}.{:09}",
        it.dev(),
        it.ino(),
        it.size(),
        it.mtime(),
        it.mtime_nsec(),
        it.ctime(),
        it.ctime_nsec()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stuck;

    impl Ask for Stuck {
        fn ask(&self, _: Question) -> BoxFuture<'_, Result<Answer, ProcessError>> {
            Box::pin(std::future::pending())
        }
    }

    #[tokio::test]
    async fn even_a_process_that_cannot_be_killed_holds_nobody_up() {
        let question = Question {
            program: "/x".into(),
            args: Vec::new(),
            env: BTreeMap::new(),
            identity: None,
            limit: Duration::from_millis(1),
        };
        let answer = bounded(&Stuck, question).await;
        assert!(
            matches!(answer, Err(ProcessError::TimedOut { .. })),
            "{answer:?}"
        );
    }
}
