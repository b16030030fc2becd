use std::time::Duration;

use serde_json::json;

use super::*;
use crate::pool::{Code, Health, ReplicaState};

fn ready(slots: u32) -> Registry {
    let registry = Registry::default();
    registry.declare("chat", "toy", Want::Up, &["r0".to_owned()]);
    registry.serve_anew("chat", "r0", |status| {
        status.set(ReplicaState::Ready, "answers");
        status.health = Health {
            live: true,
            ready: true,
        };
        status.url = Some("http://127.0.0.1:1".to_owned());
        status.slots.total = slots;
    });
    registry
}

fn slots(registry: &Registry) -> (u32, u32, u32) {
    let status = registry.status("chat").unwrap();
    (status.slots.total, status.slots.free, status.leases)
}

#[test]
fn leases_take_slots_and_give_them_back_when_dropped() {
    let registry = ready(2);
    assert_eq!(slots(&registry), (2, 2, 0));
    let one = registry.lease("chat").unwrap();
    let two = registry.lease("chat").unwrap();
    assert_eq!(slots(&registry), (2, 0, 2));
    let refused = registry.lease("chat").unwrap_err();
    assert!(
        matches!(refused, PoolError::Busy { total: 2, .. }),
        "{refused}"
    );
    drop(one);
    assert_eq!(slots(&registry), (2, 1, 1));
    drop(two);
    assert_eq!(slots(&registry), (2, 2, 0));
}

#[test]
fn a_lease_of_an_engine_that_is_gone_frees_nothing_of_the_next_one() {
    let registry = ready(1);
    let old = registry.lease("chat").unwrap();
    let next = registry.serve_anew("chat", "r0", |_| {});
    assert_eq!(slots(&registry), (1, 1, 1));
    let new = registry.lease("chat").unwrap();
    assert_eq!(slots(&registry), (1, 0, 2));
    assert_eq!(registry.held("chat", "r0", Some(next - 1)), 1);
    drop(old);
    assert_eq!(slots(&registry), (1, 0, 1));
    drop(new);
    assert_eq!(slots(&registry), (1, 1, 0));
}

#[test]
fn the_replica_with_most_free_slots_is_leased() {
    let registry = ready(1);
    let names = ["r0", "r1"].map(str::to_owned);
    registry.declare("chat", "toy", Want::Up, &names);
    registry.update("chat", "r1", |status| {
        status.health.ready = true;
        status.slots.total = 3;
    });
    let leases: Vec<Lease> = (0..4).map(|_| registry.lease("chat").unwrap()).collect();
    let on_first = leases.iter().filter(|it| it.replica_id() == "r0").count();
    assert_eq!(on_first, 1);
}

#[test]
fn a_draining_pool_leases_nothing_and_serves_what_it_has() {
    let registry = ready(2);
    let lease = registry.lease("chat").unwrap();
    registry.want("chat", Want::Draining);
    let refused = registry.lease("chat").unwrap_err();
    assert!(matches!(refused, PoolError::Draining { .. }), "{refused}");
    assert_eq!(slots(&registry).2, 1);
    drop(lease);
    assert_eq!(slots(&registry).2, 0);
}

#[tokio::test]
async fn drained_is_when_the_last_lease_is_given_back_or_the_limit_is_over() {
    let registry = ready(1);
    let lease = registry.lease("chat").unwrap();
    let soon = Duration::from_millis(10);
    assert!(!registry.unleased("chat", "r0", None, soon).await);
    let long = Duration::from_secs(60);
    let wait = registry.unleased("chat", "r0", None, long);
    let give_back = async move { drop(lease) };
    assert!(tokio::join!(wait, give_back).0);
}

#[test]
fn what_cannot_be_leased_says_why_and_when_to_come_back() {
    let registry = ready(1);
    registry.update("chat", "r0", |status| {
        status.health = Health::default();
        status.set(ReplicaState::BackingOff, "it ended with exit code 1");
        status.next_start = Some(Timestamp::now() + Duration::from_secs(30));
    });
    let refused = registry.lease("chat").unwrap_err();
    let words = refused.to_string();
    assert!(
        words.contains("r0 is backing-off, it ended with exit code 1"),
        "{words}"
    );
    let retry = refused.retry_after().unwrap();
    assert!(retry > Duration::from_secs(20) && retry <= Duration::from_secs(30));
    let unknown = registry.lease("caht").unwrap_err().to_string();
    assert_eq!(unknown, "there is no pool `caht`; there are: chat");
}

#[test]
fn handoffs_update_and_partial_ones_never_panic() {
    let registry = ready(1);
    registry.update("chat", "r0", |status| {
        status.last_error = Some(LastError {
            kind: "x".to_owned(),
            message: "x".to_owned(),
            details: Vec::new(),
            fixes: Vec::new(),
            at: Timestamp::now(),
        });
    });
    let small = json!({"url": "http://127.0.0.1:2"});
    registry
        .register_ready_from_handoff("chat", &small)
        .unwrap();
    let status = registry.status("chat").unwrap();
    let replica = &status.replicas[0];
    assert_eq!(replica.url.as_deref(), Some("http://127.0.0.1:2"));
    assert_eq!(replica.last_error, None);
    assert!(replica.heartbeat.is_some() && replica.health.ready);
    let again = json!({
        "url": "http://127.0.0.1:3", "engine_version": "abc-cpu", "slots_total": 4,
        "device_mask": ["GPU-1", 7], "pool_id": "chat",
    });
    registry
        .register_ready_from_handoff("chat", &again)
        .unwrap();
    let status = registry.status("chat").unwrap();
    assert_eq!(status.slots.total, 4);
    assert_eq!(status.replicas[0].device_mask, ["GPU-1"]);
    for odd in [
        json!(null),
        json!([]),
        json!({"url": 7}),
        json!({"url": "x", "pool_id": "other"}),
        json!({"slots_total": -1}),
    ] {
        assert!(
            registry.register_ready_from_handoff("chat", &odd).is_err(),
            "{odd}"
        );
    }
    let new = json!({"url": "http://127.0.0.1:4", "slots_total": u64::MAX, "device_mask": "all"});
    registry.register_ready_from_handoff("fresh", &new).unwrap();
    assert!(registry.lease("fresh").is_ok());
}

