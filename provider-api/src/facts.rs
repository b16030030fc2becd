//! What a machine is and has: the provider's only view of the world.
//!
//! Collected by the host, lazily and with limits; written by `host facts --json`; given back with
//! `--facts FILE` to plan for another machine.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A machine, as far as providers need to know it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Facts {
    /// Features the reader must have; see [`crate::version`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub requires: Vec<String>,
    /// Operating system.
    pub os: Os,
    /// Processor.
    pub cpu: Cpu,
    /// Main memory.
    pub memory: Memory,
    /// Tools that `ProviderInfo::tools` asked for and that were found, by probe name.
    pub tools: BTreeMap<String, Tool>,
    /// GPUs and their driver.
    pub gpus: Gpus,
    /// CUDA toolkits, best first: the one on `PATH`, then `/usr/local/cuda*`, `/opt/cuda*`.
    pub cuda: Vec<CudaToolkit>,
    /// C and C++ compilers that were found, newest first.
    pub compilers: Vec<Compiler>,
    /// Root of a ROCm (HIP) toolkit, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rocm: Option<Toolkit>,
    /// Vulkan development files and shader compiler, where both are there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vulkan: Option<Toolkit>,
    /// Simple-API URL of the Python package index that pip is configured for, without secrets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_index: Option<String>,
    /// The distribution's package manager, where it is one the host can drive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub package_manager: Option<PackageManager>,
    /// Container runtimes; empty where nobody asked for containers.
    #[serde(skip_serializing_if = "Containers::is_empty")]
    pub containers: Containers,
}

/// Operating system.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Os {
    /// `ID` of os-release(5), for example `debian`.
    pub id: String,
    /// `ID_LIKE` of os-release(5), split.
    pub id_like: Vec<String>,
    /// `VERSION_ID` of os-release(5); empty for rolling distributions.
    pub version: String,
    /// `PRETTY_NAME` of os-release(5).
    pub name: String,
    /// Machine name of uname(2), for example `x86_64`.
    pub arch: String,
    /// Kernel release of uname(2).
    pub kernel: String,
    /// Version of the C library, for example `2.36`; empty where it is not glibc.
    pub glibc: String,
}

/// Processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpu {
    /// Model name, for people.
    pub model: String,
    /// Threads this process may run on.
    pub threads: u32,
    /// Instruction-set flags that native code may use, sorted.
    pub features: Vec<String>,
}

/// Main memory.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Memory {
    /// Installed memory in bytes, or the cgroup limit where that is less.
    pub total_bytes: u64,
    /// Memory available without swapping, in bytes, when the facts were taken.
    pub available_bytes: u64,
}

/// A tool that was found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Tool {
    /// Absolute path.
    pub path: String,
    /// Version it printed, for example `3.25.1`; empty where it was not asked or said none.
    pub version: String,
}

/// GPUs, and how we know.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Gpus {
    /// Outcome of the search.
    pub status: GpuStatus,
    /// GPUs that can be used, in the driver's order.
    pub devices: Vec<Gpu>,
    /// Driver version, for example `570.86.15`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Highest CUDA version the driver serves, for example `12.8`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda: Option<String>,
    /// What was tried, in order, and what came of it.
    pub evidence: Vec<Evidence>,
}

/// Outcome of the search for GPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GpuStatus {
    /// At least one GPU can be used.
    Present,
    /// There is hardware or a driver, but it does not work: not the same as having no GPU.
    DriverBroken,
    /// No GPU was found.
    #[default]
    #[serde(other)]
    None,
}

/// One step of the search for GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Evidence {
    /// What was asked: `nvml`, `nvidia-smi`, `driver-files`.
    pub source: String,
    /// What it said, one line.
    pub finding: String,
}

/// A GPU or a MIG slice of one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Gpu {
    /// Index in the driver's (NVML) order; CUDA may number differently, so prefer `uuid`.
    pub index: u32,
    /// Driver-assigned id, for example `GPU-5f3c…` or `MIG-…`.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// `nvidia`, `amd` or `intel`.
    pub vendor: String,
    /// CUDA compute capability, for example `8.6`; empty for other vendors.
    pub compute_capability: String,
    /// Device memory in bytes.
    pub memory_total_bytes: u64,
    /// Free device memory in bytes when the facts were taken.
    pub memory_free_bytes: u64,
    /// Whether this is a MIG slice.
    pub mig: bool,
}

/// A CUDA toolkit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CudaToolkit {
    /// Root directory, for example `/usr/local/cuda-12.8`.
    pub root: String,
    /// Toolkit version, for example `12.8`.
    pub version: String,
    /// Absolute path of `nvcc`.
    pub nvcc: String,
    /// Newest GCC major version that this nvcc accepts, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_gcc: Option<u32>,
    /// Newest Clang major version that this nvcc accepts, where known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_clang: Option<u32>,
}

/// A C and C++ compiler pair.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Compiler {
    /// `gcc` or `clang`.
    pub family: String,
    /// Major version.
    pub major: u32,
    /// Full version.
    pub version: String,
    /// Absolute path of the C compiler.
    pub c: String,
    /// Absolute path of the C++ compiler of the same version.
    pub cxx: String,
}

/// A toolkit known by its root.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Toolkit {
    /// Root directory.
    pub root: String,
    /// Version, where it could be read.
    pub version: String,
}

/// The distribution's package manager.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PackageManager {
    /// Family: `apt`, `dnf` or `pacman`; the key of package tables.
    pub family: String,
    /// Absolute path of its program.
    pub path: String,
}

/// Container runtimes and the devices they can give.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Containers {
    /// Runtimes that were looked for, best first: podman, then docker.
    pub runtimes: Vec<ContainerRuntime>,
    /// Devices by the names of the Container Device Interface, for example `nvidia.com/gpu=0`,
    /// `nvidia.com/gpu=0:1` (a MIG slice), `nvidia.com/gpu=GPU-5f3c…`, sorted.
    pub cdi_devices: Vec<String>,
}

impl Containers {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A container runtime's command-line program, and what stands behind it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ContainerRuntime {
    /// `podman` or `docker`.
    pub name: String,
    /// Absolute path; empty where it was not found.
    pub path: String,
    /// Version of the program.
    pub version: String,
    /// Version of what runs the containers: docker's engine, for podman its own.
    pub server_version: String,
    /// Whether it works without root.
    pub rootless: bool,
    /// Whether it takes devices by their CDI names.
    pub cdi: bool,
    /// Whether it has the small init program that reaps processes inside containers.
    pub init: bool,
    /// Whether docker has the `nvidia` runtime, which understands `--gpus`.
    pub nvidia_runtime: bool,
    /// Hard limit of locked memory that it can give, in bytes; absent: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memlock_limit_bytes: Option<u64>,
    /// Limits it gives every container by default, as for its `--ulimit`; a single one on the command
    /// line replaces them all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_ulimits: Vec<String>,
    /// Whether SELinux confines its containers.
    pub selinux: bool,
    /// Where it keeps images; two runtimes with the same value share them.
    pub storage: String,
    /// Why it cannot be used, one line; absent: it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unusable: Option<String>,
}

impl Facts {
    /// The tool found for a probe name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&Tool> {
        self.tools.get(name)
    }
}
