//! One task per replica: start, watch, fall, back off, start again.
//!
//! The task owns the engine. Orders reach it at every moment; what is under way is cancelled through
//! its token and waited for, so that nothing of it is left when the next thing begins.
//!
//! | file | job |
//! |---|---|
//! | `task` | the task from outside: orders, progress |
//! | `swap` | another engine in place of the one that serves |
//! | `fall` | what follows when an engine has fallen |
//! | `drain` | the end of an engine that serves |

mod drain;
mod fall;
mod swap;
mod task;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

pub(super) use self::task::{Order, Progress, ReplicaTask, Swapped};
use self::{swap::Left, task::Orders};
use super::{
    Caller, Cause, ReplicaState, Schedule, Supervision,
    manager::Inner,
    serving::{Fall, Serving},
    turn::Turn,
};
use crate::{
    drive::{Host, Request, Startable},
    fault::{Because, Failure},
    narrate::Narrator,
};

/// One replica of a pool.
pub(super) struct Replica {
    pub(super) shared: Arc<Inner>,
    pub(super) request: Request,
    pub(super) pool: String,
    pub(super) name: String,
    pub(super) supervision: Supervision,
    pub(super) narrator: Narrator,
    schedule: Schedule,
    /// What was started last, whatever the pool file says by now.
    startable: Option<Startable>,
    /// Whether that did not come up: something of it may be gone, it is made again.
    is_stale: bool,
    /// For whom it is started first; later starts are its own.
    caller: Caller,
    progress: watch::Sender<Progress>,
    /// Whether an engine of an earlier host may be there: before the first start.
    may_adopt: bool,
}

/// How one engine's time ended.
enum Fate {
    /// It did not come up, or fell.
    Fell { cause: Cause, because: Because },
    /// It was stopped for a successor, whose start was given up.
    GivenUp,
    /// The replica was told to end.
    Ended,
}

/// What comes for an engine that serves.
enum Came {
    /// It has fallen.
    Fall(Fall),
    /// What the pool file has now is prepared.
    Prepared(Box<Result<Startable, Failure>>),
    /// It has served for so long that its failures are forgotten.
    Well,
    /// It is told something.
    Order(Order),
}

/// What was asked while it came up.
enum Heard {
    /// End.
    Stop,
    /// End, the engine runs on.
    Leave,
}

impl Replica {
    pub(super) fn new(
        shared: Arc<Inner>,
        request: Request,
        pool: String,
        name: String,
        supervision: Supervision,
    ) -> Self {
        let narrator = shared.host.narrator.with(|context| {
            context.pool_id = Some(pool.clone());
            context.replica_id = Some(name.clone());
        });
        Self {
            shared,
            request,
            pool,
            name,
            supervision,
            narrator,
            schedule: Schedule::default(),
            startable: None,
            is_stale: false,
            caller: Caller::default(),
            progress: watch::Sender::new(Progress::Coming),
            may_adopt: true,
        }
    }

    /// Forgets what became of the engines of an earlier time that it was up.
    pub(super) fn begin_anew(&self) {
        self.show(|status| {
            status.restarts = 0;
            status.restarts_by.clear();
            status.breaker = self.schedule.breaker();
        });
    }

    /// Starts its task.
    pub(super) fn start(mut self, caller: Caller) -> ReplicaTask {
        self.caller = caller;
        let (orders, heard) = mpsc::unbounded_channel();
        ReplicaTask {
            name: self.name.clone(),
            orders,
            told: self.progress.clone(),
            task: tokio::spawn(self.run(Orders::new(heard))),
        }
    }

    async fn run(mut self, mut orders: Orders) {
        loop {
            self.schedule.starting();
            let breaker = self.schedule.breaker();
            self.show(|status| status.breaker = breaker);
            self.progress.send_replace(Progress::Coming);
            match self.once(&mut orders).await {
                Fate::Ended => break,
                Fate::GivenUp => {
                    if !self.after_giving_up(&mut orders).await {
                        break;
                    }
                }
                Fate::Fell { cause, because } => {
                    if !self.after_a_fall(cause, &because, &mut orders).await {
                        break;
                    }
                }
            }
        }
        self.show(|status| {
            status.set(ReplicaState::Stopped, "stopped");
            status.clear_engine();
        });
        self.progress.send_replace(Progress::Ended);
    }

