//! The lock file: pinned is what runs, and what is not as it is pinned is refused by name.

use std::{fs, process::Command};

use e2e::{FileServer, Hub, HubRepository, Machine, Repository, Run, fixture_pool, sha256};
use serde_json::{Value, json};

const DRIFTED: i32 = 15;

/// A machine with a repository of the fixture engine, a model beside the pool file, and a pool that
/// follows the repository's `main` branch, all of it locked.
fn locked() -> (Machine, Repository, Value) {
    let (machine, repository, pool) = stage();
    let run = machine.run(&["lock"]).code(0);
    run.prints("+ engine.source.source.commit");
    (machine, repository, pool)
}

fn stage() -> (Machine, Repository, Value) {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["source"]["ref"] = json!("main");
    pool["provisioning"]["model"] = json!({"ref": "./tiny.gguf"});
    machine.write("tiny.gguf", "TINY model");
    machine.write_pool(&pool);
    (machine, repository, pool)
}

/// As an older version wrote it, or an edit that its check digits do not tell.
fn without_seals(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.starts_with("seal = "));
    lines.map(|line| format!("{line}\n")).collect()
}

fn lock_file(machine: &Machine) -> String {
    fs::read_to_string(machine.work().join("host.lock")).unwrap()
}

/// The value of a key of the lock file, the first of this name.
fn value(text: &str, key: &str) -> String {
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{key} = ")));
    let line = line.unwrap_or_else(|| panic!("no {key} in\n{text}"));
    line.split('"').nth(1).unwrap().to_owned()
}

fn commit_of(run: &Run) -> String {
    let prepared: Value = serde_json::from_str(&run.stdout).unwrap();
    let artifacts = prepared["artifacts"].as_object().unwrap();
    let source = artifacts
        .values()
        .find_map(|artifact| artifact["commit"].as_str());
    source.unwrap().to_owned()
}

#[test]
fn a_branch_that_advances_moves_a_pool_that_is_not_locked_and_no_other() {
    let (machine, repository, _) = stage();
    let first = repository.commit.clone();
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "second"]);
    let second = repository.git(&["rev-parse", "HEAD"]).trim().to_owned();
    assert_eq!(
        commit_of(&machine.run(&["prepare", "--json"]).code(0)),
        second
    );
    repository.git(&["reset", "--quiet", "--hard", &first]);

    let _ = machine.run(&["lock"]).code(0);
    assert_eq!(value(&lock_file(&machine), "commit"), first);
    repository.git(&["reset", "--quiet", "--hard", &second]);
    for strict in [
        &["prepare", "--json"][..],
        &["prepare", "--json", "--locked"],
    ] {
        let run = machine.run(strict).code(0);
        assert_eq!(commit_of(&run), first, "{strict:?}");
        run.says(&format!("main is commit {first}, by host.lock"));
    }
    let _ = machine.run(&["lock", "--check"]).code(0);
    let _ = machine.run(&["lock"]).code(0);
    assert_eq!(
        value(&lock_file(&machine), "commit"),
        first,
        "it was not asked to move"
    );
    let _ = machine.run(&["lock", "--update", "default.model"]).code(0);
    assert_eq!(
        value(&lock_file(&machine), "commit"),
        first,
        "another part was named"
    );

    let run = machine.run(&["lock", "--update", "default.engine"]).code(0);
    run.prints(&format!(
        "~ engine.source.source.commit\n      {first}\n    → {second}"
    ));
    assert_eq!(
        commit_of(&machine.run(&["prepare", "--json", "--locked"]).code(0)),
        second
    );
}

