//! An open provider: asked several times, ended when dropped.

use std::{path::PathBuf, time::Duration};

use engine_provider_api::{
    Document, Plan, PlanRequest, PrepareRequest, PreparedEngine, ProviderInfo,
    abi::{CallError, read_answer},
};
use serde::Serialize;
use tokio::sync::Mutex;

use super::{
    error::ProviderFault,
    file,
    found::Found,
    in_process::Thread,
    worker::{self, Phase, Sandbox, Worker},
};

/// Where a provider's code runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolation {
    /// In a sandboxed process of its own.
    #[default]
    Worker,
    /// In this process: it can do whatever this process can, and takes it along when it crashes.
    InProcess,
}

/// How a provider is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Program that is started as the worker: one that calls
    /// [`run_if_worker`](super::worker::run_if_worker) at the top of its `main`. Default: this
    /// process's own executable, by a link that an upgrade does not change.
    pub program: PathBuf,
    /// Longest waits.
    pub limits: Limits,
    /// Digest (64 hexadecimal digits) that the file must have; computed only when given.
    pub sha256: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            program: PathBuf::from("/proc/self/exe"),
            limits: Limits::default(),
            sha256: None,
        }
    }
}

/// Longest waits for a provider, wall-clock time.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Each of: the worker's shutting itself in, the provider's being loaded there.
    pub open: Duration,
    /// One call. A provider only computes; milliseconds are usual.
    pub call: Duration,
    /// Dropping the provider.
    pub close: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            open: Duration::from_secs(10),
            call: Duration::from_secs(30),
            close: Duration::from_secs(2),
        }
    }
}

/// An open provider. Calls are answered one after the other; after a crash, a hang or a cancelled
/// call the session has ended.
pub struct Session {
    name: String,
    version: String,
    limits: Limits,
    sandbox: Option<Sandbox>,
    worker_id: Option<u32>,
    driver: Mutex<Option<Driver>>,
}

enum Driver {
    Worker(Box<Worker>),
    InProcess(Thread),
}

impl Session {
    /// Opens a provider: checks its file again, starts its worker, loads it there.
    ///
    /// There is no way back to in-process when a worker cannot be had: that would take the walls
    /// away in silence.
    pub async fn open(
        found: &Found,
        isolation: Isolation,
        options: &Options,
    ) -> Result<Self, ProviderFault> {
        let library = found.reopen()?;
        if let Some(expected) = &options.sha256 {
            check_digest(found, &library, expected)?;
        }
        let name = found.manifest.name.as_str();
        let (driver, sandbox) = match isolation {
            Isolation::InProcess => {
                let thread = Thread::open(name, &found.path, library.file, options.limits.open);
                (Driver::InProcess(thread.await?), None)
            }
            Isolation::Worker => {
                let (worker, sandbox) = open_worker(found, &library, options).await?;
                (Driver::Worker(Box::new(worker)), Some(sandbox))
            }
        };
        Ok(Self {
            name: name.to_owned(),
            version: found.manifest.version.clone(),
            limits: options.limits,
            sandbox,
            worker_id: match &driver {
                Driver::Worker(worker) => worker.id(),
                Driver::InProcess(_) => None,
            },
            driver: Mutex::new(Some(driver)),
        })
    }

    /// What holds around its worker; `None` in this process.
    #[must_use]
    pub fn sandbox(&self) -> Option<&Sandbox> {
        self.sandbox.as_ref()
    }

    /// Process id its worker was started with; `None` in this process.
    #[must_use]
    pub fn worker_id(&self) -> Option<u32> {
        self.worker_id
    }

    /// The provider's self-description; must agree with its manifest.
    pub async fn info(&self) -> Result<ProviderInfo, ProviderFault> {
        let info: ProviderInfo = self.ask(Phase::Info, String::new()).await?;
        if (&info.name, &info.version) != (&self.name, &self.version) {
            return Err(ProviderFault::Contradiction {
                provider: format!("{} {}", self.name, self.version),
                claims: format!("{} {}", info.name, info.version),
            });
        }
        Ok(info)
    }

