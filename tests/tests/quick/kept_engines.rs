//! `host engine`: which engines are here, that those nobody uses go, and that no other one does.

use std::{fs, path::PathBuf, thread, time::Duration};

use e2e::{Built, FileServer, Machine, PoolStage, Repository, fixture_pool, sha256};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A clean-up that leaves only what is in use.
const EVERYTHING: [&str; 6] = ["engine", "gc", "--max-size", "0", "--older-than", "0s"];

fn ok(machine: &Machine, arguments: &[&str]) {
    let _ = machine.run(arguments).code(0);
}

fn engines(machine: &Machine) -> Vec<Value> {
    let list = machine.run(&["engine", "list", "--json"]).code(0).json();
    assert_eq!(list["schema"], 1);
    list["engines"].as_array().unwrap().clone()
}

fn keys(machine: &Machine) -> Vec<String> {
    let key = |engine: Value| engine["key"].as_str().unwrap().to_owned();
    engines(machine).into_iter().map(key).collect()
}

/// Keys that a clean-up removes, or would remove, of results with content, with the reasons.
fn collected(machine: &Machine, more: &[&str]) -> Vec<(String, String)> {
    let swept = machine
        .run(&[&["engine", "gc", "--json"], more].concat())
        .code(0)
        .json();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let removed = swept["removed"].as_array().unwrap().iter();
    let with_content = removed.filter(|one| one["kind"] != "observe");
    with_content
        .map(|one| (text(&one["key"]), text(&one["reason"])))
        .collect()
}

/// The fake engine at two URLs, as two versions of it.
struct Versions {
    _servers: [FileServer; 2],
    binaries: [Value; 2],
}

impl Versions {
    fn serve() -> Self {
        let program = fs::read(Built::debug().directory.join("fake-engine")).unwrap();
        let newer = [&program[..], b"newer"].concat();
        let digests = [&program, &newer].map(|program| sha256(program));
        let servers = [program, newer].map(FileServer::start);
        let binary = |number: usize| {
            let checksum = format!("sha256:{}", digests[number]);
            json!({"url": servers[number].url("fake-engine"), "checksum": checksum})
        };
        Self {
            binaries: [binary(0), binary(1)],
            _servers: servers,
        }
    }

    fn pool(&self, id: &str, version: usize) -> Value {
        json!({
            "id": id,
            "engine": "fixture",
            "gpu": "forbid",
            "provisioning": {
                "mode": "binary",
                "allow_binary_downloads": true,
                "binary": self.binaries[version],
            },
        })
    }
}

