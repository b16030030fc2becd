//! What a child leaves outside its own tree of processes, and how that goes: a container.
//!
//! Asked first, removed then, and only where the answer says that it is ours: a name may belong to
//! somebody else's container, because of which ours was never made. Whoever minds the child carries it
//! out; where they were killed too, whoever finds the child's record.

use std::{
    collections::BTreeMap,
    fs::{self, File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::PathBuf,
    process::ExitStatus,
    time::{Duration, Instant},
};

use rustix::{
    fs::{MemfdFlags, OFlags},
    process::{Pid, Signal},
};
use serde::{Deserialize, Serialize};

use super::{Exited, Question, ask, confine};
use crate::narrate::chain;

/// Most bytes kept of an answer.
const ANSWER_LIMIT: u64 = 256 * 1024;

/// Most lines kept of a complaint.
const COMPLAINT_LINES: usize = 5;

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
    /// Second question, put where nothing is there, or not all of it: whether a part is.
    #[serde(default)]
    pub part: Option<Part>,
    /// File that has something in it once all that the child makes elsewhere can be found and removed;
    /// until then a signal to the child would leave something that nobody knows of. Removed with the
    /// rest.
    #[serde(default)]
    pub made: Option<PathBuf>,
    /// File that keeps the answer, beside the log.
    pub answer: PathBuf,
    /// Arguments of the removal.
    pub remove: Vec<String>,
    /// Longest time each of them may take, in milliseconds; then it is killed.
    pub limit_ms: u64,
}

/// How a program is asked for what it has of something that it never made whole, or did not remove whole,
/// because it was killed meanwhile. Such a part has no mark of whose it is, and is nothing that runs: by
/// its name alone it is removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    /// Arguments of the question. The program ends well where there is one.
    pub ask: Vec<String>,
    /// Exit status that means that there is none; with any other it has not answered.
    pub none: i32,
    /// Text in the complaint about the first question, in lower case, that means that not all is there.
    #[serde(default)]
    pub half_removed: Option<String>,
}

/// What a command said.
struct Said {
    exited: Exited,
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
        let mut left = self.judge(&said);
        if let Some(part) = self.part_of(left, &said) {
            left = match self.run(&part.ask) {
                Ok(said) => part.judge(&said),
                Err(_) => Left::Unknown,
            };
        }
        let gone = match left {
            Left::Nothing | Left::SomebodyElses => true,
            Left::Ours => self
                .run(&self.remove)
                .is_ok_and(|said| self.is_removed(&said)),
            Left::Unknown => false,
        };
        self.forget_made(gone);
        gone
    }

    /// The same, beside other work; what is in the way where something of ours is left, or may be.
    pub async fn carry_out_beside(&self) -> Result<(), String> {
        let mut said = self.run_beside(&self.ask).await?;
        let mut left = self.judge(&said);
        if let Some(part) = self.part_of(left, &said) {
            said = self.run_beside(&part.ask).await?;
            left = part.judge(&said);
        }
        let gone = match left {
            Left::Nothing | Left::SomebodyElses => Ok(()),
            Left::Ours => {
                let said = self.run_beside(&self.remove).await?;
                match self.is_removed(&said) {
                    true => Ok(()),
                    false => Err(said.complained()),
                }
            }
            Left::Unknown => Err(said.complained()),
        };
        self.forget_made(gone.is_ok());
        gone
    }

    /// Whether the child is still making what is to be removed behind it.
    pub(super) fn is_half_made(&self) -> bool {
        // Docker's client makes the file before, and fills it then.
        let is_written = |path| fs::metadata(path).is_ok_and(|file| file.len() > 0);
        self.made.as_ref().is_some_and(|path| !is_written(path))
    }

    /// The next child's file is not to be there before it.
    fn forget_made(&self, gone: bool) {
        if let (true, Some(path)) = (gone, &self.made) {
            let _ = fs::remove_file(path);
        }
    }

    /// Reads an answer, and keeps it where there is one.
    fn judge(&self, said: &Said) -> Left {
        if said.exited.success() {
            // An answer that cannot be kept is only missed in a message.
            let _ = self.keep(&said.output);
        }
        match (said.exited.success(), said.output.contains(&self.mark)) {
            (true, true) => Left::Ours,
            (true, false) => Left::SomebodyElses,
            (false, _) if self.says_nothing(said) => Left::Nothing,
            (false, _) => Left::Unknown,
        }
    }

    /// What is asked next, where the answer to the first question leaves open whether a part is there.
    fn part_of(&self, left: Left, said: &Said) -> Option<&Part> {
        let may_be = |part: &&Part| match left {
            Left::Nothing => true,
            Left::Unknown => part
                .half_removed
                .as_ref()
                .is_some_and(|text| said.complains_of(text)),
            Left::Ours | Left::SomebodyElses => false,
        };
        self.part.as_ref().filter(may_be)
    }

    fn is_removed(&self, said: &Said) -> bool {
        said.exited.success() || self.says_nothing(said)
    }

    fn says_nothing(&self, said: &Said) -> bool {
        said.complains_of(&self.nothing)
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
            exited: Exited::of(status.code(), status.signal()),
            output: text(output)?,
            complaint: text(error)?,
        })
    }

    async fn run_beside(&self, args: &[String]) -> Result<Said, String> {
        let question = Question {
            program: self.program.clone(),
            args: args.to_vec(),
            env: self.env.clone(),
            identity: None,
            limit: Duration::from_millis(self.limit_ms),
        };
        let answer = ask(&question).await.map_err(|error| chain(&error))?;
        Ok(Said {
            exited: answer.exited,
            output: answer.stdout,
            complaint: answer.stderr,
        })
    }
}

