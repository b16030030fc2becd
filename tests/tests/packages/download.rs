//! Programs by URL and checksum.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use e2e::{Machine, sha256, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    archive::{self, Entry},
    assert_nothing_kept,
    mirror::{Manner, Mirror},
    pool, state,
};

const ALLOW: &str = "--allow-binary-downloads";

/// A machine whose pool downloads this file from these mirrors, in their order.
fn machine(name: &str, content: &[u8], mirrors: &[&Mirror]) -> Machine {
    let machine = Machine::new();
    let urls: Vec<String> = mirrors.iter().map(|mirror| mirror.url(name)).collect();
    let (first, others) = urls.split_first().unwrap();
    let checksum = format!("sha256:{}", sha256(content));
    let settings = json!({"url": first, "mirrors": others, "checksum": checksum});
    machine.write_pool(&pool("binary", settings));
    machine
}

/// Provisions to ready, looks that it answers, and stops.
fn up_and_down(machine: &Machine) -> Value {
    let mut running = machine.provision(&[ALLOW]);
    let url = running.wait_ready();
    assert_eq!(e2e::http_get(&format!("{url}/health")).unwrap().0, 200);
    let handoff = machine.handoff();
    let _ = running.end(Signal::INT).code(130);
    machine.store().assert_sound();
    machine.assert_clean();
    handoff
}

#[test]
fn without_leave_nothing_is_asked_for_and_the_flag_is_named() {
    let release = archive::release();
    let mirror = Mirror::start(release.clone(), Manner::Whole);
    let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &release, &[&mirror]);
    let plan = machine.run(&["plan", "--json"]).code(0).json();
    let (state_shown, detail) = state(&plan, "download");
    assert_eq!(state_shown, "refused", "{detail}");
    assert!(detail.contains(ALLOW), "{detail}");
    machine.assert_untouched();
    let run = machine.run(&["provision"]).code(4);
    run.says("policy does not allow downloading programs");
    run.says(ALLOW);
    assert_eq!(mirror.asked(), Vec::<usize>::new());
    // The model would have been first: nothing was done before the refusal.
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_release_is_fetched_once_and_runs() {
    let release = archive::release();
    let mirror = Mirror::start(release.clone(), Manner::Whole);
    let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &release, &[&mirror]);
    let handoff = up_and_down(&machine);
    let short = &sha256(&release)[..12];
    assert_eq!(handoff["engine_version"], format!("b7000+sha256:{short}"));
    assert_eq!(handoff["provisioning_mode"], "binary");
    assert_eq!(mirror.asked(), [0]);
    let prepared = machine.run(&["prepare", "--json", ALLOW]).code(0).json();
    let program = prepared["command"]["bin"].as_str().unwrap();
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(program), 0o555);
    assert_eq!(mode(&program.replace("llama-server", "LICENSE")), 0o444);
    // What is here already needs neither leave nor network.
    let _ = machine.run(&["prepare", "--offline"]).code(0);
    assert_eq!(mirror.asked(), [0]);
}

#[test]
fn a_mirror_stands_in_for_what_is_gone_or_something_else() {
    let release = archive::zipped_release();
    let name = "llama-b7000-bin-ubuntu-x64.zip";
    let gone = Mirror::start(Vec::new(), Manner::Missing);
    let other = Mirror::start(b"something else".to_vec(), Manner::Whole);
    let good = Mirror::start(release.clone(), Manner::Whole);
    let machine = machine(name, &release, &[&gone, &other, &good]);
    up_and_down(&machine);
    assert_eq!(gone.asked().len(), 1);
    assert_eq!(good.asked(), [0]);
}

#[test]
fn another_checksum_is_an_error_and_nothing_is_kept() {
    let release = archive::release();
    let mirror = Mirror::start(release, Manner::Whole);
    let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", b"other", &[&mirror]);
    let run = machine.run(&["provision", ALLOW]).code(9);
    run.says(&sha256(b"other"));
    assert_nothing_kept(&machine);
}

#[test]
fn what_broke_off_is_resumed_in_the_same_run_and_in_the_next() {
    let release = archive::release();
    let half = release.len() / 2;
    let name = "llama-b7000-bin-ubuntu-x64.tar.zst";
    let cut = Mirror::start(release.clone(), Manner::Cut);
    up_and_down(&machine(name, &release, &[&cut]));
    assert_eq!(cut.asked(), [0, half]);

    let stalls = Mirror::start(release.clone(), Manner::Stall);
    let machine = machine(name, &release, &[&stalls]);
    let running = machine.start(machine.command(&["provision", ALLOW]));
    let partial = machine
        .home()
        .join(format!("store/partial/{}.partial", sha256(&release)));
    wait_for(
        "half of the download",
        Duration::from_secs(30),
        || match fs::metadata(&partial).map(|found| found.len()) {
            Ok(size) if size == half as u64 => Ok(()),
            other => Err(format!("{other:?}")),
        },
    );
    let _ = running.end(Signal::KILL);
    up_and_down(&machine);
    assert_eq!(stalls.asked(), [0, half]);
}

#[test]
fn evil_archives_are_refused_with_nothing_left_behind() {
    let good: Entry<'_> = ("llama-b7000/llama-server", 0o755, b"#!/bin/sh\n");
    let escape = archive::tar(&[good, ("../../../escaped", 0o644, b"x")]);
    let absolute = archive::tar(&[good, ("/tmp/escaped", 0o644, b"x")]);
    let zeros = vec![0; 300 << 20];
    let bomb = archive::tar(&[good, ("zeros", 0o644, &zeros)]);
    for (tar, reason) in [
        (escape, "`../../../escaped` leads out of it"),
        (absolute, "`/tmp/escaped` leads out of it"),
        (bomb, "it unpacks to more than"),
    ] {
        let content = archive::zstd(&tar);
        let mirror = Mirror::start(content.clone(), Manner::Whole);
        let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &content, &[&mirror]);
        let run = machine.run(&["provision", ALLOW]).code(9);
        run.says(reason);
        assert_nothing_kept(&machine);
        assert!(!machine.home().join("store/escaped").exists());
    }
}
