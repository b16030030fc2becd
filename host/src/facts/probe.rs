//! Asking the NVIDIA driver through NVML, in a process of its own.
//!
//! A broken driver does not answer with an error, it hangs, crashes, or prints to standard output:
//! so the library is opened by this binary re-executed with a hidden argument, under a limit, and
//! what it found comes back on one marked line. `main` calls [`run_if_probe`] first.
//!
//! Two questions are asked this way: which GPUs there are, and which processes hold memory on them.

use std::{path::Path, process::ExitCode};

use engine_provider_api::Gpu;
use nvml_wrapper::{
    Device, Nvml, enums::device::UsedGpuMemory, error::NvmlError,
    struct_wrappers::device::ProcessInfo,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// First argument that makes this program a probe; the second is the library's path.
pub const MARKER: &str = "__probe-nvml";

/// Third argument: who holds memory, instead of which GPUs there are.
pub(super) const PROCESSES: &str = "processes";

/// Beginning of the line that carries the report: libraries may print lines of their own.
const LINE: &str = "nvml-report: ";

/// What NVML said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Driver version.
    pub driver: Option<String>,
    /// Highest CUDA version the driver serves.
    pub cuda: Option<String>,
    /// GPUs, or MIG slices of those that are sliced.
    pub devices: Vec<Gpu>,
    /// What did not work, one line each. Without devices: why there are none.
    pub errors: Vec<String>,
}

/// What processes hold on the GPUs, by the driver's word.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holdings {
    /// One entry for each process and device.
    pub holders: Vec<Holder>,
    /// What could not be asked, one line each: the list may lack somebody then.
    pub errors: Vec<String>,
}

/// A process with memory on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Process id, in the namespace that the driver counts in: the machine's first one.
    pub pid: u32,
    /// Bytes; `None` where the driver does not tell how many.
    pub used_bytes: Option<u64>,
}

/// Becomes the probe if this program was started as one, and returns how it ended. To be called at
/// the top of `main`.
#[must_use]
pub fn run_if_probe() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != MARKER {
        return None;
    }
    let library = arguments.next().unwrap_or_default();
    let library = Path::new(&library);
    let text = match arguments.next() {
        Some(what) if what == PROCESSES => serde_json::to_string(&holdings(library)),
        _ => serde_json::to_string(&look(library)),
    };
    println!("{LINE}{}", text.expect("a report is plain data"));
    Some(ExitCode::SUCCESS)
}

/// The report in what a probe printed.
pub(super) fn read<T: DeserializeOwned>(stdout: &str) -> Option<T> {
    let line = stdout.lines().find_map(|line| line.strip_prefix(LINE))?;
    serde_json::from_str(line).ok()
}

fn look(library: &Path) -> Report {
    let nvml = match Nvml::builder().lib_path(library.as_os_str()).init() {
        Ok(nvml) => nvml,
        Err(error) => {
            return Report {
                errors: vec![format!("NVML does not start: {error}")],
                ..Report::default()
            };
        }
    };
    let mut report = Report {
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml.sys_cuda_driver_version().ok().map(cuda_version),
        ..Report::default()
    };
    let count = match nvml.device_count() {
        Ok(count) => count,
        Err(error) => {
            report
                .errors
                .push(format!("NVML does not count devices: {error}"));
            return report;
        }
    };
    for index in 0..count {
        let found = nvml
            .device_by_index(index)
            .and_then(|device| gpus(&device, index));
        match found {
            Ok(mut gpus) => report.devices.append(&mut gpus),
            Err(error) => report.errors.push(format!("device {index}: {error}")),
        }
    }
    report
}

/// Who holds memory on which device.
fn holdings(library: &Path) -> Holdings {
    let mut holdings = Holdings::default();
    let asked = Nvml::builder()
        .lib_path(library.as_os_str())
        .init()
        .and_then(|nvml| {
            for index in 0..nvml.device_count()? {
                let device = nvml.device_by_index(index)?;
                // Inference holds compute contexts; a graphics one may come along.
                match device.running_compute_processes() {
                    Ok(found) => holdings.holders.extend(found.iter().map(holder)),
                    Err(error) => holdings.errors.push(format!("device {index}: {error}")),
                }
            }
            Ok(())
        });
    if let Err(error) = asked {
        holdings.errors.push(error.to_string());
    }
    holdings
}

fn holder(process: &ProcessInfo) -> Holder {
    Holder {
        pid: process.pid,
        used_bytes: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    }
}

/// `12040` is 12.4: 1000 times the major plus 10 times the minor version.
fn cuda_version(number: i32) -> String {
    format!("{}.{}", number / 1000, number % 1000 / 10)
}

/// The GPU, or its slices where it is sliced.
fn gpus(device: &Device<'_>, index: u32) -> Result<Vec<Gpu>, NvmlError> {
    let capability = device.cuda_compute_capability()?;
    let capability = format!("{}.{}", capability.major, capability.minor);
    // Only data-centre GPUs know slices; the others answer "not supported".
    let sliced = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    if !sliced {
        return Ok(vec![gpu(device, index, capability, false)?]);
    }
    let mut slices = Vec::new();
    for slice in 0..device.mig_device_count()? {
        match device.mig_device_by_index(slice) {
            Ok(slice) => slices.push(gpu(&slice, index, capability.clone(), true)?),
            // Slices need not be numbered without gaps.
            Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(slices)
}

fn gpu(device: &Device<'_>, index: u32, capability: String, mig: bool) -> Result<Gpu, NvmlError> {
    let memory = device.memory_info()?;
    Ok(Gpu {
        index,
        uuid: device.uuid()?,
        name: device.name()?,
        vendor: "nvidia".to_owned(),
        compute_capability: capability,
        memory_total_bytes: memory.total,
        memory_free_bytes: memory.free,
        mig,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_found_among_what_a_library_prints() {
        let report = Report {
            driver: Some("570.86.15".into()),
            ..Report::default()
        };
        let text = serde_json::to_string(&report).unwrap();
        let stdout = format!("Detected a driver!\n{LINE}{text}\nbye\n");
        assert_eq!(read(&stdout), Some(report));
        assert_eq!(read::<Report>("nothing"), None);
        assert_eq!(cuda_version(12040), "12.4");
        assert_eq!(cuda_version(13000), "13.0");
    }
}