impl Said {
    /// Whether a text, in lower case, is in its complaint.
    fn complains_of(&self, text: &str) -> bool {
        self.complaint.to_lowercase().contains(text)
    }

    /// The last lines of what a program that failed has complained of.
    fn complained(&self) -> String {
        let lines = self.complaint.trim().lines();
        let mut last: Vec<&str> = lines.rev().take(COMPLAINT_LINES).collect();
        last.reverse();
        match last.is_empty() {
            true => "it failed without a word".to_owned(),
            false => last.join("\n"),
        }
    }
}

impl Part {
    fn judge(&self, said: &Said) -> Left {
        match said.exited {
            Exited::Code(0) => Left::Ours,
            Exited::Code(code) if code == self.none => Left::Nothing,
            _ => Left::Unknown,
        }
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

    /// A question that is not answered in its time, which is short for it alone.
    const SILENCE: &str = "sleep 20";

    fn farewell(directory: &std::path::Path, ask: &str) -> Farewell {
        let shell = |script: &str| vec!["-c".to_owned(), script.to_owned()];
        Farewell {
            program: "/bin/sh".into(),
            env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
            ask: shell(ask),
            mark: "home-4711".to_owned(),
            nothing: "no such container".to_owned(),
            part: None,
            made: Some(directory.join("made")),
            answer: directory.join("answer"),
            remove: shell(&format!("touch {}", directory.join("removed").display())),
            limit_ms: if ask == SILENCE { 500 } else { 20_000 },
        }
    }

    #[tokio::test]
    async fn only_what_is_ours_is_removed() {
        for (ask, gone, removed) in [
            ("echo it is of home-4711", true, true),
            ("echo it is of another", true, false),
            ("echo Error: No such container x >&2; exit 1", true, false),
            ("echo is the daemon running >&2; exit 1", false, false),
            (SILENCE, false, false),
        ] {
            for beside in [false, true] {
                let place = tempfile::tempdir().unwrap();
                let farewell = farewell(place.path(), ask);
                let told = if beside {
                    farewell.carry_out_beside().await.is_ok()
                } else {
                    farewell.carry_out()
                };
                assert_eq!(told, gone, "{ask}");
                assert_eq!(place.path().join("removed").exists(), removed, "{ask}");
            }
        }
    }

    #[tokio::test]
    async fn what_was_in_the_way_is_repeated() {
        let place = tempfile::tempdir().unwrap();
        let mine = "echo home-4711";
        let complains = "echo 'Error: removing container x: device or resource busy' >&2; exit 125";
        for (ask, remove, expected) in [
            (
                mine,
                complains,
                "Error: removing container x: device or resource busy",
            ),
            (mine, "exit 3", "it failed without a word"),
            (
                "echo is the daemon running >&2; exit 1",
                "true",
                "is the daemon running",
            ),
            (mine, "seq 9 >&2; exit 1", "5\n6\n7\n8\n9"),
        ] {
            let mut farewell = farewell(place.path(), ask);
            farewell.remove = vec!["-c".to_owned(), remove.to_owned()];
            assert_eq!(farewell.carry_out_beside().await.unwrap_err(), expected);
        }
        let slow = farewell(place.path(), SILENCE);
        let said = slow.carry_out_beside().await.unwrap_err();
        assert_eq!(said, "`/bin/sh` did not answer within 500 ms");
    }

    #[tokio::test]
    async fn a_part_of_what_is_not_there_is_removed() {
        let none = "echo Error: no such container x >&2; exit 1";
        let half = "echo Error: getting x from store: Container not known >&2; exit 125";
        for (ask, part, gone, removed) in [
            (half, "exit 0", true, true),
            (half, "exit 1", true, false),
            (half, "exit 125", false, false),
            (
                "echo is the daemon running >&2; exit 1",
                "exit 0",
                false,
                false,
            ),
            (none, "exit 0", true, true),
            (none, "exit 1", true, false),
            (none, "exit 125", false, false),
            (none, "kill -KILL $$", false, false),
            ("echo it is of another", "exit 0", true, false),
        ] {
            for beside in [false, true] {
                let place = tempfile::tempdir().unwrap();
                let mut farewell = farewell(place.path(), ask);
                farewell.part = Some(Part {
                    ask: vec!["-c".to_owned(), part.to_owned()],
                    none: 1,
                    half_removed: Some("container not known".to_owned()),
                });
                let told = if beside {
                    farewell.carry_out_beside().await.is_ok()
                } else {
                    farewell.carry_out()
                };
                assert_eq!(told, gone, "{part}");
                assert_eq!(place.path().join("removed").exists(), removed, "{part}");
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
