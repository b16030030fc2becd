use engine_provider_api::{Evidence, GpuStatus, ToolProbe};

use super::{
    testing::{FakeMachine, Script},
    *,
};

fn probe(name: &str, programs: &[&str]) -> ToolProbe {
    ToolProbe {
        name: name.to_owned(),
        programs: programs.iter().map(|&it| it.to_owned()).collect(),
        version_args: vec!["--version".to_owned()],
        extra_directories: Vec::new(),
        needed_by: Vec::new(),
        packages: std::collections::BTreeMap::new(),
    }
}

fn collector<'a>(machine: &FakeMachine, script: &'a Script) -> Collector<'a> {
    Collector {
        roots: machine.roots(),
        asker: script,
        identity: None,
        memory: Some(machine.real("/state/facts/tools.json")),
        probe_program: None,
    }
}

fn findings(evidence: &[Evidence]) -> Vec<String> {
    evidence
        .iter()
        .map(|it| format!("{}: {}", it.source, it.finding))
        .collect()
}

#[tokio::test]
async fn a_second_look_asks_nothing_and_a_changed_tool_is_asked_again() {
    let machine = FakeMachine::default();
    machine.program("/usr/bin/cmake", "x");
    machine.program("/usr/bin/gcc-12", "x");
    machine.program("/usr/bin/g++-12", "x");
    let script = Script::of(&machine)
        .answers("/usr/bin/cmake", 0, "cmake version 3.25.1\n")
        .answers("/usr/bin/gcc-12", 0, "12.2.0\n");
    let probes = [probe("cmake", &["cmake"]), probe("ninja", &["ninja"])];
    let first = collector(&machine, &script).collect(&probes).await;
    assert_eq!(first.facts.tool("cmake").unwrap().version, "3.25.1");
    assert_eq!(first.facts.tool("ninja"), None);
    assert_eq!(first.facts.compilers[0].cxx, "/usr/bin/g++-12");
    assert_eq!(
        script.asked(),
        [
            "/usr/bin/cmake --version",
            "/usr/bin/gcc-12 -dumpfullversion"
        ]
    );
    let second = collector(&machine, &script).collect(&probes).await;
    assert_eq!(second.facts.tools, first.facts.tools);
    assert_eq!(second.facts.compilers, first.facts.compilers);
    assert_eq!(script.asked(), [""; 0]);
    machine.program("/usr/bin/cmake", "another");
    collector(&machine, &script).collect(&probes).await;
    assert_eq!(script.asked(), ["/usr/bin/cmake --version"]);
}

#[tokio::test]
async fn a_tool_that_hangs_is_known_by_its_path_and_one_that_is_a_mere_shim_is_passed_over() {
    let mut machine = FakeMachine::default();
    machine.set("PATH", "/shims:/usr/bin");
    machine.program("/shims/cmake", "x");
    machine.program("/usr/bin/cmake", "x");
    machine.program("/usr/bin/git", "x");
    let script = Script::of(&machine)
        .answers("/shims/cmake", 127, "")
        .answers("/usr/bin/cmake", 0, "cmake version 3.25.1\n");
    let probes = [probe("cmake", &["cmake"]), probe("git", &["git"])];
    let found = collector(&machine, &script).collect(&probes).await;
    assert_eq!(found.facts.tool("cmake").unwrap().path, "/usr/bin/cmake");
    assert_eq!(found.facts.tool("git").unwrap().version, "");
    assert_eq!(found.skipped[0].path, PathBuf::from("/shims/cmake"));
    assert!(
        found.skipped[0].reason.contains("127"),
        "{:?}",
        found.skipped
    );
}

#[tokio::test]
async fn a_tool_below_a_directory_its_user_cannot_enter_is_passed_over() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut machine = FakeMachine::default();
    machine.set("PATH", "/private/bin:/links:/usr/bin");
    machine.program("/private/bin/cmake", "x");
    machine.link("/links/cmake", "../private/bin/cmake");
    machine.program("/usr/bin/cmake", "x");
    let private = machine.real("/private");
    std::fs::set_permissions(&private, std::fs::Permissions::from_mode(0o700)).unwrap();
    let script = Script::of(&machine)
        .answers("/private/bin/cmake", 0, "cmake version 9.9.9")
        .answers("/usr/bin/cmake", 0, "cmake version 3.25.1");
    let mut collector = collector(&machine, &script);
    collector.identity = Some(Identity {
        uid: 64738,
        gid: 64738,
    });
    let found = collector.collect(&[probe("cmake", &["cmake"])]).await;
    assert_eq!(found.facts.tool("cmake").unwrap().path, "/usr/bin/cmake");
    let reasons: Vec<&str> = found.skipped.iter().map(|it| it.reason.as_str()).collect();
    assert_eq!(reasons, ["uid 64738 cannot enter `/private`"; 2]);
}

