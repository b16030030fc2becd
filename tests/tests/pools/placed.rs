//! Where replicas go: main memory and GPUs are looked at before each start. The driver's library is a fake
//! one, which shows two cards of 24 GiB, half of them free.

use std::{
    fs,
    path::{Path, PathBuf},
};

use e2e::{RUN_LIMIT, fake_driver, fake_driver_of_engines_that_take, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Daemon, Stage, kill, pid};

const GIB: u64 = 1 << 30;

/// What the fixture provider takes for proof that its engine computes on a GPU.
const PROOF: [&str; 2] = ["--print-line", "sees device 0"];

/// Gives the machine of a stage its cards; where the driver's library lies.
fn with_cards(stage: &mut Stage) -> PathBuf {
    let library = fake_driver(stage.machine.root());
    lend(stage, &library);
    library
}

fn lend(stage: &mut Stage, library: &Path) {
    let directory = library.parent().unwrap().to_str().unwrap();
    stage.machine.lend("LD_LIBRARY_PATH", directory);
}

fn on_gpus(stage: &Stage, id: &str, policy: &str, vram_bytes: u64) -> Value {
    let mut pool = stage.pool(id, &PROOF);
    pool["gpu"] = json!(policy);
    pool["options"] = json!({"vram_bytes": vram_bytes});
    pool
}

/// A replica's last failure: its kind, and what is said.
fn refused(replica: &Value) -> (&str, &str) {
    let error = &replica["last_error"];
    (
        error["kind"].as_str().unwrap_or_default(),
        error["message"].as_str().unwrap_or_default(),
    )
}

#[test]
fn one_that_takes_more_main_memory_than_there_is_is_refused_with_both_numbers() {
    let stage = Stage::new();
    let mut pool = stage.pool("chat", &[]);
    pool["options"] = json!({"memory_bytes": 1024 * 1024 * GIB});
    let mut modest = stage.pool("modest", &[]);
    modest["options"] = json!({"memory_bytes": 1 << 20});
    stage.machine.write_pools(&[pool, modest]);
    let daemon = stage.serve(&[]);
    daemon.wait_state("modest", "ready");
    let waits = daemon.wait_state("chat", "backing-off");
    let (kind, message) = refused(&waits);
    assert_eq!(kind, "no-memory", "{waits:#}");
    assert!(
        message.contains("takes 1024.0 TiB of main memory, and ")
            && message.contains(" are available"),
        "{message}"
    );
    let up = stage.machine.run(&["up", "chat"]).code(10);
    up.says("of main memory").says("host ps");
    let _ = daemon.end(Signal::TERM, 0);
}

