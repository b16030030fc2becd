//! What every subcommand is given: directories, environment, a narrator, where to print.

use std::{
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::OnceLock,
};

use serde_json::Value;

use super::{
    arguments::{
        HostFlags, IsolationFlag, JobArguments, LockArguments, LogFormat, OutputFlags, PolicyFlags,
    },
    config::{Form, output as output_failed},
    json_lines::JsonLines,
    report::{self, Called},
    terminal::{self, Margin, Terminal, printable},
    traces::Traces,
};
use crate::{
    config::{
        environment::Environment,
        paths::Home,
        problem::ConfigError,
        select::{Overlay, Selection},
        syntax::Base,
    },
    drive::{Host, LockUse, Request},
    fault::{Exit, Failure, Fault},
    model::Verify,
    narrate::{Actor, Event, Hub, Level, Metrics, Narrator, Progress, Sink},
    provider::Isolation,
};

/// What every subcommand is given.
pub(super) struct Context {
    /// How things are said.
    pub(super) output: OutputFlags,
    /// The installation.
    pub(super) host: Host,
    /// Where traces go.
    pub(super) traces: Traces,
    /// How this program was called, for commands to paste.
    pub(super) called: Called,
    /// What is told and counted, where it is served.
    pub(super) observers: Option<Observers>,
    /// Why something could not be printed, the first time.
    unprinted: OnceLock<io::Error>,
}

/// Where a daemon's events go beside its own output.
pub(super) struct Observers {
    /// Keeps the last ones, lets several follow.
    pub(super) hub: Hub,
    /// Counts and measures.
    pub(super) metrics: Metrics,
}

impl Context {
    pub(super) fn new(output: OutputFlags, serves: bool) -> Self {
        let environment = Environment::of_this_process();
        init_tracing(&environment);
        let home = Home::locate(&environment);
        let observers = serves.then(|| Observers {
            hub: Hub::default(),
            metrics: Metrics::default(),
        });
        let (traces, unusable) = Traces::of(&environment);
        let margin = match serves {
            true => Margin::DateAndPool,
            false => Margin::Side,
        };
        let mut sinks = vec![sink(&output, &environment, margin)];
        sinks.extend(traces.sink());
        if let Some(Observers { hub, metrics }) = &observers {
            sinks.push(Box::new(hub.clone()));
            sinks.push(Box::new(metrics.clone()));
        }
        let narrator = Narrator::new(sinks).with(|context| {
            context.job_id = Some(job_id());
        });
        traces.register_secrets(narrator.secrets());
        if let Some(why) = unusable {
            narrator.warn(Actor::EngineProvisioner, "notice", "traces", why);
        }
        // What is no `traceparent` is as if there were none, says the W3C.
        let parent = environment.get("TRACEPARENT");
        let narrator = match parent.and_then(|parent| parent.parse().ok()) {
            Some(parent) => narrator.part_of(parent),
            None => narrator,
        };
        Self {
            traces,
            output,
            host: Host::new(home, environment, narrator),
            called: Called::by(std::env::args()).as_root(rustix::process::geteuid().is_root()),
            observers,
            unprinted: OnceLock::new(),
        }
    }

    /// Takes credentials for registries from a file: everything that asks a registry reads the
    /// variable that this sets.
    pub(super) fn use_authfile(&mut self, file: Option<&Path>) -> Result<(), ConfigError> {
        let Some(file) = file else { return Ok(()) };
        let bad = |reason: std::io::Error| ConfigError::BadFlag {
            flag: "--authfile",
            message: format!("`{}` cannot be read: {reason}", file.display()),
            help: Some("`podman login --authfile FILE REGISTRY` writes one".to_owned()),
        };
        std::fs::File::open(file).map_err(bad)?;
        let whole = std::path::absolute(file).map_err(bad)?;
        let environment = std::mem::take(&mut self.host.environment);
        self.host.environment = environment.with("REGISTRY_AUTH_FILE", whole);
        Ok(())
    }

