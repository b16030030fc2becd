//! A machine of one's own: an empty `HOST_HOME`, a working directory, the built program.

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, OnceLock},
    thread::JoinHandle,
    time::Duration,
};

use tempfile::TempDir;

use crate::{Process, Store, processes_below, wait_for};

/// Longest any ordinary run of the program may take in a test.
pub const RUN_LIMIT: Duration = Duration::from_secs(120);

/// Where a build left its results.
#[derive(Debug)]
pub struct Built {
    /// Directory with the program and the providers beside it.
    pub directory: PathBuf,
}

impl Built {
    /// The development build of the whole workspace, made now where it is stale.
    ///
    /// # Panics
    ///
    /// When cargo fails.
    pub fn debug() -> &'static Self {
        static BUILT: OnceLock<Option<Built>> = OnceLock::new();
        let built =
            BUILT.get_or_init(|| Self::build(&["build", "--workspace", "--quiet"], "debug"));
        built.as_ref().expect("what is tested is built")
    }

    /// What `cargo run --release` builds: the program and the providers that ship with it.
    ///
    /// # Panics
    ///
    /// When cargo fails.
    pub fn release() -> &'static Self {
        static BUILT: OnceLock<Option<Built>> = OnceLock::new();
        let built =
            BUILT.get_or_init(|| Self::build(&["build", "--release", "--quiet"], "release"));
        built.as_ref().expect("what is tested is built")
    }

    /// `None` when cargo fails: that is told once, not by every test.
    fn build(arguments: &[&str], profile: &str) -> Option<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let status = Command::new(env!("CARGO"))
            .current_dir(&root)
            .args(arguments)
            .status()
            .expect("cargo runs the tests, so it is there");
        if !status.success() {
            return None;
        }
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        Some(Self {
            directory: fs::canonicalize(target.join(profile)).unwrap(),
        })
    }

    /// The program.
    #[must_use]
    pub fn host(&self) -> PathBuf {
        self.directory.join("host")
    }
}

/// An installation of the program that nobody else uses.
pub struct Machine {
    directory: PathBuf,
    built: &'static Built,
    networked: bool,
    lent: BTreeMap<String, String>,
    /// Removes the directory at the end; `None`: it is kept for other tests of the process.
    _removed: Option<TempDir>,
}

/// What of the environment says how this machine reaches the network.
const NETWORK: [&str; 12] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "PIP_INDEX_URL",
    "PIP_CERT",
    "PIP_CONFIG_FILE",
];

/// How a run of the program went.
#[derive(Debug)]
pub struct Run {
    /// Exit code; 128 + number for a signal, as shells say it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// The program while it runs; killed with everything it started when dropped.
pub struct Running {
    child: Child,
    home: PathBuf,
    stdout: Captured,
    stderr: Captured,
}

/// What a pipe gave so far; read from the start, so that a full pipe never stops the program.
struct Captured {
    text: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<()>,
}

impl Machine {
    /// A fresh one with the development build.
    #[must_use]
    pub fn new() -> Self {
        Self::with(Built::debug())
    }

    /// A fresh one with this build.
    #[must_use]
    pub fn with(built: &'static Built) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-e2e-")
            .tempdir()
            .unwrap();
        let path = directory.path().to_owned();
        Self::at(path, built, Some(directory))
    }

    /// One that several tests of this process share, and that may reach the network. Nothing is
    /// dropped at the end of a process: what earlier ones left is removed now.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn shared(name: &str, built: &'static Built) -> Self {
        let parent = std::env::temp_dir();
        let prefix = format!("host-e2e-{name}-");
        for entry in fs::read_dir(&parent).unwrap() {
            let path = entry.unwrap().path();
            let file_name = path.file_name().unwrap_or_default().to_string_lossy();
            if let Some(pid) = file_name.strip_prefix(&prefix)
                && !Path::new("/proc").join(pid).exists()
            {
                // Another process may be removing it as well.
                let _ = fs::remove_dir_all(&path);
            }
        }
        let path = parent.join(format!("{prefix}{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self {
            networked: true,
            ..Self::at(path, built, None)
        }
    }

    /// The same, knowing how this machine reaches the network.
    #[must_use]
    pub fn networked(self) -> Self {
        Self {
            networked: true,
            ..self
        }
    }

    fn at(directory: PathBuf, built: &'static Built, removed: Option<TempDir>) -> Self {
        // Engines run under another uid when the tests run as root: it must get through.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(directory.join("work")).unwrap();
        Self {
            directory,
            built,
            networked: false,
            lent: BTreeMap::new(),
            _removed: removed,
        }
    }

    /// Its `HOST_HOME`.
    #[must_use]
    pub fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// The directory the program is run in.
    #[must_use]
    pub fn work(&self) -> PathBuf {
        self.directory.join("work")
    }

    /// Its root, with room for fixtures.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.directory
    }