#[test]
fn every_pin_that_is_edited_is_refused_by_name_before_anything_is_done() {
    let (machine, repository, _) = locked();
    // Once obtained, the tree of the commit is known as well.
    let _ = machine.run(&["prepare"]).code(0);
    let _ = machine.run(&["lock"]).code(0);
    let text = lock_file(&machine);
    let edits = [
        ("name", "provider.name"),
        ("version", "provider.version"),
        ("contract", "provider.contract"),
        ("x86_64-unknown-linux-gnu", "engine.source.build.commands"),
        ("reference", "engine.source.source.reference"),
        ("mirrors", "engine.source.source.mirrors"),
        ("tree", "engine.source.source.tree"),
        ("kind", "kind"),
        ("digest", "model.digest"),
        ("size_bytes", "model.size_bytes"),
    ];
    for (key, what) in edits {
        let line = text
            .lines()
            .find(|line| line.starts_with(&format!("{key} = ")))
            .unwrap();
        let edited = match key {
            "size_bytes" => "size_bytes = 11".to_owned(),
            "mirrors" => "mirrors = [\"https://edited.invalid/x\"]".to_owned(),
            "tree" => format!("tree = \"{}\"", "1".repeat(40)),
            "digest" => format!("digest = \"sha256:{}\"", sha256(b"edited")),
            _ => format!("{key} = \"edited\""),
        };
        machine.write("host.lock", &text.replacen(line, &edited, 1));
        let run = machine.run(&["provision", "--locked"]).code(DRIFTED);
        run.says("host.lock does not hold");
        run.says(what);
        run.says("locked  ");
        run.says("now     ");
        run.says("lock --update default.");
        assert!(!run.stderr.contains("start "), "{key}: {}", run.stderr);
        machine.assert_clean();
    }
    // A provider's library: the last of the file.
    let (head, _) = text.rsplit_once("x86_64-unknown-linux-gnu").unwrap();
    machine.write(
        "host.lock",
        &format!("{head}x86_64-unknown-linux-gnu = \"sha256:00\"\n"),
    );
    let run = machine.run(&["provision", "--locked"]).code(DRIFTED);
    run.says("provider.targets.x86_64-unknown-linux-gnu");
    // A commit of the branch that is not the one of this tree, and one that there is not.
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "second"]);
    fs::write(repository.path().join("more"), "x").unwrap();
    repository.git(&["add", "--all"]);
    repository.git(&["commit", "--quiet", "--message", "third"]);
    let third = repository.git(&["rev-parse", "HEAD"]).trim().to_owned();
    machine.write("host.lock", &text.replace(&value(&text, "commit"), &third));
    let run = machine.run(&["provision", "--locked"]).code(DRIFTED);
    run.says("engine.source.source.commit");
    // Where no check digits tell, the tree of the commit does.
    let text = without_seals(&text);
    machine.write("host.lock", &text.replace(&value(&text, "commit"), &third));
    let run = machine.run(&["provision", "--locked"]).code(9);
    run.says(&format!("commit {third} has tree"));
    machine.write(
        "host.lock",
        &text.replace(&value(&text, "commit"), &"2".repeat(40)),
    );
    let run = machine.run(&["provision", "--locked"]).code(3);
    run.says(&"2".repeat(40));
    machine.write(
        "host.lock",
        &text.replace(&value(&text, "commit"), "--upload-pack=x"),
    );
    machine.run(&["plan"]).code(3).says("no full commit");
    machine.assert_clean();
}

#[test]
fn a_pool_file_or_model_that_was_edited_is_all_listed_at_once() {
    let (machine, _repository, mut pool) = locked();
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DEDITED=1"]);
    pool["provisioning"]["source"]["ref"] = json!("other");
    machine.write_pool(&pool);
    machine.write("tiny.gguf", "TINY other");
    let run = machine.run(&["provision", "--locked"]).code(DRIFTED);
    for what in ["source.reference", "build.commands", "model.digest"] {
        run.says(what);
    }
    run.says("locked  main");
    run.says("now     other");
    // Without --locked the pool file is obeyed, and that it is not pinned is said.
    pool["provisioning"]["source"]["ref"] = json!("HEAD");
    machine.write_pool(&pool);
    let run = machine.run(&["prepare"]).code(0);
    run.says("`HEAD` is not pinned: host.lock has `main` in its place");
    machine
        .run(&["lock", "--check"])
        .code(DRIFTED)
        .says("not up to date");
    let _ = machine.run(&["lock"]).code(0);
    let _ = machine.run(&["lock", "--check"]).code(0);
    let _ = machine.run(&["prepare", "--locked"]).code(0);
}

#[test]
fn without_a_lock_file_or_an_entry_locked_says_the_command() {
    let (machine, _repository, mut pool) = stage();
    let run = machine.run(&["provision", "--locked"]).code(DRIFTED);
    run.says("`--locked` needs host.lock, and there is none");
    run.says("host lock");
    let _ = machine.run(&["lock"]).code(0);
    pool["id"] = json!("other");
    machine.write_pool(&pool);
    let run = machine.run(&["provision", "--locked"]).code(DRIFTED);
    run.says("other: entry");
    run.says("lock --update other");
    machine.write("host.lock", "schema = 99\n");
    machine.run(&["plan"]).code(3).says("schema 99");
    machine.run(&["lock"]).code(3).says("schema 99");
    assert_eq!(lock_file(&machine), "schema = 99\n");
    machine.write("host.lock", "schema = 1\n[pools\n");
    machine.run(&["plan"]).code(3).says("line 2");
}

