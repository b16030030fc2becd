use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    policy::Setting,
    process::{Exited, Identity},
};

/// A build of shell scripts, one attempt each.
fn build(scripts: &[(&str, Value)]) -> Step {
    let attempts: Vec<Value> = scripts
        .iter()
        .enumerate()
        .map(|(number, (script, when))| {
            let command = json!({"id": "compile", "program": "{tool.sh}", "args": ["-c", script],
                "narration": {"start": "cmake-build", "retry": "cmake-retry", "failed": "cmake-failed"}});
            json!({"title": format!("way {number}"), "when": when, "commands": [command]})
        })
        .collect();
    step(
        json!({"id": "build", "kind": "build", "outputs": ["bin/engine"],
        "attempts": attempts, "labels": {"backend": "cpu"}}),
    )
}

const GOOD: &str = "mkdir bin && echo engine > bin/engine && chmod +x bin/engine && echo x > rest";

async fn go(bench: &Bench, step: &Step) -> Result<Artifact, ActError> {
    run(&bench.context, step, &Artifacts::new()).await
}

fn leftovers(bench: &Bench) -> usize {
    fs::read_dir(bench.context.store.root().join("tmp"))
        .unwrap()
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn outputs_are_kept_the_rest_is_thrown_away_and_nothing_is_built_twice() {
    let bench = bench(&["sh"]);
    let step = build(&[(GOOD, Value::Null)]);
    let before = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
    assert_eq!(before.outlook, Outlook::Build { because: None });
    let artifact = go(&bench, &step).await.unwrap();
    assert_eq!(artifact.path, before.artifact.path);
    assert_eq!(artifact.attempt, Some(0));
    assert_eq!(artifact.labels["backend"], "cpu");
    assert!(artifact.digest.as_ref().unwrap().starts_with("sha256:"));
    let root = PathBuf::from(artifact.path.clone().unwrap());
    assert_eq!(
        fs::read_to_string(root.join("bin/engine")).unwrap(),
        "engine\n"
    );
    assert!(!root.join("rest").exists());
    assert_eq!(leftovers(&bench), 0);
    assert_eq!(go(&bench, &step).await.unwrap(), artifact);
    assert_eq!(bench.told.actions(), ["cmake-build", "built", "cached"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_argument_rebuilds_and_says_why() {
    let bench = bench(&["sh"]);
    go(&bench, &build(&[(GOOD, Value::Null)])).await.unwrap();
    let changed = build(&[(&format!("{GOOD} && true"), Value::Null)]);
    let outlook = expected_of(&bench.context, &changed, &Artifacts::new())
        .unwrap()
        .outlook;
    let Outlook::Build {
        because: Some(because),
    } = outlook
    else {
        panic!("{outlook:?}");
    };
    assert!(
        because.starts_with("compile argument changed: mkdir"),
        "{because}"
    );
    go(&bench, &changed).await.unwrap();
    assert!(bench.told.actions().contains(&"rebuild".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_attempt_is_chosen_by_what_the_log_says() {
    let bench = bench(&["sh"]);
    let step = build(&[
        (
            "echo 'unsupported GNU version' >&2; touch half; exit 3",
            Value::Null,
        ),
        ("exit 9", json!({"log": "something else"})),
        (
            &format!("test ! -e half && {GOOD}"),
            json!({"log": "unsupported (GNU|clang)", "exit": 3, "command": "compile"}),
        ),
    ]);
    let artifact = go(&bench, &step).await.unwrap();
    assert_eq!(artifact.attempt, Some(2));
    assert_eq!(
        bench.told.actions(),
        ["cmake-build", "cmake-failed", "cmake-retry", "built"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_says_everything_an_operator_needs_and_publishes_nothing() {
    let bench = bench(&["sh"]);
    let step = build(&[
        ("echo one; echo 'error: two' >&2; exit 2", Value::Null),
        (GOOD, json!({"log": "never said"})),
    ]);
    let error = go(&bench, &step).await.unwrap_err();
    let ActError::Command { failure, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(
        error.to_string(),
        "step `build`: `compile` ended with exit code 2"
    );
    assert_eq!(failure.exited, Exited::Code(2));
    assert_eq!(failure.tail, ["one", "error: two"]);
    assert!(failure.command.ends_with("exit 2'"), "{}", failure.command);
    assert!(failure.log.ends_with("logs/chat/job/build.compile.log"));
    assert_eq!(error.exit(), Exit::Step);
    assert_eq!(leftovers(&bench), 0);
    assert!(bench.context.store.entries(Kind::Build).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_is_no_reason_to_try_another_compiler() {
    let bench = bench(&["sh"]);
    let step = build(&[
        (
            "echo 'ld: No space left on device' >&2; exit 1",
            Value::Null,
        ),
        (GOOD, json!({"exit": 1})),
    ]);
    let error = go(&bench, &step).await.unwrap_err();
    assert_eq!((error.exit(), error.kind()), (Exit::Storage, "disk-full"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_cannot_connect_and_the_message_says_why() {
    let bench = bench(&["sh", "python3"]);
    let script = "{tool.python3} -c 'import socket; socket.create_connection((\"127.0.0.1\", 9))'";
    let error = go(&bench, &build(&[(script, Value::Null)]))
        .await
        .unwrap_err();
    let note = error
        .details()
        .into_iter()
        .find(|detail| detail.label == "note");
    let note = note.unwrap_or_else(|| panic!("{:?}", error.details()));
    assert!(
        note.text.contains("this step has no network"),
        "{}",
        note.text
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn cancelling_ends_the_whole_process_tree() {
    let bench = bench(&["sh"]);
    let marker = bench.home.path().join("pid");
    let script = format!("(sleep 600 & echo $! > {}; wait)", marker.display());
    let step = build(&[(&script, Value::Null)]);
    let started = async {
        let limit = std::time::Instant::now() + Duration::from_secs(30);
        loop {
            let text = fs::read_to_string(&marker).unwrap_or_default();
            if let Ok(pid) = text.trim().parse::<i32>() {
                bench.context.cancel.cancel();
                return pid;
            }
            assert!(std::time::Instant::now() < limit, "the build never started");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let (result, pid) = tokio::join!(go(&bench, &step), started);
    assert!(result.unwrap_err().is_cancelled());
    let status = fs::read_to_string(format!("/proc/{pid}/status"));
    assert!(status.is_err(), "{status:?}");
    assert_eq!(leftovers(&bench), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_see_a_fixed_environment_and_their_places() {
    let mut bench = bench(&["sh"]);
    bench.context.environment = Arc::new(Environment::from_pairs([
        ("https_proxy", "http://proxy:1"),
        ("HF_TOKEN", "hf_secretsecretsecret"),
    ]));
    let script =
        "mkdir bin; env > bin/engine; touch {cache.ccache}/hit $TMPDIR/x; test {jobs} -ge 1";
    let artifact = go(&bench, &build(&[(script, Value::Null)])).await.unwrap();
    let env = fs::read_to_string(Path::new(&artifact.path.unwrap()).join("bin/engine")).unwrap();
    assert!(env.contains("https_proxy=http://proxy:1"), "{env}");
    assert!(env.contains("LC_ALL=C.UTF-8"), "{env}");
    assert!(!env.contains("HF_TOKEN"), "{env}");
    assert!(bench.context.home.cache("ccache").join("hit").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_without_words_is_not_told() {
    let bench = bench(&["sh"]);
    let mut step = build(&[(GOOD, Value::Null)]);
    let Act::Build(act) = &mut step.act else {
        unreachable!()
    };
    act.attempts[0].commands[0].narration = Default::default();
    go(&bench, &step).await.unwrap();
    assert_eq!(bench.told.actions(), ["built"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_maze_and_a_file_of_somebody_else_are_no_outputs() {
    let mut bench = bench(&["sh"]);
    let maze = "mkdir bin; ln -s . bin/b; ln -s b/b/b/b/../../../../../../etc/passwd bin/engine";
    let error = go(&bench, &build(&[(maze, Value::Null)]))
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Verification, "{error}");

    needs_root();
    Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(Identity {
        uid: 64_123,
        gid: 64_123,
    }));
    let secret = bench.home.path().join("secret");
    fs::write(&secret, "secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    // Linked in by root here: whether the builder could depends on the machine's settings.
    let ready = bench.home.path().join("ready");
    let script = format!(
        "mkdir bin; pwd > {0}.new; mv {0}.new {0}; until test -e bin/engine; do sleep 0.01; done",
        ready.display()
    );
    fs::set_permissions(bench.home.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let link = async {
        let limit = std::time::Instant::now() + Duration::from_secs(30);
        while !ready.exists() {
            assert!(std::time::Instant::now() < limit, "the build never started");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let work = PathBuf::from(fs::read_to_string(&ready).unwrap().trim());
        fs::hard_link(&secret, work.join("bin/engine")).unwrap();
    };
    let step = build(&[(&script, Value::Null)]);
    let (result, ()) = tokio::join!(go(&bench, &step), link);
    let error = result.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification, "{error}");
    let mode = fs::metadata(&secret).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(bench.context.store.entries(Kind::Build).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_that_removes_its_home_goes_on() {
    let bench = bench(&["sh"]);
    let script = format!("rm -r $HOME && ln -s /etc $HOME && {GOOD}");
    let mut step = build(&[(&script, Value::Null)]);
    let Act::Build(act) = &mut step.act else {
        unreachable!()
    };
    let mut second = act.attempts[0].commands[0].clone();
    second.id = "again".to_owned();
    second.args = vec!["-c".into(), "test -L $HOME".into()];
    act.attempts[0].commands.push(second);
    go(&bench, &step).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_output_that_was_not_made_or_leads_elsewhere_is_refused() {
    let bench = bench(&["sh"]);
    let error = go(&bench, &build(&[("true", Value::Null)]))
        .await
        .unwrap_err();
    assert!(matches!(error, ActError::Output { .. }), "{error}");
    for script in [
        "ln -s /etc bin && ln -s passwd /dev/null; true",
        "mkdir bin; ln -s /etc/passwd bin/engine",
    ] {
        let error = go(&bench, &build(&[(script, Value::Null)]))
            .await
            .unwrap_err();
        assert!(!matches!(error, ActError::Command { .. }), "{error}");
        assert!(bench.context.store.entries(Kind::Build).is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn root_builds_as_somebody_else_and_owns_the_result() {
    needs_root();
    use std::os::unix::fs::MetadataExt as _;
    let mut bench = bench(&["sh"]);
    Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(Identity {
        uid: 64_123,
        gid: 64_123,
    }));
    let script = "mkdir bin; id -u > bin/engine; touch {cache.ccache}/hit";
    let artifact = go(&bench, &build(&[(script, Value::Null)])).await.unwrap();
    let engine = Path::new(&artifact.path.unwrap()).join("bin/engine");
    assert_eq!(fs::read_to_string(&engine).unwrap(), "64123\n");
    assert_eq!(fs::metadata(&engine).unwrap().uid(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_build_once() {
    let bench = bench(&["sh"]);
    let count = bench.home.path().join("count");
    let script = format!("echo x >> {}; {GOOD}", count.display());
    let step = build(&[(&script, Value::Null)]);
    let (one, two) = tokio::join!(go(&bench, &step), go(&bench, &step));
    assert_eq!(one.unwrap(), two.unwrap());
    assert_eq!(fs::read_to_string(count).unwrap(), "x\n");
}
