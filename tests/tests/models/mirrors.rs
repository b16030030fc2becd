//! A model at several places: who does not give it is passed over, visibly, and nothing comes twice.

use std::{fs, time::Duration};

use e2e::{FileServer, Machine, RUN_LIMIT, Reply, Repository, Run, fixture_pool, free_port};
use e2e::{noise, sha256, wait_for};
use rustix::process::Signal;
use serde_json::json;

use crate::transfer::{Nginx, SIZE, files};

const DRIFTED: i32 = 15;

/// Bytes of a model that comes over one connection.
const SMALL: usize = 3_000_000;

/// Where the first place breaks off.
const MIDDLE: usize = 1_000_000;

/// A URL at which nobody listens.
fn nobody() -> String {
    format!("http://127.0.0.1:{}/m.bin", free_port())
}

/// `host model add` of a file at these places.
fn command(machine: &Machine, digest: &str, urls: &[&str]) -> std::process::Command {
    let (first, others) = urls.split_first().unwrap();
    let checksum = format!("--checksum=sha256:{digest}");
    let mut words = vec!["model", "add", first, &checksum];
    others
        .iter()
        .for_each(|url| words.extend(["--mirror", url]));
    machine.command(&words)
}

fn add(machine: &Machine, digest: &str, urls: &[&str]) -> Run {
    machine
        .start(command(machine, digest, urls))
        .finish(RUN_LIMIT)
}

#[track_caller]
fn assert_there(machine: &Machine, digest: &str) {
    assert_eq!(machine.store().blobs(), [digest]);
    assert_eq!(machine.store().partial(), [""; 0]);
    machine.store().assert_sound();
    machine.assert_clean();
}

/// Asserts which places are written down as those that gave the model.
#[track_caller]
fn assert_from(machine: &Machine, digest: &str, places: &[&str]) {
    let name = format!("sha256:{digest}");
    let shown = machine.run(&["model", "show", &name, "--json"]).code(0);
    assert_eq!(shown.json()["provenance"]["from"], json!(places));
}

#[track_caller]
fn assert_nothing_kept(machine: &Machine) {
    assert_eq!(machine.store().blobs(), [""; 0]);
    assert_eq!(machine.store().partial(), [""; 0]);
    machine.assert_clean();
}

/// Bytes that a place sent of the file itself.
fn sent(server: &FileServer) -> usize {
    let looks = server.asked();
    let looks = looks.iter().filter(|it| it.range() == Some((0, Some(0))));
    usize::try_from(server.sent_in_all()).unwrap() - looks.count()
}

#[test]
fn a_place_that_is_down_is_passed_over_for_a_real_server() {
    let machine = Machine::new();
    let (directory, digest) = files(&machine, 5000);
    let nginx = Nginx::start(&directory, ";");
    let (down, there) = (nobody(), format!("http://127.0.0.1:{}/m.gguf", nginx.port));
    let run = add(&machine, &digest, &[&down, &there]).code(0);
    run.says(&format!("; going on with {there}"));
    run.says(&format!("downloaded 40.0 MiB from {there}"));
    let passed_over = run.stderr.matches("going on with").count();
    assert_eq!(passed_over, 1, "{}", run.stderr);
    assert_eq!(SIZE, 40 << 20);
    drop(nginx);
    assert_there(&machine, &digest);
    assert_from(&machine, &digest, &[&there]);
}

#[test]
fn a_place_with_other_bytes_is_passed_over_and_none_of_them_stay() {
    let (content, other) = (noise(1, SMALL), noise(2, SMALL));
    let digest = sha256(&content);
    for other in [other, b"<html>this name is for sale</html>".to_vec()] {
        let machine = Machine::new();
        let (wrong, right) = (FileServer::start(other), FileServer::start(content.clone()));
        let (first, second) = (wrong.url("m.bin"), right.url("m.bin"));
        let run = add(&machine, &digest, &[&first, &second]).code(0);
        run.says(&format!(
            "{first} is not what it should be; going on with {second}"
        ));
        assert_eq!(sent(&right), SMALL);
        assert_there(&machine, &digest);
        assert_from(&machine, &digest, &[&second]);
    }
}

