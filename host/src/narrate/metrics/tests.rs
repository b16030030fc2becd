use std::time::Duration;

use jiff::Timestamp;

use super::*;
use crate::narrate::{Actor, Narrator, Outcome, TraceContext, Work};

fn ended(work: Work, kind: &'static str, outcome: Outcome) -> Ended {
    Ended {
        work,
        kind,
        target: "it".to_owned(),
        context: Context {
            pool_id: Some("chat".to_owned()),
            ..Context::default()
        },
        place: TraceContext::root(),
        parent: None,
        began: Timestamp::UNIX_EPOCH,
        duration: Duration::from_millis(30),
        outcome,
        made: outcome != Outcome::Cached,
        bytes: 0,
        error_kind: None,
        error: None,
    }
}

/// Samples without buckets, comments and what is there from the start.
fn samples(metrics: &Metrics) -> String {
    let page = metrics.encode();
    let told = |line: &&str| !line.starts_with('#') && !line.contains("_bucket");
    let lines = page.lines().filter(told);
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn nothing_is_counted_before_something_was_done() {
    insta::assert_snapshot!(Metrics::default().encode(), @r#"
    # HELP engine_host_build_info This program.
    # TYPE engine_host_build_info gauge
    engine_host_build_info{version="0.1.0"} 1
    "#);
}

#[test]
fn work_is_counted_and_measured_by_kind_and_outcome() {
    let metrics = Metrics::default();
    metrics.know_pools(|pool| pool == "chat");
    metrics.ended(&ended(Work::Step, "build", Outcome::Done));
    metrics.ended(&ended(Work::Step, "build", Outcome::Cached));
    metrics.ended(&ended(Work::Step, "checkout", Outcome::Failed));
    metrics.ended(&ended(Work::Prepare, "", Outcome::Done));
    metrics.ended(&ended(Work::Wait, "result", Outcome::Done));
    metrics.ended(&ended(Work::Launch, "", Outcome::Done));
    metrics.ended(&ended(Work::Launch, "", Outcome::Failed));
    metrics.ended(&Ended {
        bytes: 4096,
        ..ended(Work::Fetch, "hub", Outcome::Done)
    });
    insta::assert_snapshot!(samples(&metrics), @r#"
    engine_host_build_info{version="0.1.0"} 1
    engine_host_cache_hits_total{kind="build"} 1
    engine_host_cache_misses_total{kind="build"} 1
    engine_host_cache_misses_total{kind="checkout"} 1
    engine_host_fetched_bytes_total{source="hub"} 4096
    engine_host_fetches_total{source="hub",outcome="done"} 1
    engine_host_launches_total{pool="chat",outcome="done"} 1
    engine_host_launches_total{pool="chat",outcome="failed"} 1
    engine_host_lock_wait_seconds_sum{kind="result"} 0.03
    engine_host_lock_wait_seconds_count{kind="result"} 1
    engine_host_prepare_duration_seconds_sum{outcome="done"} 0.03
    engine_host_prepare_duration_seconds_count{outcome="done"} 1
    engine_host_step_duration_seconds_sum{kind="build",outcome="cached"} 0.03
    engine_host_step_duration_seconds_count{kind="build",outcome="cached"} 1
    engine_host_step_duration_seconds_sum{kind="build",outcome="done"} 0.03
    engine_host_step_duration_seconds_count{kind="build",outcome="done"} 1
    engine_host_step_duration_seconds_sum{kind="checkout",outcome="failed"} 0.03
    engine_host_step_duration_seconds_count{kind="checkout",outcome="failed"} 1
    engine_host_time_to_ready_seconds_sum{pool="chat"} 0.03
    engine_host_time_to_ready_seconds_count{pool="chat"} 1
    "#);
}

#[test]
fn pools_that_nobody_knows_are_one_value() {
    let metrics = Metrics::default();
    metrics.know_pools(|pool| pool == "chat");
    let narrator = Narrator::new(vec![Box::new(metrics.clone())]);
    for number in 0..1000 {
        let narrator = narrator.with(|context| context.pool_id = Some(format!("made-up-{number}")));
        narrator.restart("oom", "r0", "started again");
    }
    let told = narrator.with(|context| context.pool_id = Some("chat".to_owned()));
    told.restart("oom", "r0", "started again");
    let page = metrics.encode();
    assert!(!page.contains("made-up"), "{page}");
    assert!(page.contains("engine_host_restarts_total{pool=\"other\",reason=\"oom\"} 1000\n"));
    assert!(page.contains("engine_host_restarts_total{pool=\"chat\",reason=\"oom\"} 1\n"));
}

#[test]
fn what_was_counted_of_a_pool_goes_with_it() {
    let metrics = Metrics::default();
    let pools = Arc::new(Mutex::new(vec!["chat"]));
    let list = Arc::clone(&pools);
    metrics.know_pools(move |pool| list.lock().unwrap().contains(&pool));
    metrics.ended(&ended(Work::Drain, "", Outcome::Done));
    metrics.ended(&ended(Work::Launch, "", Outcome::Done));
    assert!(metrics.encode().contains("pool=\"chat\""));
    pools.lock().unwrap().clear();
    assert!(!metrics.encode().contains("chat"));
}

#[test]
fn events_are_counted_by_actor_and_level() {
    let metrics = Metrics::default();
    let narrator = Narrator::new(vec![Box::new(metrics.clone())]);
    narrator.say(Actor::ModelProvisioner, "verify", "a", "verifying");
    narrator.warn(Actor::PoolManager, "notice", "a", "odd");
    let page = metrics.encode();
    for line in [
        "engine_host_events_total{actor=\"model-provisioner\",level=\"info\"} 1",
        "engine_host_events_total{actor=\"pool-manager\",level=\"warning\"} 1",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[test]
fn pages_of_engines_join_our_own() {
    let metrics = Metrics::default();
    let mut page = metrics.exposition();
    let labels = [("pool", "chat"), ("replica", "r0")];
    page.add("llamacpp:tokens_total 3\n", &labels, Limits::default());
    let text = page.text();
    assert!(text.contains("engine_host_build_info"), "{text}");
    assert!(
        text.contains("llamacpp:tokens_total{pool=\"chat\",replica=\"r0\"} 3"),
        "{text}"
    );
}