    /// What has to be done before the engine can run.
    pub async fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderFault> {
        self.ask(Phase::Plan, request.write()).await
    }

    /// What exactly is run.
    pub async fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderFault> {
        self.ask(Phase::Prepare, request.write()).await
    }

    /// Drops the provider and waits until it is gone. Dropping the session does so without waiting,
    /// and without asking a worker.
    pub async fn close(self) -> Result<(), ProviderFault> {
        match self.driver.into_inner() {
            Some(Driver::Worker(worker)) => worker.quit(self.limits.close).await,
            Some(Driver::InProcess(thread)) => thread.quit(&self.name, self.limits.close).await,
            None => Ok(()),
        }
    }

    async fn ask<T: Document>(&self, phase: Phase, document: String) -> Result<T, ProviderFault> {
        let mut slot = self.driver.lock().await;
        // Taken out, and put back only after a whole answer: a call that fails or is cancelled
        // half-way leaves no driver whose next answer would belong to another question.
        let mut driver = slot.take().ok_or_else(|| ProviderFault::Ended {
            provider: self.name.clone(),
        })?;
        let limit = self.limits.call;
        let answer = match &mut driver {
            Driver::Worker(worker) => worker.call(phase, &document, limit).await?,
            Driver::InProcess(thread) => thread.call(&self.name, phase, document, limit).await?,
        };
        *slot = Some(driver);
        drop(slot);
        read_answer(phase.as_str(), answer).map_err(|error| match error {
            CallError::Provider(error) => ProviderFault::Refused {
                provider: self.name.clone(),
                phase,
                error: Box::new(error),
            },
            CallError::Answer { source, .. } => ProviderFault::Document {
                provider: self.name.clone(),
                phase,
                source,
            },
        })
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Session")
            .field("name", &self.name)
            .field("version", &self.version)
            .field("sandbox", &self.sandbox)
            .finish_non_exhaustive()
    }
}

fn check_digest(
    found: &Found,
    library: &file::Opened,
    expected: &str,
) -> Result<(), ProviderFault> {
    let unusable = |reason| ProviderFault::Unusable {
        name: found.manifest.name.clone(),
        path: found.path.clone(),
        reason,
    };
    match file::sha256(&library.file) {
        Ok(digest) if digest == expected => Ok(()),
        Ok(digest) => Err(unusable(format!(
            "its sha256 is {digest}, not {expected} as recorded"
        ))),
        Err(error) => Err(unusable(error.to_string())),
    }
}

async fn open_worker(
    found: &Found,
    library: &file::Opened,
    options: &Options,
) -> Result<(Worker, Sandbox), ProviderFault> {
    let program = &options.program;
    if worker::is_worker() {
        // Without this check, a program that forgot `run_if_worker` would start itself for ever.
        return Err(ProviderFault::NotAWorker {
            program: program.clone(),
            reason: "this process was itself started as a worker and went on as a program"
                .to_owned(),
        });
    }
    let limit = options.limits.open;
    let (worker, sandbox) = Worker::start(&found.manifest.name, program, library, limit).await?;
    let lacking = sandbox.lacking();
    if found.trust.requires_sandbox() && !lacking.is_empty() {
        return Err(ProviderFault::Unsandboxed {
            provider: found.manifest.name.clone(),
            path: found.path.clone(),
            lacking,
        });
    }
    Ok((worker.load(&found.path, limit).await?, sandbox))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn can_move<T: Send>(value: T) -> T {
        value
    }

    #[test]
    fn a_session_and_its_calls_can_move_between_the_threads_of_a_daemon() {
        fn check(found: &Found, session: &Session, request: &PlanRequest) {
            drop(can_move(session.plan(request)));
            drop(can_move(Session::open(
                found,
                Isolation::Worker,
                &Options::default(),
            )));
            can_move(session);
        }
        let _ = check;
    }
}
