//! An engine that serves nothing and fails on request.
//!
//! ```text
//! fake-engine --host H --port P [what it does]
//!   --load-ms N             answers 503 for N ms, then 200
//!   --load-until FILE       answers 503 until FILE is there, then 200
//!   --never-ready           answers 503 for ever and is silent
//!   --status CODE           answers its health with this code
//!   --exit-after-ms N       ends by itself after N ms: --exit-code N, or --signal N
//!   --ignore-term           ignores TERM
//!   --second-term           ends with 1 on the second TERM, not on the first
//!   --busy-ms N             is busy for N ms after its metrics are first asked for
//!   --fork FILE             leaves a child in a session of its own, its pid in FILE
//!   --foreign-socket PATH   does not listen: tells its port to the Unix socket PATH instead
//!   --fail-once FILE        finds its port taken, the first time: FILE is made then
//!   --exit-if FILE          ends at once where FILE is there: --exit-code N
//!   --print-line TEXT       writes a line to standard error
//!   --print-environment     writes its environment to standard error
//!   --flood N               writes N lines to standard error
//!   --pour-hz N             goes on with N lines a second
//!   --record FILE           writes its arguments and environment to FILE, as JSON
//!   --hang-after-ms N       lives on after N ms, but answers nothing any more
//!   --refuse-ms N           does not listen before N ms have passed
//!   --allocate MIB          fills this much memory
//!   --grpc-port P           answers there as well
//!   --model FILE            answers other requests with its first bytes
//! ```
//!
//! Lines of `PRINT_LINES` in its environment are written as well: where it stands for another engine, whose
//! flags a provider decides.
//!
//! `GET /report` tells what it sees of the world; `GET /write/PATH` whether it can make a file there.
//! `GET /fail/exit` makes it end as it would after `--exit-after-ms`, `/fail/hang` answer nothing any more,
//! `/fail/deaf` close its port and live on, `/fail/fill/MIB` fill so much memory: a test chooses the moment.
//! `GET /busy` makes it busy until `GET /idle`.
#![expect(
    unsafe_code,
    reason = "handling a signal has no safe interface in the standard library"
)]

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    os::fd::{IntoRawFd, OwnedFd},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::PipeFlags,
};

/// TERM signals received so far.
static TERMS: AtomicU32 = AtomicU32::new(0);

/// Where a TERM writes to, so that an engine that waits for one costs nothing.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// Pause between two looks whether a child has written its pid.
const TICK: Duration = Duration::from_millis(2);

#[derive(Default)]
struct Faults {
    values: BTreeMap<String, String>,
    lines: Vec<String>,
}

impl Faults {
    fn read(arguments: impl Iterator<Item = String>) -> Self {
        const SWITCHES: [&str; 4] = [
            "--never-ready",
            "--ignore-term",
            "--second-term",
            "--print-environment",
        ];
        let mut faults = Self::default();
        let mut arguments = arguments;
        while let Some(name) = arguments.next() {
            let value = if SWITCHES.contains(&name.as_str()) {
                String::new()
            } else {
                arguments.next().unwrap_or_default()
            };
            if name == "--print-line" {
                faults.lines.push(value);
            } else {
                faults.values.insert(name, value);
            }
        }
        faults
    }

    fn has(&self, name: &str) -> bool {
        self.values.contains_key(name)
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.values.get(name)?.parse().ok()
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }
}

/// What the answers depend on.
struct Engine {
    faults: Faults,
    started: Instant,
    first_metrics: Mutex<Option<Instant>>,
    busy: AtomicBool,
    hung: AtomicBool,
}

extern "C" fn count_term(_: libc::c_int) {
    TERMS.fetch_add(1, Ordering::SeqCst);
    // SAFETY: write is allowed in a signal handler, and the byte outlives the call.
    unsafe {
        libc::write(BELL.load(Ordering::SeqCst), [0_u8].as_ptr().cast(), 1);
    }
}

