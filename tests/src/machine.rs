//! A machine of one's own: an empty `HOST_HOME`, a working directory, the built program.
//!
//! What of the program is running on it is in [`running`], how that went in [`run`], what is on it
//! afterwards in [`left`]; [`built`] has the program.

mod built;
mod left;
mod run;
mod running;

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{ChildStdin, Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

pub use self::{
    built::Built,
    run::{KILLED_OR_DONE, Run},
    running::Running,
};
use crate::Store;

/// Longest any ordinary run of the program may take in a test.
pub const RUN_LIMIT: Duration = Duration::from_secs(120);

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
        self.command_of(&self.built.host(), arguments)
    }

    /// Another program with these arguments, in the same environment.
    #[must_use]
    pub fn command_of(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
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
        let child = command.spawn().expect("the program was built");
        Running::of(child, &self.home())
    }

    /// The same with its standard input, which has to be piped.
    ///
    /// # Panics
    ///
    /// When it cannot be started, or its input is not piped.
    #[must_use]
    pub fn start_with_input(&self, mut command: Command) -> (Running, ChildStdin) {
        let mut child = command.spawn().expect("the program is there");
        let input = child.stdin.take().expect("piped");
        (Running::of(child, &self.home()), input)
    }

    /// Puts the fixture provider, which no release build has beside it, into a directory of the machine's
    /// own and gives its path.
    #[must_use]
    pub fn fixture_provider(&self) -> String {
        self.provider("libengine_provider_fixture.so", "fixture")
    }

    /// The same with the provider that misbehaves as its pool says; beside the program it has a name at which
    /// nobody looks.
    #[must_use]
    pub fn hostile_provider(&self) -> String {
        self.provider("libfixture_provider_hostile.so", "hostile")
    }

    fn provider(&self, built: &str, name: &str) -> String {
        let directory = self.root().join("providers");
        fs::create_dir_all(&directory).unwrap();
        let built = Built::debug().directory.join(built);
        let library = format!("libengine_provider_{name}.so");
        fs::copy(built, directory.join(library)).unwrap();
        directory.to_str().unwrap().to_owned()
    }

    /// Text with this test's paths replaced: `HOST` is the program, `HOME` its home, `ROOT` the rest.
    #[must_use]
    pub fn normal(&self, text: &str) -> String {
        text.replace(&*self.built.host().to_string_lossy(), "HOST")
            .replace(&*self.home().to_string_lossy(), "HOME")
            .replace(&*self.work().to_string_lossy(), ".")
            .replace(&*self.root().to_string_lossy(), "ROOT")
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}
