//! The catalog: what is here, whether it is sound, and that nothing goes that somebody needs.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
    thread,
};

use e2e::{FileServer, Machine, RUN_LIMIT, Repository, fixture_pool, sha256};
use rustix::process::Signal;
use serde_json::{Value, json};

const TINY: &[u8] = b"TINY model";

fn ok(machine: &Machine, arguments: &[&str]) {
    let _ = machine.run(arguments).code(0);
}

fn models(machine: &Machine) -> Vec<Value> {
    let list = machine.run(&["model", "list", "--json"]).code(0).json();
    assert_eq!(list["schema"], 1);
    list["models"].as_array().unwrap().clone()
}

fn ids(machine: &Machine) -> Vec<String> {
    let id = |model: Value| model["id"].as_str().unwrap().to_owned();
    models(machine).into_iter().map(id).collect()
}

/// Adds a model and gives its id and path.
fn add(machine: &Machine, reference: &str) -> (String, PathBuf) {
    let added = machine
        .run(&["model", "add", reference, "--json"])
        .code(0)
        .json();
    let text = |field: &str| added[field].as_str().unwrap().to_owned();
    (text("id"), text("path").into())
}

#[test]
fn what_is_added_is_listed_shown_and_verified() {
    let machine = Machine::new();
    ok(&machine, &["model", "list"]);
    machine.assert_untouched();
    let server = FileServer::start(TINY.to_vec());
    let url = server.url("tiny.gguf");
    let digest = format!("sha256:{}", sha256(TINY));
    let run = machine
        .run(&["model", "add", &url, "--checksum", &digest])
        .code(0);
    let printed = run
        .stdout
        .lines()
        .map(|line| line.split_once(' ').unwrap().0);
    assert_eq!(
        printed.collect::<Vec<_>>(),
        ["id", "path", "digest", "size"]
    );

    let [model] = &models(&machine)[..] else {
        panic!("one model");
    };
    assert_eq!(model["id"], format!("tiny-{}", &sha256(TINY)[..12]));
    assert_eq!(model["references"][0]["reference"], *url);
    assert_eq!(model["digest"], *digest);
    assert_eq!(model["size_bytes"], TINY.len());
    assert_eq!(model["provenance"]["trust"], "checksum");
    assert_eq!(model["state"], "active");
    assert!(model["last_verified"].is_string(), "{model}");

    // By the beginning of its id, by its reference, by its digest.
    for name in ["tiny", &url, &digest] {
        let shown = machine
            .run(&["model", "show", name, "--json"])
            .code(0)
            .json();
        assert_eq!(shown["path"], model["path"], "{name}");
    }
    let shown = machine.run(&["model", "show", "tiny"]).code(0);
    assert!(
        shown.stdout.contains("the checksum that was given"),
        "{}",
        shown.stdout
    );
    let run = machine.run(&["model", "show", "tnyi"]).code(11);
    run.says(&format!("did you mean {}?", model["id"].as_str().unwrap()));
    ok(&machine, &["model", "verify"]);

    // What is here needs nobody.
    let requests = server.requests();
    ok(&machine, &["model", "add", &url, "--offline"]);
    assert_eq!(server.requests(), requests);
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn a_damaged_file_is_named_and_adding_it_again_mends_it() {
    let machine = Machine::new();
    let server = FileServer::start(TINY.to_vec());
    let url = server.url("tiny.gguf");
    let (id, path) = add(&machine, &url);
    // A disk that rots changes neither size nor time: only reading tells.
    let before = fs::metadata(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, b"tINY model").unwrap();
    fs::File::open(&path)
        .unwrap()
        .set_times(fs::FileTimes::new().set_modified(before.modified().unwrap()))
        .unwrap();
    let run = machine.run(&["model", "verify", &id]).code(9);
    run.says(&format!("{id}: tiny.gguf"));
    run.says(&format!("model add {url}"));
    let report = machine.run(&["model", "verify", "--json"]).code(9);
    assert!(
        report.stdout.contains("\"sound\":false"),
        "{}",
        report.stdout
    );
    add(&machine, &url);
    assert_eq!(fs::read(&path).unwrap(), TINY);
    ok(&machine, &["model", "verify", &id]);
    machine.store().assert_sound();
}

#[test]
fn with_verify_what_looks_sound_is_hashed_again_before_it_is_used() {
    let machine = Machine::new();
    let server = FileServer::start(TINY.to_vec());
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf")});
    machine.write_pool(&pool);
    ok(&machine, &["prepare"]);
    let path = PathBuf::from(models(&machine)[0]["path"].as_str().unwrap());
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, b"tINY model").unwrap();
    // As if the file system had lost what it wrote: by all that is noted the file was never touched.
    let notes = path.with_extension("json");
    let mut noted: Value = serde_json::from_slice(&fs::read(&notes).unwrap()).unwrap();
    let now = fs::metadata(&path).unwrap();
    let identity = &mut noted["identity"];
    identity["modified_ns"] = json!(now.mtime() * 1_000_000_000 + now.mtime_nsec());
    identity["changed_ns"] = json!(now.ctime() * 1_000_000_000 + now.ctime_nsec());
    fs::write(&notes, noted.to_string()).unwrap();

    ok(&machine, &["prepare"]);
    assert_eq!(fs::read(&path).unwrap(), b"tINY model", "nobody read it");
    machine
        .run(&["prepare", "--verify"])
        .code(0)
        .says("is damaged: fetching again");
    assert_eq!(fs::read(&path).unwrap(), TINY);
    machine.store().assert_sound();
}

