//! The real nvcc on the real llama.cpp, without a GPU.
//!
//! A made-up driver library reports two cards of compute capability 8.6; everything behind it is real:
//! the toolkit that `scripts/setup-cuda` laid out off `PATH`, the provider's plan, the host's confined
//! build. It is stopped at its first CUDA object: all of them take a quarter of an hour.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use e2e::{Machine, Running, repository_root, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Longest time for fetching llama.cpp and for what comes before CUDA in its build, on two busy
/// processors.
const FIRST_OBJECT_LIMIT: Duration = Duration::from_secs(20 * 60);

/// Longest time for fetching llama.cpp and one run of cmake.
const CONFIGURE_LIMIT: Duration = Duration::from_secs(10 * 60);

/// What the driver of [`gpu_machine`] serves, as NVML numbers it.
const CUDA_13_0: u32 = 13_000;
const CUDA_12_8: u32 = 12_080;

#[test]
fn the_planned_build_finds_cuda_off_path_and_compiles_for_the_card() {
    let machine = gpu_machine(CUDA_13_0);
    let refused = too_new_compiler(&machine);
    let facts = machine.start(command(&machine, &toolkit(), &["facts", "--json"]));
    let facts = facts.finish(e2e::RUN_LIMIT).code(0).json();
    let compilers: Vec<&str> = facts["compilers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|compiler| compiler["cxx"].as_str().unwrap())
        .collect();
    assert_eq!(compilers[0], refused, "the newest is tried first");

    let prepare = command(&machine, &toolkit(), &["prepare", "--log-format=json"]);
    let mut running = machine.start(prepare);
    wait_for_event(&mut running, "cmake-retry");
    let retried = Instant::now();
    wait_for_event(&mut running, "cmake-build");
    println!("configured in {:.1} s", retried.elapsed().as_secs_f64());

    let object = first_cuda_object(&machine, &mut running);
    println!(
        "{} compiled in {:.1} s, {} bytes",
        object.name,
        object.seconds,
        object.bytes.len()
    );
    let compiled = |part: &str| {
        assert!(object.command.contains(part), "{part}: {}", object.command);
    };
    compiled(&format!("{}/bin/nvcc ", toolkit().display()));
    compiled(&format!("-ccbin={} ", compilers[1]));
    compiled("--generate-code=arch=compute_86,code=[sm_86] ");
    assert_eq!(architectures(&object.bytes), BTreeSet::from([86]));

    let run = running.end(Signal::TERM).code(143);
    let failed = event(&run.events(), "cmake-failed");
    assert!(
        failed.starts_with("`cmake-configure` ended with exit code 1; trying with gcc"),
        "{failed}"
    );
    assert_nothing_built(&machine);
}

#[test]
fn nvcc_refuses_a_compiler_in_the_words_that_the_retry_waits_for() {
    let machine = gpu_machine(CUDA_13_0);
    let refused = too_new_compiler(&machine);
    let source = machine.write("empty.cu", "");
    let output = Command::new(toolkit().join("bin/nvcc"))
        .args(["-ccbin", &refused, "-c", "-o", "/dev/null"])
        .arg(source)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("unsupported GNU version!"), "{said}");
}

#[test]
fn a_toolkit_that_cmake_does_not_find_is_not_blamed_on_the_compiler() {
    let machine = gpu_machine(CUDA_13_0);
    too_new_compiler(&machine);
    // A program that says it is nvcc, and nothing beside it.
    let hollow = machine.root().join("hollow");
    write_program(
        &hollow.join("bin/nvcc"),
        "echo 'Cuda compilation tools, release 13.0, V13.0.88'",
    );
    let prepare = command(&machine, &hollow, &["prepare"]);
    let run = machine.start(prepare).finish(CONFIGURE_LIMIT);
    let run = run.code(7);
    run.says("CUDA Toolkit not found");
    assert!(!run.stderr.contains("trying with"), "{}", run.stderr);
    assert_nothing_built(&machine);
}

#[test]
fn a_toolkit_newer_than_the_driver_is_refused_before_anything_is_fetched() {
    let machine = gpu_machine(CUDA_12_8);
    let prepare = command(&machine, &toolkit(), &["prepare"]);
    let run = machine.start(prepare).finish(e2e::RUN_LIMIT).code(5);
    run.says("CUDA 13.0 is newer than the driver, which serves 12.8")
        .says("fix: update the GPU driver, or install a CUDA 12 toolkit beside it");
    assert!(!run.stderr.contains("git-clone"), "{}", run.stderr);
    assert_nothing_built(&machine);
}

/// Asserts that a build left nothing: no result, no half of one, no process.
#[track_caller]
fn assert_nothing_built(machine: &Machine) {
    for directory in ["store/build", "store/tmp"] {
        let directory = machine.home().join(directory);
        if directory.exists() {
            assert_eq!(machine.files_below(&directory), Vec::<String>::new());
        }
    }
    machine.assert_clean();
}

/// A machine with two cards, of which its pool takes one.
fn gpu_machine(serves: u32) -> Machine {
    let machine = Machine::new();
    let directory = machine.root().join("driver");
    fs::create_dir(&directory).unwrap();
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-DTWO"])
        .arg(format!("-DSERVES={serves}"))
        .arg("-o")
        .arg(directory.join("libnvidia-ml.so.1"))
        .arg(repository_root().join("host/tests/nvml/fake.c"))
        .status()
        .expect("scripts/setup-tests installs a C compiler");
    assert!(status.success());
    machine.write_pools(&[json!({
        "id": "default",
        "engine": "llamacpp",
        "gpu": "require",
        "devices": [0],
        "provisioning": {
            // The toolkit of PyPI has no stub of the driver's own library.
            "source": {"build": {"cmake_flags": ["-DGGML_CUDA_NO_VMM=ON"]}},
            "model": {"ref": "builtin:haiku"},
        },
    })]);
    machine
}