/// Counts TERM signals from now on; what is returned can be read once one has come.
fn listen_for_term() -> OwnedFd {
    let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
    let (reader, writer) = rustix::pipe::pipe_with(flags).expect("a pipe can be made");
    BELL.store(writer.into_raw_fd(), Ordering::SeqCst);
    // SAFETY: the handler adds to an atomic and writes, which is allowed in a signal handler.
    unsafe {
        let handler: extern "C" fn(libc::c_int) = count_term;
        libc::signal(libc::SIGTERM, handler as libc::sighandler_t);
    }
    reader
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "--daemon") {
        return daemon();
    }
    let bell = listen_for_term();
    let faults = Faults::read(arguments);
    record(&faults);
    let mebibytes = faults.number("--allocate").unwrap_or(0);
    let filled: Vec<Vec<u8>> = (0..mebibytes).map(|_| vec![1; 1 << 20]).collect();
    std::hint::black_box(&filled);
    for device in names("/dev")
        .iter()
        .filter(|name| name.starts_with("fake-"))
    {
        eprintln!("sees device {device}");
    }
    for line in &faults.lines {
        eprintln!("{line}");
    }
    for line in std::env::var("PRINT_LINES")
        .iter()
        .flat_map(|lines| lines.lines())
    {
        eprintln!("{line}");
    }
    if faults.has("--print-environment") {
        for (name, value) in environment() {
            eprintln!("{name}={value}");
        }
    }
    for number in 0..faults.number("--flood").unwrap_or(0) {
        eprintln!("flood {number}: the quick brown fox jumps over the lazy dog");
    }
    if let Some(path) = faults.text("--fail-once")
        && std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .is_ok()
    {
        return port_taken(&faults);
    }
    if faults
        .text("--exit-if")
        .is_some_and(|path| std::path::Path::new(path).exists())
    {
        return by_itself(&faults).into();
    }
    if let Some(path) = faults.text("--fork") {
        fork_daemon(path);
    }
    let engine = Engine {
        faults,
        started: Instant::now(),
        first_metrics: Mutex::new(None),
        busy: AtomicBool::new(false),
        hung: AtomicBool::new(false),
    };
    run(engine, &bell)
}

fn run(engine: Engine, bell: &OwnedFd) -> ExitCode {
    let engine: &'static Engine = Box::leak(Box::new(engine));
    let host = engine.faults.text("--host").unwrap_or("127.0.0.1");
    let address = format!(
        "{}:{}",
        if host.contains(':') {
            format!("[{host}]")
        } else {
            host.to_owned()
        },
        engine.faults.text("--port").unwrap_or("0")
    );
    if let Some(path) = engine.faults.text("--foreign-socket") {
        let port = engine.faults.text("--port").unwrap_or_default();
        let mut socket = std::os::unix::net::UnixStream::connect(path).expect("a test listens");
        socket.write_all(port.as_bytes()).expect("a test reads");
    } else {
        std::thread::sleep(Duration::from_millis(
            engine.faults.number("--refuse-ms").unwrap_or(0),
        ));
        let Ok(listener) = TcpListener::bind(&address) else {
            return port_taken(&engine.faults);
        };
        eprintln!("listening on http://{address}");
        serve(engine, listener);
        pour(&engine.faults);
        if let Some(port) = engine.faults.text("--grpc-port") {
            let host = address.rsplit_once(':').expect("host and port").0;
            let listener = TcpListener::bind(format!("{host}:{port}"));
            serve(engine, listener.expect("the second port is free"));
        }
    }
    until_the_end(engine, bell)
}

fn serve(engine: &'static Engine, listener: TcpListener) {
    let listener: &'static TcpListener = Box::leak(Box::new(listener));
    std::thread::spawn(move || {
        loop {
            match listener.accept() {
                Ok((stream, _)) => {
                    std::thread::spawn(move || answer(engine, listener, stream));
                }
                // It listens no longer.
                Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => return,
                Err(_) => {}
            }
        }
    });
}

