//! Against `ramalama`, which runs the same image with the same model.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{
    Built, ContainerKind, Containers, Image, Machine, Registry, free_port, http_get, median,
    repository_root, share,
};
use rustix::process::Signal;
use serde_json::json;

use crate::daemon::{SEEDS, SIGNALS};

/// Most of the peer's time that we may take.
const MOST: f64 = 0.6;

/// How long the peer may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// How long a container of the peer may take to end once the peer has.
const LEFT_LIMIT: Duration = Duration::from_secs(2);

/// A program that `scripts/setup-peer` has installed.
pub(crate) fn installed(program: &str) -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository_root().join("target"), PathBuf::from);
    let program = target.join(program);
    let shown = program.display();
    assert!(program.is_file(), "no {shown}: run scripts/setup-peer");
    program
}

/// Polls until the engine answers, gives the time since `start`.
fn until_ready(child: &mut Child, start: Instant, port: u16) -> Duration {
    let url = format!("http://127.0.0.1:{port}/health");
    while !matches!(http_get(&url), Ok((200, _))) {
        assert!(start.elapsed() < Duration::from_secs(60), "it is not ready");
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "it ended before it was ready: {ended:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    start.elapsed()
}

/// Without a terminal, and deaf to what it prints.
fn spawn(mut command: Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Ends it with a signal; with KILL where it does not end by that in time.
fn end(mut child: Child, signal: Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), signal).unwrap();
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > END_LIMIT {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts it, waits until its engine answers, and ends it.
fn once(command: Command, port: u16) -> Duration {
    let start = Instant::now();
    let mut child = spawn(command);
    let took = until_ready(&mut child, start, port);
    end(child, Signal::INT);
    took
}

/// A machine with one podman, and an image with the fake engine where both look for `llama-server`, so
/// that only what is around it is measured.
struct Stage {
    containers: Containers,
    registry: Registry,
    machine: Machine,
    digest: String,
    model: PathBuf,
    /// Where the peer's engine listens.
    port: u16,
}

impl Stage {
    fn with(built: &'static Built) -> Self {
        let mut machine = Machine::with(built);
        let containers = Containers::new(ContainerKind::Podman, machine.root());
        let registry = Registry::open();
        containers.trust(&registry);
        containers.lend(&mut machine);
        let image = Image::engine()
            .program("fake-engine", "app/llama-server")
            .entrypoint(&[])
            .env("PATH=/app:/usr/bin:/bin");
        let digest = registry.push("tests/llama.cpp", "server", &image);
        Self {
            containers,
            registry,
            machine,
            digest,
            model: repository_root().join("models/haiku/haiku.gguf"),
            port: free_port(),
        }
    }

    fn image(&self) -> String {
        format!("{}/tests/llama.cpp", self.registry.address())
    }

    /// The peer, which has its model after the first `pull`.
    fn peer(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(installed("ramalama-0.25.0/bin/ramalama"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.machine.root())
            .envs(self.containers.environment())
            .args(["--engine", "podman", "--store"])
            .arg(self.machine.root().join("ramalama"))
            .args(arguments);
        command
    }

    fn pull(&self) {
        let model = format!("file://{}", self.model.display());
        let pulled = self.peer(&["pull", &model]).output().unwrap();
        assert!(pulled.status.success(), "{pulled:?}");
    }

    fn serve(&self) -> Command {
        let reference = format!("{}@{}", self.image(), self.digest);
        let model = format!("file://{}", self.model.display());
        let serve = ["serve", "--pull", "never", "--image", &reference];
        let more = ["--port", &self.port.to_string(), &model];
        self.peer(&[&serve[..], &more[..]].concat())
    }

    /// It leaves its container to itself.
    fn remove_containers(&self) {
        let all = ["rm", "--all", "--force", "--time", "0"];
        self.containers.run(&all);
    }

    /// Whether its container still runs once it has had time to end.
    fn is_left(&self) -> bool {
        let start = Instant::now();
        loop {
            let left = !self.containers.run(&["ps", "--quiet"]).is_empty();
            if !left || start.elapsed() > LEFT_LIMIT {
                return left;
            }
        }
    }
}

#[test]
fn the_same_image_is_ready_in_a_fraction_of_the_peer_s_time() {
    let stage = Stage::with(Built::release());
    let port = free_port();
    stage.machine.write_pool(&json!({
        "id": "default",
        "engine": "llamacpp",
        "gpu": "forbid",
        "provisioning": {
            "container": {"image": stage.image(), "digest": stage.digest, "runtime": "podman"},
            "model": {"ref": stage.model},
            "ports": [port],
        },
    }));
    stage.pull();
    let ours = || once(stage.machine.command(&["provision"]), port);
    let theirs = || {
        let took = once(stage.serve(), stage.port);
        stage.remove_containers();
        took
    };
    // The first of each does not count: ours obtains image and model.
    let (_, _) = (ours(), theirs());
    let pairs: Vec<(Duration, Duration)> = (0..15).map(|_| (ours(), theirs())).collect();
    let one = median(pairs.iter().map(|(one, _)| *one));
    let other = median(pairs.iter().map(|(_, other)| *other));
    let ratio = one.as_secs_f64() / other.as_secs_f64();
    println!(
        "measured: warm provision to ready against ramalama: {ratio:.2} times ({:.0} ms against {:.0} ms), limit {MOST}",
        one.as_secs_f64() * 1000.0,
        other.as_secs_f64() * 1000.0,
    );
    assert!(ratio <= MOST, "{ratio:.2}");
    stage.machine.assert_clean();
}

/// Ours leaves none: `daemon` asserts that. This is what it is held against.
#[test]
fn what_is_left_of_the_peer_by_the_same_signals_at_the_same_instants() {
    // Nothing of ours is run here.
    let stage = Stage::with(Built::debug());
    let reference = format!("{}@{}", stage.image(), stage.digest);
    stage.containers.run(&["pull", "--quiet", &reference]);
    stage.pull();
    let _ = once(stage.serve(), stage.port);
    stage.remove_containers();
    let took = once(stage.serve(), stage.port);
    stage.remove_containers();
    for (name, signal) in SIGNALS {
        let mut left = 0;
        for seed in SEEDS {
            let child = spawn(stage.serve());
            // The instant is what is tested: no condition stands for it.
            std::thread::sleep(took.mul_f64(share(seed) * 1.1));
            end(child, signal);
            left += u64::from(stage.is_left());
            stage.remove_containers();
        }
        let rounds = SEEDS.end - SEEDS.start;
        println!(
            "measured: engines left by {name} of `ramalama serve` at any instant: {left} of {rounds}"
        );
    }
}
