//! The host's side of a keeper.

use std::{
    collections::HashMap,
    io,
    os::fd::OwnedFd,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use tokio_util::sync::CancellationToken;

use super::{
    Child, Exited, ProcessError, ProcessIdentity, Spec, control,
    keeper::{Ended, MARKER, protocol::Ask},
    link::{Link, Started},
};
use crate::config::paths::Home;

/// Longest time between asking for a child and its start: a program on a slow disk is read in it.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Longest time a keeper takes for an answer that needs no child.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Freed memory is not put aside for the next of its size: a minder, a copy of the keeper, frees what is of
/// no use to it, and only what lies together can be given back. For the GNU C library alone; no child
/// inherits it.
const ALLOCATOR: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");

/// How the keeper is started.
#[derive(Debug, Clone)]
pub struct KeeperOptions {
    /// Program that becomes the keeper: one that calls [`super::run_if_keeper`] first.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<String>,
}

impl Default for KeeperOptions {
    /// This program again, whatever has happened to its file since it was started.
    fn default() -> Self {
        Self::program("/proc/self/exe")
    }
}

impl KeeperOptions {
    /// Another program, for embedders that do not call [`super::run_if_keeper`]: the `host` binary.
    pub fn program(path: impl Into<PathBuf>) -> Self {
        Self {
            program: path.into(),
            arguments: vec![MARKER.to_owned()],
        }
    }
}

/// The host's keeper. Cheap to make and to clone: the process is started with the first child.
///
/// When the last clone is dropped, or this process ends in whatever way, the keeper ends what is
/// not kept.
#[derive(Debug, Clone)]
pub struct Keeper {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Where the keeper's socket goes.
    directory: PathBuf,
    options: KeeperOptions,
    /// The conversation with its process; another one once that is gone.
    link: Mutex<Option<Arc<Link>>>,
    /// Conversations with keepers of other hosts, one for all that was adopted from each.
    others: tokio::sync::Mutex<HashMap<ProcessIdentity, Weak<Link>>>,
}

impl Keeper {
    /// A keeper for this home; starts nothing yet.
    #[must_use]
    pub fn new(home: &Home, options: KeeperOptions) -> Self {
        Self {
            inner: Arc::new(Inner {
                directory: directory(home),
                options,
                link: Mutex::new(None),
                others: tokio::sync::Mutex::default(),
            }),
        }
    }

    /// Starts the keeper's process ahead of its first child, beside other work. Only in a home that is
    /// in use already: looking must not make one. Where it fails, the first child tries again. Must be
    /// called in a tokio runtime, as [`Keeper::spawn`].
    pub fn warm_up(&self) {
        if self.inner.directory.is_dir() {
            let _ = self.link();
        }
    }

    /// Starts a command. Returns once its program runs; must be called in a tokio runtime, and
    /// everything started belongs to the runtime of the first call.
    pub async fn spawn(&self, spec: Spec) -> Result<Running, ProcessError> {
        let link = self.link()?;
        let on_drop = match spec.child {
            Child::Step => OnDrop::Kill,
            Child::Engine { .. } => OnDrop::End,
        };
        let (program, command) = (name_of(&spec.program), spec.display());
        let asked = link.spawn(spec);
        let Started {
            child,
            process,
            exit,
        } = within(START_LIMIT, "spawn", asked)
            .await?
            .map_err(|reason| ProcessError::Start {
                program: program.clone(),
                command,
                reason,
            })?;
        Ok(Running {
            link,
            program,
            child,
            process,
            exit,
            on_drop,
        })
    }

    /// Takes over a child that the keeper of another host has: one that is kept. From now on it is
    /// this host's, as if it had started it; when this host is gone, its limit runs again. Where its
    /// keeper is older than this, ends that are asked for here are told as somebody else's.
    ///
    /// `program`: what it is called in messages. Dropped, it goes on.
    pub async fn adopt(
        &self,
        address: ChildAddress,
        process: ProcessIdentity,
        program: &Path,
    ) -> Result<Running, ProcessError> {
        let adopted = async {
            let link = self.other(address.keeper).await?;
            let exit = link.adopt(address.child).await?;
            Ok((link, exit))
        };
        let (link, exit) = within(ANSWER_LIMIT, "adopt", adopted).await?;
        Ok(Running {
            link,
            program: name_of(program),
            child: address.child,
            process,
            exit,
            on_drop: OnDrop::Leave,
        })
    }

    /// The conversation with the keeper of another host.
    async fn other(&self, keeper: ProcessIdentity) -> Result<Arc<Link>, ProcessError> {
        let mut others = self.inner.others.lock().await;
        let known = others.get(&keeper).and_then(Weak::upgrade);
        if let Some(link) = known.filter(|link| !link.is_over()) {
            return Ok(link);
        }
        if !keeper.is_alive() {
            return Err(ProcessError::KeeperGone { exited: None });
        }
        let socket = control::open(&self.inner.directory, keeper.pid).await;
        let socket = socket.map_err(|error| ProcessError::Keeper {
            operation: "connect",
            reason: error.to_string(),
        })?;
        let link = Link::to(socket, keeper).await?;
        others.retain(|_, link| link.strong_count() > 0);
        others.insert(keeper, Arc::downgrade(&link));
        Ok(link)
    }

    /// Runs a command to its end. On cancellation its whole tree is killed and gone before this
    /// returns [`ProcessError::Cancelled`]; dropping the future kills it too.
    pub async fn run(
        &self,
        spec: Spec,
        cancel: &CancellationToken,
    ) -> Result<Exited, ProcessError> {
        let program = name_of(&spec.program);
        if cancel.is_cancelled() {
            return Err(ProcessError::Cancelled { program });
        }
        // Not given up half-way: what was asked for may run before the answer is here.
        let running = self.spawn(spec).await?;
        tokio::select! {
            ended = running.wait() => Ok(ended?.exited),
            () = cancel.cancelled() => {
                running.kill_tree();
                running.wait().await?;
                Err(ProcessError::Cancelled { program })
            }
        }
    }

    /// The keeper's process, once there is one.
    #[must_use]
    pub fn process(&self) -> Option<ProcessIdentity> {
        self.current().as_ref().map(|link| link.keeper())
    }

    /// Program that becomes the keeper, and this program's other helpers.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.inner.options.program
    }

    /// Program and leading arguments that make this program's keeper or one of its helpers.
    pub(super) fn options(&self) -> &KeeperOptions {
        &self.inner.options
    }

    /// The conversation with a keeper that lives, as far as is known; begun where there is none.
    fn link(&self) -> Result<Arc<Link>, ProcessError> {
        let mut current = self.current();
        if let Some(link) = current.as_ref().filter(|link| !link.is_over()) {
            return Ok(Arc::clone(link));
        }
        let link = start(&self.inner.directory, &self.inner.options)?;
        *current = Some(Arc::clone(&link));
        Ok(link)
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Link>>> {
        self.inner.link.lock().expect("no holder panics")
    }
}

/// Where the sockets of a home's keepers are.
pub(super) fn directory(home: &Home) -> PathBuf {
    home.state().join("keepers")
}

fn start(directory: &Path, options: &KeeperOptions) -> Result<Arc<Link>, ProcessError> {
    let failed = |source| ProcessError::KeeperStart {
        program: options.program.clone(),
        source,
    };
    make_private(directory).map_err(failed)?;
    let (near, far) = std::os::unix::net::UnixStream::pair().map_err(failed)?;
    near.set_nonblocking(true).map_err(failed)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    let child = Command::new(&options.program)
        .arg0("host")
        .args(&options.arguments)
        // Children get exactly what their specification names; an operator's secrets must not stand
        // in the environment of a process of their own user.
        .env_clear()
        .env(ALLOCATOR.0, ALLOCATOR.1)
        .current_dir(directory)
        .stdin(Stdio::from(OwnedFd::from(far)))
        // What the host's own output leads to must not be held open by a keeper that outlives it.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(failed)?;
    Link::new(near, child).map_err(failed)
}

/// Makes a directory, with what is above it, that others cannot enter.
fn make_private(directory: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if let Some(above) = directory.parent() {
        std::fs::create_dir_all(above)?;
    }
    match std::fs::DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

fn name_of(program: &Path) -> String {
    let name = program.file_name().unwrap_or(program.as_os_str());
    name.to_string_lossy().into_owned()
}

async fn within<T>(
    limit: Duration,
    operation: &'static str,
    asked: impl Future<Output = Result<T, ProcessError>>,
) -> Result<T, ProcessError> {
    tokio::time::timeout(limit, asked)
        .await
        .unwrap_or_else(|_| {
            Err(ProcessError::Keeper {
                operation,
                reason: format!("no answer within {} s", limit.as_secs()),
            })
        })
}

/// What happens to a child whose handle is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnDrop {
    /// Its whole tree is killed.
    Kill,
    /// TERM, grace, KILL.
    End,
    /// Nothing.
    Leave,
}

/// A child that was started or adopted. Dropped, it is ended: a step at once, an engine with TERM, grace, KILL,
/// unless it is kept.
#[derive(Debug)]
pub struct Running {
    link: Arc<Link>,
    program: String,
    child: u64,
    process: ProcessIdentity,
    exit: tokio::sync::watch::Receiver<Option<Ended>>,
    on_drop: OnDrop,
}

impl Running {
    /// Its first process.
    #[must_use]
    pub fn process(&self) -> ProcessIdentity {
        self.process
    }

    /// Name of its program, for messages.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.program
    }

    /// Where other processes find it: the keeper's process and the child's number there.
    #[must_use]
    pub fn address(&self) -> ChildAddress {
        ChildAddress {
            keeper: self.link.keeper(),
            child: self.child,
        }
    }

    /// Waits until it and its whole tree have ended and its log is complete. May be called again.
    pub async fn wait(&self) -> Result<Ended, ProcessError> {
        let mut exit = self.exit.clone();
        // What is borrowed from the channel must not be held across another wait.
        let ended = match exit.wait_for(Option::is_some).await {
            Ok(ended) => ended.clone(),
            Err(_) => None,
        };
        match ended {
            Some(ended) => Ok(ended),
            None => Err(self.link.gone().await),
        }
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Ended> {
        self.exit.borrow().clone()
    }

    /// Sends a signal to its first process, at once.
    pub fn signal(&self, signal: rustix::process::Signal) {
        self.link.order(Ask::Signal {
            child: self.child,
            signal: signal.as_raw(),
        });
    }

    /// Begins to end it the way its kind says: a step at once, an engine with TERM, grace, KILL.
    pub fn end(&self) {
        self.link.order(Ask::End { child: self.child });
    }

    /// Kills it and its whole tree, at once. [`Running::wait`] tells when they are gone.
    pub fn kill_tree(&self) {
        self.link.order(Ask::Kill { child: self.child });
    }

    /// Lets an engine outlive this host, for `limit` where there is one: unless somebody adopts it
    /// until then, it is ended. Else it ends by itself or by a stop. Gives the limit that holds: a
    /// keeper of an earlier version knows none, and keeps for ever.
    pub async fn keep(
        &mut self,
        limit: Option<Duration>,
    ) -> Result<Option<Duration>, ProcessError> {
        let is_kept = self.on_drop == OnDrop::Leave;
        if is_kept && self.link.is_old() {
            return Ok(None);
        }
        let limit = limit.filter(|_| !self.link.is_old());
        let limit_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        let child = self.child;
        let asked = self.link.ask("keep", Ask::Keep { child, limit_ms });
        within(ANSWER_LIMIT, "keep", asked).await?;
        self.on_drop = OnDrop::Leave;
        Ok(limit)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.exit.borrow().is_some() {
            return;
        }
        match self.on_drop {
            OnDrop::Kill => self.kill_tree(),
            OnDrop::End => self.end(),
            OnDrop::Leave => {}
        }
    }
}

/// Where a child is found by other processes of the same user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ChildAddress {
    /// The keeper's process.
    pub keeper: ProcessIdentity,
    /// The child's number there.
    pub child: u64,
}
