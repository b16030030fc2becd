//! Who an engine is and what it is given.

use e2e::{environment_of, uid_of};
use rustix::process::Signal;
use serde_json::json;

use crate::stage;

#[test]
fn an_engine_runs_as_nobody_special_with_no_more_than_the_listed_environment() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["env"] = json!({"FIXTURE_MODE": "plain", "TOKEN": "{secret.MY_TOKEN}"});
    machine.write_pool(&pool);
    let mut command = machine.command(&["provision"]);
    command
        .env("MY_TOKEN", "planted-token")
        .env("LANG", "C.UTF-8")
        .env("LD_PRELOAD_NOT", "x")
        .env("AWS_SECRET_ACCESS_KEY", "planted-secret")
        .env("HTTPS_PROXY", "http://127.0.0.1:9");
    let mut running = machine.start(command);
    running.wait_ready();
    let list = machine.run(&["ps", "--json"]).code(0).json();
    let pid = u32::try_from(list["engines"][0]["pid"].as_u64().unwrap()).unwrap();

    let me = rustix::process::getuid();
    let uid = uid_of(pid).expect("it serves");
    if me.is_root() {
        // Not the one that builds either: an engine cannot touch a build under way.
        assert_eq!(uid, 64739, "a root host lends its rights to nobody");
    } else {
        assert_eq!(uid, me.as_raw());
    }
    let environment = environment_of(pid).expect("it serves");
    let names: Vec<String> = environment
        .iter()
        .map(|pair| pair.split_once('=').unwrap().0.to_owned())
        .collect();
    assert_eq!(names, ["FIXTURE_MODE", "HOME", "LANG", "TOKEN"]);
    assert!(environment.contains(&"TOKEN=planted-token".to_owned()));

    // The secret went into the environment and nowhere else.
    let run = running.end(Signal::INT).code(130);
    assert!(!run.stdout.contains("planted") && !run.stderr.contains("planted"));
    // The keeper has ended as well: no file goes while it is read.
    machine.assert_clean();
    for file in machine.files_below(machine.root()) {
        let bytes = std::fs::read(machine.root().join(&file)).unwrap();
        let found = bytes.windows(13).any(|window| window == b"planted-token");
        assert!(!found, "the secret stands in {file}");
    }
}

#[test]
fn a_secret_that_is_not_set_is_named_before_the_engine_starts() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["env"] = json!({"TOKEN": "{secret.NOT_SET}"});
    machine.write_pool(&pool);
    let run = machine.run(&["provision"]).code(3);
    run.says("the secret `NOT_SET` is not set");
    run.says("export NOT_SET=");
    machine.assert_clean();
}

#[test]
fn what_was_built_cannot_be_changed_by_the_engine() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let prepared = machine.run(&["prepare", "--json"]).code(0).json();
    let program = prepared["command"]["bin"].as_str().unwrap();
    let metadata = std::fs::metadata(program).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o222, 0, "{program}");
    assert_eq!(metadata.uid(), rustix::process::getuid().as_raw());
}
