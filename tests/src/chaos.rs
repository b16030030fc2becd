//! Killing the program at any instant, and what has to be true afterwards.

use std::{
    ops::Range,
    sync::OnceLock,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{Machine, Repository, fixture_pool, http_get, wait_for};

/// Longest time until nothing is left of a host that was killed.
const ORPHAN_LIMIT: Duration = Duration::from_secs(10);

/// One round per seed: a host that obtains, builds and starts everything is killed at an instant
/// that the seed decides. Then nothing runs any more, nothing half-made is published, and the next
/// run succeeds and answers.
///
/// # Panics
///
/// When that does not hold; the seed is printed before.
pub fn kill_rounds(seeds: Range<u64>) {
    let whole = *WHOLE.get_or_init(duration_of_a_whole_run);
    for seed in seeds {
        // A little beyond: a host that serves is killed as well.
        let after = whole.mul_f64(share(seed) * 1.1);
        println!("seed {seed}: KILL after {} ms", after.as_millis());
        kill_round(after);
    }
}

static WHOLE: OnceLock<Duration> = OnceLock::new();

fn duration_of_a_whole_run() -> Duration {
    let (machine, _repository) = stage();
    let start = Instant::now();
    let running = machine.provision(&[]);
    let whole = start.elapsed();
    let _ = running.end(Signal::INT).code(130);
    println!("a whole run takes {} ms", whole.as_millis());
    whole
}

fn stage() -> (Machine, Repository) {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    machine.write_pool(&fixture_pool(&repository));
    (machine, repository)
}

fn kill_round(after: Duration) {
    let (machine, _repository) = stage();
    let killed = machine.start(machine.command(&["provision"]));
    // The instant is what is tested: no condition stands for it.
    std::thread::sleep(after);
    killed.signal(Signal::KILL);
    let run = killed.finish(ORPHAN_LIMIT);
    assert_eq!(run.code, 137, "{}", run.stderr);
    wait_for("nothing to be left of it", ORPHAN_LIMIT, || {
        let left = machine.processes();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    machine.assert_clean();
    machine.store().assert_sound();

    let mut next = machine.provision(&[]);
    let url = next.wait_ready();
    let answer = http_get(&format!("{url}/completion")).unwrap();
    assert_eq!(answer, (200, "hello from GGUF\n".to_owned()));
    let _ = next.end(Signal::INT).code(130);
    machine.store().assert_sound();
    assert_eq!(machine.store().entries("build").len(), 1);
    machine.assert_clean();
}

/// A number from 0 to 1 that a seed decides.
///
/// # Panics
///
/// Never: 64 bits shifted by 32 are 32.
#[must_use]
pub fn share(seed: u64) -> f64 {
    f64::from(u32::try_from(mix(seed) >> 32).expect("32 bits")) / 2f64.powi(32)
}

/// SplitMix64: near seeds give far numbers.
fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
