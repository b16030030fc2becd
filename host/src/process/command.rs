//! What is to be started, in full: nothing is inherited that is not named here.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Farewell, Removal};

/// A command. It starts with exactly this environment, stdin closed, in a process group of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments after the program's name.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Working directory.
    pub directory: PathBuf,
    /// Who runs it; `None`: as this process.
    pub identity: Option<Identity>,
    /// Whether it may reach the network.
    pub network: Network,
    /// Whether it can gain privileges that it does not start with.
    #[serde(default)]
    pub privileges: Privileges,
    /// Where standard output and standard error go.
    pub output: Output,
    /// What it is to the keeper.
    pub child: Child,
}

impl Spec {
    /// The command as it could be pasted into a shell, arguments quoted, environment left out.
    #[must_use]
    pub fn display(&self) -> String {
        command_line(&self.program, &self.args)
    }
}

/// A program and its arguments as they could be pasted into a shell.
pub(super) fn command_line(program: &Path, args: &[String]) -> String {
    let mut words = vec![quote(&program.to_string_lossy())];
    words.extend(args.iter().map(|argument| quote(argument)));
    words.join(" ")
}

/// A numeric user and group; supplementary groups are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Whether a command may reach the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// The machine's network.
    Host,
    /// None: sockets other than Unix ones are refused by seccomp, and an empty network namespace is
    /// entered where that is allowed.
    None,
}

/// Whether a command can gain privileges that it does not start with, through set-uid programs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Privileges {
    /// Never (`no_new_privs`, prctl(2)).
    #[default]
    Fixed,
    /// As usual on this machine. For container runtimes that run without root alone: they map users
    /// with the help of `newuidmap`, which is set-uid.
    Usual,
}

/// Where output goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Output {
    /// Both streams, as they come, into one file.
    Together(LogFile),
    /// Each stream into its own file.
    Apart {
        /// Standard output.
        stdout: LogFile,
        /// Standard error.
        stderr: LogFile,
    },
}

/// A log file: created anew, owned by the host's user, never longer than its limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogFile {
    /// Absolute path; its directory exists.
    pub path: PathBuf,
    /// Bytes kept. What comes after is dropped from the middle: the first half stays, the second
    /// half holds the newest.
    pub limit_bytes: u64,
}

/// What a child is to the keeper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Child {
    /// A command of a step: killed at once, with its whole tree, when the host is gone.
    Step,
    /// An engine: TERM, then after `grace_ms` KILL, when the host is gone and it is not kept.
    Engine {
        /// Time between TERM and KILL, in milliseconds.
        grace_ms: u64,
        /// Documents removed as soon as its first process has ended: its handoff.
        withdraw: Vec<Removal>,
        /// What it leaves outside its tree of processes, and how that is removed then.
        farewell: Option<Box<Farewell>>,
        /// Documents removed once nothing of it is left: its record.
        remove: Vec<Removal>,
        /// Lock files that are shared until nothing of it is left: of what it reads.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        holds: Vec<PathBuf>,
    },
}

impl Child {
    /// Lock files that are shared until nothing of it is left.
    pub(super) fn holds(&self) -> &[PathBuf] {
        match self {
            Self::Step => &[],
            Self::Engine { holds, .. } => holds,
        }
    }

    /// Whether it is only a client of what runs elsewhere. Killing it would end nothing, and what it
    /// is half-way through making there would be lost to whoever cleans up.
    pub(super) fn is_a_client(&self) -> bool {
        let Self::Engine { farewell, .. } = self else {
            return false;
        };
        farewell.is_some()
    }
}

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Exited {
    /// With this exit code.
    Code(i32),
    /// By this signal number.
    Signal(i32),
}

impl Exited {
    /// From the exit code or the signal number that the system gives; it gives one of them.
    pub(super) fn of(code: Option<i32>, signal: Option<i32>) -> Self {
        match (code, signal) {
            (Some(code), _) => Self::Code(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    /// Whether it ended with exit code 0.
    #[must_use]
    pub fn success(self) -> bool {
        self == Self::Code(0)
    }
}

impl std::fmt::Display for Exited {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "exit code {code}"),
            Self::Signal(number) => match signal_name(*number) {
                Some(name) => write!(formatter, "signal {number} ({name})"),
                None => write!(formatter, "signal {number}"),
            },
        }
    }
}

/// Name of a signal, as in signal(7).
#[must_use]
pub fn signal_name(number: i32) -> Option<&'static str> {
    Some(match number {
        1 => "HUP",
        2 => "INT",
        3 => "QUIT",
        4 => "ILL",
        6 => "ABRT",
        7 => "BUS",
        8 => "FPE",
        9 => "KILL",
        11 => "SEGV",
        13 => "PIPE",
        14 => "ALRM",
        15 => "TERM",
        24 => "XCPU",
        25 => "XFSZ",
        31 => "SYS",
        _ => return None,
    })
}

/// Quotes a word for a POSIX shell, only where it needs it.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:=,@%+".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_only_where_a_shell_needs_it() {
        assert_eq!(quote("-DX=1"), "-DX=1");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(""), "''");
    }

    #[test]
    fn an_end_reads_as_a_person_would_say_it() {
        assert_eq!(Exited::Signal(11).to_string(), "signal 11 (SEGV)");
        assert_eq!(Exited::Code(3).to_string(), "exit code 3");
    }
}