    /// Writes a file into the working directory.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.work().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes this pool as the only one of the pool file of the working directory.
    pub fn write_pool(&self, pool: &serde_json::Value) {
        self.write_pools(std::slice::from_ref(pool));
    }

    /// Writes these pools as the pool file of the working directory.
    pub fn write_pools(&self, pools: &[serde_json::Value]) {
        // JSON is YAML.
        let text = serde_json::json!({ "pools": pools }).to_string();
        self.write("pools.yaml", &text);
    }

    /// Gives every later run of the program a variable.
    pub fn lend(&mut self, name: &str, value: &str) {
        self.lent.insert(name.to_owned(), value.to_owned());
    }

    /// What is in the store.
    #[must_use]
    pub fn store(&self) -> Store {
        Store::at(self.home().join("store"))
    }

    /// Starts `host provision` and waits until it says that the engine is ready.
    ///
    /// # Panics
    ///
    /// When it ends before, or takes longer than any run may.
    #[must_use]
    pub fn provision(&self, more: &[&str]) -> Running {
        let mut arguments = vec!["provision"];
        arguments.extend(more);
        let mut running = self.start(self.command(&arguments));
        running.wait_ready();
        running
    }

    /// The program with these arguments, in a clean environment.
    #[must_use]
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.built.host());
        command
            .args(arguments)
            .current_dir(self.work())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.directory)
            .env("HOST_HOME", self.home())
            .envs(&self.lent)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if self.networked {
            let known = NETWORK
                .iter()
                .filter_map(|name| Some((name, std::env::var_os(name)?)));
            command.envs(known);
        }
        command
    }

    /// Runs the program to its end.
    #[must_use]
    pub fn run(&self, arguments: &[&str]) -> Run {
        self.start(self.command(arguments)).finish(RUN_LIMIT)
    }

    /// Starts a command made by [`Machine::command`].
    #[must_use]
    pub fn start(&self, mut command: Command) -> Running {
        let mut child = command.spawn().expect("the program was built");
        Running {
            stdout: Captured::of(child.stdout.take().expect("piped")),
            stderr: Captured::of(child.stderr.take().expect("piped")),
            child,
            home: self.home(),
        }
    }

    /// Files below a directory, relative to it and sorted; directories themselves are left out.
    ///
    /// # Panics
    ///
    /// When it cannot be read.
    #[must_use]
    pub fn files_below(&self, directory: &Path) -> Vec<String> {
        fn walk(root: &Path, directory: &Path, found: &mut Vec<String>) {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                if entry.file_type().unwrap().is_dir() {
                    walk(root, &entry.path(), found);
                } else {
                    let path = entry.path();
                    let relative = path.strip_prefix(root).expect("it was found below");
                    found.push(relative.to_string_lossy().into_owned());
                }
            }
        }
        let mut found = Vec::new();
        walk(directory, directory, &mut found);
        found.sort();
        found
    }

    /// What lies in the root.
    #[must_use]
    pub fn names_in_root(&self) -> Vec<String> {
        let entries = fs::read_dir(self.root()).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    /// Handoff files in the default directory.
    #[must_use]
    pub fn handoffs(&self) -> Vec<PathBuf> {
        let directory = self.work().join(".runtime/engines");
        let Ok(entries) = fs::read_dir(directory) else {
            return Vec::new();
        };
        // A hidden one is being written: it appears by a rename.
        let is_hidden = |path: &PathBuf| path.file_name().unwrap().as_encoded_bytes()[0] == b'.';
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| !is_hidden(path)).collect()
    }

    /// The one handoff there is, read.
    ///
    /// # Panics
    ///
    /// When there is none, several, or it is not JSON.
    #[must_use]
    pub fn handoff(&self) -> serde_json::Value {
        let handoffs = self.handoffs();
        let [path] = handoffs.as_slice() else {
            panic!("one handoff expected: {handoffs:?}");
        };
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// Processes that belong to this installation.
    #[must_use]
    pub fn processes(&self) -> Vec<Process> {
        processes_below(&self.directory)
    }

    /// Text with this test's paths replaced: `HOST` is the program, `HOME` its home, `ROOT` the rest.
    #[must_use]
    pub fn normal(&self, text: &str) -> String {
        text.replace(&*self.built.host().to_string_lossy(), "HOST")
            .replace(&*self.home().to_string_lossy(), "HOME")
            .replace(&*self.work().to_string_lossy(), ".")
            .replace(&*self.root().to_string_lossy(), "ROOT")
    }

    /// Asserts that nothing was done at all: no home, no handoff directory, no process.
    #[track_caller]
    pub fn assert_untouched(&self) {
        assert!(!self.home().exists(), "something was kept in the home");
        assert!(!self.work().join(".runtime").exists(), "a handoff was made");
        self.assert_clean();
    }

    /// Asserts that nothing is left behind: no process, no handoff, no lock held.
    #[track_caller]
    pub fn assert_clean(&self) {
        wait_for("every process to end", Duration::from_secs(10), || {
            let left = self.processes();
            if left.is_empty() { Ok(()) } else { Err(left) }
        });
        assert_eq!(self.handoffs(), Vec::<PathBuf>::new(), "stale handoff");
        let home = self.home();
        if !home.is_dir() {
            return;
        }
        let files = self.files_below(&home);
        for name in files.iter().filter(|name| name.ends_with(".lock")) {
            let file = fs::File::open(home.join(name)).unwrap();
            assert!(file.try_lock().is_ok(), "{name} is still held");
        }
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Run {
    /// Asserts the exit code, showing everything that was printed when it differs.
    #[track_caller]
    #[must_use]
    pub fn code(self, expected: i32) -> Self {
        assert_eq!(
            self.code, expected,
            "\n--- stdout\n{}\n--- stderr\n{}",
            self.stdout, self.stderr
        );
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }

    /// Events of a run with `--log-format json`.
    #[must_use]
    pub fn events(&self) -> Vec<serde_json::Value> {
        events(&self.stderr)
    }

    /// Actions of the events, in order.
    #[must_use]
    pub fn actions(&self) -> Vec<String> {
        let word = |event: &serde_json::Value| event["action"].as_str().map(str::to_owned);
        self.events().iter().filter_map(word).collect()
    }

    /// Asserts that standard error says this.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "`{text}` not in:\n{}",
            self.stderr
        );
        self
    }
}