#[test]
fn a_retired_model_starts_nothing_and_goes_with_the_next_clean_up() {
    let machine = Machine::new();
    let server = FileServer::start(TINY.to_vec());
    let url = server.url("tiny.gguf");
    let (id, path) = add(&machine, &url);
    ok(&machine, &["model", "retire", &id]);
    assert_eq!(models(&machine)[0]["state"], "retired");
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": url});
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(4);
    run.says("was retired here");
    run.says(&format!("model add {url}"));

    let would = machine
        .run(&["model", "gc", "--dry-run", "--json"])
        .code(0)
        .json();
    assert_eq!(would["removed"][0]["id"], *id);
    assert_eq!(would["removed"][0]["reason"], "retired");
    assert_eq!(would["freed_bytes"], TINY.len());
    assert!(path.exists(), "only said");
    let disk = machine.run(&["disk", "--json"]).code(0).json();
    assert_eq!(disk["gc_frees_bytes"], TINY.len());
    // Taken back, it stays.
    add(&machine, &url);
    ok(&machine, &["model", "gc"]);
    assert!(path.exists());
    ok(&machine, &["model", "retire", &id]);
    ok(&machine, &["model", "gc"]);
    assert!(!path.exists());
    assert_eq!(ids(&machine), Vec::<String>::new());
    machine.store().assert_sound();
}

#[test]
fn the_least_recently_used_go_until_the_rest_fits() {
    let machine = Machine::new();
    let mut all = Vec::new();
    for name in ["one", "two", "three"] {
        let server = FileServer::start(format!("model {name}, padded to a size").into_bytes());
        all.push((add(&machine, &server.url(&format!("{name}.gguf"))), server));
    }
    // Used again, the first is the latest.
    let (_, server) = &all[0];
    add(&machine, &server.url("one.gguf"));
    let size: u64 = models(&machine)
        .iter()
        .map(|it| it["size_bytes"].as_u64().unwrap())
        .sum();
    let limit = (size - 1).to_string();
    let swept = machine
        .run(&["model", "gc", "--max-size", &limit, "--json"])
        .code(0)
        .json();
    assert_eq!(swept["removed"][0]["id"], *all[1].0.0, "{swept}");
    assert_eq!(swept["removed"].as_array().unwrap().len(), 1);
    assert_eq!(swept["removed"][0]["reason"], "size");
    let kept = ids(&machine);
    assert!(
        kept.contains(&all[0].0.0) && kept.contains(&all[2].0.0),
        "{kept:?}"
    );
    ok(&machine, &["model", "gc", "--older-than", "1h"]);
    assert_eq!(ids(&machine).len(), 2);
    ok(&machine, &["model", "gc", "--older-than", "0s"]);
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    let _ = machine.run(&["model", "gc", "--max-size", "many"]).code(2);
}

