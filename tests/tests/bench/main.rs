//! What somebody waits for, against something run beside it. The table is in docs/measurements.md;
//! what needs a real engine is measured by the target `llamacpp`.

mod containers;
mod models;
mod pools;

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use e2e::{Built, Machine, Pairs, Repository, fixture_pool, resident_bytes, succeeds, timed};
use rustix::process::Signal;

/// As long as starting any process takes.
fn nothing() {
    succeeds(Command::new("true"));
}

#[test]
fn the_version_is_there_at_once() {
    let machine = Machine::with(Built::release());
    Pairs::assert_at_most(
        "`host --version` against `true`",
        5.0,
        31,
        || timed(|| succeeds(machine.command(&["--version"]))),
        || timed(nothing),
    );
}

/// A pool of the fixture engine for the release build, which has no fixture provider beside it.
fn prepared() -> (Machine, Repository, String) {
    let machine = Machine::with(Built::release());
    let repository = Repository::create(machine.root());
    machine.write_pool(&fixture_pool(&repository));
    let directory = machine.fixture_provider();
    let _ = machine
        .run(&["prepare", "--provider-path", &directory])
        .code(0);
    (machine, repository, directory)
}

#[test]
fn a_warm_plan_takes_next_to_nothing() {
    let (machine, _repository, providers) = prepared();
    let arguments = ["plan", "--provider-path", &providers];
    Pairs::assert_at_most(
        "warm `host plan` against `true`",
        30.0,
        31,
        || timed(|| succeeds(machine.command(&arguments))),
        || timed(nothing),
    );
}

#[test]
fn host_and_keeper_stay_small() {
    let (machine, _repository, providers) = prepared();
    let running = machine.provision(&["--provider-path", &providers]);
    let pids: Vec<u32> = machine
        .processes()
        .iter()
        .filter(|one| one.pid == running.pid() || one.command.starts_with("host keeper"))
        .map(|one| one.pid)
        .collect();
    assert!(pids.len() >= 2, "host and keeper: {pids:?}");
    let bytes = resident_bytes(&pids);
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    println!("measured: host and keeper are {mebibytes:.1} MiB resident, limit 25 MB");
    assert!(bytes <= 25_000_000, "{bytes} bytes");
    let _ = running.end(Signal::INT).code(130);
    machine.assert_clean();
}

#[test]
fn a_hundred_providers_are_listed_as_fast_as_none() {
    let machine = Machine::with(Built::release());
    let library = Built::debug()
        .directory
        .join("libengine_provider_fixture.so");
    let many = machine.root().join("many");
    let none = machine.root().join("none");
    fs::create_dir(&many).unwrap();
    fs::create_dir(&none).unwrap();
    for number in 0..100 {
        let copy = many.join(format!("libengine_provider_p{number}.so"));
        fs::copy(&library, &copy).unwrap();
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let list = |directory: &std::path::Path| {
        let directory = directory.to_str().unwrap();
        machine.command(&["provider", "list", "--provider-path", directory])
    };
    let listed = list(&many).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    assert!(
        listed.matches("libengine_provider_p").count() >= 100,
        "{listed}"
    );
    Pairs::assert_at_most(
        "listing 100 providers against none",
        5.0,
        31,
        || timed(|| succeeds(list(&many))),
        || timed(|| succeeds(list(&none))),
    );
}