#[test]
fn what_other_machines_and_versions_have_locked_survives() {
    let (machine, repository, _) = locked();
    let text = without_seals(&lock_file(&machine));
    let foreign = text.replace(
        "x86_64-unknown-linux-gnu = ",
        "aarch64-unknown-linux-gnu = \"blake3:1234\"\nx86_64-unknown-linux-gnu = ",
    ) + "\n[pools.default.later]\nscheme = \"blake3:5678\"\n";
    machine.write("host.lock", &foreign);
    let _ = machine.run(&["prepare", "--locked"]).code(0);
    repository.git(&["commit", "--quiet", "--allow-empty", "--message", "second"]);
    let _ = machine.run(&["lock", "--update"]).code(0);
    let after = lock_file(&machine);
    assert_eq!(after.matches("blake3:1234").count(), 2, "{after}");
    assert!(after.contains("scheme = \"blake3:5678\""), "{after}");
    assert_ne!(value(&after, "commit"), value(&text, "commit"));
}

#[test]
fn what_is_locked_of_another_engine_s_pools_survives_when_one_engine_is_meant() {
    let (machine, _repository, pool) = locked();
    let mut other = pool.clone();
    other["id"] = json!("other");
    other["engine"] = json!("llamacpp");
    other["provisioning"]["ports"] = json!([e2e::free_port()]);
    machine.write_pools(&[pool.clone(), other]);
    let text = lock_file(&machine);
    let foreign = |id: &str| {
        text.replace("schema = 1\n", "")
            .replace("pools.default", id)
    };
    let both = format!("{text}{}{}", foreign("pools.other"), foreign("pools.gone"));
    machine.write("host.lock", &both);
    let _ = machine.run(&["lock", "--provider", "fixture"]).code(0);
    let after = lock_file(&machine);
    for id in ["default", "other"] {
        assert!(after.contains(&format!("[pools.{id}.provider]")), "{after}");
    }
    assert!(!after.contains("pools.gone"), "{after}");
}

#[test]
fn a_digest_that_cannot_be_compared_is_kept_and_refused_until_it_is_locked_anew() {
    let (machine, _repository, mut pool) = stage();
    let server = FileServer::start(b"TINY model".to_vec());
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf")});
    machine.write_pool(&pool);
    let _ = machine.run(&["lock"]).code(0);
    let digest = value(&lock_file(&machine), "digest");
    let foreign = without_seals(&lock_file(&machine)).replace(&digest, "blake3:1234");

    // Where nothing is here that says what it is.
    let other = Machine::new();
    other.write_pool(&pool);
    other.write("host.lock", &foreign);
    for command in [
        &["plan", "--locked"][..],
        &["prepare", "--locked"],
        &["lock", "--check"],
    ] {
        let run = other.run(command).code(DRIFTED);
        run.says("model.digest");
        run.says("locked  blake3:1234");
        run.says("--update default.model");
    }
    let _ = other.run(&["lock"]).code(0);
    assert!(lock_file(&other).contains("blake3:1234"));
    let _ = other.run(&["lock", "--update", "default.model"]).code(0);
    assert_eq!(value(&lock_file(&other), "digest"), digest);
    let _ = other.run(&["prepare", "--locked"]).code(0);
}

#[test]
fn several_writers_at_once_leave_one_whole_file() {
    let (machine, _repository, pool) = stage();
    let mut other = pool.clone();
    other["id"] = json!("other");
    other["provisioning"]["ports"] = json!([e2e::free_port()]);
    machine.write_pools(&[pool, other]);
    let commands = ["default", "other", "default", "other"]
        .map(|id| machine.start(machine.command(&["lock", "--pool", id])));
    for running in commands {
        let _ = running.finish(e2e::RUN_LIMIT).code(0);
    }
    let _ = machine.run(&["lock", "--check"]).code(0);
    let left = machine.files_below(&machine.work());
    assert_eq!(left, ["host.lock", "pools.yaml", "tiny.gguf"]);
}

#[test]
fn without_network_a_locked_pool_runs_from_what_is_here_or_says_what_is_not() {
    let (machine, _repository, mut pool) = stage();
    // A mirror that is reached over a network, and never is.
    pool["provisioning"]["source"]["repo"] = json!("https://git.invalid/x.git");
    pool["provisioning"]["source"]["ref"] = json!("1".repeat(40));
    machine.write_pool(&pool);
    let _ = machine.run(&["lock"]).code(0);
    let run = machine.run(&["provision", "--locked", "--offline"]).code(4);
    run.says("without network 1 thing is not here");
    run.says(&format!("source: commit {}", "1".repeat(40)));
    machine.assert_clean();
}