    /// The exit code of a command that did what it is for: where its answer could not be printed, that of
    /// the error, which is told.
    pub(super) fn end(&mut self, exit: Exit) -> Exit {
        match self.unprinted.take() {
            Some(error) if exit == Exit::Success => self.report(&*output_failed(error)),
            _ => exit,
        }
    }

    /// Whether there is no use in printing more.
    pub(super) fn cannot_print(&self) -> bool {
        self.unprinted.get().is_some()
    }

    /// Prints an error where it is looked for and gives the exit code.
    pub(super) fn report(&self, error: &dyn Fault) -> Exit {
        if is_read_no_further(error) {
            return Exit::Success;
        }
        let secrets = self.host.narrator.secrets();
        if self.output.json {
            self.print_json(&report::json(error, &self.called, secrets));
        }
        // Nobody may be reading: then there is nobody to tell either.
        let _ = match self.output.log_format {
            LogFormat::Human => {
                let colour = terminal::has_colour(&self.host.environment);
                let out = &mut std::io::stderr();
                report::print(out, error, &self.called, secrets, colour)
            }
            LogFormat::Json => {
                writeln!(
                    std::io::stderr(),
                    "{}",
                    report::json(error, &self.called, secrets)
                )
            }
        };
        error.exit()
    }

    /// Prints what was asked for as JSON: indented for people, one line for a pipe. Secrets are
    /// masked in every text.
    pub(super) fn print_json(&self, value: &Value) {
        let value = self.masked(value.clone());
        let text = if io::stdout().is_terminal() {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        }
        .expect("a JSON value can be written");
        self.deliver(&format!("{text}\n"));
    }

    /// Writes to standard output. That it cannot be written to is told at the end: what a command is for
    /// is mostly done by then.
    fn deliver(&self, text: &str) {
        let mut out = io::stdout();
        let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        if let Err(error) = written {
            let _ = self.unprinted.set(error);
        }
    }

    /// Where what a daemon tells is told again, as it was asked for here.
    pub(super) fn retold(&self) -> Box<dyn Sink> {
        sink(&self.output, &self.host.environment, Margin::Pool)
    }

    /// How results are printed.
    pub(super) fn form(&self) -> Form {
        if self.output.json {
            Form::Json
        } else {
            Form::Human
        }
    }

    /// Prints a result: as JSON where that was asked for, else as `human` writes it, without what could
    /// drive a terminal: names of files and what models say of themselves are anybody's.
    pub(super) fn show(
        &self,
        result: &impl serde::Serialize,
        human: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        if self.output.json {
            self.print_json(&serde_json::to_value(result).expect("results are plain data"));
            return Ok(());
        }
        let mut text = Vec::new();
        human(&mut text).map_err(output_failed)?;
        let text = String::from_utf8_lossy(&text);
        let text = self.host.narrator.secrets().mask(&text);
        let mut out = std::io::stdout().lock();
        out.write_all(printable(&text).as_bytes())
            .map_err(output_failed)
    }

    /// Prints text that was asked for, secrets masked.
    pub(super) fn print(&self, text: &str) {
        let text = self.host.narrator.secrets().mask(text);
        self.deliver(&printable(&text));
    }

    /// Moves the cursor, on a terminal.
    pub(super) fn print_raw(&self, sequence: &'static str) {
        self.deliver(sequence);
    }

    fn masked(&self, value: Value) -> Value {
        match value {
            Value::String(text) => {
                Value::String(self.host.narrator.secrets().mask(&text).into_owned())
            }
            Value::Array(list) => list.into_iter().map(|value| self.masked(value)).collect(),
            Value::Object(map) => map
                .into_iter()
                .map(|(name, value)| (name, self.masked(value)))
                .collect(),
            other => other,
        }
    }