/// Main memory that is available now, in bytes.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn of_two_that_start_together_and_do_not_both_fit_the_second_waits_for_the_first() {
    let stage = Stage::new();
    let loaded = stage.machine.work().join("loaded");
    let mut pool = stage.pool("chat", &["--load-until", loaded.to_str().unwrap()]);
    pool["replicas"] = json!(2);
    // The engine takes nothing: once it is ready there is room again.
    pool["options"] = json!({"memory_bytes": available() / 5 * 3});
    stage.machine.write_pool(&pool);
    let daemon = stage.serve(&[]);
    let replicas = |status: &Value| status["replicas"].as_array().unwrap().clone();
    let refused = wait_for("a refusal", RUN_LIMIT, || {
        let status = daemon.status("chat");
        let refused = replicas(&status).into_iter();
        let mut refused = refused.filter(|it| it["last_error"]["kind"] == "no-memory");
        refused.next().ok_or(status)
    });
    let message = refused["last_error"]["message"].as_str().unwrap();
    assert!(
        message.contains("of them promised to engines that are starting"),
        "{message}"
    );
    fs::write(&loaded, "").unwrap();
    wait_for("both", RUN_LIMIT, || {
        let status = daemon.status("chat");
        let ready = replicas(&status).iter().all(|it| it["state"] == "ready");
        if ready { Ok(()) } else { Err(status) }
    });
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_pool_that_requires_a_gpu_waits_for_one_and_one_that_prefers_it_does_not() {
    let stage = Stage::new();
    let pools = ["require", "prefer"].map(|policy| on_gpus(&stage, policy, policy, GIB));
    stage.machine.write_pools(&pools);
    let daemon = stage.serve(&[]);
    let without = daemon.wait_state("prefer", "ready");
    assert!(without["vram_bytes"].is_null(), "{without:#}");
    let waits = daemon.wait_replica("require", "a refusal", |it| it["last_error"].is_object());
    assert!(refused(&waits).1.contains("GPU"), "{waits:#}");
    assert!(waits["pid"].is_null(), "{waits:#}");
    let _ = stage.machine.run(&["up", "require"]).code(10);
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn a_gpu_that_is_gone_is_missed_at_the_next_start_and_used_when_it_is_back() {
    let mut stage = Stage::new();
    let library = with_cards(&mut stage);
    stage
        .machine
        .write_pool(&on_gpus(&stage, "chat", "require", GIB));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    assert_eq!(first["device_mask"], json!(["GPU-0"]), "{first:#}");
    let away = library.with_extension("away");
    fs::rename(&library, &away).unwrap();
    kill(pid(&first));
    let waits = daemon.wait_replica("chat", "a refusal", |it| refused(it).1.contains("GPU"));
    assert!(waits["pid"].is_null(), "{waits:#}");
    fs::rename(&away, &library).unwrap();
    let again = daemon.wait_state("chat", "ready");
    assert_eq!(again["device_mask"], json!(["GPU-0"]), "{again:#}");
    assert!(again["last_error"].is_null(), "{again:#}");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn replicas_get_a_gpu_each_and_what_does_not_fit_beside_them_is_refused() {
    let mut stage = Stage::new();
    with_cards(&mut stage);
    let mut pair = on_gpus(&stage, "pair", "require", 8 * GIB);
    pair["replicas"] = json!(2);
    let mut late = on_gpus(&stage, "late", "require", 30 * GIB);
    late["preload"] = json!(false);
    stage.machine.write_pools(&[pair, late]);
    let daemon = stage.serve(&[]);
    let _ = stage.machine.run(&["up", "pair"]).code(0);
    let status = daemon.status("pair");
    let replicas = status["replicas"].as_array().unwrap();
    let mut masks: Vec<&Value> = replicas.iter().map(|it| &it["device_mask"]).collect();
    masks.sort_by_key(|mask| mask.to_string());
    assert_eq!(masks, [&json!(["GPU-0"]), &json!(["GPU-1"])], "{status:#}");
    assert!(replicas.iter().all(|it| it["vram_bytes"] == 8 * GIB));
    let refusal = stage.machine.run(&["up", "late"]).code(10);
    refusal.says("no GPU has room").says("8.0 GiB reserved");
    let _ = stage.machine.run(&["down", "pair"]).code(0);
    let _ = daemon.end(Signal::TERM, 0);
}

/// The command line of the engine of a pool's one replica.
fn command(replica: &Value) -> String {
    let words = fs::read(format!("/proc/{}/cmdline", pid(replica))).expect("it serves");
    String::from_utf8_lossy(&words).replace('\0', " ")
}

/// Waits until another engine than this one serves as the pool's one replica.
fn wait_other(daemon: &Daemon<'_>, pool: &str, before: &Value) -> Value {
    daemon.wait_replica(pool, "another engine", |it| {
        it["state"] == "ready" && it["pid"] != before["pid"]
    })
}

#[test]
fn a_reload_that_has_room_only_where_the_old_engine_was_swaps_or_brings_back_what_ran_before() {
    let mut stage = Stage::new();
    let library = fake_driver_of_engines_that_take(stage.machine.root(), 20);
    lend(&mut stage, &library);
    let with = |flags: &[&str]| {
        let mut chat = on_gpus(&stage, "chat", "require", 20 * GIB);
        let more = flags.iter().map(|flag| json!(flag));
        chat["provisioning"]["flags"]
            .as_array_mut()
            .unwrap()
            .extend(more);
        let other = on_gpus(&stage, "other", "require", 20 * GIB);
        stage.machine.write_pools(&[chat, other]);
    };
    with(&["--load-ms", "1"]);
    let daemon = stage.serve(&[]);
    let (first, _) = (
        daemon.wait_state("chat", "ready"),
        daemon.wait_state("other", "ready"),
    );

    with(&["--load-ms", "2"]);
    let _ = stage.machine.run(&["reload", "chat"]).code(0);
    let second = daemon.wait_state("chat", "ready");
    assert!(
        command(&second).contains("--load-ms 2"),
        "{}",
        command(&second)
    );
    assert_eq!(second["device_mask"], first["device_mask"]);

    with(&["--exit-after-ms", "1", "--exit-code", "7"]);
    let run = stage.machine.run(&["reload", "chat"]).code(10);
    run.says("was started again and serves").says("exit code 7");
    let back = daemon.wait_state("chat", "ready");
    assert!(command(&back).contains("--load-ms 2"), "{}", command(&back));
    // A crash is no reason to run what the file says by now.
    kill(pid(&back));
    let again = wait_other(&daemon, "chat", &back);
    let words = command(&again);
    assert!(!words.contains("--exit-after-ms"), "{words}");
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn an_engine_on_one_of_several_gpus_is_taken_over_by_the_next_daemon_and_stays() {
    let mut stage = Stage::new();
    with_cards(&mut stage);
    stage
        .machine
        .write_pool(&on_gpus(&stage, "chat", "require", GIB));
    let daemon = stage.serve(&[]);
    let first = daemon.wait_state("chat", "ready");
    let _ = daemon.running.end(Signal::KILL).code(137);
    let next = stage.serve(&[]);
    next.wait_state("chat", "ready");
    // By the end of this it has been compared with what the file has.
    let _ = stage.machine.run(&["reload", "chat"]).code(0);
    let kept = next.wait_state("chat", "ready");
    assert_eq!(kept["pid"], first["pid"], "{kept:#}");
    assert_eq!(kept["device_mask"], json!(["GPU-0"]));
    let _ = next.end(Signal::TERM, 0);
}
