//! One command of a step: its log, its progress, and what is said when it fails.

use std::{
    collections::BTreeMap,
    fmt,
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use engine_provider_api::{Hint, Step};
use regex::Regex;

use super::{
    ActError, Context, fill,
    meter::{Meter, Watch},
};
use crate::{
    fault::{Detail, hint},
    narrate::Narrator,
    process::{Child, Exited, Identity, LogFile, Network, Output, Privileges, Spec},
    store,
};

/// Bytes of a log that are kept.
const LOG_LIMIT_BYTES: u64 = 16 << 20;

/// How often a log is looked at for progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Lines of a failed command's log that are shown.
const TAIL_LINES: usize = 12;

/// Longest end of a log that is searched for those lines.
const TAIL_BYTES: u64 = 16 << 10;

/// With less space than this a disk counts as full.
const FULL_BELOW_BYTES: u64 = 64 << 10;

/// `PATH` of commands, after the directories of the tools they use.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command, ready to run.
pub(super) struct Job<'a> {
    pub(super) step: &'a Step,
    /// Name of its log and its progress.
    pub(super) id: &'a str,
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) directory: PathBuf,
    pub(super) identity: Option<Identity>,
    pub(super) network: Network,
    pub(super) privileges: Privileges,
    pub(super) meter: Option<Meter>,
    pub(super) limit: Option<Duration>,
}

/// A command that ran and failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommandFailure {
    /// Its name.
    pub id: String,
    /// As it could be pasted, secrets masked.
    pub command: String,
    /// Where it ran.
    pub directory: PathBuf,
    /// How it ended.
    pub exited: Exited,
    /// The last lines it printed.
    pub tail: Vec<String>,
    /// Everything it printed; empty where it printed to the terminal.
    pub log: PathBuf,
    /// Whether it had no network and its log sounds as if it wanted one.
    pub wanted_network: bool,
    /// Whether its log says that the disk is full.
    pub disk_full: bool,
}

impl fmt::Display for CommandFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "`{}` ended with {}", self.id, self.exited)
    }
}

impl CommandFailure {
    pub(super) fn hints(&self) -> Vec<Hint> {
        let log = crate::process::quote(&self.log.to_string_lossy());
        let read = hint("read the whole log", Some(&format!("less {log}")));
        let read = Some(read).filter(|_| self.has_log());
        if self.disk_full {
            // The directory itself was work in progress and is gone by now.
            let mut places = self.directory.ancestors();
            let place = places
                .find(|place| place.exists())
                .unwrap_or(&self.directory);
            let command = format!("df -h {}", crate::process::quote(&place.to_string_lossy()));
            let text = "free some space, or put the host's home on another disk with HOST_HOME";
            return std::iter::once(hint(text, Some(&command)))
                .chain(read)
                .collect();
        }
        read.into_iter().collect()
    }

    fn has_log(&self) -> bool {
        !self.log.as_os_str().is_empty()
    }

    pub(super) fn details(&self) -> Vec<Detail> {
        let mut details = vec![
            Detail::new("command", self.command.clone()),
            Detail::new("directory", self.directory.display().to_string()),
        ];
        if !self.tail.is_empty() {
            details.push(Detail::new("output", self.tail.join("\n")));
        }
        if self.has_log() {
            details.push(Detail::new("log", self.log.display().to_string()));
        }
        if self.wanted_network {
            details.push(Detail::new(
                "note",
                "this step has no network: its plan names no host, so commands cannot connect",
            ));
        }
        details
    }
}

/// Runs a command to its end. Cancelled, its whole process tree is gone before this returns.
pub(super) async fn run(context: &Context, job: Job<'_>) -> Result<(), ActError> {
    let step = job.step;
    let log = fill::log_path(context, step, job.id)?;
    let spec = Spec {
        program: job.program,
        args: job.args,
        env: job.env,
        directory: job.directory.clone(),
        identity: job.identity,
        network: job.network,
        privileges: job.privileges,
        output: Output::Together(LogFile {
            path: log.clone(),
            limit_bytes: LOG_LIMIT_BYTES,
        }),
        child: Child::Step,
    };
    let command = context
        .narrator
        .secrets()
        .mask(&spec.display())
        .into_owned();
    let mut watch = job.meter.map(|meter| Watch::new(meter, job.id, &log));
    let watched = watch.as_mut().map(|watch| (watch, &context.narrator));
    let exited = to_end(context, step, spec, job.limit, watched).await?;
    if exited.success() {
        return Ok(());
    }
    let text = read_log(&log, LOG_LIMIT_BYTES);
    let disk_full = says_disk_full(&text) || is_disk_full(&log);
    Err(ActError::Command {
        step: step.id.clone(),
        failure: Box::new(CommandFailure {
            id: job.id.to_owned(),
            command,
            directory: job.directory,
            exited,
            tail: tail(context, &log),
            log,
            wanted_network: job.network == Network::None && wants_network(&text),
            disk_full,
        }),
    })
}

