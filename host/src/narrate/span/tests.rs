use super::*;
use crate::{
    narrate::{Event, Sink},
    net::NetError,
};

/// Keeps what has ended.
#[derive(Debug, Clone, Default)]
struct Kept(Arc<Mutex<Vec<Ended>>>);

impl Sink for Kept {
    fn event(&self, _: &Event) {}

    fn ended(&self, ended: &Ended) {
        self.0.lock().unwrap().push(ended.clone());
    }
}

impl Kept {
    fn last(&self) -> Ended {
        self.0.lock().unwrap().last().unwrap().clone()
    }
}

fn bench() -> (Narrator, Kept) {
    let kept = Kept::default();
    (Narrator::new(vec![Box::new(kept.clone())]), kept)
}

#[test]
fn work_whose_parts_were_all_there_was_cached_and_one_that_was_made_changes_that() {
    let (narrator, kept) = bench();
    for (made, outcome) in [(false, Outcome::Cached), (true, Outcome::Done)] {
        let prepare = narrator.begin(Work::Prepare, "", "chat");
        let steps: Vec<Span> = ["checkout", "build"]
            .map(|kind| prepare.narrator().begin(Work::Step, kind, kind))
            .into();
        if made {
            // Also from within its parts.
            let fetch = steps[0].narrator().begin(Work::Fetch, "url", "x");
            fetch.narrator().makes();
            fetch.end(None);
        }
        let mut outcomes = Vec::new();
        for step in steps {
            step.end(None);
            outcomes.push(kept.last().outcome);
        }
        assert_eq!(outcomes, [outcome, Outcome::Cached]);
        prepare.end(None);
        assert_eq!(kept.last().outcome, outcome);
    }
}

#[test]
fn failures_are_told_apart_from_what_nobody_wanted_any_more() {
    let (narrator, kept) = bench();
    narrator.secrets().register("hunter22");
    let url = || "http://hunter22/".to_owned();
    let failed = NetError::BadUrl { url: url() };
    narrator.begin(Work::Fetch, "url", url()).end(Some(&failed));
    let ended = kept.last();
    assert_eq!(ended.outcome, Outcome::Failed);
    assert_eq!(ended.error_kind, Some(failed.kind()));
    assert!(!format!("{ended:?}").contains("hunter22"), "{ended:?}");
    let cancelled = NetError::Cancelled { url: url() };
    narrator
        .begin(Work::Fetch, "url", "x")
        .end(Some(&cancelled));
    assert_eq!(kept.last().outcome, Outcome::Cancelled);
    drop(narrator.begin(Work::Fetch, "url", "x"));
    assert_eq!(kept.last().outcome, Outcome::Cancelled);
    assert_eq!(kept.0.lock().unwrap().len(), 3);
}

#[test]
fn a_job_is_about_the_pool_of_its_parts_unless_there_are_several() {
    let (narrator, kept) = bench();
    let of = |narrator: &Narrator, pool: &str| {
        narrator.with(|context| context.pool_id = Some(pool.to_owned()))
    };
    let job = narrator.begin(Work::Job, "prepare", "prepare");
    of(job.narrator(), "chat").concerns();
    of(job.narrator(), "chat").concerns();
    job.end(None);
    assert_eq!(kept.last().context.pool_id.as_deref(), Some("chat"));
    let job = narrator.begin(Work::Job, "lock", "lock");
    for pool in ["chat", "code", "chat"] {
        of(job.narrator(), pool).concerns();
    }
    job.end(None);
    assert_eq!(kept.last().context.pool_id, None);
}

#[test]
fn a_wait_is_told_only_where_somebody_waited() {
    let (narrator, kept) = bench();
    drop(Waits::new(&narrator, "result"));
    assert!(kept.0.lock().unwrap().is_empty());
    let waits = Waits::new(&narrator, "result");
    waits.begin("build");
    waits.begin("build");
    drop(waits);
    let ended = kept.last();
    assert_eq!((ended.work, ended.kind), (Work::Wait, "result"));
    assert_eq!(ended.outcome, Outcome::Done);
    assert_eq!(kept.0.lock().unwrap().len(), 1);
}

#[test]
fn what_is_told_after_the_work_is_over_belongs_to_nothing() {
    let (captured, told) = Narrator::capture();
    let job = captured.begin(Work::Job, "provision", "provision");
    let later = job.narrator().clone();
    later.say(crate::narrate::Actor::EngineProvisioner, "ready", "x", "x");
    job.end(None);
    later.say(crate::narrate::Actor::EngineProvisioner, "stop", "x", "x");
    let places: Vec<bool> = told.events().iter().map(|it| it.place.is_some()).collect();
    assert_eq!(places, [true, false]);
}