#[test]
fn a_url_is_locked_to_what_it_gave_and_another_machine_takes_nothing_else() {
    let (machine, _repository, mut pool) = stage();
    let server = FileServer::start(b"TINY model".to_vec());
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf")});
    machine.write_pool(&pool);
    let run = machine.run(&["lock"]).code(0);
    run.says("nobody says the digest");
    let digest = format!("sha256:{}", sha256(b"TINY model"));
    assert_eq!(value(&lock_file(&machine), "digest"), digest);
    let _ = machine.run(&["lock", "--check"]).code(0);

    let other = Machine::new();
    other.write_pool(&pool);
    other.write("host.lock", &lock_file(&machine));
    let run = other.run(&["prepare", "--locked", "--offline"]).code(4);
    run.says("model: ");
    server.replace(b"TINY other");
    let run = other.run(&["prepare", "--locked"]).code(9);
    run.says(&digest);
    server.replace(b"TINY model");
    let _ = other.run(&["prepare", "--locked"]).code(0);
    let _ = other.run(&["prepare", "--locked", "--offline"]).code(0);
    // It may move when that is asked for, and then it does.
    server.replace(b"TINY other");
    let _ = machine.run(&["lock"]).code(0);
    assert_eq!(value(&lock_file(&machine), "digest"), digest);
    let _ = machine.run(&["lock", "--update", "default.model"]).code(0);
    let moved = format!("sha256:{}", sha256(b"TINY other"));
    assert_eq!(value(&lock_file(&machine), "digest"), moved);
}

#[test]
fn what_a_build_was_made_of_is_told() {
    let (machine, repository, _) = locked();
    let prepared = machine.run(&["prepare", "--json"]).code(0).json();
    let build = &prepared["records"]["build"];
    let names: Vec<&str> = build["ingredients"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|ingredient| ingredient["name"].as_str())
        .collect();
    for name in [
        "machine",
        "tool cmake",
        "input source",
        "cmake-configure argument",
        "output",
    ] {
        assert!(names.contains(&name), "{name}: {names:?}");
    }
    // The long form of the engine's version.
    let version = prepared["engine_version"].as_str().unwrap();
    assert!(version.starts_with(&repository.commit[..12]), "{version}");
    let source = &prepared["records"]["source"];
    assert!(source.to_string().contains(&repository.commit), "{source}");
    let model = &prepared["records"]["model"];
    assert_eq!(model["kind"], "stage-model");
    assert_eq!(
        model["result"]["digest"],
        format!("sha256:{}", sha256(b"TINY model"))
    );
    assert_eq!(build["result"]["digest"].as_str().unwrap().len(), 64);
    assert!(build["result"]["passed_environment"].is_array());
    assert_eq!(
        prepared["records"]["source"]["result"]["tree"]
            .as_str()
            .unwrap()
            .len(),
        40
    );
}

#[test]
fn in_a_network_namespace_without_routes_a_warm_store_provisions_and_streams() {
    let hub = Hub::start();
    let model = HubRepository::of(&[("tiny.gguf", b"TINY model")]);
    hub.publish("o/n", "main", model);
    let (mut machine, repository, mut pool) = stage();
    machine.lend("HF_ENDPOINT", &hub.endpoint());
    pool["provisioning"]["model"] = json!({"ref": "hf:o/n"});
    machine.write_pool(&pool);
    let _ = machine.run(&["lock"]).code(0);
    let _ = machine.run(&["prepare"]).code(0);
    // Nobody can be asked any more.
    fs::rename(repository.path(), repository.path().with_extension("gone")).unwrap();
    let host = machine.command(&["provision", "--locked", "--offline"]);
    let mut command = Command::new("unshare");
    let script = "ip link set lo up || exit 89
        \"$@\" & host=$!
        until url=$(sed -n 's/.*\"url\": *\"\\([^\"]*\\)\".*/\\1/p' .runtime/engines/*.json 2>/dev/null) && [ -n \"$url\" ]; do
          kill -0 $host || exit 90; sleep 0.05; done
        [ -z \"$(ip route)\" ] || exit 91
        curl --silent --no-buffer --fail --max-time 20 $url/completion || exit 92
        kill -TERM $host; wait $host";
    command
        .args(["--net", "--", "bash", "-c", script, "bash"])
        .arg(host.get_program())
        .args(host.get_args())
        .current_dir(machine.work())
        .env_clear()
        .envs(
            host.get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let run = machine.start(command).finish(e2e::RUN_LIMIT).code(143);
    run.prints("hello from TINY");
    run.prints("is ready at");
    machine.assert_clean();
}