#[tokio::test]
async fn compilers_are_paired_once_and_wrappers_are_none() {
    let mut machine = FakeMachine::default();
    machine.set("PATH", "/usr/lib/ccache:/usr/bin");
    for name in [
        "gcc-12",
        "g++-12",
        "gcc-9",
        "clang-16",
        "clang++-16",
        "g++",
        "gcc-ar-12",
        "ccache",
    ] {
        machine.program(&format!("/usr/bin/{name}"), "x");
    }
    machine.link("/usr/bin/gcc", "gcc-12");
    machine.link("/usr/lib/ccache/gcc", "../../bin/ccache");
    machine.link("/usr/lib/ccache/g++", "../../bin/ccache");
    let script = Script::of(&machine)
        .answers("/usr/bin/gcc", 0, "12.2.0")
        .answers("/usr/bin/clang-16", 0, "16.0.6");
    let found = collector(&machine, &script).collect(&[]).await;
    let shown: Vec<String> = found
        .facts
        .compilers
        .iter()
        .map(|it| format!("{} {} {} {}", it.family, it.major, it.c, it.cxx))
        .collect();
    assert_eq!(
        shown,
        [
            "clang 16 /usr/bin/clang-16 /usr/bin/clang++-16",
            "gcc 12 /usr/bin/gcc /usr/bin/g++"
        ]
    );
}