impl Running {
    /// Process id of the program.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal to the program alone.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("the program is still there");
    }

    /// Sends a signal to its process group, as a terminal does.
    pub fn signal_group(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process_group(pid, signal).expect("the group is still there");
    }

    /// Waits until its engine is ready and gives the URL.
    ///
    /// # Panics
    ///
    /// When the program ends before, or takes longer than any run may.
    pub fn wait_ready(&mut self) -> String {
        self.wait_ready_for(RUN_LIMIT)
    }

    /// The same with a limit of one's own.
    ///
    /// # Panics
    ///
    /// When the program ends before, or takes longer.
    pub fn wait_ready_for(&mut self, limit: Duration) -> String {
        wait_for("the engine to be ready", limit, || {
            let said = self.stdout();
            if let Some((_, rest)) = said.split_once(" is ready at ")
                && let Some((url, _)) = rest.split_once('\n')
            {
                return Ok(url.to_owned());
            }
            if let Some(status) = self.ended() {
                panic!("ended with {status}:\n{said}{}", self.stderr());
            }
            Err(self.stderr())
        })
    }

    /// Waits until standard error says this.
    ///
    /// # Panics
    ///
    /// When the program ends before, or takes longer than any run may.
    pub fn wait_said(&mut self, text: &str) {
        wait_for(&format!("`{text}`"), RUN_LIMIT, || {
            let said = self.stderr();
            if said.contains(text) {
                return Ok(());
            }
            assert!(self.ended().is_none(), "ended without `{text}`:\n{said}");
            Err(said)
        });
    }

    /// Sends a signal and waits for the end.
    #[must_use]
    pub fn end(self, signal: rustix::process::Signal) -> Run {
        self.signal(signal);
        self.finish(RUN_LIMIT)
    }

    /// Whether it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end and takes what it printed.
    ///
    /// # Panics
    ///
    /// When it takes longer than `limit`.
    #[must_use]
    pub fn finish(mut self, limit: Duration) -> Run {
        let status = wait_for("the program to end", limit, || {
            self.child.try_wait().unwrap().ok_or("still running")
        });
        // A pipe that stays open means that something inherited it and outlived the program.
        wait_for("its output", Duration::from_secs(5), || {
            let done = self.stdout.reader.is_finished() && self.stderr.reader.is_finished();
            if done {
                Ok(())
            } else {
                Err("pipes still open")
            }
        });
        Run {
            code: exit_code(status),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// What it printed on standard output so far.
    #[must_use]
    pub fn stdout(&self) -> String {
        self.stdout.so_far()
    }

    /// What it printed on standard error so far.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.stderr.so_far()
    }
}

impl Captured {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(Vec::new()));
        let shared = Arc::clone(&text);
        let reader = std::thread::spawn(move || {
            let mut block = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut block) {
                shared.lock().unwrap().extend_from_slice(&block[..length]);
            }
        });
        Self { text, reader }
    }

    fn so_far(&self) -> String {
        String::from_utf8_lossy(&self.text.lock().unwrap()).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            for process in processes_below(&self.home) {
                eprintln!("left behind: {process:?}");
            }
        }
    }
}

/// JSON lines that are events; other lines are not this program's.
fn events(stderr: &str) -> Vec<serde_json::Value> {
    stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event: &serde_json::Value| event["action"].is_string())
        .collect()
}

fn exit_code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().expect("it ended one way or the other"))
}
