//! The lock file beside what moves: a hub's branch, an object, a tag. And every line of it, edited.

use std::{
    fs,
    net::TcpListener,
    time::{Duration, Instant},
};

use e2e::{
    Hub, HubRepository, LockFile, Machine, Registry, Repository, Run, S3Server, fixture_pool,
    sha256,
};
use serde_json::json;

const OLD: &[u8] = b"TINY model";
const NEW: &[u8] = b"TINY newer model";

/// A machine with a pool that serves this model, nothing locked yet.
fn stage(reference: &str) -> (Machine, Repository) {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    write_pool(&machine, &repository, reference);
    (machine, repository)
}

fn write_pool(machine: &Machine, repository: &Repository, reference: &str) {
    let mut pool = fixture_pool(repository);
    pool["provisioning"]["source"]["ref"] = json!("main");
    pool["provisioning"]["model"] = json!({"ref": reference});
    machine.write_pool(&pool);
}

/// The bytes of the model that a preparation gave.
fn served(run: &Run) -> Vec<u8> {
    let prepared = run.json();
    let path = prepared["model"]["path"].as_str().unwrap();
    fs::read(path).unwrap()
}

fn prepare(machine: &Machine, more: &[&str]) -> Run {
    let arguments = [&["prepare", "--json"], more].concat();
    machine.run(&arguments).code(0)
}

/// What has to hold of a model that has moved upstream since it was locked.
fn assert_it_moves_only_when_asked(machine: &Machine, repository: &Repository) {
    let before = LockFile::of(machine);
    for more in [&[][..], &["--locked"]] {
        assert_eq!(served(&prepare(machine, more)), OLD, "{more:?}");
    }
    let digest = |content| format!("sha256:{}", sha256(content));
    let path = ["default", "model", "digest"];
    assert_eq!(before.text(&path), digest(OLD));
    let _ = machine.run(&["lock", "--check"]).code(0);
    // Something else moves as well: neither goes with the other.
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "second"]);
    let _ = machine.run(&["lock"]).code(0);
    let _ = machine.run(&["lock", "--update", "default.engine"]).code(0);
    let engine = LockFile::of(machine);
    assert_ne!(
        engine.part("default", "engine"),
        before.part("default", "engine")
    );
    assert_eq!(
        engine.part("default", "model"),
        before.part("default", "model")
    );
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "third"]);
    let run = machine.run(&["lock", "--update", "default.model"]).code(0);
    run.prints(&format!("{}\n    → {}", digest(OLD), digest(NEW)));
    let after = LockFile::of(machine);
    assert_eq!(after.text(&path), digest(NEW));
    for part in ["engine", "provider"] {
        assert_eq!(after.part("default", part), engine.part("default", part));
    }
    assert_eq!(served(&prepare(machine, &["--locked"])), NEW);
    machine.assert_clean();
}

/// Nothing of what was fetched is here any more.
fn forget(machine: &Machine) {
    fs::remove_dir_all(machine.home()).unwrap();
}

#[test]
fn a_branch_of_a_hub_moves_a_pool_only_when_that_is_asked_for() {
    let hub = Hub::start();
    let publish =
        |content: &[u8]| hub.publish("o/m", "main", HubRepository::of(&[("tiny.gguf", content)]));
    let first = publish(OLD);
    let (mut machine, repository) = stage("hf:o/m/tiny.gguf");
    machine.lend("HF_ENDPOINT", &hub.endpoint());
    let _ = machine.run(&["lock"]).code(0);
    let lock = LockFile::of(&machine);
    assert_eq!(lock.text(&["default", "model", "revision"]), first);
    let pinned = lock.text(&["default", "model", "pinned"]);
    assert_eq!(pinned, format!("hf:o/m@{first}/tiny.gguf"));
    // Nothing was fetched for the lock: another machine gets what is pinned from the hub.
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    publish(NEW);
    forget(&machine);
    assert_it_moves_only_when_asked(&machine, &repository);
}

#[test]
fn an_artifact_of_a_registry_whose_tag_moves_stays_where_it_is_locked() {
    let registry = Registry::open();
    let first = registry.push_artifact("lm", "1", &[("tiny.gguf", OLD)]);
    let (machine, repository) = stage(&format!("oci://{}/lm:1", registry.address()));
    let _ = machine.run(&["lock"]).code(0);
    let pinned = LockFile::of(&machine).text(&["default", "model", "pinned"]);
    assert_eq!(pinned, format!("oci://{}/lm@{first}", registry.address()));
    let second = registry.push_artifact("lm", "1", &[("tiny.gguf", NEW)]);
    assert_ne!(first, second);
    forget(&machine);
    assert_it_moves_only_when_asked(&machine, &repository);
}

