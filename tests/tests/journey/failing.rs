//! Everything that goes wrong: what is said, what is left, and that the next run succeeds.

use std::{fs, path::PathBuf, time::Duration};

use e2e::{Machine, Run, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage;

/// Asserts that a failure left nothing half-made behind.
#[track_caller]
fn assert_nothing_made(machine: &Machine) {
    let store = machine.store();
    store.assert_sound();
    assert_eq!(store.entries("build"), Vec::<String>::new());
    assert_eq!(store.work(), Vec::<String>::new(), "work left behind");
    machine.assert_clean();
}

/// The log of this command, of the only run that has one.
#[track_caller]
fn one_log(machine: &Machine, command: &str) -> PathBuf {
    let runs = fs::read_dir(machine.home().join("logs/default")).unwrap();
    let logs: Vec<PathBuf> = runs
        .flat_map(|run| fs::read_dir(run.unwrap().path()).unwrap())
        .map(|log| log.unwrap().path())
        .filter(|log| log.to_str().unwrap().ends_with(&format!("{command}.log")))
        .collect();
    let [log] = logs.as_slice() else {
        panic!("{logs:?}");
    };
    log.clone()
}

/// Asserts that the pool works once its fault is gone.
#[track_caller]
fn assert_recovers(machine: &Machine, pool: &mut Value) {
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!([]);
    pool["provisioning"]["flags"] = json!([]);
    machine.write_pool(pool);
    let running = machine.provision(&[]);
    let _ = running.end(Signal::INT).code(130);
    machine.store().assert_sound();
    machine.assert_clean();
}

fn build_with(flag: &str) -> (Machine, Run, Value) {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!([flag]);
    machine.write_pool(&pool);
    // The repository lies in the machine's own directory and stays.
    let run = machine.run(&["provision"]);
    (machine, run, pool)
}

#[test]
fn a_build_that_breaks_shows_its_command_its_log_and_its_last_words() {
    let (machine, run, mut pool) = build_with("-DFIXTURE_BREAK_COMPILE=ON");
    let run = run.code(7);
    run.says("cmake-build");
    run.says("unsupported GNU version (FIXTURE_BREAK_COMPILE)");
    run.says("--build");
    let log = one_log(&machine, "cmake-build");
    run.says(log.to_str().unwrap());
    assert!(
        fs::read_to_string(log)
            .unwrap()
            .contains("FIXTURE_BREAK_COMPILE")
    );
    assert_nothing_made(&machine);
    assert_recovers(&machine, &mut pool);
}

#[test]
fn a_build_that_connects_fails_and_is_told_that_it_has_no_network() {
    let (machine, run, mut pool) = build_with("-DFIXTURE_CONNECT=ON");
    let run = run.code(7);
    run.says("no network");
    run.says("Failed to connect");
    assert_nothing_made(&machine);
    assert_recovers(&machine, &mut pool);
}

#[test]
fn a_repository_that_is_not_there_is_named() {
    let (machine, repository, pool) = stage();
    fs::remove_dir_all(repository.path()).unwrap();
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(8);
    run.says(repository.path().to_str().unwrap());
    assert_nothing_made(&machine);
}

#[test]
fn a_missing_tool_is_named_with_what_to_type() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    // A PATH with everything but cmake.
    let tools = machine.root().join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["git", "cc", "sh", "ninja", "make"] {
        let path = std::env::split_paths(&std::env::var_os("PATH").unwrap())
            .map(|directory| directory.join(tool))
            .find(|path| path.is_file());
        if let Some(path) = path {
            std::os::unix::fs::symlink(path, tools.join(tool)).unwrap();
        }
    }
    let mut command = machine.command(&["provision"]);
    command.env("PATH", &tools);
    let run = machine.start(command).finish(e2e::RUN_LIMIT).code(4);
    run.says("policy does not allow installing packages (cmake)");
    run.says("install -y cmake");
    run.says("--allow-package-installs");
    assert_nothing_made(&machine);
}

