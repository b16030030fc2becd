//! What a provider can do to its host: nothing but answer.
//!
//! Every misbehaviour of a plugin, in a worker, ends in a typed error that names the phase; the
//! host lives.

#![expect(
    clippy::disallowed_methods,
    reason = "one test starts itself as another host"
)]

mod support;

use std::io::BufRead as _;

use engine_host::{
    fault::{Exit, Fault as _},
    process::Exited,
    provider::{
        Isolation, ProviderFault, Session,
        worker::{Measure, Phase},
    },
};
use engine_provider_api::{Pool, Template};
use serde_json::json;
use support::{hostile, impatient, open, options, plan_request, prepare_request, sample};

/// Opens a provider that does `behaviour` and asks it everything; gives the first failure.
async fn provoke(behaviour: &str, options: &engine_host::provider::Options) -> ProviderFault {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), behaviour);
    ask_everything(open(&path, Isolation::Worker, options).await)
        .await
        .expect_err(behaviour)
}

async fn ask_everything(session: Result<Session, ProviderFault>) -> Result<(), ProviderFault> {
    let session = session?;
    session.info().await?;
    session.plan(&plan_request("hostile")).await?;
    session.prepare(&prepare_request("hostile")).await?;
    session.close().await
}

fn phase_of(phase: &str) -> Phase {
    match phase {
        "load" | "create" => Phase::Open,
        "info" => Phase::Info,
        "plan" => Phase::Plan,
        "prepare" => Phase::Prepare,
        "drop" => Phase::Close,
        other => panic!("no phase {other}"),
    }
}

#[tokio::test]
async fn a_calm_provider_answers_everything_and_leaves() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "calm:calm");
    let session = open(&path, Isolation::Worker, &options()).await;
    ask_everything(session).await.unwrap();
}

