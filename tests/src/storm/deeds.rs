//! What a storm does.

use std::time::Duration;

use rustix::process::Signal;

use super::{COMMANDS, Dice, Standing, Weather, has_panicked};
use crate::{Process, RUN_LIMIT, Running, children_of, signal_if_there};

/// How long a provider's worker is looked for while one may be there.
const WORKER_LIMIT: Duration = Duration::from_millis(500);

/// Longest time without a daemon.
const WITHOUT: Duration = Duration::from_secs(2);

/// One blow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deed {
    /// KILL of a process of an engine.
    KillEngine,
    /// STOP of one: it hangs.
    HangEngine,
    /// KILL of a keeper or of a minder, which is a copy of it.
    KillKeeper,
    /// KILL of a provider's worker while a pool is planned anew.
    KillWorker,
    /// KILL of the daemon; the next one begins after a while.
    KillDaemon,
    /// KILL of the daemon, and of the next one while it begins.
    KillDaemonTwice,
    /// KILL of the daemon and every keeper in one go.
    KillAllAtOnce,
    /// Its end by TERM, which takes all engines along.
    EndDaemon,
    /// Another one takes over.
    ReplaceDaemon,
    /// A changed pool file is applied.
    Reload,
    /// A pool that stays up is drained, and brought up again.
    DrainAndUp,
    /// A command about one of them.
    Command(&'static str),
}

impl Deed {
    /// What may happen, and how often each.
    pub(super) fn all() -> Vec<(Self, u32)> {
        let mut all = Self::of_one_daemon();
        all.extend([
            (Self::KillDaemon, 4),
            (Self::KillDaemonTwice, 1),
            (Self::KillAllAtOnce, 1),
            (Self::EndDaemon, 1),
            (Self::ReplaceDaemon, 2),
        ]);
        all
    }

    /// The same without an end of the daemon.
    pub(super) fn of_one_daemon() -> Vec<(Self, u32)> {
        vec![
            (Self::KillEngine, 35),
            (Self::HangEngine, 6),
            (Self::KillKeeper, 14),
            (Self::KillWorker, 12),
            (Self::Reload, 6),
            (Self::Command("reload"), 4),
            (Self::Command("restart"), 4),
            (Self::DrainAndUp, 3),
        ]
    }

    pub(super) fn drawn(deeds: &[(Self, u32)], dice: &mut Dice) -> Self {
        let sum: u32 = deeds.iter().map(|(_, weight)| weight).sum();
        let mut left = dice.below(sum as usize) as u32;
        let chosen = deeds.iter().find(|(_, weight)| {
            let here = left < *weight;
            left = left.saturating_sub(*weight);
            here
        });
        chosen.expect("the weights add up").0
    }
}

/// Waits for the end of a command; whether it did what it was asked for is open in a storm.
pub(super) fn finish(what: &str, mut running: Running) {
    if running.ended().is_none() {
        println!("waits for `host {what}`");
    }
    let run = running.finish(RUN_LIMIT);
    assert!(!has_panicked(&run.stderr), "{what}: {}", run.stderr);
}

fn name_of(signal: Signal) -> &'static str {
    match signal {
        Signal::STOP => "STOP",
        _ => "KILL",
    }
}

/// Whether this is a part of an engine: its program, or what stands for it where it runs in a container.
/// What a runtime runs to clear up behind one is none.
fn is_of_an_engine(process: &Process) -> bool {
    let is = |name: &str| process.command.contains(name);
    is("fake-engine --")
        || is("podman run --name")
        || process.command.starts_with("/usr/bin/conmon ")
}

fn is_keeper(process: &Process) -> bool {
    process.command.starts_with("host keeper")
}

