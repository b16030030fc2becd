//! What is built, what is not built again, and why.

use e2e::Repository;
use rustix::process::Signal;
use serde_json::json;

use crate::stage;

fn count(actions: &[String], action: &str) -> usize {
    actions.iter().filter(|seen| *seen == action).count()
}

#[test]
fn a_second_provision_builds_nothing() {
    let (machine, _repository, pool) = stage();
    machine.write_pool(&pool);
    let _ = machine.provision(&[]).end(Signal::INT).code(130);
    let before = machine.store().fingerprint();
    assert!(!before.is_empty());
    let run = machine
        .provision(&["--log-format=json"])
        .end(Signal::INT)
        .code(130);
    let actions = run.actions();
    for action in [
        "git-clone",
        "git-checkout",
        "cmake-configure",
        "cmake-build",
    ] {
        assert_eq!(count(&actions, action), 0, "{actions:?}");
    }
    assert_eq!(
        machine.store().fingerprint(),
        before,
        "something was made again"
    );
    machine.assert_clean();
}

#[test]
fn a_second_provision_needs_no_network_and_no_repository() {
    let (machine, repository, pool) = stage();
    machine.write_pool(&pool);
    let _ = machine.run(&["prepare"]).code(0);
    std::fs::remove_dir_all(repository.path()).unwrap();
    let running = machine.provision(&["--offline"]);
    let _ = running.end(Signal::INT).code(130);
    machine.assert_clean();
}

#[test]
fn a_changed_flag_builds_again_and_says_which_one() {
    let (machine, _repository, mut pool) = stage();
    machine.write_pool(&pool);
    let _ = machine.run(&["prepare"]).code(0);
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_GREETING=ahoy"]);
    machine.write_pool(&pool);
    let plan = machine.run(&["plan"]).code(0);
    assert!(plan.stdout.contains("again: "), "{}", plan.stdout);
    assert!(
        plan.stdout.contains("-DFIXTURE_GREETING=ahoy"),
        "{}",
        plan.stdout
    );
    let mut running = machine.provision(&["--log-format=human"]);
    let url = running.wait_ready();
    let answer = e2e::http_get(&format!("{url}/x")).unwrap().1;
    assert_eq!(answer, "ahoy from GGUF\n");
    let run = running.end(Signal::INT).code(130);
    run.says("-DFIXTURE_GREETING=ahoy");
    assert_eq!(machine.store().entries("build").len(), 2);
    assert_eq!(machine.store().entries("source").len(), 1, "cloned again");
    // And back: both builds are kept, none is made.
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!([]);
    machine.write_pool(&pool);
    let run = machine.run(&["prepare", "--log-format=json"]).code(0);
    assert_eq!(count(&run.actions(), "cmake-build"), 0);
    machine.assert_clean();
}

#[test]
fn a_branch_that_advances_is_another_build_and_the_version_is_its_commit() {
    let (machine, repository, mut pool) = stage();
    pool["provisioning"]["source"]["ref"] = "main".into();
    machine.write_pool(&pool);
    let prepared = machine.run(&["prepare", "--json"]).code(0).json();
    let version = |commit: &str| format!("{}-cpu", &commit[..12]);
    assert_eq!(prepared["engine_version"], version(&repository.commit));

    let second = advance(&repository);
    assert_ne!(second, repository.commit);
    let prepared = machine.run(&["prepare", "--json"]).code(0).json();
    assert_eq!(prepared["engine_version"], version(&second));
    assert_eq!(machine.store().entries("build").len(), 2);
    machine.assert_clean();
}

/// Another commit on the repository's branch.
fn advance(repository: &Repository) -> String {
    let path = repository.path().join("server.c");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}\n/* more */\n")).unwrap();
    repository.commit_all("second")
}

#[test]
fn a_reference_that_is_not_there_is_named_with_its_repository() {
    let (machine, repository, mut pool) = stage();
    pool["provisioning"]["source"]["ref"] = "no-such-branch".into();
    machine.write_pool(&pool);
    let run = machine.run(&["prepare"]).code(3);
    run.says("no-such-branch");
    run.says(repository.path().to_str().unwrap());
    assert_eq!(machine.store().entries("build"), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn another_attempt_is_made_when_the_log_says_what_it_is_for() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["source"]["build"]["cmake_flags"] = json!(["-DFIXTURE_BREAK_COMPILE=ON"]);
    pool["options"] = json!({
        "retry_when": "unsupported GNU version",
        "retry_flags": ["-DFIXTURE_BREAK_COMPILE=OFF"],
    });
    machine.write_pool(&pool);
    let run = machine.run(&["prepare", "--log-format=json"]).code(0);
    let actions = run.actions();
    assert!(count(&actions, "cmake-retry") > 0, "{actions:?}");
    // What was tried first is told as it is, and is no failure of the whole.
    let errors: Vec<_> = run.events();
    assert!(errors.iter().all(|event| event["level"] != "error"));
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn no_other_attempt_is_made_for_a_failure_that_it_is_not_for() {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["source"]["build"]["cmake_flags"] =
        json!(["-DFIXTURE_BREAK_CONFIGURE=ON"]);
    pool["options"] = json!({
        "retry_when": "unsupported GNU version",
        "retry_flags": ["-DFIXTURE_BREAK_CONFIGURE=OFF"],
    });
    machine.write_pool(&pool);
    let run = machine.run(&["prepare", "--log-format=json"]).code(7);
    let actions = run.actions();
    assert_eq!(count(&actions, "cmake-retry"), 0, "{actions:?}");
    assert_eq!(count(&actions, "cmake-configure"), 1, "{actions:?}");
    assert_eq!(count(&actions, "cmake-failed"), 1, "{actions:?}");
    let failed = run
        .events()
        .into_iter()
        .find(|event| event["action"] == "cmake-failed")
        .unwrap();
    assert_eq!(failed["level"], "error");
    assert!(failed["error_kind"].is_string(), "{failed}");
    assert_eq!(machine.store().entries("build"), Vec::<String>::new());
    machine.assert_clean();
}
