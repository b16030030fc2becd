//! From a name to an image that is there: by tag, by digest, without a network, and every way it fails.

use e2e::{
    ContainerKind, Containers, DockerDaemon, IMAGE_VERSION, LockFile, Machine, Registry, http_get,
    this_architecture,
};
use rustix::process::Signal;
use serde_json::json;

use crate::{Stage, under_both};

/// Provisions, lets the engine answer once, and ends it with Ctrl-C.
fn answers(stage: &Stage, more: &[&str]) -> e2e::Run {
    let mut running = stage.machine.provision(more);
    let url = running.wait_ready();
    assert_eq!(
        http_get(&format!("{url}/completion")).unwrap(),
        (200, "hello from GGUF\n".to_owned())
    );
    let run = running.end(Signal::INT).code(130);
    stage.assert_clean();
    run
}

under_both! {
    fn an_image_by_tag_is_pulled_by_its_digest_which_is_said_and_recorded(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let mut running = stage.machine.provision(&[]);
        let url = running.wait_ready();
        let handoff = stage.machine.handoff();
        assert_eq!(handoff["engine_version"], stage.digest, "{handoff}");
        assert_eq!(handoff["provisioning_mode"], "container");
        assert_eq!(handoff["url"], url);
        assert_eq!(handoff["observed_version"], "b1-fake");
        assert_eq!(
            stage.containers.digests_of(&stage.repository()),
            std::slice::from_ref(&stage.digest)
        );
        let format = ["container", "inspect", "--format", "{{.Config.Image}}"];
        let runs = stage.containers.run(&[&format[..], &[&stage.name()]].concat());
        assert_eq!(runs.trim(), stage.reference());

        let run = running.end(Signal::INT).code(130);
        // A tag may mean something else tomorrow: what to write instead is said.
        run.says("may name another image tomorrow");
        run.says(&format!("digest: {}", stage.digest));
        stage.assert_clean();
        assert_eq!(stage.left(), Vec::<String>::new());
        let prepared = stage.machine.run(&["prepare", "--json"]).code(0).json();
        assert_eq!(prepared["engine_version"], stage.digest);
        assert_eq!(prepared["build_record"]["image_version"], IMAGE_VERSION);
        let records = prepared["records"].as_object().unwrap();
        let image = records.values().find(|record| record["kind"] == "pull-image").unwrap();
        assert_eq!(image["result"]["image"]["digest"], stage.digest);
        assert!(image["ingredients"].to_string().contains(kind.name()), "{image}");
    }

    fn a_tag_that_moves_on_stays_where_it_is_locked(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let _ = stage.machine.run(&["lock"]).code(0);
        stage.assert_no_image();
        let lock = LockFile::of(&stage.machine);
        let edited = || stage.machine.run(&["prepare", "--locked"]);
        lock.assert_every_edit_is_refused(&stage.machine, "default", edited);
        stage.assert_no_image();
        let moved = stage.registry.push("tests/engine", "v1", &Stage::image());
        assert_ne!(moved, stage.digest);
        let run = answers(&stage, &["--locked"]);
        run.says(&format!("{}:v1 is {}, by host.lock", stage.repository(), stage.digest));
        let pulled = stage.containers.digests_of(&stage.repository());
        assert_eq!(pulled, std::slice::from_ref(&stage.digest));
        // The image is here and the registry gone: nobody is asked.
        let _ = answers(&stage, &["--locked", "--offline"]);
        let _ = stage.machine.run(&["lock", "--check"]).code(0);
        let run = stage.machine.run(&["lock", "--update", "default.engine"]).code(0);
        run.prints(&moved);
        let plan = stage.machine.run(&["plan", "--locked", "--json"]).code(0);
        assert!(plan.stdout.contains(&moved), "{}", plan.stdout);
    }

    fn an_image_by_digest_is_said_nothing_about(kind) {
        let mut stage = Stage::new(kind);
        stage.pin();
        stage.write();
        let run = answers(&stage, &[]);
        assert!(!run.stderr.contains("tomorrow"), "{}", run.stderr);
        assert!(!run.stderr.contains("warning"), "{}", run.stderr);
    }

    fn a_second_run_needs_no_registry(kind) {
        let mut stage = Stage::new(kind);
        stage.pin();
        stage.write();
        let _ = answers(&stage, &[]);
        stage.registry.stop();
        let _ = answers(&stage, &[]);
        let _ = answers(&stage, &["--offline"]);
    }

    fn a_tag_that_was_pulled_is_used_while_its_registry_is_away(kind) {
        let mut stage = Stage::new(kind);
        stage.write();
        let _ = answers(&stage, &[]);
        stage.registry.stop();
        let _ = answers(&stage, &["--offline"]);
    }

    fn a_registry_that_is_away_is_said_and_nothing_is_left(kind) {
        let mut stage = Stage::new(kind);
        stage.write();
        stage.registry.stop();
        let run = stage.machine.run(&["provision"]).code(8);
        run.says(&format!("{} could not be asked", stage.registry.address()));
        run.says("Connection refused");
        stage.assert_clean();
        stage.assert_no_image();
        stage.registry.start();
        let _ = answers(&stage, &[]);
    }

    fn a_first_run_offline_refuses_and_says_what_would_be_fetched(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let asked = stage.registry.log().lines().count();
        let run = stage.machine.run(&["provision", "--offline"]).code(4);
        run.says("offline");
        assert_eq!(stage.registry.log().lines().count(), asked, "it was asked all the same");
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn a_digest_that_the_tag_does_not_have_is_refused_with_both(kind) {
        let mut stage = Stage::new(kind);
        let other = format!("sha256:{}", e2e::sha256(b"another image"));
        stage.container("digest", other.as_str());
        stage.write();
        let run = stage.machine.run(&["provision"]).code(9);
        run.says(&other);
        run.says(&stage.digest);
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn a_digest_that_nobody_has_is_refused(kind) {
        let mut stage = Stage::new(kind);
        let right = std::mem::replace(
            &mut stage.digest,
            format!("sha256:{}", e2e::sha256(b"another image")),
        );
        stage.pin();
        stage.write();
        let run = stage.machine.run(&["provision"]).code(8);
        run.says(&format!("{} has no {}", stage.registry.address(), stage.reference()));
        stage.assert_clean();
        stage.assert_no_image();
        stage.digest = right;
    }

    fn an_index_is_resolved_to_this_platform_s_image_and_either_digest_will_do(kind) {
        let mut stage = Stage::new(kind);
        let other = Stage::image().architecture("riscv64");
        let ours = stage.image.clone().label("tests.index", "1");
        let pushed = stage.registry.push_index("tests/engine", "both", &[other, ours]);
        stage.container("tag", "both");
        stage.write();
        stage.digest = pushed.images[1].clone();
        let run = answers(&stage, &[]);
        run.says(&stage.digest);
        for digest in [&pushed.digest, &pushed.images[1]] {
            stage.container("digest", digest.as_str());
            stage.write();
            let prepared = stage.machine.run(&["prepare", "--json"]).code(0).json();
            assert_eq!(prepared["engine_version"], pushed.images[1]);
        }
        let other = &pushed.images[0];
        stage.container("digest", other.as_str());
        stage.write();
        let run = stage.machine.run(&["prepare"]).code(9);
        run.says(other);
    }

    fn an_image_for_another_processor_is_refused_before_its_layers(kind) {
        let stage = Stage::with(kind, Registry::open(), Stage::image().architecture("riscv64"));
        stage.write();
        let run = stage.machine.run(&["provision"]).code(5);
        run.says("riscv64");
        run.says(this_architecture());
        assert_eq!(stage.registry.fetches(&stage.image.layer_digests()[0]), 0);
        stage.assert_clean();
        stage.assert_no_image();
    }

    fn a_truncated_layer_is_told_apart_and_the_next_run_succeeds(kind) {
        let image = Stage::image().ballast(1 << 20);
        let stage = Stage::with(kind, Registry::open(), image);
        stage.write();
        let whole = stage.registry.keep_last_layer(&stage.image);
        stage.registry.truncate_last_layer(&stage.image);
        // The registry sends all that it has: the transfer is whole, and the digest another one.
        let run = stage.machine.run(&["provision"]).code(9);
        run.says(&stage.repository());
        run.says("what arrived is not what its digest says");
        stage.assert_clean();
        stage.assert_no_image();
        whole.restore();
        let _ = answers(&stage, &[]);
    }

    fn an_image_that_was_removed_behind_our_back_is_pulled_again(kind) {
        let mut stage = Stage::new(kind);
        stage.pin();
        stage.write();
        let _ = answers(&stage, &[]);
        stage.containers.run(&["rmi", "--force", &stage.reference()]);
        stage.assert_no_image();
        let _ = answers(&stage, &[]);
        // And where it cannot be had again, that is the message.
        stage.containers.run(&["rmi", "--force", &stage.reference()]);
        stage.registry.stop();
        let run = stage.machine.run(&["provision"]).code(8);
        run.says(&stage.registry.address());
        stage.assert_clean();
    }

    fn a_plan_fetches_nothing_and_shows_the_image_with_its_size(kind) {
        let stage = Stage::new(kind);
        stage.write();
        let plan = stage.machine.run(&["plan", "--json"]).code(0).json();
        let steps = plan["steps"].as_array().unwrap();
        let image = steps.iter().find(|step| step["kind"] == "pull-image");
        let image = image.unwrap_or_else(|| panic!("{plan}"));
        assert_eq!(image["state"], "fetch", "{image}");
        assert!(image["size_bytes"].as_u64().is_some_and(|size| size > 100_000), "{image}");
        stage.assert_no_image();
        assert_eq!(stage.left(), Vec::<String>::new());
        let _ = stage.machine.run(&["prepare"]).code(0);
        let plan = stage.machine.run(&["plan", "--json"]).code(0).json();
        let steps = plan["steps"].as_array().unwrap();
        let image = steps.iter().find(|step| step["kind"] == "pull-image").unwrap();
        assert_eq!(image["state"], "cached", "{image}");
        assert_eq!(plan["run"]["engine_version"], stage.digest);
        stage.assert_clean();
    }

    fn two_preparations_at_once_pull_once(kind) {
        let image = Stage::image().ballast(16 << 20);
        let stage = Stage::with(kind, Registry::open(), image);
        stage.write();
        let start = || {
            let arguments = ["prepare", "--json", "--log-format=json"];
            stage.machine.start(stage.machine.command(&arguments))
        };
        let runs = [start(), start()].map(|running| running.finish(e2e::RUN_LIMIT).code(0));
        for run in &runs {
            assert_eq!(run.json()["engine_version"], stage.digest);
        }
        let layers = stage.image.layer_digests();
        assert_eq!(stage.registry.fetches(layers.last().unwrap()), 1, "{}", stage.registry.log());
        stage.assert_clean();
    }

    fn an_image_that_is_here_already_needs_no_registry(kind) {
        let mut stage = Stage::new(kind);
        stage.containers.run(&["pull", "--quiet", &stage.reference()]);
        stage.registry.stop();
        stage.pin();
        stage.write();
        let run = answers(&stage, &["--offline"]);
        run.says(&format!("{} is here already", stage.reference()));
        let prepared = stage.machine.run(&["prepare", "--json"]).code(0).json();
        assert_eq!(prepared["build_record"]["image_version"], IMAGE_VERSION);
        assert_eq!(prepared["engine_version"], stage.digest);
    }

    fn an_image_that_is_here_by_its_tag_is_used_while_its_registry_is_away(kind) {
        let mut stage = Stage::new(kind);
        let by_tag = format!("{}:v1", stage.repository());
        stage.containers.run(&["pull", "--quiet", &by_tag]);
        stage.registry.stop();
        stage.write();
        let run = answers(&stage, &["--offline"]);
        run.says(&format!("{by_tag} is {}", stage.digest));
    }
}

/// Bytes that have to be enough for the engine's image and not for its ballast.
const LITTLE_ROOM: u64 = 48 << 20;

fn a_full_disk_is_said(stage: &Stage) {
    stage.write();
    let run = stage.machine.run(&["provision"]).code(14);
    run.says(&stage.repository());
    run.says("space");
    stage.assert_clean();
    stage.assert_no_image();
}

#[test]
fn a_full_disk_is_said_and_nothing_is_left_under_podman() {
    let machine = Machine::new();
    let containers = Containers::podman_with_little_room(machine.root(), LITTLE_ROOM);
    let image = Stage::image().ballast(64 << 20);
    a_full_disk_is_said(&Stage::of(machine, containers, Registry::open(), image));
}

#[test]
fn a_full_disk_is_said_and_nothing_is_left_under_docker() {
    let daemon = DockerDaemon::with_little_room(LITTLE_ROOM);
    let machine = Machine::new();
    let containers = Containers::of_daemon(&daemon, machine.root());
    let image = Stage::image().ballast(64 << 20);
    a_full_disk_is_said(&Stage::of(machine, containers, Registry::open(), image));
}

#[test]
fn an_image_that_only_one_runtime_has_is_pulled_by_the_other() {
    let stage = Stage::new(ContainerKind::Podman);
    stage.write();
    let _ = answers(&stage, &[]);
    let docker = Containers::new(ContainerKind::Docker, stage.machine.root());
    let mut pool = stage.pool.clone();
    pool["provisioning"]["container"]["runtime"] = json!("docker");
    stage.machine.write_pool(&pool);
    let mut command = stage.machine.command(&["prepare"]);
    command.envs(docker.environment());
    let _ = stage.machine.start(command).finish(e2e::RUN_LIMIT).code(0);
    assert_eq!(
        docker.digests_of(&stage.repository()),
        std::slice::from_ref(&stage.digest)
    );
    docker.run(&["rmi", "--force", &stage.reference()]);
}
