//! `host facts`: what this machine is and has, for people or for `--facts`.

use std::{fmt::Write as _, io::Write};

use engine_provider_api::{ContainerRuntime, Facts, Gpu, GpuStatus, Toolkit};

use super::{config::Form, doctor};
use crate::facts::{Collected, Skipped};

/// Writes what was found. As JSON it is the document that `--facts` reads.
pub fn write(out: &mut dyn Write, found: &Collected, form: Form) -> std::io::Result<()> {
    match form {
        Form::Json => {
            let json = serde_json::to_string_pretty(&found.facts).expect("facts are plain data");
            writeln!(out, "{json}")
        }
        Form::Human => out.write_all(render(&found.facts, &found.skipped).as_bytes()),
    }
}

fn render(facts: &Facts, skipped: &[Skipped]) -> String {
    let mut text = String::new();
    let mut line = |label: &str, words: String| {
        let _ = writeln!(text, "{label:<12} {words}");
    };
    let os = &facts.os;
    line(
        "system",
        format!(
            "{}, {}, kernel {}, glibc {}",
            os.name,
            os.arch,
            os.kernel,
            known(&os.glibc)
        ),
    );
    line(
        "processor",
        format!("{}, {} threads", known(&facts.cpu.model), facts.cpu.threads),
    );
    let gigabytes = |bytes: u64| bytes >> 30;
    line(
        "memory",
        format!(
            "{} GiB, {} GiB available",
            gigabytes(facts.memory.total_bytes),
            gigabytes(facts.memory.available_bytes)
        ),
    );
    line("GPUs", gpu_status(facts));
    for gpu in &facts.gpus.devices {
        line("", one_gpu(gpu));
    }
    for evidence in &facts.gpus.evidence {
        line("", format!("{}: {}", evidence.source, evidence.finding));
    }
    for toolkit in &facts.cuda {
        let newest = toolkit
            .max_gcc
            .map_or_else(String::new, |it| format!(", gcc up to {it}"));
        line(
            "CUDA",
            format!("{} in {}{newest}", toolkit.version, toolkit.root),
        );
    }
    let toolkit = |it: &Toolkit| format!("{} in {}", known(&it.version), it.root);
    for (label, found) in [("ROCm", &facts.rocm), ("Vulkan", &facts.vulkan)] {
        found.iter().for_each(|it| line(label, toolkit(it)));
    }
    for compiler in &facts.compilers {
        line(
            "compiler",
            format!("{} {} ({})", compiler.family, compiler.version, compiler.c),
        );
    }
    for (name, tool) in &facts.tools {
        line(
            "tool",
            format!("{name} {} ({})", known(&tool.version), tool.path),
        );
    }
    for it in skipped {
        line(
            "passed over",
            format!("{} ({}): {}", it.tool, it.path.display(), it.reason),
        );
    }
    for runtime in &facts.containers.runtimes {
        line("container", one_runtime(runtime));
    }
    if !facts.containers.cdi_devices.is_empty() {
        line("devices", facts.containers.cdi_devices.join(", "));
    }
    if let Some(manager) = &facts.package_manager {
        line("packages", format!("{} ({})", manager.family, manager.path));
    }
    if let Some(index) = &facts.package_index {
        line("pip index", index.clone());
    }
    text
}

fn one_runtime(runtime: &ContainerRuntime) -> String {
    if let Some(why) = &runtime.unusable {
        return format!("{} is not usable: {why}", runtime.name);
    }
    let mut words = vec![doctor::named(runtime)];
    if runtime.cdi {
        words.push("devices by CDI".to_owned());
    }
    if runtime.nvidia_runtime {
        words.push("NVIDIA's runtime".to_owned());
    }
    if !runtime.init {
        words.push("no init program".to_owned());
    }
    if let Some(limit) = runtime.memlock_limit_bytes {
        words.push(format!("locks up to {} MiB", limit >> 20));
    }
    format!("{} ({})", words.join(", "), runtime.path)
}

fn known(text: &str) -> &str {
    if text.is_empty() { "(unknown)" } else { text }
}

