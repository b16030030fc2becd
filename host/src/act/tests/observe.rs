use super::*;
use crate::fault::Fault as _;

fn build_and_look(script: &str) -> Plan {
    plan(json!([
        {"id": "build", "kind": "build", "outputs": ["engine"], "attempts": [{"title": "", "commands": [
            {"id": "make", "program": "{tool.sh}", "args": ["-c",
             format!("printf '#!/bin/sh\\n%s\\n' \"$1\" > engine; chmod +x engine"), "sh", script]}]}]},
        {"id": "look", "kind": "observe", "program": "{build.path}/engine", "args": ["--version"], "timeout_ms": 5000},
    ]))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_program_prints_is_remembered_by_its_digest() {
    let bench = bench(&["sh"]);
    let count = bench.home.path().join("count");
    let script = format!(
        "echo out $1; echo err >&2; echo x >> {}; exit 3",
        count.display()
    );
    let plan = build_and_look(&script);
    let artifacts = run_all(&bench.context, &plan).await.unwrap();
    let output = artifacts["look"].output.clone().unwrap();
    assert_eq!(output.exit, Some(3));
    assert_eq!(
        (output.stdout.as_str(), output.stderr.as_str()),
        ("out --version\n", "err\n")
    );
    assert_eq!(run_all(&bench.context, &plan).await.unwrap(), artifacts);
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\n");
    let expected = expected(&bench.context, &plan).unwrap();
    assert_eq!(expected["look"].outlook, Outlook::Cached);
    assert_eq!(expected["look"].artifact.output, Some(output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_did_not_start_is_asked_again() {
    let bench = bench(&["sh"]);
    let count = bench.home.path().join("count");
    let plan = build_and_look(&format!("echo x >>{}; exit 127", count.display()));
    for _ in 0..2 {
        let artifacts = run_all(&bench.context, &plan).await.unwrap();
        assert_eq!(artifacts["look"].output.clone().unwrap().exit, Some(127));
    }
    assert_eq!(std::fs::read_to_string(count).unwrap(), "x\nx\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_of_the_plan_reach_the_program_and_belong_to_the_key() {
    let bench = bench(&["sh"]);
    for word in ["one", "two"] {
        let mut plan = build_and_look("echo $WORD");
        let Act::Observe(act) = &mut plan.steps[1].act else {
            unreachable!()
        };
        act.env.insert("WORD".to_owned(), word.into());
        let artifacts = run_all(&bench.context, &plan).await.unwrap();
        let said = artifacts["look"].output.clone().unwrap().stdout;
        assert_eq!(said, format!("{word}\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_hangs_is_ended_at_its_limit() {
    let bench = bench(&["sh"]);
    let mut plan = build_and_look("sleep 600");
    let Act::Observe(act) = &mut plan.steps[1].act else {
        unreachable!()
    };
    act.timeout_ms = 300;
    let error = run_all(&bench.context, &plan).await.unwrap_err();
    assert_eq!(error.kind(), "timed-out");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_hosts_of_one_pool_do_not_read_each_other_s_answers() {
    let bench = bench(&["sh"]);
    let met = bench.home.path().join("met");
    std::fs::create_dir(&met).unwrap();
    // Each prints once both run.
    let meet = |name: &str| {
        let met = met.display();
        build_and_look(&format!(
            "touch {met}/{name}; until test $(ls {met} | wc -l) = 2; do sleep 0.01; done; echo {name}"
        ))
    };
    let (one, two) = (meet("one"), meet("two"));
    let other = Context {
        logs: Logs::new(&bench.context.home, "chat", Some("job")),
        ..bench.context.clone()
    };
    let (first, second) = tokio::join!(run_all(&bench.context, &one), run_all(&other, &two));
    let said = |artifacts: Artifacts| artifacts["look"].output.clone().unwrap().stdout;
    assert_eq!(said(first.unwrap()), "one\n");
    assert_eq!(said(second.unwrap()), "two\n");
    let left = std::fs::read_dir(bench.context.store.root().join("tmp")).unwrap();
    assert_eq!(left.count(), 0);
}
