//! One task per pool: what is wanted of it, carried out one command after the other.
//!
//! While a command is carried out the next one may come: the same one again joins it, a stop replaces
//! it, everything else waits.
//!
//! | file | job |
//! |---|---|
//! | `reload` | another version of the pool in place of the one that runs |
//! | `refused` | why a command was not carried out |

mod refused;
mod reload;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use self::refused::Refused;
use super::{
    Caller, LastError, PoolError, PoolStatus, Want,
    configured::Configured,
    manager::Inner,
    replica::{Progress, Replica, ReplicaTask, seconds, until},
    turn::Turn,
};
use crate::{
    drive::Request,
    fault::Because,
    narrate::{Actor, Narrator, Span, Work},
};

/// How often a pool that runs on demand is looked at for being idle; less where its limit is short.
const IDLE_INTERVAL: Duration = Duration::from_secs(10);

/// What is asked of a pool.
#[derive(Debug)]
pub(super) enum Command {
    /// Bring it up.
    Up,
    /// Stop it, after its leases or this deadline; `None`: the pool's own.
    Drain { deadline: Option<Duration> },
    /// Swap its engines for what the pool file has now, where that differs.
    Reload,
    /// Stop and start its engines.
    Restart,
    /// The pool file says something else now.
    Configure(Box<Configured>),
    /// End, engines run on.
    Leave,
}

impl Command {
    /// The word for messages.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Up => "the start",
            Self::Drain { .. } => "the stop",
            Self::Reload => "the reload",
            Self::Restart => "the restart",
            Self::Configure(_) => "the configuration",
            Self::Leave => "the end",
        }
    }

    /// Why what is under way is pointless once this is asked for, where it is.
    fn replaces(&self) -> Option<&'static str> {
        match self {
            Self::Drain { .. } => Some("the pool is taken down"),
            Self::Leave => Some("the manager ends"),
            Self::Up | Self::Reload | Self::Restart | Self::Configure(_) => None,
        }
    }

    fn is_like(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
            && !matches!(self, Self::Configure(_))
    }
}

type Reply = oneshot::Sender<Result<PoolStatus, PoolError>>;

/// A command and who waits for it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) command: Command,
    pub(super) caller: Caller,
    pub(super) reply: Reply,
}

/// The task of one pool.
pub(super) struct Supervisor {
    shared: Arc<Inner>,
    configured: Configured,
    replicas: Vec<ReplicaTask>,
}

impl Supervisor {
    pub(super) fn new(shared: Arc<Inner>, configured: Configured) -> Self {
        Self {
            shared,
            configured,
            replicas: Vec::new(),
        }
    }