    /// From nothing to an engine that serves, until it falls or is told to end.
    async fn once(&mut self, orders: &mut Orders) -> Fate {
        let (job, mut host) = std::mem::take(&mut self.caller)
            .host(&self.shared.host)
            .own_job("up");
        host.cancel = self.shared.end.child_token();
        let cancel = host.cancel.clone();
        let mut told_to_end = None;
        let mut is_asked_for = false;
        let mut later = Vec::new();
        let brought_up = {
            // On the heap: so large a future would be copied over the stack of whoever polls this one, and
            // this task, which lives for as long as its engine, would keep room for it.
            let mut coming = Box::pin(self.bring_up(&host));
            loop {
                tokio::select! {
                    brought_up = &mut coming => break brought_up,
                    order = orders.recv() => match order {
                        Some(Order::TryNow) => is_asked_for = true,
                        // Of an engine that serves, or has fallen: it is one of them soon.
                        Some(order @ (Order::Supervise(_) | Order::Swap { .. })) => later.push(order),
                        // It ends the sooner; what came up all the same is ended below.
                        Some(Order::Stop { .. }) => {
                            told_to_end = Some(Heard::Stop);
                            cancel.cancel();
                        }
                        Some(Order::Leave) | None => {
                            told_to_end = Some(Heard::Leave);
                            cancel.cancel();
                        }
                    },
                }
            }
        };
        orders.put_back(later);
        if is_asked_for {
            self.forget_what_failed();
        }
        self.shared.worked.send_replace(());
        job.end(brought_up.as_ref().err().map(|because| because as _));
        let brought_up = match (brought_up, told_to_end) {
            (brought_up, None) => brought_up,
            // It came up in that very moment.
            (Ok(serving), Some(Heard::Stop)) => return self.end_unused(serving).await,
            (Ok(serving), Some(Heard::Leave)) => {
                serving.leave();
                return Fate::Ended;
            }
            (Err(_), Some(_)) => return Fate::Ended,
        };
        match brought_up {
            Ok(serving) => {
                self.schedule.ready(Instant::now());
                self.progress.send_replace(Progress::Ready);
                self.serve(serving, host, orders).await
            }
            Err(because) => Fate::Fell {
                cause: Cause::Start,
                because,
            },
        }
    }

    async fn end_unused(&self, serving: Serving) -> Fate {
        let hurry = CancellationToken::new();
        let _ = Box::pin(serving.end(&hurry)).await;
        Fate::Ended
    }

    /// Prepares where that is needed, and starts.
    async fn bring_up(&mut self, host: &Host) -> Result<Serving, Because> {
        if std::mem::take(&mut self.may_adopt)
            && let Some(serving) = Serving::adopt(self, host).await
        {
            return Ok(serving);
        }
        let startable = match &self.startable {
            Some(startable) if !self.is_stale => startable.clone(),
            known => {
                self.show(|status| status.set(ReplicaState::Preparing, "obtains engine and model"));
                match known {
                    Some(known) => self.prepare(host, host.startable_again(known)).await?,
                    None => self.prepare(host, host.startable(&self.request)).await?,
                }
            }
        };
        self.show(|status| {
            status.set(ReplicaState::Starting, "loads");
        });
        let serving = Box::pin(Serving::start(self, host, &startable, false)).await;
        self.starts_from(startable);
        self.is_stale = serving.is_err();
        serving
    }

    /// What the next start starts, unless it is told otherwise.
    fn starts_from(&mut self, startable: Startable) {
        self.startable = Some(startable);
        self.is_stale = false;
    }

    /// Somebody asks for it, who may have changed what keeps it from coming up: the next start takes what the
    /// pool file has.
    fn forget_what_failed(&mut self) {
        self.startable.take_if(|_| self.is_stale);
    }

