//! The parts themselves work here: otherwise nothing else in this target means anything.

use e2e::{ContainerKind, Containers, Image, Machine, Registry, free_port, http_get, wait_for};

#[test]
fn both_runtimes_pull_the_image_and_reach_its_engine_on_the_loopback_address() {
    for kind in ContainerKind::BOTH {
        let machine = Machine::new();
        let registry = Registry::open();
        let containers = Containers::new(kind, machine.root());
        containers.trust(&registry);
        let digest = registry.push("tiny", "1", &Image::engine());
        let name = format!("{}/tiny@{digest}", registry.address());
        containers.run(&["pull", "--quiet", &name]);
        for layer in Image::engine().layer_digests() {
            assert_eq!(registry.fetches(&layer), 1, "{}", registry.log());
        }
        assert_eq!(
            containers.digests_of(&format!("{}/tiny", registry.address())),
            [digest]
        );
        let port = free_port();
        let publish = format!("127.0.0.1:{port}:8080");
        let arguments = [
            "run",
            "--detach",
            "--name",
            "probe",
            "--label",
            "tests=1",
            "--publish",
        ];
        let words = [&publish, &name, "--host", "0.0.0.0", "--port", "8080"];
        containers.run(&[&arguments[..], &words[..]].concat());
        assert_eq!(containers.labelled("tests=1"), ["probe"]);
        wait_for("the engine to answer", e2e::RUN_LIMIT, || {
            match http_get(&format!("http://127.0.0.1:{port}/health")) {
                Ok((200, _)) => Ok(()),
                other => Err(other),
            }
        });
        containers.run(&["rm", "--force", "probe"]);
    }
}