fn gpu_status(facts: &Facts) -> String {
    let gpus = &facts.gpus;
    let driver = gpus
        .driver
        .as_deref()
        .map_or_else(String::new, |it| format!(", driver {it}"));
    let cuda = gpus
        .cuda
        .as_deref()
        .map_or_else(String::new, |it| format!(", CUDA up to {it}"));
    let words = match gpus.status {
        GpuStatus::Present => format!("{} usable", gpus.devices.len()),
        GpuStatus::DriverBroken => "there, but its driver does not work".to_owned(),
        GpuStatus::None => "none".to_owned(),
    };
    format!("{words}{driver}{cuda}")
}

fn one_gpu(gpu: &Gpu) -> String {
    let slice = if gpu.mig { ", a slice" } else { "" };
    format!(
        "{}: {}, {} GiB ({} free), {}{slice}",
        gpu.index,
        gpu.name,
        gpu.memory_total_bytes >> 30,
        gpu.memory_free_bytes >> 30,
        gpu.uuid
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn shown(name: &str) -> String {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
        let facts = crate::facts::read(&fixtures.join(name)).unwrap();
        render(&facts, &[])
    }

    #[test]
    fn a_machine_is_shown_on_one_screen() {
        insta::assert_snapshot!(shown("rtx3090-cuda124.json"), @r"
        system       Arch Linux, x86_64, kernel 6.12.1-arch1-1, glibc 2.40
        processor    AMD Ryzen 9 5950X 16-Core Processor, 32 threads
        memory       62 GiB, 54 GiB available
        GPUs         1 usable, driver 570.86.15, CUDA up to 12.8
                     0: NVIDIA GeForce RTX 3090, 24 GiB (23 free), GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40
                     nvml: driver 570.86.15, 1 device(s)
        CUDA         12.4 in /opt/cuda, gcc up to 13
        compiler     gcc 15.1.1 (/usr/bin/gcc)
        compiler     gcc 12.4.0 (/usr/bin/gcc-12)
        tool         cc 15.1.1 (/usr/bin/cc)
        tool         ccache 4.10.2 (/usr/bin/ccache)
        tool         cmake 3.31.1 (/usr/bin/cmake)
        tool         cxx 15.1.1 (/usr/bin/c++)
        tool         git 2.47.0 (/usr/bin/git)
        tool         make 4.4.1 (/usr/bin/make)
        tool         ninja 1.12.1 (/usr/bin/ninja)
        packages     pacman (/usr/bin/pacman)
        pip index    https://pypi.org/simple
        ");
    }

    #[test]
    fn a_broken_driver_is_not_shown_as_no_gpu() {
        let text = shown("driver-broken.json");
        assert!(
            text.contains("there, but its driver does not work"),
            "{text}"
        );
    }

    #[test]
    fn what_is_written_as_json_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("facts.json");
        let found = Collected::default();
        let mut out = Vec::new();
        write(&mut out, &found, Form::Json).unwrap();
        std::fs::write(&path, out).unwrap();
        assert_eq!(crate::facts::read(&path).unwrap(), found.facts);
    }

    #[test]
    fn container_runtimes_are_shown_with_what_they_can_do() {
        let lines = |name: &str| {
            let text = shown(name);
            let own = text
                .lines()
                .filter(|line| line.starts_with("container") || line.starts_with("devices"));
            own.map(str::to_owned).collect::<Vec<_>>().join("\n")
        };
        insta::assert_snapshot!(lines("podman-cpu.json"), @r"
        container    podman 4.3.1, rootless, devices by CDI, locks up to 8 MiB (/usr/bin/podman)
        container    docker is not usable: not found
        ");
        insta::assert_snapshot!(lines("docker-one-gpu.json"), @r"
        container    podman is not usable: not found
        container    docker 28.5.1 (engine 28.5.1), devices by CDI, NVIDIA's runtime (/usr/bin/docker)
        devices      nvidia.com/gpu=0, nvidia.com/gpu=GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40, nvidia.com/gpu=all
        ");
    }
}
