//! What happens where the kernel lacks a wall: third parties stay out, the host's own come in.
//!
//! The kernel without Landlock is simulated by a system-call filter around a second run of this
//! program, which its workers inherit.
#![expect(
    clippy::disallowed_methods,
    reason = "each test starts itself again under a filter"
)]

#[expect(dead_code, reason = "it uses a part of the support")]
mod support;

use std::{collections::BTreeMap, process::Command};

use engine_host::{
    fault::{Exit, Fault as _},
    provider::{Isolation, ProviderFault, worker::Measure},
};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter};
use support::{hostile, open, options, plan_request, sample};

const ROLE: &str = "WITHOUT_LANDLOCK";

/// Runs `test` on a runtime of its own in a second process whose kernel seems to lack Landlock.
fn without_landlock<T: Future>(name: &str, test: impl FnOnce() -> T) {
    if std::env::var_os(ROLE).is_some() {
        filter_out(libc::SYS_landlock_create_ruleset);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(test());
        return;
    }
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(ROLE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

/// Lets a system call answer as a kernel that does not have it.
fn filter_out(number: i64) {
    let filter: BpfProgram = SeccompFilter::new(
        BTreeMap::from([(number, Vec::new())]),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::ENOSYS as u32),
        std::env::consts::ARCH.try_into().unwrap(),
    )
    .unwrap()
    .try_into()
    .unwrap();
    seccompiler::apply_filter(&filter).unwrap();
}

#[test]
fn a_third_party_is_not_opened_where_a_wall_is_missing() {
    without_landlock(
        "a_third_party_is_not_opened_where_a_wall_is_missing",
        || async {
            let directory = tempfile::tempdir().unwrap();
            // Had it been loaded, it would have ended its worker.
            let path = hostile(directory.path(), "load:abort");
            let fault = open(&path, Isolation::Worker, &options())
                .await
                .unwrap_err();
            assert!(
                matches!(fault, ProviderFault::Unsandboxed { .. }),
                "{fault:?}"
            );
            assert_eq!(fault.exit(), Exit::Refused);
            assert_eq!(
                fault.details()[1].text,
                "no Landlock: this kernel has it not or switched off"
            );
            let vouch = fault.hints()[1].command.clone().unwrap();
            assert!(vouch.starts_with("install -m 755 "), "{vouch}");
        },
    );
}

#[test]
fn a_provider_that_came_with_the_host_is_opened_and_the_missing_wall_told() {
    without_landlock(
        "a_provider_that_came_with_the_host_is_opened_and_the_missing_wall_told",
        || async {
            let session = open(&sample(), Isolation::Worker, &options())
                .await
                .unwrap();
            let sandbox = session.sandbox().unwrap();
            assert!(!sandbox.holds(Measure::Landlock));
            assert!(sandbox.holds(Measure::SystemCalls));
            assert_eq!(sandbox.lacking().len(), 1);
            let refusal = session.plan(&plan_request("fixture")).await.unwrap_err();
            assert!(
                matches!(refusal, ProviderFault::Refused { .. }),
                "{refusal:?}"
            );
        },
    );
}
