use super::*;
use crate::narrate::{Actor, Narrator};

fn bench(kept: Kept) -> (Hub, Narrator) {
    let hub = Hub::new(kept);
    let narrator = Narrator::new(vec![Box::new(hub.clone())]);
    (hub, narrator)
}

fn say(narrator: &Narrator, pool: &str, job: &str, target: &str) {
    let narrator = narrator.with(|context| {
        context.pool_id = Some(pool.to_owned());
        context.job_id = Some(job.to_owned());
    });
    narrator.say(Actor::PoolManager, "notice", target, target);
}

fn targets(told: &[Told]) -> Vec<&str> {
    told.iter().map(|it| it.event.target.as_str()).collect()
}

async fn heard(follow: &mut Follow) -> String {
    match follow.next().await.expect("the hub is there") {
        Heard::Event(told) => told.event.target.clone(),
        Heard::Missed(count) => format!("missed {count}"),
    }
}

fn pool(name: &str) -> Filter {
    Filter {
        pool: Some(name.to_owned()),
        ..Filter::default()
    }
}

#[test]
fn the_last_events_of_each_pool_are_kept_however_loud_another_is() {
    let (hub, narrator) = bench(Kept {
        events: 2,
        ..Kept::default()
    });
    say(&narrator, "quiet", "j", "first");
    for number in 0..100 {
        say(&narrator, "loud", "k", &number.to_string());
    }
    assert_eq!(targets(&hub.recent(&pool("quiet"))), ["first"]);
    assert_eq!(
        targets(&hub.recent(&Filter::default())),
        ["first", "98", "99"]
    );
    let job = Filter {
        job: Some("k".to_owned()),
        ..Filter::default()
    };
    assert_eq!(targets(&hub.recent(&job)), ["98", "99"]);
    let neither = Filter {
        pool: Some("quiet".to_owned()),
        ..job
    };
    assert!(hub.recent(&neither).is_empty());
}

#[test]
fn of_too_many_jobs_the_quietest_is_forgotten() {
    let (hub, narrator) = bench(Kept {
        groups: 2,
        ..Kept::default()
    });
    for job in ["a", "b", "a", "c"] {
        say(&narrator, "chat", job, job);
    }
    let of = |job: &str| Filter {
        job: Some(job.to_owned()),
        ..Filter::default()
    };
    assert_eq!(hub.recent(&of("a")).len(), 2);
    assert!(hub.recent(&of("b")).is_empty());
    assert_eq!(hub.recent(&of("c")).len(), 1);
}

#[test]
fn however_much_is_told_what_is_kept_has_an_end_and_the_quiet_keep_theirs() {
    const BYTES: usize = 100_000;
    let (hub, narrator) = bench(Kept {
        bytes: BYTES,
        ..Kept::default()
    });
    let long = "x".repeat(1000);
    for pool in ["quiet", "loud", "louder"] {
        say(&narrator, pool, pool, "first");
    }
    for number in 0..300 {
        say(&narrator, ["loud", "louder"][number % 2], "j", &long);
        // Each in a job of its own.
        say(&narrator, "louder", &number.to_string(), &long);
    }
    let kept = |groups: &Groups| {
        let bytes = |group: &Group| {
            group
                .events
                .iter()
                .map(|it| it.event.bytes())
                .sum::<usize>()
        };
        let all: usize = groups.kept.values().map(bytes).sum();
        assert_eq!(all, groups.bytes);
        assert!((BYTES / 2..=BYTES).contains(&all), "{all} bytes");
    };
    {
        let memory = hub.lock();
        kept(&memory.pools);
        kept(&memory.jobs);
        let (loud, louder) = (&memory.pools.kept["loud"], &memory.pools.kept["louder"]);
        assert!(loud.bytes.abs_diff(louder.bytes) < 5_000, "they share");
    }
    assert_eq!(targets(&hub.recent(&pool("quiet"))), ["first"]);
    let follow = hub.follow(pool("loud"), 2);
    assert!(follow.missed, "what is gone is told");
    assert!(!hub.follow(pool("quiet"), 1).missed);
    // One that is larger than all may be is kept until the next.
    let huge = "x".repeat(2 * BYTES);
    say(&narrator, "quiet", "huge", &huge);
    assert_eq!(targets(&hub.recent(&pool("quiet"))), [&huge]);
    say(&narrator, "quiet", "huge", "small");
    assert_eq!(targets(&hub.recent(&pool("quiet"))), ["small"]);
}

#[tokio::test]
async fn who_follows_hears_what_was_kept_and_then_everything_once() {
    let (hub, narrator) = bench(Kept::default());
    say(&narrator, "chat", "j", "one");
    let after = hub.last();
    say(&narrator, "chat", "j", "two");
    let mut follow = hub.follow(pool("chat"), after);
    say(&narrator, "other", "j", "not asked for");
    say(&narrator, "chat", "j", "three");
    assert_eq!(heard(&mut follow).await, "two");
    assert_eq!(heard(&mut follow).await, "three");
    drop((narrator, hub));
    assert!(follow.next().await.is_none());
}

#[tokio::test]
async fn who_is_too_slow_is_told_how_much_it_missed() {
    let (hub, narrator) = bench(Kept {
        behind: 4,
        ..Kept::default()
    });
    let mut follow = hub.follow(Filter::default(), 0);
    for number in 0..10 {
        say(&narrator, "chat", "j", &number.to_string());
    }
    assert_eq!(heard(&mut follow).await, "missed 6");
    assert_eq!(heard(&mut follow).await, "6");
}

#[tokio::test]
async fn who_goes_on_after_what_is_no_longer_kept_is_told_so() {
    let (hub, narrator) = bench(Kept {
        events: 2,
        groups: 2,
        ..Kept::default()
    });
    for target in ["1", "2", "3", "4"] {
        say(&narrator, "chat", "j", target);
    }
    // The third event is the oldest that is kept.
    let mut follow = hub.follow(pool("chat"), 2);
    assert_eq!(heard(&mut follow).await, "3");
    let mut follow = hub.follow(pool("chat"), 1);
    assert_eq!(heard(&mut follow).await, "missed 1");
    assert_eq!(heard(&mut follow).await, "3");
    let mut follow = hub.follow(pool("chat"), 0);
    assert_eq!(heard(&mut follow).await, "3");
    // Two more pools: the first one is forgotten as a whole.
    say(&narrator, "code", "j", "5");
    say(&narrator, "draw", "j", "6");
    let mut follow = hub.follow(Filter::default(), 3);
    assert_eq!(heard(&mut follow).await, "missed 1");
    assert_eq!(heard(&mut follow).await, "5");
    let mut follow = hub.follow(Filter::default(), 4);
    assert_eq!(heard(&mut follow).await, "5");
}
