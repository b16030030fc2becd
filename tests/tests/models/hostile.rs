//! Models that somebody made to do harm, and what only looks at models: neither changes anything.

use std::{fs, time::SystemTime};

use e2e::{FileServer, Machine, Repository, fixture_pool};
use serde_json::json;

const TINY: &[u8] = b"TINY model";

#[test]
fn what_a_model_is_called_and_says_of_itself_cannot_drive_a_terminal() {
    let machine = Machine::new();
    let harmful = |letter: char| {
        letter.is_control() && letter != '\n' || ('\u{202a}'..='\u{202e}').contains(&letter)
    };
    let name = "red\u{202e}fugg.gguf";
    fs::write(machine.work().join(name), TINY).unwrap();
    let _ = machine.run(&["model", "add", name]).code(0);
    let refused = machine.run(&["model", "add", "red\x1b[31m.gguf"]).code(3);
    assert!(!refused.stderr.contains(harmful), "{:?}", refused.stderr);
    let directory = machine.work().join("repository");
    fs::create_dir(&directory).unwrap();
    // A line of its own would pass for the host's.
    let config =
        json!({"architectures": ["x\u{9b}31m\ntrusted by     the checksum that was given"]});
    fs::write(directory.join("config.json"), config.to_string()).unwrap();
    let _ = machine
        .run(&["model", "add", "--as", "directory", "repository"])
        .code(0);
    for arguments in [&["list"][..], &["show", "red-"], &["show", "repository"]] {
        let run = machine.run(&[&["model"], arguments].concat()).code(0);
        for text in [&run.stdout, &run.stderr] {
            assert!(!text.contains(harmful), "{arguments:?}: {text:?}");
        }
        let forged = run.stdout.lines().filter(|line| line.contains("given"));
        assert!(
            forged
                .into_iter()
                .all(|line| line.starts_with("architecture")),
            "{}",
            run.stdout
        );
    }
}

#[test]
fn what_cannot_be_a_model_is_said_when_it_is_added() {
    let machine = Machine::new();
    let haiku = e2e::repository_root().join("models/haiku/haiku.gguf");
    let whole = fs::read(haiku).unwrap();
    fs::write(machine.work().join("cut.gguf"), &whole[..whole.len() / 2]).unwrap();
    let run = machine.run(&["model", "add", "cut.gguf"]).code(0);
    run.says("this may be no model");
    run.says("is cut off");
    fs::write(machine.work().join("whole.gguf"), &whole).unwrap();
    let run = machine.run(&["model", "add", "whole.gguf"]).code(0);
    assert!(!run.stderr.contains("may be no model"), "{}", run.stderr);

    let directory = machine.work().join("bomb");
    fs::create_dir(&directory).unwrap();
    // In memory each of these takes a hundred times its text.
    let bomb = format!("[{}0]", "{\"\":0},".repeat(400_000));
    fs::write(directory.join("config.json"), bomb).unwrap();
    let run = machine.run(&["model", "add", "--as", "directory", "bomb"]);
    run.code(0).says("this may be no model");
}

#[test]
fn who_only_looks_at_models_creates_nothing() {
    let machine = Machine::new();
    let server = FileServer::start(TINY.to_vec());
    let _ = machine
        .run(&["model", "add", &server.url("tiny.gguf")])
        .code(0);
    let locks = machine.home().join("store/locks");
    fs::remove_dir_all(&locks).unwrap();
    for arguments in [
        &["model", "list"][..],
        &["model", "show", "tiny"],
        &["model", "gc", "--dry-run", "--max-size", "0"],
        &["disk"],
    ] {
        let _ = machine.run(arguments).code(0);
        assert!(!locks.exists(), "{arguments:?}");
    }
}

#[test]
fn a_lock_of_a_model_that_nobody_says_the_digest_of_is_the_same_the_second_time() {
    let machine = Machine::new();
    let server = FileServer::start(TINY.to_vec());
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": server.url("tiny.gguf")});
    machine.write_pool(&pool);
    let read = || fs::read_to_string(machine.work().join("host.lock")).unwrap();
    let run = machine.run(&["lock"]).code(0);
    run.says("nobody says the digest of");
    let first = read();
    assert!(
        first.contains("[pools.default.model.files.\"tiny.gguf\"]"),
        "{first}"
    );
    let _ = machine.run(&["lock", "--check"]).code(0);
    machine.run(&["lock"]).code(0).prints("nothing to change");
    assert_eq!(read(), first);
}

#[test]
fn what_lies_in_a_cache_directory_and_is_its_owners_stays() {
    let machine = Machine::new();
    let cache = machine.work().join("models");
    let old = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
    let own = [
        "partial/own.gguf",
        "models/trees/own/m.gguf",
        "models/own.json",
        "blobs/sha256/own",
    ];
    for name in own {
        let path = cache.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "{}").unwrap();
        fs::File::open(&path).unwrap().set_times(old).unwrap();
    }
    let _ = machine
        .run(&["model", "add", "builtin:haiku", "--dir", "models"])
        .code(0);
    let run = machine.run(&["model", "gc", "--max-size", "0", "--dir", "models"]);
    run.code(0).prints("removed haiku-");
    for name in own {
        assert!(cache.join(name).exists(), "{name}");
    }
}
