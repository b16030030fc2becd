//! A machine made up in a directory.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use futures_util::future::BoxFuture;

use super::{Ask, Roots};
use crate::{
    config::environment::Environment,
    process::{Answer, Exited, ProcessError, Question},
};

/// A machine whose files lie in a temporary directory, `PATH` being `/usr/bin`.
pub(crate) struct FakeMachine {
    directory: tempfile::TempDir,
    variables: BTreeMap<String, String>,
}

impl Default for FakeMachine {
    fn default() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(directory.path(), open).expect("own directory");
        Self {
            directory,
            variables: BTreeMap::from([("PATH".to_owned(), "/usr/bin".to_owned())]),
        }
    }
}

impl FakeMachine {
    pub(crate) fn real(&self, path: &str) -> PathBuf {
        self.directory.path().join(path.trim_start_matches('/'))
    }

    pub(crate) fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.to_owned(), value.to_owned());
    }

    pub(crate) fn write(&self, path: &str, text: &str) {
        let path = self.real(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
        fs::write(path, text).expect("a file");
    }

    pub(crate) fn program(&self, path: &str, text: &str) {
        self.write(path, text);
        fs::set_permissions(self.real(path), fs::Permissions::from_mode(0o755)).expect("own file");
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        let path = self.real(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("directories");
        std::os::unix::fs::symlink(target, path).expect("a link");
    }

    pub(crate) fn roots(&self) -> Roots {
        let environment = Environment::from_pairs(self.variables.clone());
        Roots::at(self.directory.path(), environment)
    }
}

/// Answers by program, as a path of the machine, or by the whole line, and remembers what was asked.
#[derive(Clone, Default)]
pub(crate) struct Script {
    root: PathBuf,
    answers: BTreeMap<String, Answer>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Script {
    pub(crate) fn of(machine: &FakeMachine) -> Self {
        Self {
            root: machine.directory.path().to_owned(),
            ..Self::default()
        }
    }

    pub(crate) fn answers(mut self, program: &str, code: i32, stdout: &str) -> Self {
        let answer = Answer {
            exited: Exited::Code(code),
            stdout: stdout.to_owned(),
            stderr: String::new(),
        };
        self.answers.insert(program.to_owned(), answer);
        self
    }

    /// Fails with a word on standard error.
    pub(crate) fn fails(mut self, program: &str, code: i32, stderr: &str) -> Self {
        let answer = Answer {
            exited: Exited::Code(code),
            stdout: String::new(),
            stderr: stderr.to_owned(),
        };
        self.answers.insert(program.to_owned(), answer);
        self
    }

    /// What was asked since the last time, sorted.
    pub(crate) fn asked(&self) -> Vec<String> {
        let mut asked = std::mem::take(&mut *self.asked.lock().expect("no test panics here"));
        asked.sort();
        asked
    }

    fn answer(&self, question: &Question) -> Option<Answer> {
        let program = question.program.strip_prefix(&self.root).ok()?;
        let program = Path::new("/").join(program).to_string_lossy().into_owned();
        let line = format!("{program} {}", question.args.join(" "));
        let answer = self
            .answers
            .get(&line)
            .or_else(|| self.answers.get(&program));
        let answer = answer.cloned();
        self.asked.lock().expect("no test panics here").push(line);
        answer
    }
}

impl Ask for Script {
    fn ask(&self, question: Question) -> BoxFuture<'_, Result<Answer, ProcessError>> {
        let answer = self.answer(&question);
        Box::pin(async move {
            match answer {
                Some(answer) => Ok(answer),
                // A program without an answer hangs until its limit.
                None => Err(ProcessError::TimedOut {
                    program: question.program.to_string_lossy().into_owned(),
                    limit: question.limit,
                }),
            }
        })
    }
}