    /// Watches over an engine that is ready.
    async fn serve(&mut self, mut serving: Serving, host: Host, orders: &mut Orders) -> Fate {
        // What was adopted is compared while it serves.
        let mut preparing = serving.startable.is_none().then(|| {
            let (shared, request) = (Arc::clone(&self.shared), self.request.clone());
            Box::pin(async move {
                let _permit = shared.preparations.acquire().await;
                host.startable(&request).await
            })
        });
        loop {
            match self.next(&serving, &mut preparing, orders).await {
                Came::Fall(fall) => {
                    let settings = &self.supervision;
                    let accounting = serving.account_for(fall, settings, self);
                    let (cause, because) = Box::pin(accounting).await;
                    return Fate::Fell { cause, because };
                }
                Came::Prepared(prepared) => {
                    preparing = None;
                    // A reload may have come first, with a newer pool file than this one's.
                    if serving.startable.is_none() {
                        let turn = Turn::until(&self.shared.end);
                        let comparing = Box::pin(self.compare(&mut serving, *prepared, &turn));
                        let left = orders.keep_during(&turn, comparing).await;
                        if let Some(fate) = left.without_engine() {
                            return fate;
                        }
                    }
                }
                Came::Well => {
                    self.schedule.well();
                    let breaker = self.schedule.breaker();
                    self.show(|status| status.breaker = breaker);
                }
                Came::Order(Order::TryNow) => {}
                Came::Order(Order::Supervise(supervision)) => self.supervision = *supervision,
                Came::Order(Order::Swap {
                    startable,
                    turn,
                    reply,
                }) => {
                    let swapped = Box::pin(self.swap(&mut serving, startable, &turn)).await;
                    let (told, left) = match swapped {
                        Ok(told) => (told, Left::Serving),
                        Err(unswapped) => (unswapped.told, unswapped.left),
                    };
                    let _ = reply.send(told);
                    if let Some(fate) = left.without_engine() {
                        return fate;
                    }
                }
                Came::Order(Order::Stop { deadline, narrator }) => {
                    Box::pin(self.wind_down(&serving, deadline, &narrator, orders)).await;
                    return Fate::Ended;
                }
                Came::Order(Order::Leave) => {
                    serving.leave();
                    return Fate::Ended;
                }
            }
        }
    }

    /// What comes next for an engine that serves. Whoever only asks for the pool does not interrupt the
    /// watch over it.
    async fn next<P>(
        &self,
        serving: &Serving,
        preparing: &mut Option<P>,
        orders: &mut Orders,
    ) -> Came
    where
        P: Future<Output = Result<Startable, Failure>> + Unpin,
    {
        let well = self.schedule.well_at(&self.supervision);
        let falls = serving.falls(&self.supervision, self);
        tokio::pin!(falls);
        loop {
            tokio::select! {
                fall = &mut falls => return Came::Fall(fall),
                prepared = ready_of(preparing) => return Came::Prepared(Box::new(prepared)),
                () = until(well) => return Came::Well,
                order = orders.recv() => match order {
                    Some(Order::TryNow) => {}
                    Some(order) => return Came::Order(order),
                    None => return Came::Order(Order::Leave),
                },
            }
        }
    }

    /// Changes what is known of this replica.
    pub(super) fn show(&self, change: impl FnOnce(&mut super::ReplicaStatus)) {
        self.shared.registry.update(&self.pool, &self.name, change);
    }
}

impl Left {
    /// What becomes of a replica that has no engine after a swap; `None` where it has one.
    fn without_engine(self) -> Option<Fate> {
        match self {
            Self::Serving => None,
            Self::Lost(cause, because) => Some(Fate::Fell { cause, because }),
            Self::Nothing => Some(Fate::GivenUp),
        }
    }
}

/// What a future gives, where there is one.
async fn ready_of<F: Future + Unpin>(future: &mut Option<F>) -> F::Output {
    match future {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}

pub(super) async fn until(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when.into()).await,
        None => std::future::pending().await,
    }
}

pub(super) fn seconds(pause: Duration) -> String {
    match pause.as_secs() {
        0 => format!("{} ms", pause.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::supervisor::Supervisor, *};

    /// Bytes of what an asynchronous function keeps from one wait to the next.
    fn kept<A, B, F: Future>(_: impl Fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_pool_that_waits_keeps_little_of_what_its_work_takes() {
        let (replica, supervisor) = (kept(Replica::run), kept(Supervisor::run));
        assert!(replica < 24 << 10, "{replica} bytes for each replica");
        assert!(supervisor < 64 << 10, "{supervisor} bytes for each pool");
    }
}