#[test]
fn a_model_that_an_engine_reads_is_not_removed() {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let server = FileServer::start(TINY.to_vec());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf")});
    machine.write_pool(&pool);
    let running = machine.provision(&[]);
    let [id] = &ids(&machine)[..] else {
        panic!("one model");
    };
    let by = models(&machine)[0]["in_use_by"].clone();
    assert!(by.as_str().unwrap().contains("engine of pool"), "{by}");
    let run = machine.run(&["model", "remove", id]).code(12);
    run.says("is in use by the engine of pool");
    ok(&machine, &["model", "retire", id]);
    ok(
        &machine,
        &["model", "gc", "--max-size", "0", "--older-than", "0s"],
    );
    assert_eq!(ids(&machine), std::slice::from_ref(id));
    machine.store().assert_sound();
    let _ = running.end(Signal::INT).code(130);
    ok(&machine, &["model", "remove", id]);
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_model_that_an_engine_of_another_home_reads_is_not_removed_however_that_home_is_killed() {
    let (one, other) = (Machine::new(), Machine::new());
    let shared = one.root().join("shared").display().to_string();
    let repository = Repository::create(one.root());
    let server = FileServer::start(TINY.to_vec());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf"), "cache_dir": shared});
    one.write_pool(&pool);
    let of_shared = |more: &[&str]| other.run(&[&["model", "--dir", &shared], more].concat());
    let listed = || of_shared(&["list", "--json"]).code(0).json()["models"].clone();
    // A kept engine, and one that ends with its host.
    for detached in [true, false] {
        let running = (!detached).then(|| one.provision(&[]));
        if detached {
            ok(&one, &["provision", "--detach"]);
        }
        let models = listed();
        let [model] = &models.as_array().unwrap()[..] else {
            panic!("one model");
        };
        let id = model["id"].as_str().unwrap();
        let by = model["in_use_by"].as_str().unwrap();
        assert!(by.contains("engine of another home"), "{by}");
        let run = of_shared(&["remove", id]).code(12);
        run.says("is in use by an engine of another home");
        let _ = of_shared(&["retire", id]).code(0);
        let _ = of_shared(&["gc", "--max-size", "0", "--older-than", "0s"]).code(0);
        assert!(std::path::Path::new(model["path"].as_str().unwrap()).exists());
        match running {
            None => ok(&one, &["stop", "--all"]),
            Some(running) => drop(running.end(Signal::KILL).code(137)),
        }
        one.assert_clean();
        let _ = of_shared(&["gc"]).code(0);
        assert_eq!(listed(), json!([]));
    }
    other.assert_clean();
}

#[test]
fn a_users_own_file_is_used_where_it_lies_and_never_touched() {
    let machine = Machine::new();
    let path = machine.write("tiny.gguf", "TINY model");
    let before = fs::metadata(&path).unwrap();
    let (id, used) = add(&machine, "./tiny.gguf");
    assert_eq!(used.canonicalize().unwrap(), path.canonicalize().unwrap());
    assert_eq!(
        machine.store().blobs(),
        Vec::<String>::new(),
        "a copy was made"
    );
    ok(&machine, &["model", "verify", &id]);
    ok(&machine, &["model", "remove", &id]);
    ok(&machine, &["model", "add", "./tiny.gguf"]);
    ok(
        &machine,
        &["model", "gc", "--max-size", "0", "--older-than", "0s"],
    );
    let after = fs::metadata(&path).unwrap();
    let seen = |it: &fs::Metadata| (it.ino(), it.mode(), it.mtime(), it.ctime(), it.nlink());
    assert_eq!(seen(&before), seen(&after));
    assert_eq!(fs::read(&path).unwrap(), TINY);

    // Changed since, it is not what was added.
    ok(&machine, &["model", "add", "./tiny.gguf"]);
    machine.write("tiny.gguf", "another one");
    machine.run(&["model", "verify"]).code(9).says("tiny.gguf");
}

#[test]
fn a_users_own_file_is_in_the_catalog_once_a_pool_uses_it_and_its_change_is_noticed() {
    let machine = Machine::new();
    let path = machine.write("tiny.gguf", "TINY model");
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": "./tiny.gguf"});
    machine.write_pool(&pool);
    ok(&machine, &["prepare"]);
    let first = format!("sha256:{}", sha256(TINY));
    let listed = &models(&machine)[0];
    assert_eq!(listed["digest"], first);
    assert_eq!(listed["files"][0]["place"], path.to_str().unwrap());
    assert_eq!(listed["provenance"]["trust"], "first-use");
    ok(&machine, &["lock"]);

    machine.write("tiny.gguf", "another one");
    let now = format!("sha256:{}", sha256(b"another one"));
    let run = machine.run(&["prepare", "--locked"]).code(15);
    run.says(&first);
    run.says(&now);
    fs::remove_file(machine.work().join("host.lock")).unwrap();
    pool["provisioning"]["model"] = json!({"ref": "./tiny.gguf", "checksum": first});
    machine.write_pool(&pool);
    let run = machine.run(&["prepare"]).code(9);
    run.says("tiny.gguf changed since 20");
    pool["provisioning"]["model"] = json!({"ref": "./tiny.gguf"});
    machine.write_pool(&pool);
    let run = machine.run(&["prepare"]).code(0);
    run.says("tiny.gguf changed since 20");
    run.says(&format!("it was {first} and is {now} now"));
    let run = machine.run(&["prepare"]).code(0);
    assert!(!run.stderr.contains("changed since"), "{}", run.stderr);
    let [model] = &models(&machine)[..] else {
        panic!("one model");
    };
    assert_eq!(model["digest"], now);
    ok(
        &machine,
        &["model", "remove", model["id"].as_str().unwrap()],
    );
    assert_eq!(fs::read(&path).unwrap(), b"another one");
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn a_users_own_directory_is_verified_file_by_file() {
    let machine = Machine::new();
    machine.write("repository/config.json", "{}");
    let weights = machine.write("repository/model.safetensors", "weights");
    let arguments = [
        "model",
        "add",
        "./repository",
        "--as",
        "directory",
        "--json",
    ];
    let added = machine.run(&arguments).code(0).json();
    assert!(
        added["path"].as_str().unwrap().ends_with("repository"),
        "{added}"
    );
    ok(&machine, &["model", "verify", "repository"]);
    fs::write(&weights, "Weights").unwrap();
    let run = machine.run(&["model", "verify", "repository"]).code(9);
    run.says("model.safetensors");
    let place = machine.work().join("repository");
    let place = place.to_str().unwrap();
    run.says(&format!("model add --as directory {place}"));
    ok(&machine, &["model", "add", "--as", "directory", place]);
    ok(&machine, &["model", "verify", "repository"]);
    ok(&machine, &["model", "remove", "repository"]);
    assert_eq!(fs::read(&weights).unwrap(), b"Weights");
}

#[test]
fn two_that_want_one_model_download_it_once() {
    let machine = Machine::new();
    let content = vec![7; 24 << 20];
    let server = FileServer::start(content.clone());
    let url = server.url("large.bin");
    let checksum = format!("sha256:{}", sha256(&content));
    let commands = || machine.command(&["model", "add", &url, "--checksum", &checksum]);
    let both = [machine.start(commands()), machine.start(commands())];
    let downloads: usize = both
        .into_iter()
        .map(|running| {
            let run = running.finish(RUN_LIMIT).code(0);
            run.stderr.matches("downloaded 24").count()
        })
        .sum();
    assert_eq!(downloads, 1);
    assert_eq!(ids(&machine).len(), 1);
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn adding_and_clearing_up_at_the_same_time_leave_a_sound_store() {
    let machine = Machine::new();
    let servers: Vec<FileServer> = (0..4_u8)
        .map(|number| FileServer::start(vec![number; 1 << 20]))
        .collect();
    thread::scope(|scope| {
        for (number, server) in servers.iter().enumerate() {
            let machine = &machine;
            scope.spawn(move || {
                for _ in 0..3 {
                    let (_, path) = add(machine, &server.url(&format!("m{number}.bin")));
                    // It may be gone again by now, but never be something else.
                    if let Ok(content) = fs::read(path) {
                        assert_eq!(content, vec![u8::try_from(number).unwrap(); 1 << 20]);
                    }
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..8 {
                ok(&machine, &["model", "gc", "--max-size", "0"]);
            }
        });
    });
    machine.store().assert_sound();
    for model in models(&machine) {
        let path = PathBuf::from(model["path"].as_str().unwrap());
        assert!(path.exists(), "{model}");
    }
    ok(&machine, &["model", "verify"]);
    ok(&machine, &["model", "gc", "--max-size", "0"]);
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn killed_at_any_instant_the_next_run_succeeds_and_clears_up() {
    let machine = Machine::new();
    let content = vec![9; 8 << 20];
    let server = FileServer::start(content.clone());
    let url = server.url("large.bin");
    for millis in [5, 20, 40, 60, 80, 120, 160, 240] {
        let running = machine.start(machine.command(&["model", "add", &url]));
        // The instant is what is tried here, not something that is waited for.
        thread::sleep(std::time::Duration::from_millis(millis));
        drop(running);
        machine.store().assert_sound();
        ok(&machine, &["model", "gc", "--max-size", "0"]);
    }
    let (_, path) = add(&machine, &url);
    assert_eq!(fs::read(path).unwrap(), content);
    ok(&machine, &["model", "verify"]);
    machine.store().assert_sound();
}

#[test]
fn a_policy_can_refuse_what_nobody_vouches_for() {
    let machine = Machine::new();
    let server = FileServer::start(TINY.to_vec());
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf")});
    let file = json!({"policy": {"allow_unverified_models": false}, "pools": [pool]});
    machine.write("pools.yaml", &file.to_string());
    let run = machine.run(&["prepare"]).code(4);
    run.says("neither a checksum nor its source");
    run.says("allow_unverified_models");
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    let mut file = file;
    file["pools"][0]["provisioning"]["model"]["checksum"] =
        format!("sha256:{}", sha256(TINY)).into();
    machine.write("pools.yaml", &file.to_string());
    ok(&machine, &["prepare"]);
}

#[test]
fn what_takes_space_is_shown_by_kind_and_name() {
    let machine = Machine::new();
    let server = FileServer::start(vec![1; 1 << 20]);
    let (id, _) = add(&machine, &server.url("m.bin"));
    let disk = machine.run(&["disk", "--json"]).code(0).json();
    let part = |kind: &str| {
        let parts = disk["parts"].as_array().unwrap();
        parts
            .iter()
            .find(|part| part["kind"] == kind)
            .unwrap()
            .clone()
    };
    assert_eq!(part("models")["items"][0]["name"], *id);
    assert!(part("models")["size_bytes"].as_u64().unwrap() >= 1 << 20);
    for kind in ["engines", "sources", "partial downloads", "logs", "images"] {
        assert!(part(kind)["size_bytes"].is_number(), "{kind}");
    }
    let shown = machine.run(&["disk"]).code(0).stdout;
    assert!(shown.contains(&id) && shown.contains("total"), "{shown}");
}
