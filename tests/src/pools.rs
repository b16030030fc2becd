//! A machine whose pools run the fake engine, and a daemon that keeps them.

use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    Built, FileServer, Machine, MemoryGroup, RUN_LIMIT, Run, Running, http_get, sha256, wait_for,
};

/// A machine whose pools run the fake engine, which fails in the ways that its flags say.
pub struct PoolStage {
    /// Where they run.
    pub machine: Machine,
    /// Gives the fake engine to the pools; lives as long as they do.
    _server: FileServer,
    binary: Value,
}

impl PoolStage {
    /// A fresh one.
    ///
    /// # Panics
    ///
    /// When the fake engine was not built.
    #[must_use]
    pub fn new() -> Self {
        let path = Built::debug().directory.join("fake-engine");
        let program = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let checksum = format!("sha256:{}", sha256(&program));
        let server = FileServer::start(program);
        let binary = json!({"url": server.url("fake-engine"), "checksum": checksum});
        Self {
            machine: Machine::new(),
            _server: server,
            binary,
        }
    }

    /// A pool of the fake engine, with clocks that suit a test.
    #[must_use]
    pub fn pool(&self, id: &str, flags: &[&str]) -> Value {
        json!({
            "id": id,
            "engine": "fixture",
            "gpu": "forbid",
            "supervision": {
                "backoff": {"initial": "50ms", "max": "400ms", "stable_after": "2s"},
                "breaker": {"failures": 0},
                "liveness": {"interval": "100ms", "timeout": "1s", "failures": 3},
                "drain_deadline": "2s",
            },
            "provisioning": {
                "mode": "binary",
                "allow_binary_downloads": true,
                "binary": self.binary,
                "flags": flags,
            },
        })
    }

    /// Starts a daemon for the pool file and waits until it serves.
    #[must_use]
    pub fn serve(&self, more: &[&str]) -> Daemon<'_> {
        Daemon::start(&self.machine, more)
    }

    /// The same in a control group, in which everything is that it starts.
    ///
    /// # Panics
    ///
    /// When it does not serve.
    #[must_use]
    pub fn serve_in(&self, group: &MemoryGroup) -> Daemon<'_> {
        // In it before it starts anything: a shell waits for a line to become the daemon.
        let daemon = Daemon::command(&self.machine, &[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", "read line; exec \"$@\"", "sh"]);
        shell.arg(daemon.get_program()).args(daemon.get_args());
        shell.env_clear().stdin(Stdio::piped());
        shell.stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(directory) = daemon.get_current_dir() {
            shell.current_dir(directory);
        }
        let variables = daemon.get_envs();
        shell.envs(variables.filter_map(|(name, value)| Some((name, value?))));
        let (running, mut input) = self.machine.start_with_input(shell);
        group.take(running.pid());
        input.write_all(b"go\n").unwrap();
        Daemon::served(&self.machine, running)
    }
}

impl Default for PoolStage {
    fn default() -> Self {
        Self::new()
    }
}

/// A daemon that serves.
pub struct Daemon<'a> {
    machine: &'a Machine,
    /// Where its API answers.
    pub url: String,
    /// Its process.
    pub running: Running,
}

impl<'a> Daemon<'a> {
    /// Starts one for the pool file of a machine and waits until it serves.
    ///
    /// # Panics
    ///
    /// When it ends before, or takes longer than any run may.
    #[must_use]
    pub fn start(machine: &'a Machine, more: &[&str]) -> Self {
        Self::served(machine, machine.start(Self::command(machine, more)))
    }

    fn command(machine: &Machine, more: &[&str]) -> Command {
        let mut arguments = vec!["serve", "--log-format", "json"];
        if !more.contains(&"--listen") {
            arguments.extend(["--listen", "127.0.0.1:0"]);
        }
        arguments.extend(more);
        machine.command(&arguments)
    }

    fn served(machine: &'a Machine, mut running: Running) -> Self {
        running.wait_said("serves on http://");
        let said = running.stderr();
        let (_, rest) = said.split_once("serves on http://").unwrap();
        let address = rest.split_whitespace().next().unwrap();
        Self {
            machine,
            url: format!("http://{address}"),
            running,
        }
    }

    /// What it knows of a pool.
    ///
    /// # Panics
    ///
    /// When there is no such pool.
    #[must_use]
    pub fn status(&self, pool: &str) -> Value {
        self.get(&format!("/v1/pools/{pool}"))
    }

    /// A document of its API.
    ///
    /// # Panics
    ///
    /// When it gives none.
    #[must_use]
    pub fn get(&self, path: &str) -> Value {
        let answer = http_get(&format!("{}{path}", self.url)).unwrap();
        assert_eq!(answer.0, 200, "{}", answer.1);
        serde_json::from_str(&answer.1).unwrap()
    }

    /// Waits until a pool's first replica satisfies a condition, and gives it.
    #[track_caller]
    pub fn wait_replica(&self, pool: &str, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        wait_for(what, RUN_LIMIT, || {
            let status = self.status(pool);
            let replica = status["replicas"][0].clone();
            if holds(&replica) {
                Ok(replica)
            } else {
                Err(status)
            }
        })
    }

    /// Waits until a pool is in this state.
    #[track_caller]
    pub fn wait_state(&self, pool: &str, state: &str) -> Value {
        self.wait_replica(pool, &format!("{pool} to be {state}"), |it| {
            it["state"] == state
        })
    }

    /// Ends it with a signal and asserts that nothing is left.
    #[track_caller]
    pub fn end(self, signal: Signal, code: i32) -> Run {
        self.running.signal(signal);
        let run = self.running.finish(Duration::from_secs(60)).code(code);
        self.machine.assert_clean();
        run
    }
}