#[test]
fn what_was_prepared_is_listed_and_what_is_removed_is_made_again_where_it_was() {
    let machine = Machine::new();
    let shown = machine.run(&["engine", "list"]).code(0);
    shown.prints("no engine is here");
    ok(&machine, &EVERYTHING);
    machine.assert_untouched();
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["options"] = json!({"in_place": true});
    machine.write_pool(&pool);
    let prepared = || machine.run(&["prepare", "--json"]).code(0).json();
    let program = PathBuf::from(prepared()["command"]["bin"].as_str().unwrap());

    let all = engines(&machine);
    let [build, source] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(
        (&build["kind"], &source["kind"]),
        (&json!("build"), &json!("source"))
    );
    for one in &all {
        assert_eq!(one["version"], repository.commit[..12], "{one}");
        assert_eq!(one["in_use_by"], Value::Null);
        assert_eq!(one["last_used_by"], "default");
        assert!(
            one["last_used"].as_str() >= one["created"].as_str(),
            "{one}"
        );
    }
    assert_eq!(source["from"], repository.url());
    assert!(program.starts_with(build["path"].as_str().unwrap()));
    // As much as `host disk` says.
    let disk = machine.run(&["disk", "--json"]).code(0).json();
    let parts = disk["parts"].as_array().unwrap();
    let sources = parts.iter().find(|part| part["kind"] == "sources").unwrap();
    assert_eq!(sources["size_bytes"], source["size_bytes"]);
    assert_eq!(disk["gc_frees_bytes"], 0);

    let [name, key] = ["name", "key"].map(|field| build[field].as_str().unwrap());
    let shown = machine.run(&["engine", "list"]).code(0);
    shown.prints(&key[..12]);
    let run = machine.run(&["engine", "remove", "biuld"]).code(11);
    run.says("there is no engine or source `biuld` here");
    run.says(name);
    for removal in [name, &key[..6]] {
        let would = ["engine", "remove", removal, "--dry-run", "--json"];
        let would = machine.run(&would).code(0).json();
        assert_eq!(would["dry_run"], true);
        assert_eq!(would["freed_bytes"], build["size_bytes"]);
        assert!(program.exists(), "only said");
        let removed = machine.run(&["engine", "remove", removal, "--json"]);
        let removed = removed.code(0).json();
        assert_eq!(removed["removed"], would["removed"]);
        assert_eq!(removed["removed"][0]["reason"], "asked");
        assert!(!program.exists());
        machine.store().assert_sound();
        prepared();
        assert!(program.exists());
    }
    // A source of which all is built is not missed, not even without a network; for a build it is fetched.
    let _ = machine.run(&["engine", "remove", "fixture/source"]).code(0);
    let plan = machine.run(&["plan", "--offline", "--json"]).code(0).json();
    let steps = plan["steps"].as_array().unwrap();
    let states: Vec<&Value> = steps
        .iter()
        .filter(|step| step["kind"] == "checkout")
        .map(|step| &step["state"])
        .collect();
    assert_eq!(states, ["spared"]);
    let run = machine.run(&["prepare", "--offline"]).code(0);
    run.says("source is not needed: what is made of it is here");
    assert_eq!(machine.store().entries("source"), Vec::<String>::new());
    let _ = machine.run(&["engine", "remove", name]).code(0);
    prepared();
    assert!(program.exists());
    // What is named twice goes once, and one that is named wrongly keeps the others.
    let twice = [
        "engine",
        "remove",
        name,
        "fixture/source",
        &key[..6],
        "--json",
        "-n",
    ];
    let twice = machine.run(&twice).code(0).json();
    assert_eq!(twice["removed"].as_array().unwrap().len(), 2, "{twice}");
    let _ = machine.run(&["engine", "remove", name, "biuld"]).code(11);
    assert!(program.exists());
    ok(&machine, &EVERYTHING);
    for kind in ["source", "build", "observe", "archive", "tmp"] {
        assert_eq!(
            machine.store().entries(kind),
            Vec::<String>::new(),
            "{kind}"
        );
    }
    machine.assert_clean();
}