    /// The request that locking makes; which pool follows.
    pub(super) fn lock_request(&self, lock: &LockArguments) -> Request {
        self.request(&JobArguments {
            config: lock.config.clone(),
            provider: lock.provider.clone(),
            mode: lock.mode,
            container_runtime: lock.container_runtime,
            policy: lock.policy.clone(),
            host: HostFlags {
                provider_path: lock.provider_path.clone(),
                isolation: lock.isolation,
                facts: None,
            },
            ..JobArguments::default()
        })
    }

    /// The request that a job's arguments make.
    pub(super) fn request(&self, job: &JobArguments) -> Request {
        Request {
            selection: Selection {
                config: job.config.clone(),
                pool: job.pool.clone(),
                provider: job.provider.clone(),
                directory: PathBuf::new(),
            },
            overlay: Overlay {
                mode: job.mode,
                model: job.model.clone(),
                container_runtime: job.container_runtime.map(|it| it.as_str().to_owned()),
                base: Base {
                    directory: std::env::current_dir().unwrap_or_default(),
                    home: self.host.environment.path("HOME"),
                },
                ..overlay(&job.policy)
            },
            handoff_dir: job.handoff_dir.clone(),
            verify: match job.verify {
                true => Verify::All,
                false => Verify::Changed,
            },
            correlation_id: job.correlation_id.clone(),
            lock: match job.locked {
                true => LockUse::Exact,
                false => LockUse::Pins,
            },
            ..host_request(&job.host)
        }
    }
}

/// Whether an error only says that whoever reads the answer has seen enough, as `head` does.
fn is_read_no_further(error: &dyn Fault) -> bool {
    let causes = std::iter::successors(std::error::Error::source(error), |&cause| cause.source());
    let mut causes = causes.filter_map(|cause| cause.downcast_ref::<io::Error>());
    matches!(error.kind(), "output" | "output-failed")
        && causes.any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

/// What the flags about providers and the machine ask for.
pub(super) fn host_request(flags: &HostFlags) -> Request {
    Request {
        provider_path: flags.provider_path.clone(),
        isolation: match flags.isolation {
            IsolationFlag::Worker => Isolation::Worker,
            IsolationFlag::InProcess => Isolation::InProcess,
        },
        facts: flags.facts.clone(),
        ..Request::default()
    }
}

/// What the flags about policy ask for.
pub(super) fn overlay(flags: &PolicyFlags) -> Overlay {
    Overlay {
        gpu: flags.gpu,
        allow_package_installs: flags.allow_package_installs,
        allow_binary_downloads: flags.allow_binary_downloads,
        offline: flags.offline,
        ..Overlay::default()
    }
}

fn sink(output: &OutputFlags, environment: &Environment, margin: Margin) -> Box<dyn Sink> {
    let terminal = || Terminal::new(terminal::has_colour(environment), margin);
    match (output.log_format, output.quiet) {
        (LogFormat::Json, false) => Box::new(JsonLines),
        (LogFormat::Json, true) => Box::new(Quiet(JsonLines)),
        (LogFormat::Human, false) => Box::new(terminal()),
        (LogFormat::Human, true) => Box::new(Quiet(terminal())),
    }
}

/// Lets warnings and errors through.
struct Quiet<S>(S);

impl<S: Sink> Sink for Quiet<S> {
    fn event(&self, event: &Event) {
        if event.level != Level::Info {
            self.0.event(event);
        }
    }

    fn progress(&self, _: &Progress) {}
}

/// Debugging output, only when `RUST_LOG` asks for it.
fn init_tracing(environment: &Environment) {
    use tracing_subscriber::{EnvFilter, fmt};

    if let Some(filter) = environment.get("RUST_LOG") {
        // A second initialisation, by an embedder, is theirs to win.
        let _ = fmt()
            .with_env_filter(EnvFilter::new(filter))
            .with_writer(std::io::stderr)
            .try_init();
    }
}

/// Names one run of the program: start time and process id, unique on a machine.
fn job_id() -> String {
    let now = jiff::Timestamp::now();
    format!("{}-{}", now.strftime("%Y%m%dT%H%M%S"), std::process::id())
}
