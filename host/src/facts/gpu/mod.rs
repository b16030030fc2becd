//! Looking for GPUs: the driver's library, its program, its files, each step kept as evidence.
//!
//! "No GPU" and "a GPU whose driver does not work" are different answers: the first is a machine,
//! the second is a repair.

mod amd;
mod files;
mod smi;

use std::{path::PathBuf, time::Duration};

use engine_provider_api::{Evidence, GpuStatus, Gpus};

use super::{
    asking::{Versions, bounded},
    probe,
};
use crate::process::ProcessError;

/// Longest time the driver may take to answer.
const DRIVER_LIMIT: Duration = Duration::from_secs(8);

/// Looks for GPUs. `probe_program`: a program that calls [`probe::run_if_probe`] first.
pub(super) async fn gpus(versions: &Versions<'_>, probe_program: Option<&PathBuf>) -> Gpus {
    let mut gpus = Gpus::default();
    if !through_nvml(versions, probe_program, &mut gpus).await {
        through_smi(versions, &mut gpus).await;
    }
    let hardware = files::look(versions.roots);
    if gpus.devices.is_empty() {
        evidence(&mut gpus, "driver-files", &hardware.finding());
        gpus.driver = gpus.driver.take().or_else(|| hardware.driver.clone());
    }
    if let Some((mut devices, finding)) = amd::devices(versions.roots) {
        evidence(&mut gpus, "kfd", &finding);
        gpus.devices.append(&mut devices);
    }
    gpus.status = match (gpus.devices.is_empty(), hardware.is_there()) {
        (false, _) => GpuStatus::Present,
        (true, true) => GpuStatus::DriverBroken,
        (true, false) => GpuStatus::None,
    };
    gpus
}

fn evidence(gpus: &mut Gpus, source: &str, finding: &str) {
    gpus.evidence.push(Evidence {
        source: source.to_owned(),
        finding: finding.to_owned(),
    });
}

/// Asks NVML; tells whether that settled the question.
async fn through_nvml(
    versions: &Versions<'_>,
    probe_program: Option<&PathBuf>,
    gpus: &mut Gpus,
) -> bool {
    let Some(library) = files::nvml_library(versions.roots) else {
        evidence(gpus, "nvml", "libnvidia-ml.so.1 is not there");
        return false;
    };
    let Some(program) = probe_program else {
        evidence(gpus, "nvml", "not asked: this program has no probe");
        return false;
    };
    let mut question = versions.question(
        program,
        &[
            probe::MARKER.to_owned(),
            versions.roots.real(&library).to_string_lossy().into_owned(),
        ],
        DRIVER_LIMIT,
    );
    // The program is this one, not one of the machine that is looked at; and it asks as itself.
    question.program.clone_from(program);
    question.identity = None;
    let report = match bounded(versions.asker, question).await {
        Ok(answer) => probe::read(&answer.stdout)
            .ok_or_else(|| format!("the driver's library ended the probe: {}", answer.exited)),
        Err(error) => Err(unanswered(&error)),
    };
    match report {
        Ok(report) => take(report, gpus),
        Err(reason) => {
            evidence(gpus, "nvml", &reason);
            false
        }
    }
}

fn unanswered(error: &ProcessError) -> String {
    match error {
        ProcessError::TimedOut { limit, .. } => {
            format!("the driver did not answer within {} s", limit.as_secs())
        }
        error => crate::narrate::chain(error),
    }
}

fn take(report: probe::Report, gpus: &mut Gpus) -> bool {
    let driver = report.driver.as_deref().unwrap_or("unknown");
    let mut finding = match (report.devices.len(), report.driver.is_some()) {
        (0, false) => String::new(),
        (count, _) => format!("driver {driver}, {count} device(s)"),
    };
    for error in &report.errors {
        if !finding.is_empty() {
            finding.push_str("; ");
        }
        finding.push_str(error);
    }
    evidence(gpus, "nvml", &finding);
    gpus.driver = report.driver;
    gpus.cuda = report.cuda;
    gpus.devices = report.devices;
    !gpus.devices.is_empty()
}

async fn through_smi(versions: &Versions<'_>, gpus: &mut Gpus) {
    let roots = versions.roots;
    let usual = ["/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi"].map(PathBuf::from);
    let program = roots
        .program("nvidia-smi")
        .or_else(|| usual.into_iter().find(|path| roots.is_program(path)));
    let Some(program) = program else {
        evidence(gpus, "nvidia-smi", "not found");
        return;
    };
    let ask = async |arguments: &[&str]| {
        let arguments: Vec<String> = arguments.iter().map(|&it| it.to_owned()).collect();
        let mut question = versions.question(&program, &arguments, DRIVER_LIMIT);
        question.identity = None;
        bounded(versions.asker, question).await
    };
    let finding = match ask(smi::QUERY).await {
        Ok(answer) if answer.exited.success() => match smi::parse(&answer.stdout) {
            Ok(found) => {
                let list = if found.sliced {
                    ask(&["-L"])
                        .await
                        .map(|answer| answer.stdout)
                        .unwrap_or_default()
                } else {
                    String::new()
                };
                let devices = smi::with_slices(found.devices, &list);
                let finding = format!(
                    "driver {}, {} device(s)",
                    found.driver.as_deref().unwrap_or("unknown"),
                    devices.len()
                );
                gpus.devices = devices;
                gpus.driver = found.driver;
                finding
            }
            Err(line) => format!("its answer is not understood: {line}"),
        },
        Ok(answer) => {
            let said = answer.stdout.lines().chain(answer.stderr.lines());
            let said = said
                .map(str::trim)
                .find(|line| !line.is_empty())
                .unwrap_or("");
            format!("{}: {said}", answer.exited)
        }
        Err(error) => unanswered(&error),
    };
    evidence(gpus, "nvidia-smi", &finding);
}
