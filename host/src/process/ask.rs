//! Short questions to other programs: bounded in time and output, gone when they are over.
//!
//! For what outlives a moment, or must not outlive its host under any circumstances, there is the
//! keeper.

use std::{
    collections::BTreeMap, os::unix::process::ExitStatusExt, path::PathBuf, process::Stdio,
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncReadExt};

use super::{Exited, Identity, ProcessError, StartFailure, busy, command::command_line};

/// Most bytes kept of each stream; what comes after is read and dropped.
pub const OUTPUT_LIMIT: usize = 1024 * 1024;

/// How long output is still read once the program itself has ended.
const DRAIN_LIMIT: Duration = Duration::from_millis(200);

/// A question to a program, for example `cmake --version`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// Absolute path of the program.
    pub program: PathBuf,
    /// Arguments.
    pub args: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// Who asks; `None`: as this process.
    pub identity: Option<Identity>,
    /// Longest time it may take; then it is killed with its process group.
    pub limit: Duration,
}

/// What a program answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// How it ended.
    pub exited: Exited,
    /// Standard output, at most [`OUTPUT_LIMIT`] bytes, bytes that are no UTF-8 replaced.
    pub stdout: String,
    /// Standard error, likewise.
    pub stderr: String,
}

/// Asks a program, in a process group of its own, with standard input closed. Any exit code is an
/// answer; only what keeps it from answering is an error.
pub async fn ask(question: &Question) -> Result<Answer, ProcessError> {
    ask_with_input(question, "").await
}

/// Asks a program that reads its question from standard input.
pub async fn ask_with_input(question: &Question, input: &str) -> Result<Answer, ProcessError> {
    let program = question.program.to_string_lossy().into_owned();
    let mut child = start(question, input)?;
    let group = Group(child.id());
    let mut stdout = child.stdout.take().expect("it is piped");
    let mut stderr = child.stderr.take().expect("it is piped");
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let answered = tokio::time::timeout(question.limit, async {
        let streams = async {
            tokio::try_join!(
                read_some(&mut stdout, &mut out),
                read_some(&mut stderr, &mut err)
            )
        };
        tokio::pin!(streams);
        tokio::select! {
            read = &mut streams => {
                read?;
                child.wait().await
            }
            status = child.wait() => {
                // What it left running may hold the pipes open; that is not waited for.
                group.kill();
                let _ = tokio::time::timeout(DRAIN_LIMIT, streams).await;
                status
            }
        }
    })
    .await;
    // On every way out: descendants that linger, and on a timeout the program itself.
    group.kill();
    let read_failed = |source| ProcessError::Read {
        program: program.clone(),
        source,
    };
    let Ok(status) = answered else {
        let _ = child.wait().await;
        let limit = question.limit;
        return Err(ProcessError::TimedOut { program, limit });
    };
    let status = status.map_err(read_failed)?;
    Ok(Answer {
        exited: Exited::of(status.code(), status.signal()),
        stdout: String::from_utf8_lossy(&out).into_owned(),
        stderr: String::from_utf8_lossy(&err).into_owned(),
    })
}

fn start(question: &Question, input: &str) -> Result<tokio::process::Child, ProcessError> {
    let stdin = match input {
        "" => Stdio::null(),
        input => stdin_of(input).map_err(|source| ProcessError::Read {
            program: question.program.to_string_lossy().into_owned(),
            source,
        })?,
    };
    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    let mut command = tokio::process::Command::new(&question.program);
    command
        .args(&question.args)
        .env_clear()
        .envs(&question.env)
        .current_dir("/")
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let own = rustix::process::geteuid().as_raw();
    if let Some(identity) = question.identity
        && (own == 0 || identity.uid != own)
    {
        // The standard library drops supplementary groups with it.
        command.uid(identity.uid).gid(identity.gid);
    }
    busy::start(|| command.spawn()).map_err(|error| ProcessError::Start {
        program: question.program.to_string_lossy().into_owned(),
        command: command_line(&question.program, &question.args),
        reason: why(question, own, &error),
    })
}

/// A short text to be read from standard input: in a pipe, which holds it until it is read.
fn stdin_of(input: &str) -> std::io::Result<Stdio> {
    const PIPE_HOLDS: usize = 4096;
    if input.len() > PIPE_HOLDS {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    let (reader, mut writer) = std::io::pipe()?;
    std::io::Write::write_all(&mut writer, input.as_bytes())?;
    Ok(reader.into())
}

fn why(question: &Question, own: u32, error: &std::io::Error) -> StartFailure {
    let path = question.program.clone();
    let uid = question.identity.map_or(own, |identity| identity.uid);
    match error.raw_os_error() {
        Some(libc::ENOENT) if path.exists() => StartFailure::InterpreterMissing { path },
        Some(libc::ENOENT | libc::ENOTDIR) => StartFailure::ProgramMissing { path },
        Some(libc::ENOEXEC) => StartFailure::NotAProgram { path },
        Some(libc::EACCES) => StartFailure::NotPermitted { path, uid },
        Some(libc::EPERM) if uid != own => StartFailure::IdentityRefused { uid, own },
        _ => StartFailure::Other {
            reason: error.to_string(),
        },
    }
}

/// The process group of a question. Killing it after its leader was reaped is safe for practical
/// purposes: the kernel keeps the number for as long as a member lives, and gives out a free one
/// again only after going round all others.
struct Group(Option<u32>);

impl Group {
    fn kill(&self) {
        if let Some(pid) = self
            .0
            .and_then(|pid| i32::try_from(pid).ok())
            .and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Drop for Group {
    /// The future that asks was dropped: nothing of it stays.
    fn drop(&mut self) {
        self.kill();
    }
}

async fn read_some(
    stream: &mut (impl AsyncRead + Unpin),
    kept: &mut Vec<u8>,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let read = stream.read(&mut buffer).await?;
        if read == 0 {
            return Ok(());
        }
        let room = OUTPUT_LIMIT - kept.len();
        kept.extend_from_slice(&buffer[..read.min(room)]);
    }
}
