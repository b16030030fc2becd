//! The handle that a daemon holds.

mod file;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use tokio::sync::{Semaphore, broadcast, mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::file::File;
pub use self::file::{ConfigChanges, NotApplied};
use super::{
    Caller, Change, Lease, PoolError, PoolStatus, Registry, ReplicaState, Reservations, Want,
    configured::Configured,
    supervisor::{Asked, Command, Supervisor},
    telling::{Telling, Wanted},
    upkeep::Upkeep,
};
use crate::{
    config::problem::ConfigError,
    drive::{Host, Request},
    engine::{Instance, Listening, find_running},
};

/// Pools that are prepared at the same time: builds share the processors, the rest is waiting.
const PREPARATIONS: usize = 8;

/// What becomes of the engines when a manager ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// They are drained and stopped.
    Stop,
    /// They run on, for the next manager to adopt; only where [`Builder::outlive`] was given.
    Keep,
}

/// Makes a manager.
#[derive(Debug)]
pub struct Builder {
    host: Host,
    request: Request,
    outlive: Option<Duration>,
}

impl Builder {
    /// What the command line would change about every pool: provider directories, policy flags, the
    /// lock file's meaning. Its selection names the pool file.
    #[must_use]
    pub fn request(mut self, request: Request) -> Self {
        self.request = request;
        self
    }

    /// The pool file.
    #[must_use]
    pub fn pools(mut self, file: impl Into<PathBuf>) -> Self {
        self.request.selection.config = Some(file.into());
        self
    }

    /// Where handoffs are written.
    #[must_use]
    pub fn handoffs(mut self, directory: impl Into<PathBuf>) -> Self {
        self.request.handoff_dir = directory.into();
        self
    }

    /// Engines outlive this process for so long, however it ends, unless the next manager adopts them.
    /// Without it they end with this process.
    #[must_use]
    pub fn outlive(mut self, limit: Duration) -> Self {
        self.outlive = Some(limit);
        self
    }

    /// Says what is wrong with the pool file, and nothing else.
    pub fn check(&self) -> Result<(), ConfigError> {
        file::pools_of(&self.host, &self.request).map(|_| ())
    }

    /// Reads the pool file. No engine is started; whom `notify` names is told from now on. Must be
    /// called in a tokio runtime, in which the manager's tasks run.
    pub fn build(self) -> Result<PoolManager, PoolError> {
        let File { pools, wanted } = File::read(&self.host, &self.request)?;
        let manager = PoolManager {
            inner: Arc::new(Inner {
                registry: Registry::default(),
                reservations: Reservations::of(&self.host.home),
                listening: Listening::default(),
                preparations: Semaphore::new(PREPARATIONS),
                end: self.host.cancel.child_token(),
                worked: watch::Sender::new(()),
                since: Instant::now(),
                tasks: TaskTracker::new(),
                pools: Mutex::default(),
                telling: Telling::default(),
                reading: tokio::sync::Mutex::default(),
                host: self.host,
                request: self.request,
                outlive: self.outlive,
            }),
            caller: Caller::default(),
        };
        for pool in pools.into_values() {
            manager.inner.add(pool);
        }
        manager.inner.tell(wanted);
        manager.inner.look_after();
        Ok(manager)
    }
}

/// Keeps the engines of a pool file running. Cheap to clone; clones are the same manager. Dropping the
/// last one does not stop its engines: [`PoolManager::shutdown`] does.
#[derive(Debug, Clone)]
pub struct PoolManager {
    inner: Arc<Inner>,
    caller: Caller,
}

/// What the tasks of a manager share.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) host: Host,
    pub(super) request: Request,
    pub(super) registry: Registry,
    pub(super) reservations: Reservations,
    /// Who listens, for all engines that are asked whether they live.
    pub(super) listening: Listening,
    /// How long engines outlive this process.
    pub(super) outlive: Option<Duration>,
    /// Held while a pool is prepared.
    pub(super) preparations: Semaphore,
    /// The manager ends: nothing new is begun.
    pub(super) end: CancellationToken,
    /// Told whenever something is done that took work.
    pub(super) worked: watch::Sender<()>,
    /// What moments are counted from at which engines are asked together.
    pub(super) since: Instant,
    tasks: TaskTracker,
    pools: Mutex<BTreeMap<String, Pool>>,
    telling: Telling,
    /// Held while what the pool file says is compared and applied.
    reading: tokio::sync::Mutex<()>,
}

/// A pool and the way to its supervisor.
#[derive(Debug)]
struct Pool {
    configured: Configured,
    commands: mpsc::UnboundedSender<Asked>,
    /// Whether it is in the pool file no longer: it is forgotten once it has stopped.
    is_leaving: bool,
}

impl PoolManager {
    /// Begins to make a manager of this installation.
    #[must_use]
    pub fn builder(host: Host) -> Builder {
        Builder {
            host,
            request: Request {
                handoff_dir: crate::engine::DEFAULT_DIRECTORY.into(),
                ..Request::default()
            },
            outlive: None,
        }
    }

