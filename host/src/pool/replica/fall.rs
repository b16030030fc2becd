//! What follows when an engine has fallen: a pause, the breaker, or nothing at all.

use std::time::Instant;

use super::{
    Replica, seconds,
    task::{Order, Orders, Progress, Swapped},
    until,
};
use crate::{
    fault::Because,
    narrate::Actor,
    pool::{Cause, LastError, Next, ReplicaState, Schedule, backoff::dice, cause::may_pass},
};

/// What comes for a replica of which nothing runs.
enum Then {
    /// What ran before is started.
    Again,
    /// Something else is.
    Another,
    /// It ends.
    End,
}

impl Replica {
    /// Waits before the next start; whether there is to be one.
    pub(super) async fn after_a_fall(
        &mut self,
        cause: Cause,
        because: &Because,
        orders: &mut Orders,
    ) -> bool {
        let dice = dice();
        let next = match (cause, may_pass(because)) {
            (Cause::Start, false) => Next::Never,
            (Cause::Stopped, _) => Next::Never,
            _ => self
                .schedule
                .failed(Instant::now(), dice, &self.supervision),
        };
        self.tell_fall(cause, because, next);
        self.progress.send_replace(Progress::Fell(because.clone()));
        let pause = match next {
            Next::After(pause) | Next::Trial(pause) => Some(Instant::now() + pause),
            Next::Never => None,
        };
        match self.until_started(pause, orders).await {
            Then::Again => {}
            Then::Another => return true,
            Then::End => return false,
        }
        self.show(|status| {
            // In one with the count: whoever sees it counted sees that it waits no longer.
            status.set(ReplicaState::Starting, "is started again");
            status.restarts = status.restarts.saturating_add(1);
            let by = status.restarts_by.entry(cause.as_str().to_owned());
            let by = by.or_default();
            *by = by.saturating_add(1);
        });
        let human = format!("starting replica {} of pool {} again", self.name, self.pool);
        self.narrator.restart(cause.as_str(), &self.name, human);
        true
    }

    /// Waits, where a swap was given up when nothing served, for what it is told next, which as a rule is
    /// to end; whether there is to be a start.
    pub(super) async fn after_giving_up(&mut self, orders: &mut Orders) -> bool {
        self.show(|status| {
            status.clear_engine();
            status.set(ReplicaState::Stopping, "its reload was given up");
        });
        self.progress.send_replace(Progress::Coming);
        !matches!(self.until_started(None, orders).await, Then::End)
    }

    /// Waits until it is to be started: after this pause, or when it is told.
    async fn until_started(&mut self, pause: Option<Instant>, orders: &mut Orders) -> Then {
        loop {
            tokio::select! {
                () = until(pause) => return Then::Again,
                order = orders.recv() => match order {
                    Some(Order::TryNow) => {
                        self.schedule = Schedule::default();
                        self.forget_what_failed();
                        return Then::Again;
                    }
                    Some(Order::Supervise(supervision)) => self.supervision = *supervision,
                    Some(Order::Swap { startable, reply, .. }) => {
                        // Nothing serves: the new one is simply started.
                        let before = self.startable.take();
                        self.starts_from(startable);
                        self.schedule = Schedule::default();
                        let _ = reply.send(Swapped::Done { before });
                        return Then::Another;
                    }
                    Some(Order::Stop { .. } | Order::Leave) | None => return Then::End,
                },
            }
        }
    }

    fn tell_fall(&self, cause: Cause, because: &Because, next: Next) {
        let breaker = self.schedule.breaker();
        let (state, plan, pause) = match next {
            Next::After(pause) => (
                ReplicaState::BackingOff,
                format!("is started again in {}", seconds(pause)),
                Some(pause),
            ),
            Next::Trial(pause) => (
                ReplicaState::Broken,
                format!(
                    "failed {} times in a row; one start is tried in {}",
                    self.schedule.failures(),
                    seconds(pause)
                ),
                Some(pause),
            ),
            Next::Never => (
                ReplicaState::Failed,
                "is not tried again by itself".to_owned(),
                None,
            ),
        };
        let error = LastError::of(because).masked(self.narrator.secrets());
        let reason = error.message.clone();
        // How one fell that served has been told; nobody else may have told why one was not even started.
        let why = match cause {
            Cause::Start => format!(": {reason}"),
            _ => String::new(),
        };
        self.show(|status| {
            status.clear_engine();
            status.set(state, reason);
            status.breaker = breaker;
            status.last_error = Some(error);
            status.next_start = pause.map(|pause| jiff::Timestamp::now() + pause);
        });
        let human = format!(
            "replica {} of pool {} {plan} ({}){why}",
            self.name,
            self.pool,
            cause.as_str()
        );
        self.narrator
            .warn(Actor::PoolManager, "restart", &self.name, human);
    }
}