/// Writes lines for as long as it runs, ten times a second as many as are due.
fn pour(faults: &Faults) {
    let Some(a_second) = faults.number("--pour-hz") else {
        return;
    };
    std::thread::spawn(move || {
        loop {
            for number in 0..a_second / 10 {
                eprintln!("pour {number}: pack my box with five dozen liquor jugs");
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    });
}

fn port_taken(faults: &Faults) -> ExitCode {
    let port = faults.text("--port").unwrap_or_default();
    eprintln!("couldn't bind HTTP server socket, port: {port}");
    ExitCode::FAILURE
}

fn until_the_end(engine: &Engine, bell: &OwnedFd) -> ExitCode {
    let faults = &engine.faults;
    let limit = faults.number("--exit-after-ms").map(Duration::from_millis);
    loop {
        let terms = TERMS.load(Ordering::SeqCst);
        if faults.has("--second-term") {
            if terms >= 2 {
                eprintln!("second TERM, leaving at once");
                return ExitCode::FAILURE;
            }
        } else if terms >= 1 && !faults.has("--ignore-term") {
            eprintln!("TERM, leaving");
            return ExitCode::SUCCESS;
        }
        let left = limit.map(|limit| limit.saturating_sub(engine.started.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            return by_itself(faults).into();
        }
        let left = left.map(|left| Timespec::try_from(left).expect("it fits"));
        let _ = poll(&mut [PollFd::new(bell, PollFlags::IN)], left.as_ref());
        let _ = rustix::io::read(bell, &mut [0; 16]);
    }
}

/// Ends by its signal, or gives the code to end with.
fn by_itself(faults: &Faults) -> u8 {
    let signal = faults
        .number("--signal")
        .and_then(|number| i32::try_from(number).ok());
    if let Some(signal) = signal.and_then(rustix::process::Signal::from_named_raw) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), signal);
        // The signal may take a moment to arrive.
        std::thread::sleep(Duration::from_secs(5));
    }
    let code = faults.number("--exit-code").unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn answer(engine: &Engine, listener: &TcpListener, stream: TcpStream) {
    let mut reader = BufReader::new(&stream);
    let mut line = String::new();
    if reader.read_line(&mut line).is_err() {
        return;
    }
    loop {
        let mut header = String::new();
        match reader.read_line(&mut header) {
            Ok(read) if read > 2 => {}
            _ => break,
        }
    }
    let path = line.split(' ').nth(1).unwrap_or_default();
    if let Some(how) = path.strip_prefix("/fail/") {
        fail(engine, listener, how);
    }
    let hang = engine.faults.number("--hang-after-ms");
    while engine.hung.load(Ordering::SeqCst)
        || hang.is_some_and(|after| engine.started.elapsed() >= Duration::from_millis(after))
    {
        std::thread::park();
    }
    let (status, body) = respond(engine, path);
    let _ = write!(
        &stream,
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
}

/// Fails now, in the way that a test asks for.
fn fail(engine: &Engine, listener: &TcpListener, how: &str) {
    match how.split_once('/') {
        Some(("fill", mebibytes)) => {
            let mebibytes = mebibytes.parse::<usize>().unwrap_or(0);
            std::hint::black_box(vec![1_u8; mebibytes << 20]);
        }
        _ if how == "hang" => engine.hung.store(true, Ordering::SeqCst),
        _ if how == "deaf" => {
            let _ = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
        }
        _ => std::process::exit(i32::from(by_itself(&engine.faults))),
    }
}

fn respond(engine: &Engine, path: &str) -> (u64, String) {
    let faults = &engine.faults;
    match path {
        "/health" if is_loading(engine) => (503, "loading".to_owned()),
        "/health" => (faults.number("--status").unwrap_or(200), "ok".to_owned()),
        "/busy" | "/idle" => {
            engine.busy.store(path == "/busy", Ordering::SeqCst);
            (200, String::new())
        }
        "/props" => (200, r#"{"build_info":"b1-fake"}"#.to_owned()),
        "/metrics" => (
            200,
            ["fake:", "fixture_", "llamacpp:"]
                .map(|engine_name| {
                    format!("{engine_name}requests_processing {}\n", in_flight(engine))
                })
                .concat(),
        ),
        "/version" => (200, r#"{"version":"0-fake"}"#.to_owned()),
        "/report" => (200, report().to_string()),
        _ => match (path.strip_prefix("/write"), faults.text("--model")) {
            (Some(path), _) => (200, write_there(path)),
            (None, Some(model)) => (200, greeting(model)),
            (None, None) => (404, String::new()),
        },
    }
}

fn is_loading(engine: &Engine) -> bool {
    let faults = &engine.faults;
    let loading = Duration::from_millis(faults.number("--load-ms").unwrap_or(0));
    let is_missing = |file: &str| !std::path::Path::new(file).exists();
    faults.has("--never-ready")
        || engine.started.elapsed() < loading
        || faults.text("--load-until").is_some_and(is_missing)
}

fn names(directory: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// What a container lets its engine see.
fn report() -> serde_json::Value {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    serde_json::json!({
        "args": std::env::args().collect::<Vec<_>>(),
        "env": environment(),
        "uid": rustix::process::getuid().as_raw(),
        "gid": rustix::process::getgid().as_raw(),
        "pid": rustix::process::getpid().as_raw_nonzero().get(),
        "status": text("/proc/self/status"),
        "limits": text("/proc/self/limits"),
        "mounts": text("/proc/self/mountinfo"),
        "init": text("/proc/1/cmdline"),
        // Where the second and the first version of control groups show what holds inside.
        "pids_max": text("/sys/fs/cgroup/pids.max") + &text("/sys/fs/cgroup/pids/pids.max"),
        "devices": names("/dev"),
    })
}

/// Whether a file can be made in a directory.
fn write_there(directory: &str) -> String {
    let path = std::path::Path::new(directory).join("probe");
    match std::fs::write(&path, "probe") {
        Ok(()) => "written".to_owned(),
        Err(error) => error.to_string(),
    }
}

fn greeting(model: &str) -> String {
    match std::fs::read(model) {
        Ok(bytes) => {
            let start = bytes.get(..4).unwrap_or_default();
            format!("hello from {}\n", String::from_utf8_lossy(start))
        }
        Err(error) => format!("{model}: {error}\n"),
    }
}

fn in_flight(engine: &Engine) -> u32 {
    if engine.busy.load(Ordering::SeqCst) {
        return 1;
    }
    let Some(busy) = engine.faults.number("--busy-ms") else {
        return 0;
    };
    let mut first = engine.first_metrics.lock().expect("nobody panics");
    let first = first.get_or_insert_with(Instant::now);
    u32::from(first.elapsed() < Duration::from_millis(busy))
}

fn record(faults: &Faults) {
    if let Some(path) = faults.text("--record") {
        let record = serde_json::json!({
            "args": std::env::args().skip(1).collect::<Vec<_>>(),
            "env": environment(),
            "directory": std::env::current_dir().ok(),
            "uid": rustix::process::getuid().as_raw(),
        });
        let _ = std::fs::write(path, record.to_string());
    }
}

fn environment() -> BTreeMap<String, String> {
    std::env::vars().collect()
}

/// Starts a copy that outlives its parent, and waits until its pid is written.
fn fork_daemon(path: &str) {
    let program = std::env::current_exe().expect("a program has a path");
    #[expect(
        clippy::zombie_processes,
        reason = "it is the point of this fault that nobody waits"
    )]
    std::process::Command::new(program)
        .args(["--daemon", path])
        .spawn()
        .expect("a copy can be started");
    while !std::fs::read_to_string(path).is_ok_and(|text| !text.is_empty()) {
        std::thread::sleep(TICK);
    }
}

/// A child that has left its parent's session and ignores TERM.
fn daemon() -> ExitCode {
    let _ = rustix::process::setsid();
    // SAFETY: ignoring a signal touches no memory.
    unsafe {
        libc::signal(libc::SIGTERM, libc::SIG_IGN);
    }
    let path = std::env::args().nth(2).unwrap_or_default();
    let _ = std::fs::write(path, std::process::id().to_string());
    std::thread::sleep(Duration::from_secs(600));
    ExitCode::SUCCESS
}
