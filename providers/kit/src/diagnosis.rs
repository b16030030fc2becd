//! Tables of what an engine's last words mean.

use engine_provider_api::{Diagnosis, DiagnosisKind};

/// Pattern, meaning, what helps, what failed. In a table the particular stands before the general.
pub type Row = (
    &'static str,
    &'static str,
    &'static str,
    Option<DiagnosisKind>,
);

/// What helps whoever finds a port taken.
pub const OTHER_PORTS: &str = "set other `provisioning.ports`, or stop what listens there";

/// The driver's words for a GPU that has failed, as any engine passes them on.
pub const GPU_FAILED: Row = (
    r"uncorrectable ECC error|\bXid \d+|(?:GPU|device) (?:is lost|has fallen off the bus)",
    "the GPU itself has failed",
    "see its errors with `nvidia-smi -q -d ECC` and in the kernel's log, and reset or replace it",
    Some(DiagnosisKind::Gpu),
);

/// Any other error of the GPU's run-time library.
pub const GPU_REPORTS: Row = (
    r"(?:CUDA|HIP|ROCm) error: (?P<reason>.+)",
    "the GPU reports: $reason",
    "check the GPU driver and its log",
    Some(DiagnosisKind::Gpu),
);

/// A row as the document that the host reads.
pub fn of(&(pattern, meaning, fix, kind): &Row) -> Diagnosis {
    Diagnosis {
        pattern: pattern.to_owned(),
        meaning: meaning.to_owned(),
        fix: fix.to_owned(),
        port_taken: false,
        kind,
    }
}

/// Words that say a port is taken: the host then starts the engine on the next one.
pub fn port_taken(pattern: &str, meaning: &str) -> Diagnosis {
    Diagnosis {
        pattern: pattern.to_owned(),
        meaning: meaning.to_owned(),
        fix: OTHER_PORTS.to_owned(),
        port_taken: true,
        kind: None,
    }
}
