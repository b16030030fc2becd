//! A provider that misbehaves on request.
//!
//! What it does is `PHASE:ACTION`, taken from the pool's `options.behaviour`, or else from 64 bytes
//! in the library that a test overwrites in its copy: that way it also reaches what runs before
//! anything can be asked, such as constructors.
#![expect(unsafe_code, reason = "misbehaving is its job")]

use std::{fs, hint::black_box, io, process};

use engine_provider_api::{
    EngineProvisioner, Launch, Mode, Model, Plan, PlanRequest, Pool, PrepareRequest,
    PreparedEngine, Probes, ProcessLaunch, Profile, ProviderError, ProviderInfo, Resources, Stop,
    export_provider,
};

/// Overwritten by tests: the marker stays, what follows it up to the first zero is the behaviour.
#[used]
static BEHAVIOUR: [u8; 64] = *b"@hostile-behaviour:calm:calm\0___________________________________";

const MARKER: usize = "@hostile-behaviour:".len();

#[derive(Default)]
struct Hostile(Constructed);

struct Constructed;

impl Default for Constructed {
    fn default() -> Self {
        built_in("create");
        Self
    }
}

impl Drop for Constructed {
    fn drop(&mut self) {
        built_in("drop");
    }
}

export_provider!(Hostile, manifest = {
    name: "hostile",
    description: "Misbehaves.",
    modes: ["binary"],
});

#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = at_load;

extern "C" fn at_load() {
    built_in("load");
}

impl EngineProvisioner for Hostile {
    fn info(&self) -> ProviderInfo {
        built_in("info");
        let mut pool = Pool::new("default", "hostile");
        if asked("info") == Some("unreadable") {
            // JSON has no such number: it is written as null, where a number must stand.
            pool.tensor_split = vec![f64::NAN];
        }
        let name = match asked("info") {
            Some("impostor") => "llamacpp",
            _ => "hostile",
        };
        ProviderInfo {
            requires: Vec::new(),
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![Mode::Binary],
            tools: Vec::new(),
            options_schema: serde_json::json!({
                "type": "object",
                "additionalProperties": false,
                "properties": {"behaviour": {"type": "string"}}
            }),
            default_pool: pool,
            homepage: None,
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        let mut plan = Plan::default();
        if let Some(finding) = on_request("plan", &request.pool) {
            plan.notes.push(finding);
        }
        if behaviour_of(&request.pool, "plan").as_deref() == Some("feature") {
            plan.requires.push("step.teleport@1.9.0".to_owned());
        }
        Ok(plan)
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        let finding = on_request("prepare", &request.pool);
        Ok(PreparedEngine {
            requires: Vec::new(),
            engine: "hostile".to_owned(),
            engine_version: "0".to_owned(),
            provisioning_mode: request.mode,
            launch: Launch::Process(ProcessLaunch::default()),
            files: Vec::new(),
            probes: Probes::default(),
            stop: Stop::default(),
            resources: Resources::default(),
            model: Model::default(),
            flags: Vec::new(),
            slots_total: 1,
            workloads: Vec::new(),
            profile: Profile::Deterministic,
            diagnoses: Vec::new(),
            gpu_evidence: None,
            dialect: "none".to_owned(),
            device_mask: Vec::new(),
            build_record: Default::default(),
            warnings: finding.into_iter().collect(),
        })
    }
}

/// The action for a phase that the library's bytes ask for.
fn asked(phase: &str) -> Option<&'static str> {
    let bytes = black_box(&BEHAVIOUR);
    let text = bytes[MARKER..].split(|byte| *byte == 0).next()?;
    let (wanted, action) = std::str::from_utf8(text).ok()?.split_once(':')?;
    (wanted == phase).then_some(action)
}

fn built_in(phase: &str) {
    if let Some(action) = asked(phase) {
        act(action);
    }
}

fn behaviour_of(pool: &Pool, phase: &str) -> Option<String> {
    match pool
        .options
        .get("behaviour")
        .and_then(|value| value.as_str())
    {
        Some(text) => {
            let (wanted, action) = text.split_once(':')?;
            (wanted == phase).then(|| action.to_owned())
        }
        None => asked(phase).map(str::to_owned),
    }
}

