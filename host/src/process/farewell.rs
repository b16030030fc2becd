//! What a child leaves outside its own tree of processes, and how that goes: a container.
//!
//! Asked first, removed then, and only where the answer says that it is ours: a name may belong to
//! somebody else's container, because of which ours was never made. Whoever minds the child carries it
//! out; where they were killed too, whoever finds the child's record.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::ExitStatus,
    time::{Duration, Instant},
};

use rustix::{
    fs::{MemfdFlags, OFlags},
    process::{Pid, Signal},
};
use serde::{Deserialize, Serialize};

use super::{Question, ask, confine};

/// Most bytes kept of an answer.
const ANSWER_LIMIT: u64 = 256 * 1024;

/// Pause between two looks whether a command has ended.
const INTERVAL: Duration = Duration::from_millis(2);

/// A question and a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Farewell {
    /// Absolute path of the program that is asked and that removes.
    pub program: PathBuf,
    /// Its whole environment. Stands in records: nothing secret.
    pub env: BTreeMap<String, String>,
    /// Arguments of the question.
    pub ask: Vec<String>,
    /// Text in the answer that shows that what is there is ours.
    pub mark: String,
    /// Text in the program's complaint, in lower case, that means that nothing is there.
    pub nothing: String,
    /// File that keeps the answer, beside the log.
    pub answer: PathBuf,
    /// Arguments of the removal.
    pub remove: Vec<String>,
    /// Longest time each of the two may take, in milliseconds; then it is killed.
    pub limit_ms: u64,
}

/// What a command said.
struct Said {
    success: bool,
    output: String,
    complaint: String,
}

/// What is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    Ours,
    SomebodyElses,
    /// The program gave no answer: its daemon is down, for example.
    Unknown,
}

impl Farewell {
    /// Longest time it takes as a whole.
    #[must_use]
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.saturating_mul(2))
    }

    /// Asks and removes; whether nothing of ours is left. For single-threaded processes alone.
    pub(super) fn carry_out(&self) -> bool {
        let Ok(said) = self.run(&self.ask) else {
            return false;
        };
        match self.judge(&said) {
            Left::Nothing | Left::SomebodyElses => true,
            Left::Ours => self
                .run(&self.remove)
                .is_ok_and(|said| self.is_removed(&said)),
            Left::Unknown => false,
        }
    }

    /// The same, beside other work.
    pub async fn carry_out_beside(&self) -> bool {
        let Some(said) = self.run_beside(&self.ask).await else {
            return false;
        };
        match self.judge(&said) {
            Left::Nothing | Left::SomebodyElses => true,
            Left::Ours => self
                .run_beside(&self.remove)
                .await
                .is_some_and(|said| self.is_removed(&said)),
            Left::Unknown => false,
        }
    }

    /// Reads an answer, and keeps it where there is one.
    fn judge(&self, said: &Said) -> Left {
        if said.success {
            // An answer that cannot be kept is only missed in a message.
            let _ = self.keep(&said.output);
        }
        match (said.success, said.output.contains(&self.mark)) {
            (true, true) => Left::Ours,
            (true, false) => Left::SomebodyElses,
            (false, _) if self.says_nothing(said) => Left::Nothing,
            (false, _) => Left::Unknown,
        }
    }

    fn is_removed(&self, said: &Said) -> bool {
        said.success || self.says_nothing(said)
    }

    fn says_nothing(&self, said: &Said) -> bool {
        said.complaint.to_lowercase().contains(&self.nothing)
    }

    fn keep(&self, answer: &str) -> io::Result<()> {
        let _ = fs::remove_file(&self.answer);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o640)
            .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
            .open(&self.answer)?;
        file.write_all(answer.as_bytes())
    }

    fn run(&self, args: &[String]) -> io::Result<Said> {
        let stream = || -> io::Result<File> {
            Ok(rustix::fs::memfd_create("farewell", MemfdFlags::CLOEXEC)?.into())
        };
        let (output, error) = (stream()?, stream()?);
        let (to, complain) = (output.try_clone()?, error.try_clone()?);
        let child = confine::spawn_last(&self.program, args, &self.env, to, complain)?;
        let status = end_of(child, Duration::from_millis(self.limit_ms))?;
        Ok(Said {
            success: status.success(),
            output: text(output)?,
            complaint: text(error)?,
        })
    }

    async fn run_beside(&self, args: &[String]) -> Option<Said> {
        let answer = ask(&Question {
            program: self.program.clone(),
            args: args.to_vec(),
            env: self.env.clone(),
            identity: None,
            limit: Duration::from_millis(self.limit_ms),
        })
        .await
        .ok()?;
        Some(Said {
            success: answer.exited.success(),
            output: answer.stdout,
            complaint: answer.stderr,
        })
    }
}

/// Waits for a command; kills it with its group when it takes too long.
fn end_of(mut child: std::process::Child, limit: Duration) -> io::Result<ExitStatus> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > limit {
            let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            if let Some(group) = group {
                let _ = rustix::process::kill_process_group(group, Signal::KILL);
            }
            return child.wait();
        }
        std::thread::sleep(INTERVAL);
    }
}

fn text(mut file: File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(ANSWER_LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn farewell(directory: &std::path::Path, ask: &str) -> Farewell {
        let shell = |script: &str| vec!["-c".to_owned(), script.to_owned()];
        Farewell {
            program: "/bin/sh".into(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ask: shell(ask),
            mark: "home-4711".to_owned(),
            nothing: "no such container".to_owned(),
            answer: directory.join("answer"),
            remove: shell(&format!("touch {}", directory.join("removed").display())),
            limit_ms: 500,
        }
    }

    #[tokio::test]
    async fn only_what_is_ours_is_removed() {
        for (ask, gone, removed) in [
            ("echo it is of home-4711", true, true),
            ("echo it is of another", true, false),
            ("echo Error: No such container x >&2; exit 1", true, false),
            ("echo is the daemon running >&2; exit 1", false, false),
            ("sleep 20", false, false),
        ] {
            for beside in [false, true] {
                let place = tempfile::tempdir().unwrap();
                let farewell = farewell(place.path(), ask);
                let told = if beside {
                    farewell.carry_out_beside().await
                } else {
                    farewell.carry_out()
                };
                assert_eq!(told, gone, "{ask}");
                assert_eq!(place.path().join("removed").exists(), removed, "{ask}");
            }
        }
    }

    #[test]
    fn the_answer_is_kept() {
        let place = tempfile::tempdir().unwrap();
        farewell(place.path(), "echo home-4711 OOMKilled").carry_out();
        let kept = fs::read_to_string(place.path().join("answer")).unwrap();
        assert_eq!(kept, "home-4711 OOMKilled\n");
    }
}