    /// The same manager; what is asked of it through this handle is done for this caller.
    #[must_use]
    pub fn on_behalf_of(&self, caller: Caller) -> Self {
        Self {
            caller,
            ..self.clone()
        }
    }

    /// Brings a pool up and waits until all its replicas are ready. One that fails is told at once;
    /// supervision goes on trying.
    pub async fn up(&self, pool: &str) -> Result<PoolStatus, PoolError> {
        self.ask(pool, Command::Up).await
    }

    /// Stops a pool: nothing new is leased, leases run out or the deadline passes, its engines end.
    pub async fn drain(
        &self,
        pool: &str,
        deadline: Option<Duration>,
    ) -> Result<PoolStatus, PoolError> {
        self.ask(pool, Command::Drain { deadline }).await
    }

    /// Stops a pool without waiting for leases.
    pub async fn down(&self, pool: &str) -> Result<PoolStatus, PoolError> {
        let deadline = Some(Duration::ZERO);
        self.ask(pool, Command::Drain { deadline }).await
    }

    /// Prepares the pool anew, as the pool file has it now, and swaps its engines where anything
    /// differs. On any failure the old ones serve.
    pub async fn reload(&self, pool: &str) -> Result<PoolStatus, PoolError> {
        self.ask(pool, Command::Reload).await
    }

    /// Stops and starts a pool's engines, one after the other, whether or not anything differs. What
    /// failures had led to is forgotten.
    pub async fn restart(&self, pool: &str) -> Result<PoolStatus, PoolError> {
        self.ask(pool, Command::Restart).await
    }

    /// Brings up, side by side, every pool that is not to wait for demand, and of the others those whose
    /// engines a manager before this one has left: somebody uses them. Failures are in their status.
    pub async fn up_all(&self) {
        let all: Vec<Configured> = {
            let pools = self.inner.pools();
            pools.values().map(|it| it.configured.clone()).collect()
        };
        let ups = all.iter().map(|pool| async move {
            if pool.preload || self.inner.has_left(pool).await {
                // What fails is in its status.
                let _ = self.up(&pool.id).await;
            }
        });
        futures_util::future::join_all(ups).await;
    }

    /// The right to send a pool one request. A pool that starts on demand is started, which this does
    /// not wait for: ask again after [`PoolError::retry_after`].
    pub fn lease(&self, pool: &str) -> Result<Lease, PoolError> {
        let leased = self.inner.registry.lease(pool);
        if let Err(PoolError::Unready { .. }) = &leased
            && let Ok(status) = self.inner.registry.status(pool)
            && status.want == Want::OnDemand
            // What is on its way or waits after a fall is not hurried by whoever asks.
            && at_rest(&status)
        {
            let (reply, _) = oneshot::channel();
            let asked = Asked {
                command: Command::Up,
                caller: self.caller.clone(),
                reply,
            };
            let _ = self.inner.send(pool, asked);
        }
        leased
    }

    /// Stops every pool without waiting for leases.
    pub async fn down_all(&self) {
        let names: Vec<String> = self.inner.pools().keys().cloned().collect();
        let downs = names.iter().map(|pool| self.down(pool));
        // What could not be stopped is in the narration.
        let _ = futures_util::future::join_all(downs).await;
    }

    /// What is known of a pool.
    pub fn status(&self, pool: &str) -> Result<PoolStatus, PoolError> {
        self.inner.registry.status(pool)
    }

    /// What is known of all pools, by name.
    #[must_use]
    pub fn list(&self) -> Vec<PoolStatus> {
        self.inner.registry.list()
    }

    /// Whether nothing runs and nothing is on its way. What has failed for good is neither.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let pools = self.list();
        let mut replicas = pools.iter().flat_map(|it| &it.replicas);
        replicas.all(|it| matches!(it.state, ReplicaState::Stopped | ReplicaState::Failed))
    }

    /// Every change from now on.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<Change> {
        self.inner.registry.subscribe()
    }

    /// The registry itself, for those who hold handoffs of others.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.inner.registry
    }

    /// Lets go of what only work needs, once all is done: for a program that waits from now on. While a
    /// pool is being prepared nothing is let go of.
    pub fn rest(&self) {
        if self.inner.preparations.available_permits() == PREPARATIONS {
            self.inner.host.pool_files.forget();
        }
    }

    /// Changes whenever something is done that took work.
    #[must_use]
    pub fn worked(&self) -> watch::Receiver<()> {
        self.inner.worked.subscribe()
    }

    /// The installation.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.inner.host
    }

    /// Ends the manager: every supervisor ends, with its engines or without. Pools drain up to their own
    /// deadlines, which [`Self::down_all`] ends.
    pub async fn shutdown(&self, ending: Ending) {
        let inner = &self.inner;
        let names: Vec<String> = inner.pools().keys().cloned().collect();
        let deadline = None;
        let ends = names.iter().map(|pool| async move {
            let command = match ending {
                Ending::Stop => Command::Drain { deadline },
                Ending::Keep => Command::Leave,
            };
            // What could not be stopped is in the narration.
            let _ = self.ask(pool, command).await;
        });
        futures_util::future::join_all(ends).await;
        inner.end.cancel();
        inner.pools().clear();
        inner.tasks.close();
        inner.tasks.wait().await;
        inner.telling.end().await;
    }

    async fn ask(&self, pool: &str, command: Command) -> Result<PoolStatus, PoolError> {
        let what = command.as_str();
        let (reply, answer) = oneshot::channel();
        let asked = Asked {
            command,
            caller: self.caller.clone(),
            reply,
        };
        self.inner.send(pool, asked)?;
        let over = |_| PoolError::Superseded {
            pool: pool.to_owned(),
            what,
            by: "the manager ends",
        };
        answer.await.map_err(over)?
    }
}

