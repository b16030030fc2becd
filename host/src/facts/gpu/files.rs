//! Traces of NVIDIA hardware and drivers in files, and where the driver's library lies.

use std::path::PathBuf;

use super::super::{roots::Roots, system::version_in};

/// Name under which the driver installs NVML.
const NVML: &str = "libnvidia-ml.so.1";

/// What files say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Hardware {
    /// Version of the loaded kernel module.
    pub driver: Option<String>,
    /// Device nodes such as `/dev/nvidia0`.
    nodes: Vec<String>,
    /// PCI addresses of NVIDIA display controllers.
    controllers: Vec<String>,
    /// GPUs the kernel module lists.
    listed: usize,
}

impl Hardware {
    /// Whether there is, or seems to be, a GPU.
    pub(super) fn is_there(&self) -> bool {
        !self.nodes.is_empty() || !self.controllers.is_empty() || self.listed > 0
    }

    /// One line.
    pub(super) fn finding(&self) -> String {
        let mut parts = Vec::new();
        match &self.driver {
            Some(version) => parts.push(format!("kernel module {version} is loaded")),
            None => parts.push("no kernel module is loaded".to_owned()),
        }
        if !self.nodes.is_empty() {
            parts.push(format!("device nodes {}", self.nodes.join(", ")));
        }
        if !self.controllers.is_empty() {
            parts.push(format!("PCI controller {}", self.controllers.join(", ")));
        }
        if !self.is_there() {
            parts.push("no device node, no controller".to_owned());
        }
        parts.join("; ")
    }
}

pub(super) fn look(roots: &Roots) -> Hardware {
    let module = roots.text("/proc/driver/nvidia/version");
    let is_gpu_node = |name: &String| {
        let number = name.strip_prefix("nvidia").unwrap_or("");
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    };
    let nodes = roots.names("/dev").into_iter().filter(is_gpu_node);
    // Under WSL the GPU is behind one node of the hypervisor.
    let wsl = roots.exists("/dev/dxg") && roots.exists("/usr/lib/wsl/lib/libnvidia-ml.so.1");
    Hardware {
        driver: module.as_deref().and_then(module_version),
        nodes: nodes
            .map(|name| format!("/dev/{name}"))
            .chain(wsl.then(|| "/dev/dxg".to_owned()))
            .collect(),
        controllers: controllers(roots),
        listed: roots.names("/proc/driver/nvidia/gpus").len(),
    }
}

/// Version in the first line, after the words that name the module.
fn module_version(text: &str) -> Option<String> {
    version_in(text.lines().next()?)
}

/// PCI functions of vendor 10de whose class is a display controller (03).
fn controllers(roots: &Roots) -> Vec<String> {
    const DEVICES: &str = "/sys/bus/pci/devices";
    let is_nvidia = |address: &String| {
        let field = |name: &str| roots.word(format!("{DEVICES}/{address}/{name}"));
        field("vendor").as_deref() == Some("0x10de")
            && field("class").is_some_and(|class| class.starts_with("0x03"))
    };
    roots.names(DEVICES).into_iter().filter(is_nvidia).collect()
}

/// Where NVML lies: in the loader's cache, else in the directories it is usually put.
pub(super) fn nvml_library(roots: &Roots) -> Option<PathBuf> {
    let arch = std::env::consts::ARCH;
    let usual = [
        format!("/usr/lib/{arch}-linux-gnu"),
        "/usr/lib64".to_owned(),
        "/usr/lib".to_owned(),
        "/lib64".to_owned(),
        "/usr/lib/wsl/lib".to_owned(),
        "/usr/local/nvidia/lib64".to_owned(),
        "/usr/local/nvidia/lib".to_owned(),
        "/run/opengl-driver/lib".to_owned(),
    ];
    let named = roots.environment().get("LD_LIBRARY_PATH").unwrap_or("");
    let named = named
        .split(':')
        .filter(|directory| directory.starts_with('/'));
    let directories = named.map(str::to_owned).chain(usual);
    let cached = std::fs::read(roots.real("/etc/ld.so.cache")).unwrap_or_default();
    directories
        .map(|directory| PathBuf::from(directory).join(NVML))
        .chain(in_loader_cache(&cached))
        .find(|path| roots.exists(path))
}

/// Paths ending in the library's name, from ld.so.cache(5): its strings end with a zero byte.
fn in_loader_cache(bytes: &[u8]) -> Vec<PathBuf> {
    bytes
        .split(|byte| *byte == 0)
        .filter(|text| text.starts_with(b"/") && text.ends_with(NVML.as_bytes()))
        .filter_map(|text| Some(PathBuf::from(std::str::from_utf8(text).ok()?)))
        .collect()
}
