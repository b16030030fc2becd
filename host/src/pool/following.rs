//! A registry that follows handoffs of engines that others keep up.

use super::{Health, PoolError, Registry, ReplicaState};
use crate::handoff::HandoffEvent;

impl Registry {
    /// Takes in a change of a watched directory ([`crate::handoff::watch`]): a replica that is bound or
    /// has changed is ready at its URL, one that is unbound serves nothing any more.
    ///
    /// For handoffs of engines that no manager of this registry keeps up: its own it knows better.
    pub fn follow(&self, event: &HandoffEvent) -> Result<(), PoolError> {
        let handoff = &event.binding().handoff;
        let pool = &handoff.pool_id;
        if let HandoffEvent::Unbound(_) = event {
            self.update(pool, &handoff.replica_id, |status| {
                // What came after it in another file has taken its place.
                if status.url.as_ref() != Some(&handoff.url) {
                    return;
                }
                status.set(ReplicaState::Stopped, "its handoff is gone");
                status.health = Health::default();
                status.url = None;
                status.slots.total = 0;
            });
            return Ok(());
        }
        let document = serde_json::to_value(handoff).expect("a handoff is plain data");
        self.register_ready_from_handoff(pool, &document)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::handoff::Binding;

    fn binding(port: u16) -> Box<Binding> {
        let handoff = serde_json::json!({
            "engine": "llamacpp", "engine_version": "b1", "provisioning_mode": "source",
            "url": format!("http://127.0.0.1:{port}"), "pool_id": "chat", "replica_id": "r0",
            "model": {"id": "m"}, "flags": [], "slots_total": 2,
        });
        Box::new(Binding {
            path: PathBuf::from("/x.json"),
            handoff: serde_json::from_value(handoff).unwrap(),
        })
    }

    #[test]
    fn a_replica_is_leased_at_the_url_of_its_handoff_until_that_is_gone() {
        let registry = Registry::default();
        registry.follow(&HandoffEvent::Bound(binding(1))).unwrap();
        let lease = registry.lease("chat").unwrap();
        assert_eq!(lease.url(), "http://127.0.0.1:1");
        // The same engine once more.
        registry.follow(&HandoffEvent::Changed(binding(1))).unwrap();
        assert_eq!(registry.status("chat").unwrap().slots.free, 1);
        registry.follow(&HandoffEvent::Changed(binding(2))).unwrap();
        assert_eq!(registry.lease("chat").unwrap().url(), "http://127.0.0.1:2");
        registry.follow(&HandoffEvent::Unbound(binding(1))).unwrap();
        assert!(
            registry.status("chat").unwrap().health.ready,
            "an older one"
        );
        registry.follow(&HandoffEvent::Unbound(binding(2))).unwrap();
        let status = registry.status("chat").unwrap();
        assert_eq!(status.health, Health::default());
        assert_eq!((status.slots.total, status.slots.free), (0, 0));
        assert!(matches!(
            registry.lease("chat").unwrap_err(),
            PoolError::Unready { .. }
        ));
        drop(lease);
        registry.follow(&HandoffEvent::Bound(binding(3))).unwrap();
        assert_eq!(registry.status("chat").unwrap().slots.free, 2);
    }

    #[test]
    fn what_was_never_bound_may_be_unbound() {
        let registry = Registry::default();
        registry.follow(&HandoffEvent::Unbound(binding(1))).unwrap();
        assert!(registry.list().is_empty());
    }
}