fn on_request(phase: &str, pool: &Pool) -> Option<String> {
    act(&behaviour_of(pool, phase)?)
}

/// Misbehaves; what comes back is the outcome of an attempt to get out.
fn act(action: &str) -> Option<String> {
    match action {
        "panic" => panic!("the hostile provider panics as asked"),
        "abort" => process::abort(),
        "exit" => process::exit(0),
        // SAFETY: not safe at all: this is what the worker is there for.
        "segv" => unsafe { std::ptr::null_mut::<u8>().write_volatile(1) },
        "hang" => loop {
            std::thread::sleep(std::time::Duration::from_secs(3600));
        },
        "spin" => loop {
            std::hint::spin_loop();
        },
        "flood" => loop {
            eprintln!("the hostile provider has a lot to say");
        },
        "last-words" => {
            eprintln!("these are the last words");
            process::abort()
        }
        "allocate" => {
            let mut kept: Vec<Vec<u8>> = Vec::new();
            loop {
                kept.push(black_box(Vec::with_capacity(64 * 1024 * 1024)));
            }
        }
        "babble" => babble(),
        "threads" => return Some(thread()),
        "breach" => return Some(breach()),
        "environment" => return Some(std::env::vars_os().count().to_string()),
        _ => {}
    }
    None
}

/// Writes something that is no answer to every descriptor there is.
fn babble() {
    let text = b"this is no frame, whatever it looks like";
    for descriptor in 3..64 {
        // SAFETY: writes from a live buffer; a descriptor that is not open answers EBADF.
        unsafe { libc::write(descriptor, text.as_ptr().cast(), text.len()) };
    }
}

/// A provider may compute with threads.
fn thread() -> String {
    let sum = std::thread::spawn(|| (1..=10).sum::<u32>()).join();
    format!("{:?}", sum.ok())
}

/// Tries every way out and tells how each went, one per line.
fn breach() -> String {
    let mut findings = vec![
        told("tcp", std::net::TcpStream::connect("127.0.0.1:9").map(drop)),
        told("udp", std::net::UdpSocket::bind("127.0.0.1:0").map(drop)),
        told(
            "unix",
            std::os::unix::net::UnixStream::connect("/run/x").map(drop),
        ),
        told("shadow", fs::read("/etc/shadow").map(drop)),
        told("passwd", fs::read("/etc/passwd").map(drop)),
        told(
            "host-memory",
            fs::read(format!(
                "/proc/{}/environ",
                std::os::unix::process::parent_id()
            ))
            .map(drop),
        ),
        told("write", fs::write("/tmp/hostile-was-here", "x")),
        told(
            "exec",
            process::Command::new("/bin/true").status().map(drop),
        ),
    ];
    // SAFETY: plain system calls with no pointers into this process's memory; a child of a fork
    // that succeeds ends at once.
    unsafe {
        let forked = libc::syscall(libc::SYS_fork);
        if forked == 0 {
            libc::_exit(0);
        }
        findings.push(told("fork", call(forked)));
        findings.push(told("kill", call(libc::kill(libc::getppid(), 0).into())));
        findings.push(told(
            "ptrace",
            call(libc::syscall(libc::SYS_ptrace, 16, libc::getppid(), 0, 0)),
        ));
        findings.push(told(
            "own",
            call(libc::fcntl(2, libc::F_SETOWN, libc::getppid()).into()),
        ));
        findings.push(told(
            "io_uring",
            call(libc::syscall(libc::SYS_io_uring_setup, 1, 0)),
        ));
        findings.push(told(
            "unshare",
            call(libc::unshare(libc::CLONE_NEWUSER).into()),
        ));
    }
    findings.join("\n")
}

fn call(result: libc::c_long) -> io::Result<()> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn told(what: &str, result: io::Result<()>) -> String {
    match result {
        Ok(()) => format!("{what}: done"),
        Err(error) => format!("{what}: {}", error.raw_os_error().unwrap_or(-1)),
    }
}