#[test]
fn an_object_that_is_replaced_is_used_from_the_store_and_nowhere_else_taken_for_it() {
    let server = S3Server::start();
    server.upload("tiny.gguf", OLD);
    let (mut machine, repository) = stage("s3://models/tiny.gguf");
    server.lend(&mut machine);
    let _ = machine.run(&["lock"]).code(0);
    let _ = prepare(&machine, &["--locked"]);
    server.upload("tiny.gguf", NEW);
    // A bucket without versions has the new one only: a machine that lacks the old one says so.
    let mut other = Machine::new();
    server.lend(&mut other);
    write_pool(&other, &repository, "s3://models/tiny.gguf");
    let text = fs::read_to_string(machine.work().join("host.lock")).unwrap();
    other.write("host.lock", &text);
    let run = other.run(&["prepare", "--locked"]).code(9);
    run.says(&sha256(OLD));
    assert_eq!(other.store().blobs(), Vec::<String>::new());
    assert_it_moves_only_when_asked(&machine, &repository);
}

#[test]
fn every_line_that_is_edited_or_taken_out_is_named_without_asking_anybody() {
    let hub = Hub::start();
    let files: [(&str, &[u8]); 2] = [("tiny.gguf", OLD), ("README.md", b"# A model")];
    hub.publish("o/m", "main", HubRepository::of(&files));
    let (mut machine, _repository) = stage("hf:o/m/tiny.gguf");
    machine.lend("HF_ENDPOINT", &hub.endpoint());
    let _ = machine.run(&["lock"]).code(0);
    // Once it was obtained the tree of the commit is known as well.
    let _ = prepare(&machine, &["--locked"]);
    let _ = machine.run(&["lock"]).code(0);
    let lock = LockFile::of(&machine);
    assert_eq!(
        lock.text(&["default", "engine", "source", "source", "tree"])
            .len(),
        40
    );
    let walk = |machine: &Machine| {
        let _ = hub.take_requests();
        let run = || machine.run(&["prepare", "--locked"]);
        let lines = lock.assert_every_edit_is_refused(machine, "default", run);
        assert_eq!(hub.take_requests(), []);
        lines
    };
    // Where everything is here, and where nothing is.
    let lines = walk(&machine);
    assert!(lines >= 20, "{lines} values: {lock:?}");
    forget(&machine);
    walk(&machine);
    assert!(!machine.home().join("store/build").exists());
    let run = machine.run(&["prepare", "--locked", "--json"]).code(0);
    assert_eq!(served(&run), OLD);
    machine.assert_clean();
}

#[test]
fn a_line_that_was_edited_is_said_and_stays_until_it_is_asked_for_again() {
    let (machine, repository) = stage("builtin:haiku");
    let first = repository.commit.clone();
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "second"]);
    let _ = machine.run(&["lock"]).code(0);
    let commit = ["default", "engine", "source", "source", "commit"];
    let second = LockFile::of(&machine).text(&commit);
    let text = fs::read_to_string(machine.work().join("host.lock")).unwrap();
    machine.write("host.lock", &text.replace(&second, &first));
    let run = machine.run(&["plan"]).code(0);
    run.prints("`engine.source.source.commit` was edited since it was locked");
    let run = machine.run(&["lock", "--check"]).code(15);
    run.says("engine.source.source.commit");
    // Whoever locks on has been told.
    let run = machine.run(&["lock"]).code(0);
    run.says(&format!("was edited since it was locked: it stays {first}"));
    run.says("--update default.engine");
    assert_eq!(LockFile::of(&machine).text(&commit), first);
    let _ = machine.run(&["prepare", "--locked"]).code(0);
    let _ = machine.run(&["lock", "--update", "default.engine"]).code(0);
    assert_eq!(LockFile::of(&machine).text(&commit), second);
    let _ = machine.run(&["lock", "--check"]).code(0);
    machine.assert_clean();
}

/// A plan is not held up for longer by what does not answer, and answers what does.
const PLAN_LIMIT: Duration = Duration::from_secs(45);

#[test]
fn a_plan_does_not_wait_for_a_hub_that_is_silent() {
    // It takes connections and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let (mut machine, repository) = stage("hf:o/m/tiny.gguf");
    let endpoint = format!("http://{}", silent.local_addr().unwrap());
    machine.lend("HF_ENDPOINT", &endpoint);
    let begun = Instant::now();
    let run = machine.run(&["plan"]).code(0);
    assert!(begun.elapsed() < PLAN_LIMIT, "{:?}", begun.elapsed());
    run.prints("step `model`: no answer within 20 s");
    run.prints(&repository.commit[..12]);
    machine.assert_clean();
}
