//! Questions: a program that is run for its answer.

use super::*;

fn question(script: &str, limit: Duration) -> Question {
    Question {
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: BTreeMap::from([("PATH".to_owned(), "/usr/bin:/bin".to_owned())]),
        identity: None,
        limit,
    }
}

#[tokio::test]
async fn a_question_is_answered_with_both_streams_and_the_exit() {
    let answer = ask(&question("echo a; echo b >&2; exit 7", LIMIT))
        .await
        .unwrap();
    assert_eq!(answer.exited, Exited::Code(7));
    assert_eq!(
        (answer.stdout.as_str(), answer.stderr.as_str()),
        ("a\n", "b\n")
    );
}

#[tokio::test]
async fn a_question_is_bounded_in_output_and_time() {
    let flood = ask(&question("head -c 3000000 /dev/zero", LIMIT))
        .await
        .unwrap();
    assert_eq!(flood.stdout.len(), OUTPUT_LIMIT);
    let (_keep, path) = place();
    let script = format!("sleep 1000 & echo $! > {}/pid; wait", path.display());
    let error = ask(&question(&script, Duration::from_secs(3)))
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "`/bin/sh` did not answer within 3000 ms");
    let text = fs::read_to_string(path.join("pid")).unwrap();
    let pid: i32 = text.trim().parse().unwrap();
    if let Some(left) = ProcessIdentity::of(pid) {
        gone(left).await;
    }
}

#[tokio::test]
async fn a_question_whose_program_leaves_a_daemon_is_still_answered_promptly() {
    let start = Instant::now();
    let answer = ask(&question("sleep 1000 & echo done", LIMIT))
        .await
        .unwrap();
    assert_eq!(answer.stdout, "done\n");
    assert!(start.elapsed() < LIMIT / 2);
}

#[tokio::test]
async fn a_missing_program_is_a_typed_answer() {
    let error = ask(&Question {
        program: "/no/such/program".into(),
        ..question("", LIMIT)
    })
    .await
    .unwrap_err();
    let ProcessError::Start { reason, .. } = &error else {
        panic!("{error:?}")
    };
    assert!(matches!(reason, StartFailure::ProgramMissing { .. }));
}