#[test]
fn where_one_place_breaks_off_the_next_one_goes_on() {
    let content = noise(3, SMALL);
    let digest = sha256(&content);
    let (cut, rest) = (
        FileServer::start(content.clone()),
        FileServer::start(content),
    );
    cut.spoil(|asked, reply| match (asked.number, asked.start()) {
        (0, _) => reply,
        (_, 0) => reply.cut_after(MIDDLE),
        _ => Reply::status(503),
    });
    let machine = Machine::new();
    let (first, second) = (cut.url("m.bin"), rest.url("m.bin"));
    let run = add(&machine, &digest, &[&first, &second]).code(0);
    run.says(&format!("{first} answered 503; going on with {second}"));
    run.says(&format!("from {first} and {second}"));
    assert_eq!(sent(&rest), SMALL - MIDDLE);
    assert_there(&machine, &digest);
    assert_from(&machine, &digest, &[&first, &second]);
}

#[test]
fn what_one_place_gave_before_a_kill_is_not_fetched_again_from_another() {
    let content = noise(4, SMALL);
    let digest = sha256(&content);
    let (silent, rest) = (
        FileServer::start(content.clone()),
        FileServer::start(content),
    );
    silent.spoil(|asked, reply| match asked.number {
        0 => reply,
        _ => reply.silent_after(MIDDLE),
    });
    let machine = Machine::new();
    let (first, second) = (silent.url("m.bin"), rest.url("m.bin"));
    let running = machine.start(command(&machine, &digest, &[&first, &second]));
    wait_for(
        "what came to be kept",
        Duration::from_secs(30),
        || match machine.store().kept() {
            kept if kept >= MIDDLE as u64 => Ok(()),
            kept => Err(kept),
        },
    );
    let _ = running.end(Signal::KILL).code(137);
    silent.spoil(|_, _| Reply::status(404));
    let run = add(&machine, &digest, &[&first, &second]).code(0);
    run.says(&format!("{first} answered 404; going on with {second}"));
    assert_eq!(sent(&rest), SMALL - MIDDLE);
    assert_there(&machine, &digest);
    assert_from(&machine, &digest, &[&first, &second]);
}

#[test]
fn where_no_place_gives_it_one_error_names_each() {
    let machine = Machine::new();
    let digest = sha256(b"model");
    let gone = FileServer::start(Vec::new());
    gone.spoil(|_, _| Reply::status(404));
    let (down, gone) = (nobody(), gone.url("m.bin"));
    let run = add(&machine, &digest, &[&down, &gone]).code(8);
    run.says(&format!("error: model `{down}` could not be fetched"));
    run.says("cause: none of 2 places gave the file");
    run.says(&format!("tried: cannot fetch {down}: "));
    run.says(&format!("tried: {gone} answered 404"));
    assert_eq!(run.stderr.matches("error: ").count(), 1, "{}", run.stderr);
    assert_nothing_kept(&machine);
    // Something wrong says more than something that is down.
    let wrong = FileServer::start(b"other".to_vec()).url("m.bin");
    let run = add(&machine, &digest, &[&down, &wrong]).code(9);
    run.says(&format!("tried: {wrong} is not what it should be"));
    run.says(&format!("expected: sha256:{digest}"));
    run.says(&format!("tried: cannot fetch {down}: "));
    assert_nothing_kept(&machine);
}

