//! What the tests of the engine room share: a home of their own, free ports, waiting.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use engine_host::{
    config::paths::Home,
    engine::{self, EngineError, Handoff, Outcome, RunningEngine, StartRequest},
    fault::Fault as _,
    narrate::{Capture, Event, Narrator},
    process::{Keeper, KeeperOptions},
};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::{Job, Parts};

/// Longest any start or wait may take: runtimes of containers are slow on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A home, a keeper and an ear, for one test.
pub struct Room {
    _directory: TempDir,
    engine: PathBuf,
    /// Directory of this test alone.
    pub root: PathBuf,
    /// Its home.
    pub home: Home,
    /// What keeps the engines that this test starts.
    pub keeper: Keeper,
    /// Whom a start tells.
    pub narrator: Narrator,
    /// What was told.
    pub heard: Capture,
    /// Gives up what is being started.
    pub cancel: CancellationToken,
}

impl Room {
    /// A fresh one, with the fake host as keeper and this fake engine.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    #[must_use]
    pub fn new(host: &str, engine: &str) -> Self {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let root = directory.path().to_owned();
        let home = Home::at(root.join("home"));
        let (narrator, heard) = Narrator::capture();
        Self {
            _directory: directory,
            engine: engine.into(),
            root,
            keeper: Keeper::new(&home, KeeperOptions::program(host)),
            home,
            narrator,
            heard,
            cancel: CancellationToken::new(),
        }
    }

    /// A start of the fake engine as a process of this machine.
    #[must_use]
    pub fn job(&self, faults: &[&str]) -> Job {
        Job {
            program: self.engine.clone(),
            home: self.home.root().to_owned(),
            handoffs: self.handoffs(),
            pool: "default".to_owned(),
            faults: faults.iter().map(|text| (*text).to_owned()).collect(),
            env: [].into(),
            ports: free_ports(3),
            files: Vec::new(),
            grace_ms: 2_000,
            stall_ms: 20_000,
            ready_ms: None,
            second_term: false,
            gpu_percent: None,
            uid: None,
            detach: false,
            elsewhere: None,
            more_ports: Vec::new(),
        }
    }

    /// Writes a job where another host reads it.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn write_job(&self, name: &str, job: &Job) -> PathBuf {
        let path = self.root.join(format!("{name}.json"));
        let text = serde_json::to_vec(job).expect("a job is a document");
        fs::write(&path, text).expect("the directory is the test's own");
        path
    }

    /// Where handoffs appear.
    #[must_use]
    pub fn handoffs(&self) -> PathBuf {
        self.root.join(".runtime/engines")
    }

    /// Where that of the fake engine appears.
    #[must_use]
    pub fn handoff_path(&self) -> PathBuf {
        self.handoffs().join("fake.json")
    }

    /// That of the fake engine.
    ///
    /// # Panics
    ///
    /// When it is none.
    #[must_use]
    pub fn handoff(&self) -> Option<Handoff> {
        let text = fs::read(self.handoff_path()).ok()?;
        Some(serde_json::from_slice(&text).expect("a handoff appears whole"))
    }

    /// What was written down of engines; locks are never removed, and left out.
    ///
    /// # Panics
    ///
    /// When nothing was ever started.
    #[must_use]
    pub fn records(&self) -> Vec<String> {
        let records = fs::read_dir(self.home.state().join("instances"));
        let records = records.expect("something was started").flatten();
        records
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| !name.ends_with(".lock"))
            .collect()
    }

    /// Waits until such an event is told.
    ///
    /// # Panics
    ///
    /// When it is not.
    pub async fn until_told(&self, what: &str, is_meant: impl Fn(&Event) -> bool) {
        until(what, || {
            let events = self.heard.events();
            match events.iter().any(&is_meant) {
                true => Ok(()),
                false => Err(format!("{events:?}")),
            }
        })
        .await;
    }

    /// Starts a job.
    pub async fn try_start(&self, job: &Job) -> Result<Outcome, EngineError> {
        self.start_parts(job, &job.parts()).await
    }

    /// Starts a job with parts that are not its own.
    pub async fn start_parts(&self, job: &Job, parts: &Parts) -> Result<Outcome, EngineError> {
        let request = parts.request(job, &self.keeper, &self.narrator, &self.cancel);
        ends(engine::start(request)).await
    }

    /// Starts a job beside the engine that serves.
    pub async fn try_start_beside(&self, job: &Job) -> Result<Outcome, EngineError> {
        let parts = job.parts();
        let request = parts.request(job, &self.keeper, &self.narrator, &self.cancel);
        let request = StartRequest {
            beside: true,
            ..request
        };
        ends(engine::start(request)).await
    }

    /// Starts a job that comes up.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn start(&self, job: &Job) -> RunningEngine {
        started(self.try_start(job).await)
    }

    /// Starts a job beside the engine that serves, and it comes up.
    ///
    /// # Panics
    ///
    /// When it does not.
    pub async fn start_beside(&self, job: &Job) -> RunningEngine {
        started(self.try_start_beside(job).await)
    }

    /// Starts a job that fails.
    ///
    /// # Panics
    ///
    /// When it comes up.
    pub async fn fail(&self, job: &Job) -> EngineError {
        match self.try_start(job).await {
            Err(error) => error,
            Ok(started) => panic!("{started:?}"),
        }
    }
}

async fn ends<T>(start: impl Future<Output = T>) -> T {
    let start = tokio::time::timeout(LIMIT, start);
    start.await.expect("a start comes to an end")
}

fn started(outcome: Result<Outcome, EngineError>) -> RunningEngine {
    match outcome {
        Ok(Outcome::Started(engine)) => *engine,
        Ok(other) => panic!("{other:?}"),
        Err(error) => panic!("{}", whole(&error)),
    }
}

/// An error with all that it says.
#[must_use]
pub fn whole(error: &EngineError) -> String {
    let details: Vec<String> = error
        .details()
        .iter()
        .map(|detail| format!("{detail:?}"))
        .collect();
    format!("{error}\n{}", details.join("\n"))
}

/// Ports that are free now, never the same twice in this process, and outside the range from which
/// the kernel takes ports for outgoing connections (32768 and above).
///
/// # Panics
///
/// Never: the range fits.
#[must_use]
pub fn free_ports(count: usize) -> Vec<u16> {
    const RANGE: u32 = 12_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(401);
    std::iter::repeat_with(|| {
        let number = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % RANGE;
        20_000 + u16::try_from(number).expect("below 12000")
    })
    .filter(|port| is_free(*port))
    .take(count)
    .collect()
}

/// Whether one could listen there now. Nobody listens for the question: a program that another test is just
/// starting has a copy of the socket until its exec, and one that listened would keep the engine out.
fn is_free(port: u16) -> bool {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let bound = || {
        let (family, flags) = (AddressFamily::INET, SocketFlags::CLOEXEC);
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)
    };
    bound().is_ok()
}

/// Waits until `look` gives a value, and says what was seen last when it does not.
///
/// # Panics
///
/// When the longest time has passed.
pub async fn until<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let start = Instant::now();
    loop {
        match look() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > LIMIT => panic!("{what}: last seen: {seen}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
        }
    }
}
