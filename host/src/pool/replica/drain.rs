//! The end of an engine that serves: nothing new, then what it has, then the stop.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::{
    Replica,
    task::{Order, Orders},
};
use crate::{
    narrate::{Actor, Narrator, Work},
    pool::{ReplicaState, serving::Serving},
};

impl Replica {
    /// No new leases; then, when those there are have run out or the deadline has passed, the end. A
    /// second stop with a nearer deadline hurries.
    pub(super) async fn wind_down(
        &self,
        serving: &Serving,
        deadline: Duration,
        narrator: &Narrator,
        orders: &mut Orders,
    ) {
        self.show(|status| {
            status.set(ReplicaState::Draining, "waits for what it serves");
            status.health.ready = false;
        });
        let registry = &self.shared.registry;
        let unleased = registry.unleased(&self.pool, &self.name, None, deadline);
        tokio::pin!(unleased);
        let hurried = async {
            while let Some(order) = orders.recv().await {
                if matches!(order, Order::Stop { deadline, .. } if deadline.is_zero()) {
                    return;
                }
            }
        };
        let narrator = self.narrator.on_behalf_of(narrator);
        let span = narrator.begin(Work::Drain, "", &self.name);
        let in_time = tokio::select! {
            in_time = &mut unleased => in_time,
            () = serving.gone() => true,
            () = hurried => false,
        };
        if in_time {
            span.end(None);
        } else {
            // Given up.
            drop(span);
            let left = registry.held(&self.pool, &self.name, None);
            let held = match left {
                1 => "1 lease was".to_owned(),
                left => format!("{left} leases were"),
            };
            let human = format!("{held} still held when the time to drain was over");
            narrator.warn(Actor::PoolManager, "drain", &self.name, human);
        }
        self.show(|status| status.set(ReplicaState::Stopping, "ends"));
        let hurry = CancellationToken::new();
        if let Err(error) = serving.engine.stop_for(&narrator, &hurry).await {
            narrator.fail(Actor::PoolManager, "stop", &self.name, &error);
        }
    }
}
