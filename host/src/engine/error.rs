//! What can go wrong between a prepared engine and a stopped one.

mod fault;

use std::{fmt, net::SocketAddr, path::PathBuf, time::Duration};

use engine_provider_api::TemplateError;

use super::{diagnose::Finding, probe::Unreached};
use crate::{
    container::{ContainerError, ExitReason},
    process::{Exited, ProcessError},
    store::StoreError,
};

/// A failure of the engine room.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A template of the launch cannot be filled in.
    #[error("the provider's launch cannot be filled in")]
    Template {
        /// Which and why.
        #[source]
        source: TemplateError,
    },
    /// A secret stands where others can read it.
    #[error(
        "the argument `{argument}` would show the secret `{name}` to everybody on this machine"
    )]
    SecretInArgument {
        /// The argument, with the secret's name instead of its value.
        argument: String,
        /// The secret's name.
        name: String,
    },
    /// A secret is not set.
    #[error("the secret `{name}` is not set")]
    SecretMissing {
        /// Its name, which is that of an environment variable.
        name: String,
    },
    /// A placed file would leave its directory.
    #[error("the provider places a file at `{path}`, outside the engine's directory")]
    FileOutside {
        /// The path as the provider wrote it.
        path: String,
    },
    /// A name that becomes part of a file's name is no id.
    #[error("`{name}` is no name for an engine, a pool or a replica: 1 to 63 of a-z, 0-9 and -")]
    Name {
        /// The name.
        name: String,
    },
    /// The launch names a program of this machine.
    #[error("the provider starts `{program}`, which is no result of one of its steps")]
    HostProgram {
        /// The program as the provider wrote it.
        program: String,
    },
    /// The launch names a path of this machine where only those inside a container mean anything.
    #[error(
        "the provider's `{text}` names a path of this machine by `{{{placeholder}}}`, which leads nowhere inside the container"
    )]
    PathInContainer {
        /// The text as the provider wrote it.
        text: String,
        /// The placeholder.
        placeholder: String,
    },
    /// A mount is none that a provider may ask for.
    #[error(
        "the provider mounts `{source_text}` as `{target}`: only results of steps, `{{files}}` and caches can be mounted, at plain absolute paths"
    )]
    BadMount {
        /// The source as the provider wrote it.
        source_text: String,
        /// Path inside.
        target: String,
    },
    /// What is to be mounted is not there.
    #[error("`{}`, to be mounted as {target}, is not there", path.display())]
    MountMissing {
        /// The missing path.
        path: PathBuf,
        /// Path inside.
        target: String,
    },
    /// The container's user could not read what is mounted for it.
    #[error("{user} inside the container may not read `{}` (mode {mode:04o}), mounted as {target}", path.display())]
    MountUnreadable {
        /// The file or directory that cannot be read.
        path: PathBuf,
        /// Whether it is a directory.
        is_directory: bool,
        /// Its mode bits.
        mode: u32,
        /// Path inside.
        target: String,
        /// Who cannot read it.
        user: String,
    },
    /// A cache would have to belong to a user whose number is not known here.
    #[error("the container runs as `{user}`, and its caches need a number to belong to")]
    NamedUser {
        /// The user as the image names it.
        user: String,
    },
    /// A cache would have to belong to somebody to whom this process may not give it.
    #[error(
        "{runtime} runs the engine as user id {uid}, and user id {own} may not give it a cache to write in"
    )]
    CacheOwner {
        /// Who writes in it.
        uid: u32,
        /// Who this process is.
        own: u32,
        /// `podman` or `docker`.
        runtime: String,
    },
    /// No container runtime can be used, or not with these settings.
    #[error("the engine's container cannot be run")]
    Container {
        /// Why.
        #[source]
        source: ContainerError,
    },
    /// The image that the launch names was pulled by no step.
    #[error("the provider runs the image of step `{step}`, which has pulled none")]
    NoImage {
        /// Name of the step.
        step: String,
    },
    /// The runtime does not have the image any more.
    #[error("{runtime} does not have the image `{image}` any more")]
    ImageGone {
        /// `podman` or `docker`.
        runtime: String,
        /// Image by digest.
        image: String,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The container's name is in use.
    #[error("a container named `{name}` is there already in {runtime}{}", if *ours { ", left by an earlier run" } else { " and is not this installation's" })]
    NameTaken {
        /// `podman` or `docker`.
        runtime: String,
        /// The name.
        name: String,
        /// Whether it was this instance's own. Then it is removed by now.
        ours: bool,
    },
    /// A container is left that could not be removed.
    #[error(
        "{runtime} could not remove the container `{name}` of an engine that has ended: {}",
        said.lines().last().unwrap_or_default()
    )]
    ContainerLeft {
        /// `podman` or `docker`.
        runtime: String,
        /// Its name.
        name: String,
        /// What the runtime complained of.
        said: String,
    },
    /// The URL of an engine that runs already cannot be used.
    #[error("cannot attach to `{url}`: {reason}")]
    ExternalUrl {
        /// The URL as it was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// An engine of somebody else does not answer any more.
    #[error("{}", if *ready { format!("the engine at {url} has stopped answering") } else { format!("no engine answers at {url}") })]
    ExternalGone {
        /// Where it answered.
        url: String,
        /// Whether it had been ready.
        ready: bool,
    },
    /// No port is free.
    #[error("no port is free for the engine on {host}: {} tried", ports(tried))]
    NoPort {
        /// Address.
        host: String,
        /// Ports that are taken.
        tried: Vec<u16>,
        /// Whether the pool names its ports.
        named: bool,
    },
    /// The pool runs already, with other settings.
    #[error("pool `{pool}` runs already, with other settings")]
    Conflict {
        /// Pool.
        pool: String,
        /// Where the running engine answers.
        url: String,
        /// Lines with `-` (running) and `+` (asked for).
        difference: Vec<String>,
    },
    /// Two engines of the same replica run, and there is no room for a third.
    #[error("two engines of pool `{pool}` run side by side already, one of them at {url}")]
    BothSides {
        /// Pool.
        pool: String,
        /// Where the one answers that is in the way.
        url: String,
    },
    /// An engine that runs cannot be taken over.
    #[error("the engine of pool `{pool}` at {url} cannot be taken over: {reason}")]
    NotAdopted {
        /// Pool.
        pool: String,
        /// Where it answers.
        url: String,
        /// Why not.
        reason: String,
        /// Whether it is another host's. Else it is ending, and a start finds its place free in time.
        is_attended: bool,
    },
    /// A file or lock of the engine room.
    #[error("the engine's files are not in order")]
    Store {
        /// What and why.
        #[source]
        source: StoreError,
    },
    /// The engine could not be started or watched.
    #[error("the engine cannot be run")]
    Process {
        /// Why.
        #[source]
        source: ProcessError,
    },
    /// The engine ended by itself.
    #[error("the engine ended {} with {exited}", if *ready { "while it served" } else { "before it was ready" })]
    Died {
        /// How.
        exited: Exited,
        /// Whether it had been ready.
        ready: bool,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The engine lives and is not ready.
    #[error("the engine made no progress for {} s and is not ready: {last_seen}", stalled.as_secs())]
    NeverReady {
        /// How long nothing moved.
        stalled: Duration,
        /// What its probe said last.
        last_seen: String,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The engine lives, something moves, and it is not ready.
    #[error("the engine is not ready after {}: {last_seen}", long(*limit))]
    TooSlow {
        /// How long it may take.
        limit: Duration,
        /// What its probe said last.
        last_seen: String,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The engine's probe answers with a code that means neither ready nor loading.
    #[error("the engine answers {url} with status {code}, which means neither ready nor loading")]
    UnexpectedStatus {
        /// URL of the probe.
        url: String,
        /// The code.
        code: u16,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// Somebody else answers on the engine's port.
    #[error("port {port} is answered by another process, not by the engine that was started")]
    ForeignSocket {
        /// The port.
        port: u16,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The engine listens on its port, and connections do not come to it: a runtime that was killed leaves
    /// its rules of the packet filter behind.
    #[error(
        "the engine listens on {address}, but connections to it are {how}: a rule of this machine's packet filter leads the port elsewhere"
    )]
    PortLedElsewhere {
        /// Where it listens.
        address: SocketAddr,
        /// What becomes of connections.
        how: Unreached,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The engine listens, and no network leads there: a network namespace has a loopback interface of its
    /// own, which is down at first.
    #[error("the engine listens on {address}, but this machine has no route to it{}", down(*address))]
    NoRoute {
        /// Where it listens.
        address: SocketAddr,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The engine runs, but not on the GPU it must be on.
    #[error("the engine is not on the GPU: {reason}")]
    NotOnGpu {
        /// What is missing.
        reason: String,
        /// What is known about it.
        evidence: Box<Evidence>,
    },
    /// The GPU is required, and the provider does not say how its use is recognised.
    #[error(
        "provider `{engine}` does not say how the use of the GPU is proven, and `gpu` is `require`"
    )]
    NoGpuEvidence {
        /// Engine family.
        engine: String,
    },
    /// The handoff cannot be written safely.
    #[error("the handoff cannot be written to `{}`: {reason}", path.display())]
    Handoff {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Cancelled; the engine was ended and nothing is left of it.
    #[error("cancelled while the engine was starting")]
    Cancelled,
    /// There is no such engine.
    #[error("no engine of pool `{pool}` runs")]
    NotRunning {
        /// Pool as it was asked for.
        pool: String,
        /// Pools that have one.
        running: Vec<String>,
    },
    /// There is no log.
    #[error("there is no engine log{}", pool.as_ref().map(|pool| format!(" of pool `{pool}`")).unwrap_or_default())]
    NoLog {
        /// Pool as it was asked for.
        pool: Option<String>,
        /// Pools that have one.
        known: Vec<String>,
    },
    /// Processes that even KILL did not end.
    #[error("the engine's processes {pids:?} survive KILL; they are stuck in the kernel")]
    Survivors {
        /// The processes.
        pids: Vec<i32>,
    },
    /// An engine's log could not be read.
    #[error("cannot read the log {}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The answer could not be written.
    #[error("cannot write the answer")]
    Output {
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

/// What is known about an engine that failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Evidence {
    /// Command as it could be pasted.
    pub command: String,
    /// Its whole log.
    pub log: PathBuf,
    /// Its last lines.
    pub last_lines: Vec<String>,
    /// What its provider says about them.
    pub finding: Option<Finding>,
    /// Why its container ended, by its runtime's word; of a process, by the kernel's.
    pub reason: Option<ExitReason>,
}

impl EngineError {
    /// What is known about the engine, where it is an engine that failed.
    #[must_use]
    pub fn evidence(&self) -> Option<&Evidence> {
        match self {
            Self::Died { evidence, .. }
            | Self::NeverReady { evidence, .. }
            | Self::TooSlow { evidence, .. }
            | Self::UnexpectedStatus { evidence, .. }
            | Self::ForeignSocket { evidence, .. }
            | Self::PortLedElsewhere { evidence, .. }
            | Self::NoRoute { evidence, .. }
            | Self::ImageGone { evidence, .. }
            | Self::NotOnGpu { evidence, .. } => Some(evidence),
            _ => None,
        }
    }

    /// Whether another port may help.
    pub(super) fn is_about_the_port(&self) -> bool {
        let found = self
            .evidence()
            .and_then(|evidence| evidence.finding.as_ref());
        match self {
            Self::ForeignSocket { .. } | Self::PortLedElsewhere { .. } => true,
            Self::Died {
                ready: false,
                evidence,
                ..
            } => {
                found.is_some_and(|finding| finding.port_taken)
                    || evidence.reason == Some(ExitReason::PortTaken)
            }
            _ => false,
        }
    }
}

impl From<StoreError> for EngineError {
    fn from(source: StoreError) -> Self {
        match source {
            StoreError::Cancelled { .. } => Self::Cancelled,
            source => Self::Store { source },
        }
    }
}

impl From<ContainerError> for EngineError {
    fn from(source: ContainerError) -> Self {
        Self::Container { source }
    }
}

impl From<ProcessError> for EngineError {
    fn from(source: ProcessError) -> Self {
        Self::Process { source }
    }
}

impl From<TemplateError> for EngineError {
    fn from(source: TemplateError) -> Self {
        Self::Template { source }
    }
}

fn ports(tried: &[u16]) -> String {
    match tried {
        [] => "none was".to_owned(),
        [one] => format!("{one} was"),
        [first, .., last] => format!("{} from {first} to {last} were", tried.len()),
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Refused => "refused",
            Self::Silent => "not answered",
            Self::Diverted => "answered by another program",
            Self::NoRoute => "not possible",
        })
    }
}

/// A time that somebody has set, in the largest unit that it is whole in.
fn long(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds if seconds % 60 == 0 => format!("{} min", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// What is in the way to an address of this machine's own.
fn down(address: SocketAddr) -> &'static str {
    match address.ip().is_loopback() {
        true => ": its loopback interface is down",
        false => "",
    }
}