#[test]
fn a_later_handoff_says_what_holds_now_and_what_it_leaves_out_is_unknown() {
    let registry = Registry::default();
    let take_in = |document| {
        let taken = registry.register_ready_from_handoff("chat", &document);
        taken.unwrap();
        registry.status("chat").unwrap()
    };
    let first = take_in(json!({
        "url": "http://127.0.0.1:1", "engine": "toy", "engine_version": "1-cpu",
        "provisioning_mode": "binary", "device_mask": ["GPU-1"], "dialect": "openai",
        "model": {"id": "qwen", "digest": "sha256:00"}, "started_at": "2026-01-01T00:00:00Z",
    }));
    let replica = &first.replicas[0];
    assert_eq!(first.engine, "toy");
    assert_eq!(replica.model.as_deref(), Some("qwen"));
    assert_eq!(replica.digest.as_deref(), Some("sha256:00"));
    assert!(replica.mode.is_some() && replica.started_at.is_some());
    let second = take_in(json!({"url": "http://127.0.0.1:2", "engine": "other"}));
    let replica = &second.replicas[0];
    assert_eq!(second.engine, "other");
    assert_eq!(replica.device_mask, Vec::<String>::new());
    let texts = [&replica.model, &replica.digest, &replica.dialect];
    assert_eq!(texts, [&None; 3]);
    assert_eq!((replica.mode, replica.started_at), (None, None));
    let third = take_in(json!({"url": "http://127.0.0.1:3"}));
    assert_eq!(third.engine, "other");
}

#[test]
fn changes_are_told_with_the_new_status_and_counted() {
    let registry = ready(1);
    let mut changes = registry.subscribe();
    registry.want("chat", Want::Down);
    registry.remove("chat");
    let first = changes.try_recv().unwrap();
    assert_eq!(first.status.unwrap().want, Want::Down);
    let second = changes.try_recv().unwrap();
    assert_eq!((second.sequence, second.status), (first.sequence + 1, None));
}

#[test]
fn who_asks_is_told_to_come_back_and_with_an_open_breaker_that_it_will_take_longer() {
    let registry = Registry::default();
    let names = ["r0", "r1"].map(str::to_owned);
    registry.declare("chat", "toy", Want::Up, &names);
    let enter = |replica: &str, state, pause: Option<u64>| {
        registry.update("chat", replica, |status| {
            status.set(state, "it ended");
            let pause = pause.map(Duration::from_secs);
            status.next_start = pause.map(|pause| Timestamp::now() + pause);
        });
    };
    let asked = || {
        let refused = registry.lease("chat").unwrap_err();
        (refused.code(), refused.retry_after(), refused.to_string())
    };
    enter("r0", ReplicaState::Broken, Some(600));
    enter("r1", ReplicaState::Failed, None);
    let (code, after, said) = asked();
    assert_eq!(code, Code::PoolUnavailable);
    assert!(after.unwrap() > Duration::from_secs(590), "{after:?}");
    assert_eq!(said, "pool chat cannot serve: r0 is broken, it ended");

    // There is one of which more is to hope.
    enter("r1", ReplicaState::BackingOff, Some(3));
    let (code, after, said) = asked();
    assert_eq!(code, Code::PoolUnready);
    assert!(after.unwrap() <= Duration::from_secs(3), "{after:?}");
    assert_eq!(said, "pool chat is not ready: r1 is backing-off, it ended");

    for replica in ["r0", "r1"] {
        enter(replica, ReplicaState::Failed, None);
    }
    let (code, after, _) = asked();
    assert_eq!((code, after), (Code::PoolUnavailable, None));
}

#[test]
fn a_lease_of_a_replica_that_was_made_anew_frees_nothing_and_is_of_no_use() {
    let registry = ready(1);
    let old = registry.lease("chat").unwrap();
    registry.remove("chat");
    registry.declare("chat", "toy", Want::Up, &["r0".to_owned()]);
    registry.serve_anew("chat", "r0", |status| {
        status.health.ready = true;
        status.url = Some("http://127.0.0.1:2".to_owned());
        status.slots.total = 1;
    });
    let new = registry.lease("chat").unwrap();
    assert!(!old.is_of_use() && new.is_of_use());
    drop(old);
    assert_eq!(slots(&registry), (1, 0, 1));
}

#[test]
fn what_is_kept_of_a_failure_has_no_secret() {
    let secrets = crate::narrate::Secrets::default();
    secrets.register("planted-secret");
    let error = LastError {
        kind: "crashed".to_owned(),
        message: "it said planted-secret".to_owned(),
        details: vec![crate::pool::Evidence {
            label: "said".to_owned(),
            text: "key=planted-secret".to_owned(),
        }],
        fixes: vec![crate::fault::hint(
            "use planted-secret",
            Some("x planted-secret"),
        )],
        at: Timestamp::now(),
    };
    let masked = format!("{:?}", error.masked(&secrets));
    assert!(!masked.contains("planted"), "{masked}");
}
