//! Programs by URL and checksum.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use e2e::{FileServer, Machine, Reply, sha256, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    archive::{self, Entry},
    assert_nothing_kept, pool, state,
};

const ALLOW: &str = "--allow-binary-downloads";

/// A machine whose pool downloads this file from these mirrors, in their order.
fn machine(name: &str, content: &[u8], mirrors: &[&FileServer]) -> Machine {
    let machine = Machine::new();
    let urls: Vec<String> = mirrors.iter().map(|mirror| mirror.url(name)).collect();
    let (first, others) = urls.split_first().unwrap();
    let checksum = format!("sha256:{}", sha256(content));
    let settings = json!({"url": first, "mirrors": others, "checksum": checksum});
    machine.write_pool(&pool("binary", settings));
    machine
}

/// The first byte asked for, of each request.
fn starts(server: &FileServer) -> Vec<usize> {
    server.asked().iter().map(e2e::Asked::start).collect()
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
    let mirror = FileServer::start(release.clone());
    let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &release, &[&mirror]);
    let plan = machine.run(&["plan", "--json"]).code(0).json();
    let (state_shown, detail) = state(&plan, "download");
    assert_eq!(state_shown, "refused", "{detail}");
    assert!(detail.contains(ALLOW), "{detail}");
    machine.assert_untouched();
    let run = machine.run(&["provision"]).code(4);
    run.says("policy does not allow downloading programs");
    run.says(ALLOW);
    assert_eq!(mirror.requests(), 0);
    // The model would have been first: nothing was done before the refusal.
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_release_is_fetched_once_and_runs() {
    let release = archive::release();
    let mirror = FileServer::start(release.clone());
    let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &release, &[&mirror]);
    let handoff = up_and_down(&machine);
    let short = &sha256(&release)[..12];
    assert_eq!(handoff["engine_version"], format!("b7000+sha256:{short}"));
    assert_eq!(handoff["provisioning_mode"], "binary");
    assert_eq!(starts(&mirror), [0]);
    let prepared = machine.run(&["prepare", "--json", ALLOW]).code(0).json();
    let program = prepared["command"]["bin"].as_str().unwrap();
    let record = &prepared["records"]["download"];
    assert!(record.to_string().contains(&sha256(&release)), "{record}");
    let origin = prepared["build_record"]["origin"].as_str().unwrap();
    assert!(origin.ends_with(&sha256(&release)), "{origin}");
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    assert_eq!(mode(program), 0o555);
    assert_eq!(mode(&program.replace("llama-server", "LICENSE")), 0o444);
    // What is here already needs neither leave nor network.
    let _ = machine.run(&["prepare", "--offline"]).code(0);
    assert_eq!(starts(&mirror), [0]);
}

#[test]
fn it_is_locked_by_its_digest_and_another_one_is_refused_by_name() {
    let release = archive::release();
    let mirror = FileServer::start(release.clone());
    let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &release, &[&mirror]);
    let _ = machine.run(&["lock"]).code(0);
    let path = machine.work().join("host.lock");
    let locked = fs::read_to_string(&path).unwrap();
    let digest = format!("sha256:{}", sha256(&release));
    let url = mirror.url("llama-b7000-bin-ubuntu-x64.tar.zst");
    let line = format!("\"{url}\" = \"{digest}\"");
    assert!(locked.contains(&line), "{locked}");
    let _ = machine.run(&["prepare", "--locked", ALLOW]).code(0);

    let other = format!("sha256:{}", sha256(b"other"));
    let edited = line.replace(&digest, &other);
    fs::write(&path, locked.replace(&line, &edited)).unwrap();
    let run = machine.run(&["prepare", "--locked", ALLOW]).code(15);
    run.says(&format!("downloads.{url}"));
    run.says(&format!("locked  {other}"));
    run.says(&format!("now     {digest}"));
}

#[test]
fn a_mirror_stands_in_for_what_is_gone_or_something_else() {
    let release = archive::zipped_release();
    let name = "llama-b7000-bin-ubuntu-x64.zip";
    let gone = FileServer::start(Vec::new());
    gone.spoil(|_, _| Reply::status(404));
    let other = FileServer::start(b"something else".to_vec());
    let good = FileServer::start(release.clone());
    let machine = machine(name, &release, &[&gone, &other, &good]);
    up_and_down(&machine);
    assert_eq!(gone.requests(), 1);
    assert_eq!(starts(&good), [0]);
}

#[test]
fn another_checksum_is_an_error_and_nothing_is_kept() {
    let release = archive::release();
    let mirror = FileServer::start(release);
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
    let cut = FileServer::start(release.clone());
    cut.spoil(move |asked, reply| match asked.number {
        0 => reply.cut_after(half),
        _ => reply,
    });
    up_and_down(&machine(name, &release, &[&cut]));
    assert_eq!(starts(&cut), [0, half]);

    let stalls = FileServer::start(release.clone());
    stalls.spoil(move |asked, reply| match asked.number {
        0 => reply.silent_after(half),
        _ => reply,
    });
    let machine = machine(name, &release, &[&stalls]);
    let running = machine.start(machine.command(&["provision", ALLOW]));
    wait_for("what came to be kept", Duration::from_secs(30), || {
        let kept = machine.store().kept();
        if kept == half as u64 {
            Ok(())
        } else {
            Err(kept)
        }
    });
    let _ = running.end(Signal::KILL).code(137);
    up_and_down(&machine);
    assert_eq!(starts(&stalls), [0, half]);
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
        let mirror = FileServer::start(content.clone());
        let machine = machine("llama-b7000-bin-ubuntu-x64.tar.zst", &content, &[&mirror]);
        let run = machine.run(&["provision", ALLOW]).code(9);
        run.says(reason);
        assert_nothing_kept(&machine);
        assert!(!machine.home().join("store/escaped").exists());
    }
}