#[test]
fn what_an_engine_runs_stays_however_its_host_was_killed() {
    let stage = PoolStage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let [key] = &keys(machine)[..] else {
        panic!("one engine");
    };
    let refused = |by: &str| {
        let listed = engines(machine)[0]["in_use_by"].clone();
        assert!(listed.as_str().unwrap().contains(by), "{listed}");
        let run = machine.run(&["engine", "remove", key]).code(12);
        run.says(by);
        ok(machine, &EVERYTHING);
        assert_eq!(&keys(machine)[..], std::slice::from_ref(key));
        run
    };
    refused("the engine of pool `chat`").says("stop chat");
    daemon.running.signal(Signal::KILL);
    let _ = daemon.running.finish(e2e::RUN_LIMIT).code(137);
    refused("the engine of pool `chat`");
    // Its minder says so too, whatever became of its record.
    let records = machine.home().join("state/instances");
    let aside = machine.home().join("state/aside");
    fs::rename(&records, &aside).unwrap();
    refused("a run that prepares an engine");
    fs::remove_dir_all(&records).unwrap_or_default();
    fs::rename(&aside, &records).unwrap();
    ok(machine, &["stop", "chat"]);
    ok(machine, &["engine", "remove", key]);
    assert_eq!(keys(machine), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_clean_up_takes_what_its_pool_has_replaced_and_nothing_that_another_pool_wants() {
    let machine = Machine::new();
    let versions = Versions::serve();
    machine.write_pools(&[versions.pool("chat", 0), versions.pool("draft", 1)]);
    ok(&machine, &["prepare", "--pool", "chat"]);
    let old = keys(&machine).remove(0);
    ok(&machine, &["prepare", "--pool", "draft"]);
    assert_eq!(collected(&machine, &[]), []);
    assert_eq!(keys(&machine).len(), 2);

    machine.write_pool(&versions.pool("chat", 1));
    ok(&machine, &["engine", "remove", &newest(&machine)]);
    ok(&machine, &["provision", "--detach"]);
    let superseded = [(old.clone(), "superseded".to_owned())];
    assert_eq!(collected(&machine, &["--dry-run"]), superseded);
    assert!(keys(&machine).contains(&old), "only said");
    let disk = machine.run(&["disk", "--json"]).code(0).json();
    assert!(disk["gc_frees_bytes"].as_u64().unwrap() > 0);
    machine
        .run(&["disk"])
        .code(0)
        .prints("`host engine gc` frees them");
    assert_eq!(collected(&machine, &[]), superseded);
    let left = keys(&machine);
    assert!(left.len() == 1 && left[0] != old, "{left:?}");
    // What runs is left by every limit, and goes by one once it has ended.
    assert_eq!(collected(&machine, &["--max-size", "0"]), []);
    ok(&machine, &["stop", "--all"]);
    assert_eq!(collected(&machine, &["--older-than", "1h"]), []);
    let unused = [(left[0].clone(), "unused".to_owned())];
    assert_eq!(collected(&machine, &["--older-than", "0s"]), unused);
    let _ = machine.run(&["engine", "gc", "--max-size", "many"]).code(2);
    machine.store().assert_sound();
    machine.assert_clean();
}

/// The key of the result that was made last.
fn newest(machine: &Machine) -> String {
    let all = engines(machine);
    let newest = all.iter().max_by_key(|one| one["created"].to_string());
    newest.unwrap()["key"].as_str().unwrap().to_owned()
}

#[test]
fn a_clean_up_that_is_killed_leaves_a_sound_store() {
    let stage = PoolStage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    for millis in [4, 8, 12, 20, 40] {
        ok(machine, &["prepare"]);
        let path = PathBuf::from(engines(machine)[0]["path"].as_str().unwrap());
        // So many that their deletion takes longer than everything else.
        for number in 0..2_000 {
            fs::write(path.join(format!("tree/{number}")), "").unwrap();
        }
        let running = machine.start(machine.command(&EVERYTHING));
        // The instant is what is tried here, not something that is waited for.
        thread::sleep(Duration::from_millis(millis));
        drop(running);
        machine.store().assert_sound();
    }
    ok(machine, &["prepare"]);
    ok(machine, &EVERYTHING);
    assert_eq!(keys(machine), Vec::<String>::new());
    assert_eq!(machine.store().work(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn preparing_and_clearing_up_at_the_same_time_both_succeed() {
    let stage = PoolStage::new();
    let machine = &stage.machine;
    machine.write_pool(&stage.pool("chat", &[]));
    thread::scope(|scope| {
        scope.spawn(|| (0..3).for_each(|_| ok(machine, &["prepare"])));
        scope.spawn(|| (0..6).for_each(|_| ok(machine, &EVERYTHING)));
    });
    machine.store().assert_sound();
    ok(machine, &["provision", "--detach"]);
    ok(machine, &EVERYTHING);
    assert_eq!(keys(machine).len(), 1);
    ok(machine, &["stop", "--all"]);
    machine.assert_clean();
}