    /// Until the manager lets go of the pool.
    pub(super) async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Asked>) {
        let mut waiting: VecDeque<Asked> = VecDeque::new();
        loop {
            let next = match waiting.pop_front() {
                Some(next) => next,
                None => tokio::select! {
                    next = asked.recv() => match next {
                        Some(next) => next,
                        None => break,
                    },
                    () = self.idle() => Asked {
                        command: Command::Drain { deadline: None },
                        caller: Caller::default(),
                        reply: oneshot::channel().0,
                    },
                },
            };
            if self.carry_out(next, &mut asked, &mut waiting).await {
                break;
            }
        }
        let narrator = self.shared.host.narrator.clone();
        self.stop(Duration::ZERO, &narrator, &CancellationToken::new())
            .await;
    }

    /// Carries out a command while listening for the next ones; whether it was the last one.
    async fn carry_out(
        &mut self,
        first: Asked,
        asked: &mut mpsc::UnboundedReceiver<Asked>,
        waiting: &mut VecDeque<Asked>,
    ) -> bool {
        let mut replies = vec![first.reply];
        let turn = Turn::until(&self.shared.end);
        if let Some(because) = waiting.iter().find_map(|it| it.command.replaces()) {
            turn.give_up(because);
        }
        let usual = self.configured.supervision.drain_deadline;
        let mut hurry_at: Option<Instant> = None;
        let last = matches!(first.command, Command::Leave);
        let result = {
            // Apart from this task, which lives for as long as its pool.
            let mut doing = Box::pin(self.obey(&first.command, &first.caller, &turn));
            loop {
                tokio::select! {
                    result = &mut doing => break result,
                    () = until(hurry_at) => {
                        hurry_at = None;
                        turn.hurry().cancel();
                    }
                    Some(newer) = asked.recv() => {
                        if let Command::Drain { deadline } = newer.command {
                            let by = Instant::now().checked_add(deadline.unwrap_or(usual));
                            hurry_at = [hurry_at, by].into_iter().flatten().min();
                        }
                        // What was asked between the two comes first.
                        if newer.command.is_like(&first.command) && waiting.is_empty() {
                            replies.push(newer.reply);
                            continue;
                        }
                        if let Some(because) = newer.command.replaces() {
                            turn.give_up(because);
                        }
                        waiting.push_back(newer);
                    }
                }
            }
        };
        self.shared.worked.send_replace(());
        let pool = &self.configured.id;
        let mut replies = replies.into_iter();
        let status = |result: Result<(), Refused>| match result {
            Ok(()) => self.shared.registry.status(pool),
            Err(refused) => Err(refused.into_error(pool)),
        };
        for reply in replies.by_ref() {
            // Whoever asked may have gone.
            let _ = reply.send(status(result.clone()));
        }
        last
    }

    async fn obey(
        &mut self,
        command: &Command,
        caller: &Caller,
        turn: &Turn,
    ) -> Result<(), Refused> {
        match command {
            Command::Up => self.up(caller, turn).await,
            Command::Drain { deadline } => {
                let deadline = deadline.unwrap_or(self.configured.supervision.drain_deadline);
                let (job, _) = self.drain(deadline, caller, "drain", turn).await;
                job.end(None);
                Ok(())
            }
            Command::Reload => {
                let (job, host) = caller.host(&self.shared.host).own_job("reload");
                let pool = self.configured.id.clone();
                let told = host.narrator.with(|it| it.pool_id = Some(pool.clone()));
                told.concerns();
                let span = told.begin(Work::Reload, "", pool);
                let reloaded = self.reload(caller, span.narrator(), turn).await;
                match reloaded.as_ref().err().map(Refused::because) {
                    None => [span, job].into_iter().for_each(|it| it.end(None)),
                    Some(Some(because)) => {
                        [span, job].into_iter().for_each(|it| it.end(Some(because)));
                    }
                    // Given up.
                    Some(None) => drop((span, job)),
                }
                reloaded
            }
            Command::Restart => {
                let deadline = self.configured.supervision.drain_deadline;
                let (job, within) = self.drain(deadline, caller, "restart", turn).await;
                let up = self.up(&within, turn).await;
                match up.as_ref().err().map(Refused::because) {
                    None => job.end(None),
                    Some(Some(because)) => job.end(Some(because)),
                    // Given up.
                    Some(None) => drop(job),
                }
                up
            }
            Command::Configure(configured) => {
                self.configured = (**configured).clone();
                if self.replicas.is_empty() {
                    self.want(self.at_rest());
                }
                Ok(())
            }
            Command::Leave => {
                let leave = self.replicas.drain(..).map(ReplicaTask::leave);
                join_all(leave).await;
                Ok(())
            }
        }
    }

    fn want(&self, want: Want) {
        self.shared.registry.want(&self.configured.id, want);
    }

    /// Keeps a failure of the pool as a whole.
    fn keep(&self, failure: &Because) {
        let secrets = self.shared.host.narrator.secrets();
        let error = LastError::of(failure).masked(secrets);
        self.shared.registry.fail(&self.configured.id, Some(error));
    }

    /// What is wanted of the pool while nobody asks for it.
    fn at_rest(&self) -> Want {
        match self.configured.preload {
            true => Want::Down,
            false => Want::OnDemand,
        }
    }

    fn request(&self) -> Request {
        let mut request = self.shared.request.clone();
        request.selection.pool = Some(self.configured.id.clone());
        request
    }

    async fn up(&mut self, caller: &Caller, turn: &Turn) -> Result<(), Refused> {
        let names = self.configured.replica_names();
        // A smaller number was wanted meanwhile: the last ones go, once nothing can fail any more.
        self.stop_surplus(&names, caller, turn).await;
        let registry = &self.shared.registry;
        registry.declare(
            &self.configured.id,
            &self.configured.engine,
            Want::Up,
            &names,
        );
        self.want(match self.configured.preload {
            true => Want::Up,
            false => Want::OnDemand,
        });
        registry.touch(&self.configured.id);
        registry.fail(&self.configured.id, None);
        for name in names {
            match self.replicas.iter().find(|it| it.name() == name) {
                Some(known) => known.try_now(),
                None => {
                    let replica = Replica::new(
                        Arc::clone(&self.shared),
                        self.request(),
                        self.configured.id.clone(),
                        name,
                        self.configured.supervision.clone(),
                    );
                    replica.begin_anew();
                    self.replicas.push(replica.start(caller.clone()));
                }
            }
        }
        let all = self.replicas.iter().map(ReplicaTask::settled);
        let all = tokio::select! {
            all = join_all(all) => all,
            () = turn.given_up().cancelled() => return Err(Refused::superseded("the start", turn)),
        };
        let failed = self
            .replicas
            .iter()
            .zip(all)
            .find_map(|(task, progress)| match progress {
                Progress::Fell(because) => Some((task.name().to_owned(), because)),
                _ => None,
            });
        match failed {
            Some((replica, source)) => Err(Refused::NotUp { replica, source }),
            None => Ok(()),
        }
    }

    /// Stops all replicas, after their leases or the deadline, in a job of this name; with whoever goes on
    /// with it.
    async fn drain(
        &mut self,
        deadline: Duration,
        caller: &Caller,
        job: &'static str,
        turn: &Turn,
    ) -> (Span, Caller) {
        let (job, host) = caller.host(&self.shared.host).own_job(job);
        let pool = self.configured.id.clone();
        let narrator = host.narrator.with(|it| it.pool_id = Some(pool));
        narrator.concerns();
        self.want(Want::Draining);
        self.stop(deadline, &narrator, turn.hurry()).await;
        self.want(self.at_rest());
        let within = Caller {
            place: narrator.place(),
            ..caller.clone()
        };
        (job, within)
    }

    async fn stop(&mut self, deadline: Duration, narrator: &Narrator, hurry: &CancellationToken) {
        let all = self.replicas.drain(..);
        join_all(all.map(|task| task.stop(deadline, narrator, hurry))).await;
    }

    /// Stops the replicas that are not among these.
    async fn stop_surplus(&mut self, names: &[String], caller: &Caller, turn: &Turn) {
        let narrator = caller.host(&self.shared.host).narrator;
        let deadline = self.configured.supervision.drain_deadline;
        let is_surplus = |task: &mut ReplicaTask| !names.iter().any(|name| name == task.name());
        let surplus: Vec<_> = self.replicas.extract_if(.., is_surplus).collect();
        let stops = surplus
            .into_iter()
            .map(|task| task.stop(deadline, &narrator, turn.hurry()));
        join_all(stops).await;
    }

    /// Resolves once a pool that runs on demand has been idle for long enough.
    async fn idle(&self) {
        let limit = self.configured.supervision.idle_stop;
        let (Some(limit), false, false) =
            (limit, self.configured.preload, self.replicas.is_empty())
        else {
            return std::future::pending().await;
        };
        let interval = IDLE_INTERVAL.min(limit / 4).max(Duration::from_millis(10));
        loop {
            tokio::time::sleep(interval).await;
            let idle = self.shared.registry.idle_for(&self.configured.id);
            if idle.is_some_and(|idle| idle >= limit) {
                let human = format!(
                    "pool {} was idle for {}: it is stopped until it is asked for",
                    self.configured.id,
                    seconds(limit)
                );
                let narrator = &self.shared.host.narrator;
                narrator.say(Actor::PoolManager, "idle", &self.configured.id, human);
                return;
            }
        }
    }
}
