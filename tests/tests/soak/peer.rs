//! Against `ramalama`, which runs the same image with the same model.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{
    Built, ContainerKind, Containers, Image, Machine, Registry, free_port, http_get, median,
    repository_root,
};
use rustix::process::Signal;
use serde_json::json;

/// Most of the peer's time that we may take.
const MOST: f64 = 0.6;

/// What `scripts/setup-peer` has installed.
fn ramalama() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository_root().join("target"), PathBuf::from);
    let program = target.join("ramalama-0.25.0/bin/ramalama");
    assert!(
        program.is_file(),
        "{} is not there: run scripts/setup-peer",
        program.display()
    );
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

/// Starts it, waits until its engine answers, and ends it.
fn once(mut command: Command, port: u16) -> Duration {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let start = Instant::now();
    let mut child = command.spawn().unwrap();
    let took = until_ready(&mut child, start, port);
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), Signal::INT).unwrap();
    child.wait().unwrap();
    took
}

/// The fake engine where both look for `llama-server`, so that only what is around it is measured.
#[test]
fn the_same_image_is_ready_in_a_fraction_of_the_peer_s_time() {
    let program = ramalama();
    let mut machine = Machine::with(Built::release());
    let containers = Containers::new(ContainerKind::Podman, machine.root());
    let registry = Registry::open();
    containers.trust(&registry);
    for (name, value) in containers.environment() {
        machine.lend(name, value);
    }
    let image = Image::engine()
        .program("fake-engine", "app/llama-server")
        .entrypoint(&[])
        .env("PATH=/app:/usr/bin:/bin");
    let digest = registry.push("tests/llama.cpp", "server", &image);
    let name = format!("{}/tests/llama.cpp", registry.address());
    let (port, other_port) = (free_port(), free_port());
    let model = repository_root().join("models/haiku/haiku.gguf");
    machine.write_pool(&json!({
        "id": "default",
        "engine": "llamacpp",
        "gpu": "forbid",
        "provisioning": {
            "container": {"image": name, "digest": digest, "runtime": "podman"},
            "model": {"ref": model},
            "ports": [port],
        },
    }));
    let ours = || once(machine.command(&["provision"]), port);
    let store = machine.root().join("ramalama");
    let reference = format!("{name}@{digest}");
    let model = format!("file://{}", model.display());
    let peer = |arguments: &[&str]| {
        let mut command = Command::new(&program);
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", machine.root())
            .envs(containers.environment())
            .args(["--engine", "podman", "--store"])
            .arg(&store)
            .args(arguments);
        command
    };
    let pulled = peer(&["pull", &model]).output().unwrap();
    assert!(pulled.status.success(), "{pulled:?}");
    let their_port = other_port.to_string();
    let theirs = || {
        let serve = ["serve", "--pull", "never", "--image", &reference];
        let more = ["--port", &their_port, &model];
        let took = once(peer(&[&serve[..], &more[..]].concat()), other_port);
        // It leaves its container to itself.
        containers.run(&["rm", "--all", "--force", "--time", "0"]);
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
    machine.assert_clean();
}