impl Weather<'_> {
    /// Does it, and says what it was.
    pub(super) fn carry_out(&mut self, deed: Deed) -> String {
        match deed {
            Deed::KillEngine => self.hit_one(Signal::KILL, is_of_an_engine),
            Deed::HangEngine => self.hit_one(Signal::STOP, |it| it.command.contains("fake-engine")),
            Deed::KillKeeper => self.hit_one(Signal::KILL, is_keeper),
            Deed::KillWorker => self.kill_worker(),
            Deed::KillDaemon => {
                self.kill_daemon();
                let pause = self.pause_without();
                self.begin_daemon();
                format!("KILL daemon, the next after {pause:?}")
            }
            Deed::KillDaemonTwice => self.kill_daemon_twice(),
            Deed::KillAllAtOnce => self.kill_all_at_once(),
            Deed::EndDaemon => {
                let daemon = self.daemon.take().expect("one runs");
                self.ended(daemon.running.end(Signal::TERM).code(0));
                self.begin_daemon();
                "TERM daemon, the next at once".to_owned()
            }
            Deed::ReplaceDaemon => {
                let old = self.daemon.take().expect("one runs");
                self.daemon =
                    Some(
                        self.stage
                            .serve(&["--replace", "--orphan-limit", super::ORPHAN_LIMIT]),
                    );
                self.ended(old.running.finish(RUN_LIMIT).code(0));
                "another daemon takes over".to_owned()
            }
            Deed::Reload => {
                self.variant += 1;
                self.write_pools();
                self.command(&["reload"])
            }
            Deed::DrainAndUp => {
                let id = self.one_that_stays();
                let machine = &self.stage.machine;
                let drain = machine.start(machine.command(&["drain", &id]));
                finish("drain", drain);
                format!("drain {id}; {}", self.command(&["up", &id]))
            }
            Deed::Command(word) => {
                let id = self.one_that_stays();
                self.command(&[word, &id])
            }
        }
    }

    fn one_that_stays(&mut self) -> String {
        let mut all: Vec<_> = self.members.iter().collect();
        all.retain(|it| it.standing == Standing::Stays);
        all[self.dice.below(all.len())].id.clone()
    }

    fn hit_one(&mut self, signal: Signal, wanted: impl Fn(&Process) -> bool) -> String {
        let daemon = self.daemon().running.pid();
        let mut all = self.stage.machine.processes();
        all.retain(|it| it.pid != daemon && it.state != 'Z' && wanted(it));
        if all.is_empty() {
            return format!("{}: nothing of that kind runs", name_of(signal));
        }
        let process = &all[self.dice.below(all.len())];
        let was = signal_if_there(process.pid, signal);
        self.killed += usize::from(was);
        let command: String = process.command.chars().take(100).collect();
        format!("{} {} {command}", name_of(signal), process.pid)
    }

    /// A reload plans anew: its worker is there for a moment.
    fn kill_worker(&mut self) -> String {
        let said = self.carry_out(Deed::Command("reload"));
        let daemon = self.daemon().running.pid();
        let start = std::time::Instant::now();
        while start.elapsed() < WORKER_LIMIT {
            let children = children_of(daemon);
            let worker = children
                .iter()
                .find(|it| it.command.contains("engine-provider-worker"));
            if let Some(worker) = worker.filter(|it| signal_if_there(it.pid, Signal::KILL)) {
                self.killed += 1;
                return format!("{said}; KILL worker {}", worker.pid);
            }
        }
        format!("{said}; no worker came")
    }

    fn kill_daemon(&mut self) {
        let daemon = self.daemon.take().expect("one runs");
        self.ended(daemon.running.end(Signal::KILL).code(137));
        self.killed += 1;
    }

    /// How long nobody looks after anything.
    fn pause_without(&mut self) -> Duration {
        let pause = WITHOUT.mul_f64(self.dice.share());
        // The pause is what is tested: no condition stands for it.
        std::thread::sleep(pause);
        pause
    }

    fn kill_daemon_twice(&mut self) -> String {
        self.kill_daemon();
        let machine = &self.stage.machine;
        let arguments = [
            "serve",
            "--listen",
            "none",
            "--log-format",
            "json",
            "--orphan-limit",
            super::ORPHAN_LIMIT,
        ];
        let next = machine.start(machine.command(&arguments));
        let pause = self.pause_without();
        self.ended(next.end(Signal::KILL).code(137));
        self.killed += 1;
        self.begin_daemon();
        format!("KILL daemon, and the next after {pause:?}")
    }

    /// Stopped first, so that none can do anything about the others.
    fn kill_all_at_once(&mut self) -> String {
        let mut doomed = self.stage.machine.processes();
        doomed.retain(is_keeper);
        self.daemon().running.signal(Signal::STOP);
        for signal in [Signal::STOP, Signal::KILL] {
            for process in &doomed {
                signal_if_there(process.pid, signal);
            }
        }
        self.killed += doomed.len();
        self.kill_daemon();
        let pause = self.pause_without();
        self.begin_daemon();
        format!(
            "KILL daemon and {} keepers, the next after {pause:?}",
            doomed.len()
        )
    }

    /// Begins a command of somebody else's.
    fn command(&mut self, arguments: &[&str]) -> String {
        if self.commands.len() >= COMMANDS {
            let (what, running) = self.commands.pop_front().expect("there are some");
            finish(&what, running);
        }
        let what = arguments.join(" ");
        let machine = &self.stage.machine;
        let running = machine.start(machine.command(arguments));
        self.commands.push_back((what.clone(), running));
        what
    }
}