/// Runs a command to its end, reporting progress. Cancelled or at its limit, its whole process tree
/// is killed and gone before this returns.
pub(super) async fn to_end(
    context: &Context,
    step: &Step,
    spec: Spec,
    limit: Option<Duration>,
    mut watch: Option<(&mut Watch, &Narrator)>,
) -> Result<Exited, ActError> {
    if context.cancel.is_cancelled() {
        return Err(ActError::cancelled(step));
    }
    let failed = |source| ActError::process(step, source);
    let command = context
        .narrator
        .secrets()
        .mask(&spec.display())
        .into_owned();
    let running = context.keeper.spawn(spec).await.map_err(failed)?;
    let deadline = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    let ended = loop {
        tokio::select! {
            biased;
            // What ended in time did, however late this is looked at.
            ended = running.wait() => break Ok(ended.map_err(failed)?.exited),
            () = context.cancel.cancelled() => break Err(ActError::cancelled(step)),
            () = &mut deadline => break Err(ActError::TimedOut {
                step: step.id.clone(),
                command,
                limit_ms: limit.unwrap_or_default().as_millis(),
            }),
            () = tokio::time::sleep(PROGRESS_INTERVAL), if watch.is_some() => {
                if let Some((watch, narrator)) = &mut watch {
                    watch.look(narrator);
                }
            }
        }
    };
    if ended.is_err() {
        running.kill_tree();
        running.wait().await.map_err(failed)?;
    }
    if let Some((watch, narrator)) = watch {
        watch.finish(narrator);
    }
    ended
}

/// The last `limit` bytes of a log; empty where there is none.
pub(super) fn read_log(path: &Path, limit: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// The last lines of a log, secrets masked.
pub(super) fn tail(context: &Context, log: &Path) -> Vec<String> {
    static COLOURS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new("\x1b\\[[0-9;]*[A-Za-z]").expect("the pattern is a constant"));
    let text = read_log(log, TAIL_BYTES);
    let plain = COLOURS.replace_all(&text, "");
    let masked = context.narrator.secrets().mask(&plain);
    let lines: Vec<&str> = masked
        .lines()
        // What a progress line was overwritten with is what counts.
        .map(|line| line.trim_end().rsplit('\r').next().unwrap_or_default())
        .filter(|line| !line.is_empty())
        .collect();
    let start = lines.len().saturating_sub(TAIL_LINES);
    lines[start..].iter().map(|&line| line.to_owned()).collect()
}

/// The line that says why a command failed: the last one that calls itself an error, else the last.
/// What was to be done is not repeated: `Could not resolve host: x`, not `unable to access …: …`.
pub(super) fn last_words(lines: &[String]) -> Option<&str> {
    const SIGNS: [&str; 4] = ["fatal: ", "error: ", "ERROR: ", "E: "];
    /// What git adds to every failure to talk to a server.
    const ALWAYS_SAID: [&str; 3] = [
        "Could not read from remote repository.",
        "Please make sure you have the correct access rights",
        "and the repository exists.",
    ];
    let unmarked = |line: &'_ str| -> Option<usize> {
        let sign = SIGNS.iter().find(|sign| line.starts_with(**sign))?;
        Some(sign.len())
    };
    let telling = lines.iter().rev().map(|line| line.trim()).filter(|line| {
        let words = unmarked(line).map_or(*line, |start| &line[start..]);
        !words.is_empty() && !ALWAYS_SAID.contains(&words)
    });
    let marked = telling
        .clone()
        .find_map(|line| unmarked(line).map(|start| &line[start..]));
    let words = marked.or_else(|| telling.clone().next())?;
    let why = words
        .strip_prefix("unable to access '")
        .and_then(|rest| rest.split_once("': "));
    Some(why.map_or(words, |(_, why)| why))
}

/// Whether a log sounds like a program that cannot reach the network.
fn wants_network(log: &str) -> bool {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(
            "(?is)could not resolve|temporary failure in name resolution|name or service not known|\
             network is unreachable|failed to connect|couldn't connect|unable to connect|\
             failed to establish|connection refused|no route to host|address family not supported|\
             socket.{0,120}(permission denied|operation not permitted|not permitted)|\
             (permission denied|operation not permitted).{0,120}socket|getaddrinfo",
        )
        .expect("the pattern is a constant")
    });
    PATTERN.is_match(log)
}

/// Whether so little is free that the log itself may lack the words.
fn is_disk_full(path: &Path) -> bool {
    store::free_bytes(path).is_some_and(|free| free < FULL_BELOW_BYTES)
}

fn says_disk_full(log: &str) -> bool {
    static PATTERN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new("(?i)no space left on device|disk quota exceeded|\\bENOSPC\\b")
            .expect("the pattern is a constant")
    });
    PATTERN.is_match(log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_that_want_a_network_or_a_disk_are_recognised() {
        assert!(wants_network("curl: (6) Could not resolve host: x"));
        assert!(wants_network("socket: Operation not permitted"));
        assert!(!wants_network("error: expected ';'"));
        assert!(says_disk_full("ld: write failed: No space left on device"));
        assert!(!says_disk_full("spaceship"));
    }

    #[test]
    fn the_last_words_of_a_command_say_why_it_failed() {
        let said = |lines: &[&str]| {
            let lines: Vec<String> = lines.iter().map(|&line| line.to_owned()).collect();
            last_words(&lines).map(str::to_owned)
        };
        let cases: [(&[&str], Option<&str>); 6] = [
            (
                &[
                    "fatal: unable to access 'https://github.com/a/b/': Could not resolve host: github.com",
                ],
                Some("Could not resolve host: github.com"),
            ),
            (
                &[
                    "fatal: '/srv/x' does not appear to be a git repository",
                    "fatal: Could not read from remote repository.",
                    "",
                    "Please make sure you have the correct access rights",
                    "and the repository exists.",
                ],
                Some("'/srv/x' does not appear to be a git repository"),
            ),
            (
                &[
                    "ssh: Could not resolve hostname x: Name or service not known",
                    "fatal: Could not read from remote repository.",
                ],
                Some("ssh: Could not resolve hostname x: Name or service not known"),
            ),
            (&["one", "two"], Some("two")),
            (&[""], None),
            (&[], None),
        ];
        for (lines, expected) in cases {
            assert_eq!(said(lines).as_deref(), expected, "{lines:?}");
        }
    }
}
