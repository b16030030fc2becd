use std::{fs, time::Duration};

use super::*;

fn script(id: &str, script: &str) -> Value {
    json!({"id": id, "kind": "build", "outputs": ["out"], "attempts": [{"title": "", "commands": [
        {"id": id, "program": "{tool.sh}", "args": ["-c", script]}]}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn independent_steps_run_at_the_same_time_and_results_are_passed_on() {
    let bench = bench(&["sh"]);
    let place = bench.home.path().display().to_string();
    // Each waits for a file that only the other makes: one after the other would never end.
    let meet = |mine: &str, other: &str| {
        format!(
            "touch {place}/{mine}; while [ ! -e {place}/{other} ]; do sleep 0.02; done; echo {mine} > out"
        )
    };
    let plan = plan(json!([
        script("both", "cat {one.path}/out {two.path}/out > out"),
        script("one", &meet("one", "two")),
        script("two", &meet("two", "one")),
    ]));
    let artifacts = tokio::time::timeout(Duration::from_secs(30), run_all(&bench.context, &plan))
        .await
        .expect("they ran one after the other")
        .unwrap();
    let both = Path::new(artifacts["both"].path.as_ref().unwrap()).join("out");
    assert_eq!(fs::read_to_string(both).unwrap(), "one\ntwo\n");
    assert_eq!(bench.told.actions(), ["built"; 3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_failure_ends_the_others_and_is_what_is_told() {
    let bench = bench(&["sh"]);
    let place = bench.home.path().display().to_string();
    let plan = plan(json!([
        script("slow", &format!("touch {place}/started; sleep 600")),
        script(
            "bad",
            &format!("while [ ! -e {place}/started ]; do sleep 0.02; done; exit 4")
        ),
        script("after", "cat {slow.path}/out"),
    ]));
    let error = tokio::time::timeout(Duration::from_secs(30), run_all(&bench.context, &plan))
        .await
        .expect("the others were not ended")
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "step `bad`: `bad` ended with exit code 4"
    );
    let events = bench.told.events();
    let failures: Vec<_> = events
        .iter()
        .filter(|event| event.error_kind.is_some())
        .collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert_eq!(failures[0].action, "build-failed");
    assert!(
        !bench.context.cancel.is_cancelled(),
        "only this run was cancelled"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_can_be_repeated_and_the_finished_ones_stay() {
    let bench = bench(&["sh"]);
    let flag = bench.home.path().join("flag");
    let plan = plan(json!([
        script("first", "echo 1 > out"),
        script(
            "second",
            &format!("test -e {} && cp {{first.path}}/out out", flag.display())
        ),
    ]));
    run_all(&bench.context, &plan).await.unwrap_err();
    fs::write(&flag, "").unwrap();
    run_all(&bench.context, &plan).await.unwrap();
    let built = bench
        .told
        .actions()
        .iter()
        .filter(|action| *action == "built")
        .count();
    assert_eq!(built, 2);
}
