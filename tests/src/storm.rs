//! A daemon in a storm: engines that fail in every way, processes killed at random, and what has to be
//! true afterwards.
//!
//! A seed decides what is done and when; what it meets does not repeat, so that a failure is looked for
//! with the same seed, and found with its printed deeds and the daemon's own words.

mod after;
mod clients;
mod deeds;
mod pools;

use std::{
    collections::VecDeque,
    panic::{catch_unwind, resume_unwind},
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{Containers, Daemon, PoolStage, Run, Running, share};
use clients::Clients;
use deeds::Deed;
use pools::{Member, Standing};

/// How long engines wait for the next daemon: longer than any pause without one.
const ORPHAN_LIMIT: &str = "20s";

/// Longest pause between two deeds.
const PAUSE: Duration = Duration::from_millis(500);

/// Commands that may be under way at the same time.
const COMMANDS: usize = 3;

/// Most that a daemon may grow while its engines are killed, in bytes.
const GROWTH: u64 = 8 << 20;

/// A storm that is to come.
#[derive(Debug, Clone, Copy)]
pub struct Storm {
    /// Decides what is done.
    pub seed: u64,
    /// How long it blows. In its first third daemons are killed as well.
    pub lasts: Duration,
    /// Number of pools; one in ten runs in a container.
    pub pools: usize,
}

impl Storm {
    /// Lets it blow, and asserts that nothing is lost, left or leaked.
    ///
    /// # Panics
    ///
    /// When something is; the seed is printed before.
    pub fn blow(self) {
        let blown = catch_unwind(|| self.blow_over());
        if let Err(panic) = blown {
            // After all that daemons said and what they left, which is long.
            let words = panic.downcast_ref::<String>().map(String::as_str);
            let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
            eprintln!("the storm ended with: {}", words.unwrap_or("no words"));
            resume_unwind(panic);
        }
    }

    fn blow_over(self) {
        println!(
            "seed {}: {:?} over {} pools",
            self.seed, self.lasts, self.pools
        );
        let mut stage = PoolStage::new();
        let (containers, registry) = pools::runtime(&mut stage.machine);
        let members = pools::members(&stage, &registry, self.pools);
        let mut weather = Weather {
            dice: Dice::of(self.seed),
            began: Instant::now(),
            stage: &stage,
            members: &members,
            daemon: None,
            commands: VecDeque::new(),
            said: Vec::new(),
            variant: 0,
            killed: 0,
        };
        weather.write_pools();
        weather.begin_daemon();
        after::assert_recovers(weather.daemon(), &members);
        weather.began = Instant::now();
        let ids: Vec<String> = members.iter().map(|it| it.id.clone()).collect();
        let socket = stage.machine.home().join("state/daemon.sock");
        let clients = Clients::begin(self.seed, &socket, &ids);
        let began = weather.began;
        weather.blow_until(began + self.lasts / 3, &Deed::all());
        weather.settle();
        // What a daemon keeps of what happens has an end, which a young one has yet to reach.
        weather.blow_until(began + self.lasts * 3 / 5, &Deed::of_one_daemon());
        let before = after::Footprint::of(weather.daemon());
        println!("a little after half-way: {before:?}");
        weather.blow_until(began + self.lasts, &Deed::of_one_daemon());
        let leases = clients.finish();
        println!("leases: {leases:?}");
        assert!(leases.given_back > 0 && leases.left > 0, "{leases:?}");
        weather.settle();
        after::assert_nothing_is_leased(weather.daemon(), &ids);
        let after = after::Footprint::of(weather.daemon());
        println!("at the end: {after:?}; {} processes killed", weather.killed);
        weather.end(&containers, before, after);
    }
}

/// Whether this program panicked, by what it said. What it tells of others it does not begin a line with:
/// a runtime's helper panics when it is killed in the middle.
fn has_panicked(said: &str) -> bool {
    let panic = |line: &str| line.starts_with("thread '") && line.contains(" panicked at ");
    said.lines().any(panic)
}

/// Numbers that a seed decides.
struct Dice {
    seed: u64,
    drawn: u64,
}

impl Dice {
    fn of(seed: u64) -> Self {
        Self { seed, drawn: 0 }
    }

    /// From 0 to 1.
    fn share(&mut self) -> f64 {
        self.drawn += 1;
        share(self.seed.wrapping_mul(1_000_003).wrapping_add(self.drawn))
    }

    /// One of so many; there is at least one.
    fn below(&mut self, count: usize) -> usize {
        let drawn = self.share() * count as f64;
        (drawn as usize).min(count - 1)
    }
}

/// A storm that blows.
struct Weather<'a> {
    dice: Dice,
    began: Instant,
    stage: &'a PoolStage,
    members: &'a [Member],
    daemon: Option<Daemon<'a>>,
    /// Commands of people, which must all end.
    commands: VecDeque<(String, Running)>,
    /// What daemons have said that have ended.
    said: Vec<String>,
    /// How often the pool file was changed.
    variant: usize,
    killed: usize,
}

impl<'a> Weather<'a> {
    fn daemon(&self) -> &Daemon<'a> {
        self.daemon.as_ref().expect("one is begun after each end")
    }

    fn begin_daemon(&mut self) {
        self.daemon = Some(self.stage.serve(&["--orphan-limit", ORPHAN_LIMIT]));
    }

    fn write_pools(&self) {
        let pools: Vec<_> = self
            .members
            .iter()
            .map(|it| it.pool(self.variant))
            .collect();
        self.stage.machine.write_pools(&pools);
    }

    fn blow_until(&mut self, end: Instant, deeds: &[(Deed, u32)]) {
        while Instant::now() < end {
            let deed = Deed::drawn(deeds, &mut self.dice);
            let what = self.carry_out(deed);
            println!("{:>7} ms  {what}", self.began.elapsed().as_millis());
            let ended = self.daemon.as_mut().and_then(|it| it.running.ended());
            assert!(ended.is_none(), "the daemon ended by itself: {ended:?}");
            // Pauses are part of what the seed decides: no condition stands for them.
            std::thread::sleep(PAUSE.mul_f64(self.dice.share()));
        }
    }

    /// Waits until all that was asked for is answered and every pool is as well as it can be: by itself.
    fn settle(&mut self) {
        for (what, running) in std::mem::take(&mut self.commands) {
            deeds::finish(&what, running);
        }
        after::assert_recovers(self.daemon(), self.members);
    }

    /// Keeps what a daemon said that has ended.
    fn ended(&mut self, run: Run) {
        self.said.push(run.stderr);
        let said = self.said.last().expect("it was just put there");
        assert!(!has_panicked(said), "{said}");
    }

    fn end(mut self, containers: &Containers, before: after::Footprint, after: after::Footprint) {
        let machine = &self.stage.machine;
        // Those that never stay up would be on their way at any instant.
        for member in self
            .members
            .iter()
            .filter(|it| it.standing != Standing::Stays)
        {
            let _ = machine.run(&["down", &member.id]).code(0);
        }
        after::assert_all_is_known(machine, self.daemon(), self.members);
        after::assert_no_zombie(machine);
        let daemon = self.daemon.take().expect("it runs");
        let run = daemon.running.end(Signal::TERM).code(0);
        self.ended(run);
        after::assert_nothing_is_left(machine, containers);
        after::assert_flat(before, after, GROWTH);
    }
}

impl Drop for Weather<'_> {
    /// What daemons said is half of what is known of a failure.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        let last = self.daemon.iter().map(|it| it.running.stderr());
        for (number, said) in self.said.drain(..).chain(last).enumerate() {
            eprintln!("── daemon {number} said:\n{said}");
        }
    }
}