#[tokio::test]
async fn cuda_is_found_off_the_path_newest_first_behind_the_one_on_it() {
    let machine = FakeMachine::default();
    let header = "#if __GNUC__ > 13\n#if (__clang_major__ >= 18)\n";
    machine.program("/opt/cuda/bin/nvcc", "x");
    machine.write(
        "/opt/cuda/version.json",
        "{\"cuda\": {\"version\": \"12.4.1\"}}",
    );
    machine.write(
        "/opt/cuda/targets/x86_64-linux/include/crt/host_config.h",
        header,
    );
    machine.program("/usr/local/cuda-12.8/bin/nvcc", "x");
    machine.write("/usr/local/cuda-12.8/version.txt", "CUDA Version 12.8.0\n");
    machine.link("/usr/local/cuda", "cuda-12.8");
    machine.program("/usr/local/cuda-11.8/bin/nvcc", "x");
    machine.link("/usr/bin/nvcc", "../local/cuda-11.8/bin/nvcc");
    machine.write("/opt/cuda-broken/readme", "no nvcc");
    let script = Script::of(&machine).answers(
        "/usr/local/cuda-11.8/bin/nvcc",
        0,
        "Cuda compilation tools, release 11.8, V11.8.89",
    );
    let found = collector(&machine, &script).collect(&[]).await;
    let shown: Vec<String> = found
        .facts
        .cuda
        .iter()
        .map(|it| {
            format!(
                "{} {} {:?} {:?}",
                it.root, it.version, it.max_gcc, it.max_clang
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            "/usr/local/cuda-11.8 11.8 None None",
            "/usr/local/cuda 12.8 None None",
            "/opt/cuda 12.4 Some(13) Some(17)",
        ]
    );
}

#[tokio::test]
async fn rocm_and_vulkan_are_known_by_their_files() {
    let machine = FakeMachine::default();
    machine.write("/opt/rocm-6.0/.info/version", "6.0.2-115\n");
    machine.program("/opt/rocm-6.0/bin/hipcc", "x");
    machine.write("/usr/include/vulkan/vulkan_core.h", "#define VK_HEADER_VERSION 239\n#define VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION(0, 1, 3, VK_HEADER_VERSION)\n");
    let script = Script::of(&machine);
    let facts = collector(&machine, &script).collect(&[]).await.facts;
    assert_eq!(facts.rocm.unwrap().version, "6.0.2");
    assert_eq!(facts.vulkan, None);
    machine.program("/usr/bin/glslc", "x");
    let facts = collector(&machine, &script).collect(&[]).await.facts;
    assert_eq!(facts.vulkan.unwrap().version, "1.3.239");
}

#[tokio::test]
async fn a_machine_without_a_gpu_has_none_and_says_what_was_tried() {
    let machine = FakeMachine::default();
    let script = Script::of(&machine);
    let gpus = collector(&machine, &script).collect(&[]).await.facts.gpus;
    assert_eq!(gpus.status, GpuStatus::None);
    insta::assert_snapshot!(findings(&gpus.evidence).join("\n"), @r"
    nvml: libnvidia-ml.so.1 is not there
    nvidia-smi: not found
    driver-files: no kernel module is loaded; no device node, no controller
    ");
}

#[tokio::test]
async fn hardware_without_a_working_driver_is_a_broken_driver() {
    let machine = FakeMachine::default();
    machine.write("/sys/bus/pci/devices/0000:01:00.0/vendor", "0x10de\n");
    machine.write("/sys/bus/pci/devices/0000:01:00.0/class", "0x030000\n");
    machine.write("/sys/bus/pci/devices/0000:01:00.1/vendor", "0x10de\n");
    machine.write("/sys/bus/pci/devices/0000:01:00.1/class", "0x040300\n");
    machine.write(
        "/proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Fri\n",
    );
    machine.program("/usr/bin/nvidia-smi", "x");
    let script = Script::of(&machine).answers(
        "/usr/bin/nvidia-smi",
        18,
        "Failed to initialize NVML: Driver/library version mismatch\n",
    );
    let gpus = collector(&machine, &script).collect(&[]).await.facts.gpus;
    assert_eq!(gpus.status, GpuStatus::DriverBroken);
    assert_eq!(gpus.driver.as_deref(), Some("570.86.15"));
    insta::assert_snapshot!(findings(&gpus.evidence).join("\n"), @r"
    nvml: libnvidia-ml.so.1 is not there
    nvidia-smi: exit code 18: Failed to initialize NVML: Driver/library version mismatch
    driver-files: kernel module 570.86.15 is loaded; PCI controller 0000:01:00.0
    ");
}

#[tokio::test]
async fn nvidia_smi_answers_where_nvml_does_not() {
    let machine = FakeMachine::default();
    machine.program("/usr/bin/nvidia-smi", "x");
    machine.write("/usr/lib/libnvidia-ml.so.1", "no library");
    let script = Script::of(&machine).answers(
        "/usr/bin/nvidia-smi",
        0,
        "0, GPU-aa, NVIDIA GeForce RTX 3090, 8.6, 24576, 24000, 570.86.15, [N/A]\n",
    );
    let gpus = collector(&machine, &script).collect(&[]).await.facts.gpus;
    assert_eq!(gpus.status, GpuStatus::Present);
    assert_eq!(gpus.devices[0].memory_total_bytes, 24_576 << 20);
    insta::assert_snapshot!(findings(&gpus.evidence).join("\n"), @r"
    nvml: not asked: this program has no probe
    nvidia-smi: driver 570.86.15, 1 device(s)
    ");
}

#[tokio::test]
async fn a_driver_that_hangs_is_given_up() {
    let machine = FakeMachine::default();
    machine.program("/usr/bin/nvidia-smi", "x");
    machine.write("/dev/nvidia0", "");
    machine.write("/dev/nvidiactl", "");
    let script = Script::of(&machine);
    let gpus = collector(&machine, &script).collect(&[]).await.facts.gpus;
    assert_eq!(gpus.status, GpuStatus::DriverBroken);
    insta::assert_snapshot!(findings(&gpus.evidence).join("\n"), @r"
    nvml: libnvidia-ml.so.1 is not there
    nvidia-smi: the driver did not answer within 8 s
    driver-files: no kernel module is loaded; device nodes /dev/nvidia0
    ");
}

#[tokio::test]
async fn amd_gpus_are_read_from_the_compute_driver() {
    let machine = FakeMachine::default();
    let nodes = "/sys/class/kfd/kfd/topology/nodes";
    machine.write(
        &format!("{nodes}/0/properties"),
        "cpu_cores_count 16\nsimd_count 0\n",
    );
    machine.write(
        &format!("{nodes}/1/properties"),
        "simd_count 192\ngfx_target_version 110000\nunique_id 255\n",
    );
    machine.write(
        &format!("{nodes}/1/mem_banks/0/properties"),
        "heap_type 1\nsize_in_bytes 1024\n",
    );
    machine.write("/dev/kfd", "");
    let script = Script::of(&machine);
    let gpus = collector(&machine, &script).collect(&[]).await.facts.gpus;
    assert_eq!(gpus.status, GpuStatus::Present);
    let device = &gpus.devices[0];
    assert_eq!(
        (device.vendor.as_str(), device.name.as_str()),
        ("amd", "AMD gfx1100")
    );
    assert_eq!(
        (device.uuid.as_str(), device.memory_total_bytes),
        ("GPU-00000000000000ff", 1024)
    );
}

#[tokio::test]
async fn credentials_of_the_index_stay_out_of_the_facts() {
    let mut machine = FakeMachine::default();
    machine.set("PIP_INDEX_URL", "https://me:hunter22@mirror/simple");
    let script = Script::of(&machine);
    let found = collector(&machine, &script).collect(&[]).await;
    let json = serde_json::to_string(&found.facts).unwrap();
    assert!(
        !json.contains("hunter22") && json.contains("https://mirror/simple"),
        "{json}"
    );
    let secrets = Secrets::default();
    found.register_secrets(&secrets);
    assert_eq!(secrets.mask("got hunter22"), "got ***");
    assert_eq!(
        found.package_index.unwrap().url().password(),
        Some("hunter22")
    );
}

#[tokio::test]
async fn this_machine_can_be_looked_at() {
    let home = tempfile::tempdir().unwrap();
    let environment = Environment::of_this_process();
    let mut collector = Collector::of_this_machine(&environment, &Home::at(home.path()), None);
    collector.probe_program = None;
    let found = collector.collect(&[probe("git", &["git"])]).await;
    assert!(!found.facts.os.id.is_empty());
    assert!(found.facts.memory.total_bytes > 0);
    assert!(!found.facts.tool("git").unwrap().version.is_empty());
    let memory = collector.memory.unwrap();
    assert!(std::fs::read_to_string(memory).unwrap().contains("git"));
}