impl Inner {
    /// Begins with what nobody asks for.
    fn look_after(&self) {
        let (home, narrator) = (self.host.home.clone(), self.host.narrator.clone());
        let upkeep = Upkeep::new(home, self.registry.clone(), narrator);
        self.tasks.spawn(upkeep.run(self.end.clone()));
    }

    /// Tells whom the pool file names from now on; whether that is a change.
    fn tell(&self, wanted: Option<Wanted>) -> bool {
        let handoffs = &self.request.handoff_dir;
        self.telling.change(wanted, &self.host, handoffs)
    }

    fn pools(&self) -> MutexGuard<'_, BTreeMap<String, Pool>> {
        self.pools.lock().expect("no holder panics")
    }

    fn send(&self, pool: &str, asked: Asked) -> Result<(), PoolError> {
        let pools = self.pools();
        let Some(found) = pools.get(pool) else {
            return Err(PoolError::NoSuchPool {
                pool: pool.to_owned(),
                pools: pools.keys().cloned().collect(),
            });
        };
        // One that is gone drops the reply, which says so.
        let _ = found.commands.send(asked);
        Ok(())
    }

    /// Whether an engine of this pool runs that waits for somebody to take it over.
    async fn has_left(&self, pool: &Configured) -> bool {
        let Ok(handoffs) = std::path::absolute(&self.request.handoff_dir) else {
            return false;
        };
        let (home, id, replicas) = (
            self.host.home.clone(),
            pool.id.clone(),
            pool.replica_names(),
        );
        let stays = move |replica: &String| {
            let found = find_running(&home, &handoffs, &id, replica);
            found.is_ok_and(|it| it.as_ref().is_some_and(Instance::stays))
        };
        let looked = tokio::task::spawn_blocking(move || replicas.iter().any(stays));
        looked.await.expect("looking does not panic")
    }

    /// Makes a pool known and starts its supervisor, unless the manager has ended meanwhile.
    fn add(self: &Arc<Self>, configured: Configured) {
        let mut pools = self.pools();
        if self.end.is_cancelled() {
            return;
        }
        let (commands, asked) = mpsc::unbounded_channel();
        let want = match configured.preload {
            true => Want::Down,
            false => Want::OnDemand,
        };
        let name = configured.id.clone();
        let replicas = configured.replica_names();
        self.registry
            .declare(&name, &configured.engine, want, &replicas);
        let supervisor = Supervisor::new(Arc::clone(self), configured.clone());
        self.tasks.spawn(supervisor.run(asked));
        let pool = Pool {
            configured,
            commands,
            is_leaving: false,
        };
        pools.insert(name, pool);
    }

    /// Tells a pool's supervisor what the pool file says now, where the pool is known.
    fn configure(&self, configured: &Configured) -> bool {
        let mut pools = self.pools();
        let Some(found) = pools.get_mut(&configured.id) else {
            return false;
        };
        found.configured = configured.clone();
        found.is_leaving = false;
        let (reply, _) = oneshot::channel();
        let command = Command::Configure(Box::new(configured.clone()));
        let asked = Asked {
            command,
            caller: Caller::default(),
            reply,
        };
        let _ = found.commands.send(asked);
        true
    }

    /// A pool is in the pool file no longer.
    fn let_go(&self, pool: &str) {
        if let Some(found) = self.pools().get_mut(pool) {
            found.is_leaving = true;
        }
    }

    /// Forgets a pool, unless it has come back into the pool file.
    fn forget(&self, pool: &str) {
        let mut pools = self.pools();
        if pools.get(pool).is_some_and(|found| found.is_leaving) {
            // Its supervisor ends with the channel.
            pools.remove(pool);
            self.registry.remove(pool);
        }
    }
}

/// Whether nothing of it runs or is on its way.
fn at_rest(pool: &PoolStatus) -> bool {
    let mut replicas = pool.replicas.iter();
    replicas.all(|it| it.state == ReplicaState::Stopped)
}