/// A small file system that is unmounted at the end.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(at: std::path::PathBuf, mebibytes: u32) -> Self {
        fs::create_dir(&at).unwrap();
        let output = std::process::Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={mebibytes}m,mode=755"),
                "tmpfs",
            ])
            .arg(&at)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "this test needs root and the right to mount a file system of {mebibytes} MiB: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Self(at)
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount")
            .arg("--lazy")
            .arg(&self.0)
            .status();
    }
}

#[test]
fn a_full_disk_is_called_one_and_nothing_half_made_stays() {
    let (machine, _repository, mut pool) = stage();
    let _small = Small::mount(machine.home(), 32);
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_FILL=64"]);
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(14);
    run.says("No space left on device");
    run.says("free some space");
    // The place to look at is one that is still there.
    let place = run.stderr.split_once("df -h ").unwrap().1;
    let place = std::path::Path::new(place.lines().next().unwrap());
    assert!(place.starts_with(machine.home()) && place.exists());
    assert_nothing_made(&machine);
    assert_recovers(&machine, &mut pool);
}

#[test]
fn a_cancelled_build_ends_with_everything_it_started() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_SLEEP=600"]);
    machine.write_pool(&pool);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let running = machine.start(machine.command(&["provision"]));
        wait_for("the build's own program", e2e::RUN_LIMIT, || {
            let all = machine.processes();
            let dawdles = |process: &e2e::Process| process.command.contains("during-build 600");
            if all.iter().any(dawdles) {
                Ok(())
            } else {
                Err(all)
            }
        });
        running.signal(signal);
        let run = running.finish(Duration::from_secs(15)).code(code);
        assert!(!run.stderr.contains("cmake-failed"), "{}", run.stderr);
        assert_nothing_made(&machine);
    }
    assert_recovers(&machine, &mut pool);
}

#[test]
fn an_engine_that_crashes_ends_the_command_with_how_it_died() {
    let (machine, _repository, mut pool) = stage();
    machine.write_pool(&pool);
    let running = machine.provision(&[]);
    let engine = machine.run(&["ps", "--json"]).code(0).json();
    let pid = engine["engines"][0]["pid"].as_u64().unwrap();
    e2e::signal(u32::try_from(pid).unwrap(), Signal::SEGV);
    let run = running.finish(e2e::RUN_LIMIT).code(10);
    run.says("SEGV");
    run.says("while it served");
    run.says("listening on 127.0.0.1");
    run.says("crash");
    machine.assert_clean();
    assert_recovers(&machine, &mut pool);
}

#[test]
fn an_engine_that_never_gets_ready_is_given_up_after_its_silence() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["flags"] = json!(["--load-ms", "600000"]);
    // Long enough for it to have listened, and answered, by then.
    pool["readiness"] = json!({"stall_timeout": "5s"});
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(10);
    run.says("made no progress for 5 s");
    run.says("503");
    run.says("readiness.stall_timeout");
    machine.assert_clean();
    assert_recovers(&machine, &mut pool);
}

#[test]
fn an_engine_that_refuses_a_flag_is_explained() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["flags"] = json!(["--frobnicate", "1"]);
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(10);
    run.says("this build does not know the flag `--frobnicate`");
    run.says("remove it from `provisioning.flags`");
    run.says("exit code 1");
    machine.assert_clean();
    assert_recovers(&machine, &mut pool);
}

#[test]
fn an_error_as_json_has_kind_exit_causes_and_hints() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["flags"] = json!(["--frobnicate", "1"]);
    machine.write_pool(&pool);
    let run = machine.run(&["provision", "--json"]).code(10);
    let error = &run.json()["error"];
    assert_eq!(error["exit"], 10);
    assert_eq!(error["kind"], "engine-died");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("before it was ready")
    );
    assert!(error["hints"][0]["text"].is_string(), "{error}");
    machine.assert_clean();
}
