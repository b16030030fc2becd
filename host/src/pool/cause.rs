//! Why an engine fell, told apart: what is counted, what is said, and whether trying again helps.

use engine_provider_api::DiagnosisKind;

use crate::{
    container::ExitReason,
    engine::{EngineError, Finding},
    fault::{Exit, Fault},
    process::ProcessError,
};

/// Why an engine fell or did not come up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cause {
    /// It ended by itself.
    Exit,
    /// The kernel or its runtime killed it for its memory.
    OutOfMemory,
    /// Its log says that a GPU failed.
    GpuError,
    /// It runs and does not answer.
    Liveness,
    /// It could not be obtained or did not become ready.
    Start,
    /// Somebody stopped it from elsewhere.
    Stopped,
}

impl Cause {
    /// Why an engine fell or did not come up, as far as the error tells. What its provider knows of its
    /// log and what the kernel says come before how far it was.
    #[must_use]
    pub fn of(error: &EngineError) -> Self {
        let evidence = error.evidence();
        let reason = evidence.and_then(|it| it.reason.as_ref());
        let finding = evidence.and_then(|it| it.finding.as_ref());
        match (reason, finding.and_then(|it| it.kind), error) {
            (Some(ExitReason::OutOfMemory), ..) | (_, Some(DiagnosisKind::Memory), _) => {
                Self::OutOfMemory
            }
            (_, Some(DiagnosisKind::Gpu), _) => Self::GpuError,
            // Its keeper is gone, and has taken it along.
            (
                ..,
                EngineError::Process {
                    source: ProcessError::KeeperGone { .. },
                },
            )
            | (.., EngineError::Died { ready: true, .. })
            | (.., EngineError::ExternalGone { ready: true, .. }) => Self::Exit,
            _ => Self::Start,
        }
    }

    /// Why one fell that no longer answers, of whose log this is known.
    #[must_use]
    pub fn of_hang(finding: Option<&Finding>) -> Self {
        match finding.and_then(|it| it.kind) {
            Some(DiagnosisKind::Memory) => Self::OutOfMemory,
            Some(DiagnosisKind::Gpu) => Self::GpuError,
            _ => Self::Liveness,
        }
    }

    /// The word used in events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exit => "exit",
            Self::OutOfMemory => "oom",
            Self::GpuError => "gpu-error",
            Self::Liveness => "liveness",
            Self::Start => "start",
            Self::Stopped => "stopped",
        }
    }
}

/// Kinds of [`crate::provider::ProviderFault`] that say what became of a worker, not what a provider is:
/// somebody killed it, memory was short, the machine was busy.
const OF_A_WORKER: [&str; 4] = [
    "provider-crashed",
    "provider-hung",
    "worker-not-started",
    "worker-unknown",
];

/// Kinds of [`crate::config::ConfigError`] that say what a file is at this moment. The pools of a manager
/// were right when it took them over: somebody is writing theirs.
const OF_A_FILE: [&str; 2] = ["config-unreadable", "config-invalid"];

/// Whether a failure to come up may go away by itself. What a person must change first does not: what a
/// pool says, policy, a missing provider, a lock file that does not hold. An engine that is in the way
/// ends, or is adopted; a file that is being written is whole again.
#[must_use]
pub(super) fn may_pass(fault: &dyn Fault) -> bool {
    match fault.exit() {
        Exit::Provider => OF_A_WORKER.contains(&fault.kind()),
        Exit::Config => OF_A_FILE.contains(&fault.kind()),
        Exit::Usage | Exit::Refused | Exit::Drifted | Exit::Verification => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::problem::{ConfigError, FileKind},
        engine::Evidence,
        process::Exited,
        provider::{ProviderFault, worker::Phase},
    };

    fn finding(kind: Option<DiagnosisKind>) -> Finding {
        Finding {
            meaning: "it failed".to_owned(),
            fix: "do something".to_owned(),
            line: "error".to_owned(),
            port_taken: false,
            kind,
        }
    }

    fn died(ready: bool, kind: Option<DiagnosisKind>, reason: Option<ExitReason>) -> EngineError {
        EngineError::Died {
            exited: Exited::Code(1),
            ready,
            evidence: Box::new(Evidence {
                finding: Some(finding(kind)),
                reason,
                ..Evidence::default()
            }),
        }
    }

    #[test]
    fn what_failed_comes_before_when_it_did() {
        for ready in [false, true] {
            let plain = if ready { Cause::Exit } else { Cause::Start };
            let memory = Some(ExitReason::OutOfMemory);
            for (kind, reason, expected) in [
                (None, None, plain),
                (Some(DiagnosisKind::Other), None, plain),
                (Some(DiagnosisKind::Gpu), None, Cause::GpuError),
                (Some(DiagnosisKind::Memory), None, Cause::OutOfMemory),
                // The kernel's word is the last one.
                (Some(DiagnosisKind::Gpu), memory, Cause::OutOfMemory),
                (None, Some(ExitReason::PortTaken), plain),
            ] {
                assert_eq!(Cause::of(&died(ready, kind, reason)), expected, "{kind:?}");
            }
        }
    }

    #[test]
    fn one_that_hangs_on_its_gpu_is_told_from_one_that_merely_hangs() {
        let of = |kind| Cause::of_hang(Some(&finding(kind)));
        assert_eq!(of(Some(DiagnosisKind::Gpu)), Cause::GpuError);
        assert_eq!(of(Some(DiagnosisKind::Memory)), Cause::OutOfMemory);
        assert_eq!(of(None), Cause::Liveness);
        assert_eq!(Cause::of_hang(None), Cause::Liveness);
    }

    #[test]
    fn what_befell_a_worker_is_in_the_way_or_being_written_passes_and_what_a_person_must_change_does_not()
     {
        let crashed = ProviderFault::Crashed {
            provider: "toy".to_owned(),
            phase: Phase::Info,
            exited: Some(Exited::Signal(9)),
            stderr: Vec::new(),
        };
        let unusable = ProviderFault::Unusable {
            name: "toy".to_owned(),
            path: "/toy.so".into(),
            reason: "it is no library".to_owned(),
        };
        let in_the_way = EngineError::NotAdopted {
            pool: "chat".to_owned(),
            url: "http://127.0.0.1:1".to_owned(),
            reason: "it has ended".to_owned(),
            is_attended: false,
        };
        let half_written = ConfigError::Read {
            path: "pools.yaml".into(),
            kind: FileKind::Pools,
            source: std::io::ErrorKind::NotFound.into(),
        };
        assert!(may_pass(&crashed) && may_pass(&in_the_way) && may_pass(&half_written));
        assert!(!may_pass(&unusable) && !may_pass(&ConfigError::NothingGiven));
    }

    #[test]
    fn an_engine_that_never_ran_failed_to_start_and_one_whose_keeper_fell_ended() {
        assert_eq!(Cause::of(&EngineError::Cancelled), Cause::Start);
        let gone = ProcessError::KeeperGone { exited: None };
        assert_eq!(Cause::of(&gone.into()), Cause::Exit);
    }
}