#[test]
fn a_place_that_policy_forbids_is_never_asked() {
    let machine = Machine::new();
    let content = noise(5, SMALL);
    let digest = sha256(&content);
    let policy = "../.config/engine-host/policy.yaml";
    machine.write(policy, "network: [127.0.0.1]\n");
    let (forbidden, allowed) = (
        FileServer::start(content.clone()),
        FileServer::start(content),
    );
    let there = allowed.url("m.bin");
    let away = forbidden.url("m.bin").replace("127.0.0.1", "localhost");
    let run = add(&machine, &digest, &[&away]).code(4);
    run.says(&format!("{away} may not be reached"));
    let run = add(&machine, &digest, &[&away, &away.replace("m.bin", "n.bin")]).code(4);
    run.says(&format!("tried: {away} may not be reached"));
    run.says("policy.yaml:1");
    assert_nothing_kept(&machine);
    let run = add(&machine, &digest, &[&away, &there]).code(0);
    run.says(&format!("{away} may not be reached"));
    run.says(&format!("going on with {there}"));
    assert_eq!(forbidden.requests(), 0);
    assert_there(&machine, &digest);
}

/// A machine whose pool names its model at these places.
fn pooled(digest: &str, urls: &[&str]) -> (Machine, Repository, serde_json::Value) {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    let checksum = format!("sha256:{digest}");
    pool["provisioning"]["model"] =
        json!({"ref": urls[0], "mirrors": &urls[1..], "checksum": checksum});
    machine.write_pool(&pool);
    (machine, repository, pool)
}

#[test]
fn a_pool_s_plan_shows_every_place_and_its_lock_pins_them() {
    let content = noise(6, SMALL);
    let digest = sha256(&content);
    let server = FileServer::start(content);
    let (down, there) = (nobody().replace(".bin", ".gguf"), server.url("m.gguf"));
    let there = there.replace("127.0.0.1", "localhost");
    let (machine, _repository, mut pool) = pooled(&digest, &[&down, &there]);
    let plan = machine.run(&["plan", "--json"]).code(0).json();
    let hosts = plan["hosts"].to_string();
    assert!(hosts.contains("localhost"), "{hosts}");
    let steps = plan["steps"].as_array().unwrap();
    let model = steps.iter().find(|step| step["kind"] == "stage-model");
    let detail = model.unwrap()["detail"].to_string();
    assert!(
        detail.contains(&down) && detail.contains(&there),
        "{detail}"
    );

    let run = machine.run(&["lock"]).code(0);
    run.prints(&format!("+ model.mirrors  {there}"));
    run.prints(&format!("+ model.digest  sha256:{digest}"));
    let _ = machine.run(&["prepare", "--locked"]).code(0);
    let _ = machine.run(&["lock", "--check"]).code(0);
    // What is here needs none of its places.
    let _ = machine.run(&["prepare", "--locked", "--offline"]).code(0);

    for (mirrors, now) in [
        (
            json!(["https://other.invalid/m.gguf"]),
            "https://other.invalid/m.gguf",
        ),
        (json!([]), "nothing"),
    ] {
        pool["provisioning"]["model"]["mirrors"] = mirrors;
        machine.write_pool(&pool);
        let run = machine.run(&["prepare", "--locked"]).code(DRIFTED);
        run.says("drift: default: model.mirrors");
        run.says(&format!("locked  {there}"));
        run.says(&format!("now     {now}"));
        run.says("lock --update default.model");
    }
    pool["provisioning"]["model"]["mirrors"] = json!([server.url("n.gguf")]);
    machine.write_pool(&pool);
    let _ = machine.run(&["lock", "--update", "default.model"]).code(0);
    let lock = fs::read_to_string(machine.work().join("host.lock")).unwrap();
    assert!(!lock.contains(&there), "{lock}");
    let _ = machine.run(&["prepare", "--locked"]).code(0);
}

#[test]
fn mirrors_without_a_checksum_are_refused_where_they_are_written() {
    let (machine, _repository, mut pool) = pooled(
        "",
        &["https://a.invalid/m.gguf", "https://b.invalid/m.gguf"],
    );
    let model = pool["provisioning"]["model"].as_object_mut().unwrap();
    model.remove("checksum");
    machine.write_pool(&pool);
    let run = machine.run(&["config", "check"]).code(3);
    run.says("`mirrors` need a `checksum` beside them");
    let words = [
        "model",
        "add",
        "https://a.invalid/m",
        "--mirror",
        "https://b.invalid/m",
    ];
    machine.run(&words).code(2).says("--checksum");
}