#[tokio::test]
async fn whatever_ends_the_worker_in_whatever_phase_is_a_crash_that_names_both() {
    let endings = [
        ("abort", Exited::Signal(6)),
        ("exit", Exited::Code(0)),
        ("segv", Exited::Signal(11)),
    ];
    for phase in ["load", "create", "info", "plan", "prepare", "drop"] {
        for (action, ending) in endings {
            let behaviour = format!("{phase}:{action}");
            match provoke(&behaviour, &options()).await {
                ProviderFault::Crashed {
                    phase: during,
                    exited,
                    ..
                } => {
                    assert_eq!(during, phase_of(phase), "{behaviour}");
                    assert_eq!(exited, Some(ending), "{behaviour}");
                }
                other => panic!("{behaviour}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn a_crash_tells_the_last_words_and_how_to_go_on() {
    let fault = provoke("plan:last-words", &options()).await;
    assert_eq!(
        fault.to_string(),
        "provider `hostile` crashed during plan: signal 6 (ABRT)"
    );
    assert_eq!(fault.exit(), Exit::Provider);
    assert_eq!(fault.details()[0].text, "these are the last words");
    assert!(!fault.hints().is_empty());
}

#[tokio::test]
async fn a_provider_that_never_answers_is_ended_at_the_limit() {
    for behaviour in [
        "load:spin",
        "create:hang",
        "info:hang",
        "plan:spin",
        "prepare:hang",
        "drop:spin",
    ] {
        let phase = phase_of(behaviour.split_once(':').unwrap().0);
        match provoke(behaviour, &impatient(phase)).await {
            ProviderFault::Hung { phase: during, .. } => assert_eq!(during, phase, "{behaviour}"),
            other => panic!("{behaviour}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_flood_on_standard_error_neither_blocks_the_host_nor_fills_its_memory() {
    match provoke("plan:flood", &impatient(Phase::Plan)).await {
        ProviderFault::Hung { stderr, .. } => {
            assert!(stderr.len() <= 20);
            let words = "the hostile provider has a lot to say";
            assert!(
                stderr.iter().all(|line| words.ends_with(line.as_str())),
                "{stderr:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn memory_without_end_ends_the_worker() {
    match provoke("plan:allocate", &options()).await {
        ProviderFault::Crashed {
            phase,
            exited,
            stderr,
            ..
        } => {
            assert_eq!(phase, Phase::Plan);
            assert_eq!(exited, Some(Exited::Signal(6)));
            assert!(stderr[0].contains("memory allocation"), "{stderr:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn garbage_on_the_pipe_is_told_from_an_answer() {
    for behaviour in ["load:babble", "plan:babble"] {
        let fault = provoke(behaviour, &options()).await;
        assert!(
            matches!(fault, ProviderFault::Garbage { .. }),
            "{behaviour}: {fault:?}"
        );
    }
}

#[tokio::test]
async fn a_panic_is_an_answer_with_its_message_and_place_and_the_session_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:panic");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    match session.plan(&plan_request("hostile")).await.unwrap_err() {
        ProviderFault::Refused { error, phase, .. } => {
            assert_eq!(phase, Phase::Plan);
            assert_eq!(error.message, "the provider panicked");
            let place =
                "the hostile provider panics as asked at tests/providers/hostile/src/lib.rs:";
            assert!(error.causes[0].starts_with(place), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
    session.info().await.unwrap();
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_panic_in_a_constructor_is_told_and_one_while_dropping_harms_nobody() {
    let fault = provoke("create:panic", &options()).await;
    assert!(matches!(fault, ProviderFault::Load { .. }), "{fault:?}");
    assert!(
        engine_host::narrate::chain(&fault).contains("could not be set up: the provider panicked")
    );

    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "drop:panic");
    let session = open(&path, Isolation::Worker, &options()).await;
    ask_everything(session).await.unwrap();
}

#[tokio::test]
async fn an_answer_that_needs_more_than_this_host_has_is_refused_in_one_line_with_the_version() {
    let fault = provoke("plan:feature", &options()).await;
    assert_eq!(
        engine_host::narrate::chain(&fault),
        "provider `hostile` answered plan with something unreadable: Plan requires feature \
         `step.teleport`, which contract 1.2.0 does not have; it came with contract 1.9.0: use a \
         host that speaks it"
    );
}

#[tokio::test]
async fn an_unreadable_answer_and_a_false_name_are_told() {
    let fault = provoke("info:unreadable", &options()).await;
    assert!(matches!(fault, ProviderFault::Document { .. }), "{fault:?}");
    let fault = provoke("info:impostor", &options()).await;
    assert_eq!(
        fault.to_string(),
        "provider `hostile 0.1.0` calls itself `llamacpp 0.1.0`, unlike its manifest"
    );
}

#[tokio::test]
async fn every_way_out_of_the_worker_is_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:breach");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    let plan = session.plan(&plan_request("hostile")).await.unwrap();
    let denied = [libc_eperm(), libc_eacces()];
    let findings: Vec<&str> = plan.notes[0].lines().collect();
    assert_eq!(findings.len(), 14, "{findings:?}");
    for finding in findings {
        let (what, outcome) = finding.split_once(": ").unwrap();
        let errno: i32 = outcome.parse().unwrap_or(0);
        assert!(denied.contains(&errno), "{what}: {outcome}");
    }
    assert!(!std::path::Path::new("/tmp/hostile-was-here").exists());
}

fn libc_eperm() -> i32 {
    rustix::io::Errno::PERM.raw_os_error()
}

fn libc_eacces() -> i32 {
    rustix::io::Errno::ACCESS.raw_os_error()
}

#[tokio::test]
async fn the_sandbox_says_what_holds_and_leaves_room_to_compute() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:threads");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    let sandbox = session.sandbox().unwrap();
    for measure in [
        Measure::CleanStart,
        Measure::ResourceLimits,
        Measure::NoNewPrivileges,
        Measure::Landlock,
        Measure::SystemCalls,
    ] {
        assert!(sandbox.holds(measure), "{measure:?}: {sandbox:?}");
    }
    assert_eq!(
        sandbox.holds(Measure::UnprivilegedUser),
        rustix::process::geteuid().is_root()
    );
    let plan = session.plan(&plan_request("hostile")).await.unwrap();
    assert_eq!(plan.notes, ["Some(55)"]);
}

#[tokio::test]
async fn a_worker_sees_nothing_of_the_hosts_environment() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "prepare:environment");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    let prepared = session.prepare(&prepare_request("hostile")).await.unwrap();
    assert_eq!(prepared.warnings, ["0"]);
}

#[tokio::test]
async fn a_library_only_root_may_read_still_opens_in_a_worker_without_rights() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "calm:calm");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let session = open(&path, Isolation::Worker, &options()).await;
    ask_everything(session).await.unwrap();
}

#[tokio::test]
async fn a_session_is_over_after_a_crash_and_no_process_is_left() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:abort");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    let worker = session.worker_id().unwrap();
    session.plan(&plan_request("hostile")).await.unwrap_err();
    let fault = session.info().await.unwrap_err();
    assert!(matches!(fault, ProviderFault::Ended { .. }), "{fault:?}");
    until_gone(worker);
}

#[tokio::test]
async fn dropping_a_session_ends_its_worker_whatever_it_does() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:spin");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    let worker = session.worker_id().unwrap();
    let request = plan_request("hostile");
    let soon = std::time::Duration::from_millis(50);
    tokio::time::timeout(soon, session.plan(&request))
        .await
        .unwrap_err();
    drop(session);
    until_gone(worker);
}

/// The host of this test is the test program itself, started a second time.
#[tokio::test]
async fn a_busy_worker_ends_when_its_host_is_killed() {
    const ROLE: &str = "HOST_OF_A_BUSY_WORKER";
    if let Some(path) = std::env::var_os(ROLE) {
        let session = open(path.as_ref(), Isolation::Worker, &options())
            .await
            .unwrap();
        println!("\nworker={}", session.worker_id().unwrap());
        session.plan(&plan_request("hostile")).await.unwrap();
        unreachable!("it never answers");
    }
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:spin");
    let mut host = std::process::Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "a_busy_worker_ends_when_its_host_is_killed",
            "--nocapture",
        ])
        .env(ROLE, &path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let worker = std::io::BufReader::new(host.stdout.take().unwrap())
        .lines()
        .find_map(|line| line.unwrap().strip_prefix("worker=")?.parse().ok())
        .expect("the second host tells its worker");
    host.kill().unwrap();
    host.wait().unwrap();
    until_gone(worker);
}

/// Waits until a process is gone or only waits to be reaped by somebody else.
fn until_gone(id: u32) {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        if status.is_empty() || status.contains("State:\tZ") {
            return;
        }
        assert!(
            std::time::Instant::now() < limit,
            "worker {id} lives on:\n{status}"
        );
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn a_cancelled_call_ends_the_session_instead_of_answering_the_next_question() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "plan:hang");
    let session = open(&path, Isolation::Worker, &options()).await.unwrap();
    let soon = std::time::Duration::from_millis(50);
    let request = plan_request("hostile");
    let cancelled = tokio::time::timeout(soon, session.plan(&request)).await;
    assert!(cancelled.is_err());
    let fault = session.info().await.unwrap_err();
    assert!(matches!(fault, ProviderFault::Ended { .. }), "{fault:?}");
}

#[tokio::test]
async fn a_program_that_is_no_worker_is_named_with_the_fix() {
    let mut options = options();
    let usual = options.limits.open;
    for (program, limit, words) in [
        ("/bin/true", usual, "it ended (exit code 0)"),
        (
            "/bin/cat",
            usual,
            "it ended (exit code 1)\n  engine-provider-worker: ",
        ),
        (
            "/usr/bin/yes",
            std::time::Duration::from_millis(700),
            "it said nothing for 0.7 s",
        ),
    ] {
        options.program = program.into();
        options.limits.open = limit;
        let fault = open(&sample(), Isolation::Worker, &options)
            .await
            .unwrap_err();
        assert!(fault.details()[0].text.starts_with(words), "{fault:?}");
        assert!(fault.hints()[0].text.contains("run_if_worker"));
    }
    options.program = "/no/such/program".into();
    let fault = open(&sample(), Isolation::Worker, &options)
        .await
        .unwrap_err();
    assert!(matches!(fault, ProviderFault::Spawn { .. }), "{fault:?}");
}

#[tokio::test]
async fn a_file_with_another_digest_than_recorded_is_not_opened() {
    let mut options = options();
    options.sha256 = Some("0".repeat(64));
    let fault = open(&sample(), Isolation::Worker, &options)
        .await
        .unwrap_err();
    assert!(fault.to_string().contains("its sha256 is "), "{fault}");
}

#[tokio::test]
async fn a_file_replaced_after_listing_is_not_opened() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "calm:calm");
    let found = engine_host::provider::inspect(&path, &support::search(&[])).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::copy(sample(), &path).unwrap();
    let fault = Session::open(&found, Isolation::Worker, &options())
        .await
        .unwrap_err();
    assert!(
        fault
            .to_string()
            .ends_with("it was replaced since it was listed"),
        "{fault}"
    );
}

/// The well-behaved suite: the same questions, the same answers, wherever the provider runs.
#[tokio::test]
async fn a_good_provider_answers_alike_in_a_worker_and_in_this_process() {
    let mut answers = Vec::new();
    for isolation in [Isolation::Worker, Isolation::InProcess] {
        let session = open(&sample(), isolation, &options()).await.unwrap();
        let info = session.info().await.unwrap();
        let mut request = plan_request("fixture");
        request.pool = Pool {
            options: json!({"retry_when": "disk"}).as_object().unwrap().clone(),
            ..info.default_pool.clone()
        };
        request.pool.provisioning.flags = vec!["--braces={x}".to_owned()];
        request.mode = engine_provider_api::Mode::Source;
        let refusal = match session.plan(&request).await.unwrap_err() {
            ProviderFault::Refused { error, .. } => error,
            other => panic!("{other:?}"),
        };
        assert_eq!(refusal.field.as_deref(), Some("provisioning.source.repo"));
        request.pool.provisioning.source =
            serde_json::from_value(json!({"repo": "file:///r"})).unwrap();
        let plan = session.plan(&request).await.unwrap();
        assert_eq!(plan.steps.len(), 5);
        let prepared = session
            .prepare(&engine_provider_api::PrepareRequest {
                pool: request.pool.clone(),
                mode: request.mode,
                ..prepare_request("fixture")
            })
            .await
            .unwrap();
        let engine_provider_api::Launch::Process(launch) = &prepared.launch else {
            panic!("the fixture is a process")
        };
        assert_eq!(launch.args.last(), Some(&Template::literal("--braces={x}")));
        session.close().await.unwrap();
        answers.push((info, refusal, plan, prepared));
    }
    assert_eq!(answers[0], answers[1]);
}

#[tokio::test]
async fn two_providers_in_one_process_are_two() {
    let directory = tempfile::tempdir().unwrap();
    let other = hostile(directory.path(), "calm:calm");
    let first = open(&sample(), Isolation::InProcess, &options())
        .await
        .unwrap();
    let second = open(&other, Isolation::InProcess, &options())
        .await
        .unwrap();
    assert_eq!(first.info().await.unwrap().name, "fixture");
    assert_eq!(second.info().await.unwrap().name, "hostile");
}

#[tokio::test]
async fn a_new_file_at_an_old_path_is_a_new_library_in_this_process() {
    let directory = tempfile::tempdir().unwrap();
    let path = hostile(directory.path(), "prepare:environment");
    let first = open(&path, Isolation::InProcess, &options()).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    hostile(directory.path(), "calm:calm");
    let second = open(&path, Isolation::InProcess, &options()).await.unwrap();
    let request = prepare_request("hostile");
    assert_eq!(first.prepare(&request).await.unwrap().warnings.len(), 1);
    assert_eq!(second.prepare(&request).await.unwrap().warnings.len(), 0);
}

#[tokio::test]
async fn panics_stay_inside_the_library_in_this_process_too() {
    let directory = tempfile::tempdir().unwrap();
    for behaviour in ["info:panic", "plan:panic", "prepare:panic"] {
        std::fs::remove_file(directory.path().join("libengine_provider_hostile.so")).ok();
        let path = hostile(directory.path(), behaviour);
        let session = open(&path, Isolation::InProcess, &options()).await;
        let fault = ask_everything(session).await.unwrap_err();
        assert!(
            matches!(fault, ProviderFault::Refused { .. }),
            "{behaviour}: {fault:?}"
        );
    }
}