/// The toolkit of `scripts/setup-cuda`.
fn toolkit() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository_root().join("target"), PathBuf::from);
    let toolkit = target.join("cuda-13.0");
    assert!(
        toolkit.join("bin/nvcc").is_file(),
        "{} is not there: run scripts/setup-cuda",
        toolkit.display()
    );
    toolkit
}

/// The program on that machine; the toolkit is named by a variable, as it is nowhere on `PATH`.
fn command(machine: &Machine, toolkit: &Path, arguments: &[&str]) -> Command {
    let mut command = machine.command(arguments);
    let path = std::env::var("PATH").unwrap();
    command
        .env("LD_LIBRARY_PATH", machine.root().join("driver"))
        .env("CUDA_PATH", toolkit)
        .env(
            "PATH",
            format!("{}:{path}", machine.root().join("bin").display()),
        );
    command
}

/// A GCC that says it is 15, which nvcc 13.0 accepts, and compiles as one that nvcc refuses. Gives
/// the path of its C++ side.
fn too_new_compiler(machine: &Machine) -> String {
    for (name, real) in [("gcc-15", "gcc"), ("g++-15", "g++")] {
        write_program(
            &machine.root().join("bin").join(name),
            &format!(
                "[ \"$1\" = -dumpfullversion ] && echo 15.9.0 && exit\n\
                 exec {real} -U__GNUC__ -D__GNUC__=99 \"$@\""
            ),
        );
    }
    let path = machine.root().join("bin/g++-15");
    path.to_str()
        .expect("test directories are UTF-8")
        .to_owned()
}

fn write_program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

fn wait_for_event(running: &mut Running, action: &str) {
    wait_for(action, CONFIGURE_LIMIT, || {
        let said = running.stderr();
        if said.contains(&format!("\"action\":\"{action}\"")) {
            return Ok(());
        }
        assert!(running.ended().is_none(), "ended without {action}:\n{said}");
        Err(said)
    });
}

fn event(events: &[Value], action: &str) -> String {
    let event = events.iter().find(|event| event["action"] == action);
    let event = event.unwrap_or_else(|| panic!("no {action} in {events:#?}"));
    event["human"].as_str().unwrap().to_owned()
}

/// What nvcc made of one source file.
struct Object {
    name: String,
    /// How it was made.
    command: String,
    seconds: f64,
    bytes: Vec<u8>,
}

/// Waits for the first object that Ninja notes as done, while the build goes on.
fn first_cuda_object(machine: &Machine, running: &mut Running) -> Object {
    let builds = machine.home().join("store/tmp");
    wait_for("a CUDA object", FIRST_OBJECT_LIMIT, || {
        let work = fs::read_dir(&builds)
            .into_iter()
            .flatten()
            .map(|build| build.unwrap().path().join("work"))
            .find(|work| work.join(".ninja_log").is_file());
        if let Some(object) = work.as_deref().and_then(cuda_object) {
            return Ok(object);
        }
        let ended = running.ended();
        assert!(ended.is_none(), "{ended:?}:\n{}", running.stderr());
        Err(running.stderr())
    })
}

fn cuda_object(work: &Path) -> Option<Object> {
    // Start and end in ms, time stamp, output, hash of the command; after a line that says the format.
    let log = fs::read_to_string(work.join(".ninja_log")).ok()?;
    let fields: Vec<&str> = log
        .lines()
        .map(|line| line.split('\t').collect::<Vec<_>>())
        .find(|fields| fields.get(3).is_some_and(|name| name.ends_with(".cu.o")))?;
    let [start, end, _, name, _] = fields.as_slice() else {
        panic!("another format of .ninja_log: {fields:?}");
    };
    let milliseconds = end.parse::<f64>().unwrap() - start.parse::<f64>().unwrap();
    let commands = fs::read(work.join("compile_commands.json")).unwrap();
    let commands: Vec<Value> = serde_json::from_slice(&commands).unwrap();
    let command = commands
        .iter()
        .filter_map(|entry| entry["command"].as_str())
        .find(|command| format!("{command} ").contains(&format!(" -o {name} ")));
    Some(Object {
        name: (*name).to_owned(),
        command: command.expect("cmake lists every compilation").to_owned(),
        seconds: milliseconds / 1000.0,
        bytes: fs::read(work.join(name)).unwrap(),
    })
}

/// Compute capabilities, times ten, of the machine code in an object's fat binaries.
///
/// As `cuobjdump` reads them: magic, version and header length (16), length of what follows; then
/// entries of kind (2 is machine code, 1 is PTX), version, header length, length, and at byte 28 the
/// architecture. Numbers are little endian.
fn architectures(object: &[u8]) -> BTreeSet<u32> {
    const HEADER: [u8; 8] = [0x50, 0xed, 0x55, 0xba, 1, 0, 16, 0];
    let u32_at = |at: usize| u32::from_le_bytes(object[at..at + 4].try_into().unwrap());
    let length_at = |at: usize| {
        usize::try_from(u64::from_le_bytes(object[at..at + 8].try_into().unwrap())).unwrap()
    };
    let mut found = BTreeSet::new();
    let starts = (0..object.len() - 16).filter(|at| object[*at..].starts_with(&HEADER));
    for start in starts {
        let mut entry = start + 16;
        let end = entry + length_at(start + 8);
        while entry < end {
            assert_eq!(u32_at(entry) & 0xffff, 2, "no machine code");
            found.insert(u32_at(entry + 28));
            entry += usize::try_from(u32_at(entry + 4)).unwrap() + length_at(entry + 8);
        }
    }
    found
}
