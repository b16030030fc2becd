//! From the command to an engine that answers in a container, against the same container by hand.

use std::{
    fs,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use e2e::{
    Built, ContainerKind, Containers, Image, Machine, Pairs, Registry, container_pool, free_port,
    http_get, provisioned,
};
use rustix::process::Signal;

/// A pinned image that is there, and a pool for it; what is dropped first stands first.
struct Stage {
    containers: Containers,
    _registry: Registry,
    machine: Machine,
    port: u16,
    providers: String,
}

fn stage(kind: ContainerKind) -> Stage {
    let mut machine = Machine::with(Built::release());
    let containers = Containers::new(kind, machine.root());
    let registry = Registry::open();
    containers.trust(&registry);
    containers.lend(&mut machine);
    let digest = registry.push("tests/engine", "v1", &Image::engine());
    let port = free_port();
    machine.write_pool(&container_pool(&registry, &digest, kind, port));
    let providers = machine.fixture_provider();
    Stage {
        containers,
        _registry: registry,
        machine,
        port,
        providers,
    }
}

impl Stage {
    /// Arguments of the runtime's program, as the host starts it.
    fn arguments(&self) -> Vec<String> {
        let kind = self.containers.kind().name();
        let running = self
            .machine
            .provision(&["--provider-path", &self.providers]);
        let lines = self.machine.processes().into_iter().filter_map(|process| {
            let bytes = fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
            let words = String::from_utf8(bytes).ok()?;
            Some(words.split_terminator('\0').map(str::to_owned).collect())
        });
        let runs = |words: &Vec<String>| {
            words.first().is_some_and(|program| program.ends_with(kind))
                && words.get(1).is_some_and(|word| word == "run")
        };
        let words: Vec<String> = lines.into_iter().find(runs).expect("its client runs");
        let _ = running.end(Signal::INT).code(130);
        words[1..].to_vec()
    }

    /// Time from the start of the program until it says that the engine is ready.
    fn provisioned(&self) -> Duration {
        let words = ["provision", "--provider-path", &self.providers];
        provisioned(self.machine.command(&words))
    }

    /// Time from the start of the same container by hand until its engine's health answers 200.
    fn by_hand(&self, arguments: &[String]) -> Duration {
        let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut command: Command = self.containers.command(&words);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let start = Instant::now();
        let mut child = command.spawn().unwrap();
        let url = format!("http://127.0.0.1:{}/health", self.port);
        while !matches!(http_get(&url), Ok((200, _))) {
            assert!(start.elapsed() < Duration::from_secs(30), "it is not ready");
            std::thread::sleep(Duration::from_millis(1));
        }
        let took = start.elapsed();
        let name = arguments.iter().position(|word| word == "--name").unwrap();
        self.containers
            .run(&["rm", "--force", &arguments[name + 1]]);
        child.wait().unwrap();
        took
    }
}

fn a_pinned_image_is_ready_nearly_as_soon_as_by_hand(kind: ContainerKind) {
    let stage = stage(kind);
    let arguments = stage.arguments();
    Pairs::assert_at_most(
        &format!(
            "warm provision of a container to ready against {} run",
            kind.name()
        ),
        60.0,
        15,
        || stage.provisioned(),
        || stage.by_hand(&arguments),
    );
    stage.machine.assert_clean();
}

#[test]
fn a_pinned_image_is_ready_nearly_as_soon_as_by_hand_under_podman() {
    a_pinned_image_is_ready_nearly_as_soon_as_by_hand(ContainerKind::Podman);
}

#[test]
fn a_pinned_image_is_ready_nearly_as_soon_as_by_hand_under_docker() {
    a_pinned_image_is_ready_nearly_as_soon_as_by_hand(ContainerKind::Docker);
}
