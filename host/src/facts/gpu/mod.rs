//! Looking for GPUs: the driver's library, its program, its files, each step kept as evidence.
//!
//! "No GPU" and "a GPU whose driver does not work" are different answers: the first is a machine,
//! the second is a repair.

mod amd;
mod files;
mod smi;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::{Evidence, GpuStatus, Gpus};
use serde::de::DeserializeOwned;

use super::{
    asking::{Ask, Versions, bounded},
    probe,
};
use crate::process::{ProcessError, Question};

/// Longest time the driver may take to answer.
const DRIVER_LIMIT: Duration = Duration::from_secs(8);

/// Where `/proc/self/ns/pid` leads outside every container: `PROC_PID_INIT_INO` of the kernel's
/// `include/linux/proc_ns.h`, part of its interface since Linux 3.8.
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

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
    let question = nvml_question(versions, program, &library, None);
    match answered(versions.asker, question).await {
        Ok(report) => take(report, gpus),
        Err(reason) => {
            evidence(gpus, "nvml", &reason);
            false
        }
    }
}

/// The question that makes a program the probe, asked as this process's user: the program is this
/// one, not one of the machine that is looked at.
fn nvml_question(
    versions: &Versions<'_>,
    program: &Path,
    library: &Path,
    what: Option<&str>,
) -> Question {
    let library = versions.roots.real(library).to_string_lossy().into_owned();
    let arguments: Vec<String> = [probe::MARKER.to_owned(), library]
        .into_iter()
        .chain(what.map(str::to_owned))
        .collect();
    let mut question = versions.question(program, &arguments, DRIVER_LIMIT);
    question.program = program.to_owned();
    question.identity = None;
    question
}

async fn answered<T: DeserializeOwned>(asker: &dyn Ask, question: Question) -> Result<T, String> {
    match bounded(asker, question).await {
        Ok(answer) => probe::read(&answer.stdout)
            .ok_or_else(|| format!("the driver's library ended the probe: {}", answer.exited)),
        Err(error) => Err(unanswered(&error)),
    }
}

/// Bytes of device memory that these processes hold together; `None` where the driver does not say.
pub(super) async fn memory_of(
    versions: &Versions<'_>,
    program: &Path,
    pids: &[i32],
) -> Option<u64> {
    let library = files::nvml_library(versions.roots)?;
    let question = nvml_question(versions, program, &library, Some(probe::PROCESSES));
    let holdings: probe::Holdings = answered(versions.asker, question).await.ok()?;
    // Elsewhere the driver's process ids are not those that are seen here.
    let pids_are_the_drivers = versions
        .roots
        .link("/proc/self/ns/pid")
        .is_some_and(|target| target == Path::new(FIRST_PID_NAMESPACE));
    held_by(&holdings, pids, pids_are_the_drivers)
}

/// What of the holdings belongs to these processes. Nothing is only an answer where everything was
/// asked and process ids mean the same to the driver and to this process.
fn held_by(holdings: &probe::Holdings, pids: &[i32], complete: bool) -> Option<u64> {
    if !complete {
        return None;
    }
    let own: Vec<_> = holdings
        .holders
        .iter()
        .filter(|holder| pids.iter().any(|&pid| u32::try_from(pid) == Ok(holder.pid)))
        .collect();
    match own.iter().filter_map(|holder| holder.used_bytes).sum() {
        0 if !holdings.errors.is_empty() || !own.is_empty() => None,
        bytes => Some(bytes),
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

#[cfg(test)]
mod tests {
    use super::{
        held_by,
        probe::{Holder, Holdings},
    };

    fn holdings(holders: &[(u32, Option<u64>)], errors: &[&str]) -> Holdings {
        Holdings {
            holders: holders
                .iter()
                .map(|&(pid, used_bytes)| Holder { pid, used_bytes })
                .collect(),
            errors: errors.iter().map(|&text| text.to_owned()).collect(),
        }
    }

    #[test]
    fn the_memory_of_a_tree_is_summed_over_processes_and_devices() {
        let all = holdings(
            &[(7, Some(100)), (8, Some(20)), (7, Some(3)), (9, Some(50))],
            &[],
        );
        assert_eq!(held_by(&all, &[7, 8, 10], true), Some(123));
    }

    #[test]
    fn nothing_is_an_answer_only_where_the_driver_was_sure_to_name_them() {
        let others = holdings(&[(9, Some(50))], &[]);
        assert_eq!(held_by(&others, &[7], true), Some(0));
        assert_eq!(held_by(&others, &[9], false), None, "other process ids");
        let partly = holdings(&[(9, Some(50))], &["device 1: not supported"]);
        assert_eq!(held_by(&partly, &[7], true), None);
        let untold = holdings(&[(7, None)], &[]);
        assert_eq!(held_by(&untold, &[7], true), None);
    }
}
