//! A replica's task, from outside: what it is told, and how far it is.

use std::{collections::VecDeque, pin::pin, time::Duration};

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    drive::Startable,
    fault::Because,
    narrate::Narrator,
    pool::{Supervision, turn::Turn},
};

/// What a replica is told.
#[derive(Debug)]
pub(in crate::pool) enum Order {
    /// Start now if it waits.
    TryNow,
    /// Be supervised like this from now on.
    Supervise(Box<Supervision>),
    /// Run this engine instead.
    Swap {
        startable: Startable,
        /// Ends the swap early.
        turn: Turn,
        reply: oneshot::Sender<Swapped>,
    },
    /// End, after the leases or this deadline.
    Stop {
        deadline: Duration,
        /// Tells for whom that is.
        narrator: Narrator,
    },
    /// End, the engine runs on.
    Leave,
}

/// What came of a swap.
#[derive(Debug)]
pub(in crate::pool) enum Swapped {
    /// The engine that serves is the one that was asked for.
    Same,
    /// The new engine serves.
    Done {
        /// What it has taken the place of, where that can be started again.
        before: Option<Startable>,
    },
    /// It was given up; what the replica is told next says what becomes of it.
    GivenUp,
    /// It was refused or did not come up.
    Failed {
        /// What serves now, in words.
        serving: String,
        /// Why.
        source: Because,
    },
}

impl Order {
    /// Ends work early that this order makes pointless.
    fn reaches(&self, turn: &Turn) {
        match self {
            Self::Stop { deadline, .. } => {
                turn.give_up("the replica is stopped");
                if deadline.is_zero() {
                    turn.hurry().cancel();
                }
            }
            Self::Leave => turn.give_up("the manager ends"),
            Self::TryNow | Self::Supervise(_) | Self::Swap { .. } => {}
        }
    }
}

/// What a replica is told, in order.
#[derive(Debug)]
pub(in crate::pool) struct Orders {
    told: mpsc::UnboundedReceiver<Order>,
    /// What came while work went on that nothing interrupts.
    kept: VecDeque<Order>,
}

impl Orders {
    pub(super) fn new(told: mpsc::UnboundedReceiver<Order>) -> Self {
        let kept = VecDeque::new();
        Self { told, kept }
    }

    /// The next one; `None` once nobody can give any.
    pub(super) async fn recv(&mut self) -> Option<Order> {
        match self.kept.pop_front() {
            Some(order) => Some(order),
            None => self.told.recv().await,
        }
    }

    /// Keeps orders for afterwards that came too early, in their order.
    pub(super) fn put_back(&mut self, orders: Vec<Order>) {
        let later = self.kept.drain(..);
        self.kept = orders.into_iter().chain(later).collect();
    }

    /// Carries out work to its end. Orders are kept for afterwards; one that makes it pointless ends it
    /// early.
    pub(super) async fn keep_during<F: Future>(&mut self, turn: &Turn, work: F) -> F::Output {
        let mut work = pin!(work);
        self.kept.iter().for_each(|order| order.reaches(turn));
        loop {
            tokio::select! {
                done = &mut work => return done,
                order = self.told.recv() => match order {
                    Some(order) => {
                        order.reaches(turn);
                        self.kept.push_back(order);
                    }
                    None => {
                        Order::Leave.reaches(turn);
                        return work.await;
                    }
                },
            }
        }
    }
}

/// How far a replica is, for those who wait.
#[derive(Debug, Clone)]
pub(in crate::pool) enum Progress {
    /// On its way.
    Coming,
    /// It serves.
    Ready,
    /// It did not come up, or fell.
    Fell(Because),
    /// It was told to end.
    Ended,
}

/// A replica's task, from outside.
pub(in crate::pool) struct ReplicaTask {
    pub(super) name: String,
    pub(super) orders: mpsc::UnboundedSender<Order>,
    pub(super) told: watch::Sender<Progress>,
    pub(super) task: tokio::task::JoinHandle<()>,
}

impl ReplicaTask {
    pub(in crate::pool) fn name(&self) -> &str {
        &self.name
    }

    pub(in crate::pool) fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    /// Starts it now if it waits after a fall; who waits for it from now on waits for that start.
    pub(in crate::pool) fn try_now(&self) {
        self.told.send_if_modified(|progress| {
            let fell = matches!(progress, Progress::Fell(_));
            if fell {
                *progress = Progress::Coming;
            }
            fell
        });
        self.order(Order::TryNow);
    }

    /// Waits until it is ready or not coming.
    pub(in crate::pool) async fn settled(&self) -> Progress {
        let mut progress = self.told.subscribe();
        let settled = |it: &Progress| !matches!(it, Progress::Coming);
        tokio::select! {
            biased;
            Ok(progress) = progress.wait_for(settled) => progress.clone(),
            // A task that panicked says nothing more.
            () = self.orders.closed() => Progress::Ended,
        }
    }

    pub(in crate::pool) async fn swap(&self, startable: Startable, turn: Turn) -> Swapped {
        let (reply, answer) = oneshot::channel();
        let given_up = turn.given_up().clone();
        self.order(Order::Swap {
            startable,
            turn,
            reply,
        });
        tokio::select! {
            // It ended meanwhile: there is nothing to swap.
            told = answer => told.unwrap_or(Swapped::Same),
            // It may be coming up, which the swap waits for.
            () = given_up.cancelled() => Swapped::GivenUp,
        }
    }

    /// Ends it, after its leases or the deadline; `hurry` is a deadline that has come nearer.
    pub(in crate::pool) async fn stop(
        mut self,
        deadline: Duration,
        narrator: &Narrator,
        hurry: &CancellationToken,
    ) {
        let stop = |deadline| Order::Stop {
            deadline,
            narrator: narrator.clone(),
        };
        self.order(stop(deadline));
        tokio::select! {
            _ = &mut self.task => {}
            () = hurry.cancelled() => {
                self.order(stop(Duration::ZERO));
                let _ = self.task.await;
            }
        }
    }

    pub(in crate::pool) async fn leave(self) {
        self.order(Order::Leave);
        let _ = self.task.await;
    }
}
