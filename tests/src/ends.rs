//! Ending the program by a signal at any instant, and what has to be left of it: nothing.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{Machine, PoolStage, RUN_LIMIT, Running, share, wait_for};

/// Longest time until nothing is left of a host that has ended.
const ORPHAN_LIMIT: Duration = Duration::from_secs(30);

/// Rounds of one command that one signal ends at instants that seeds decide, in one home: each finds
/// what the one before has left. Before the first one the command is ended once it serves.
///
/// # Panics
///
/// When an engine, a handoff or a held lock is left; the seed is printed before.
pub fn end_rounds(arguments: &[&str], signal: Signal, seeds: Range<u64>) {
    let stage = PoolStage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let start = Instant::now();
    let whole = machine.start(machine.command(arguments));
    wait_ready(machine, &whole);
    let took = start.elapsed();
    let _ = whole.end(signal).code_in(ends_with(signal));
    assert_ends(machine, "nothing to be left of a whole one");
    for seed in seeds {
        let after = took.mul_f64(share(seed) * 1.1);
        let round = format!("seed {seed}: {signal:?} after {} ms", after.as_millis());
        println!("{arguments:?} {round}");
        let running = machine.start(machine.command(arguments));
        // The instant is what is tested: no condition stands for it.
        std::thread::sleep(after);
        let _ = running.end(signal).code_in(ends_with(signal));
        assert_ends(machine, &round);
    }
    machine.store().assert_sound();
}

/// Exit codes that a signal may end a command with: TERM is how a daemon that serves is stopped, and success.
fn ends_with(signal: Signal) -> &'static [i32] {
    match signal {
        Signal::TERM => &[0, 143],
        Signal::INT => &[130],
        _ => &[137],
    }
}

fn wait_ready(machine: &Machine, running: &Running) {
    wait_for("an engine", RUN_LIMIT, || {
        if machine.handoffs().len() == 1 {
            Ok(())
        } else {
            Err(running.stderr())
        }
    });
}

/// Waits until no process is left, and asserts that nothing else is.
///
/// # Panics
///
/// When something is.
#[track_caller]
pub fn assert_ends(machine: &Machine, what: &str) {
    wait_for(what, ORPHAN_LIMIT, || {
        let left = machine.processes();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    machine.assert_clean();
}
