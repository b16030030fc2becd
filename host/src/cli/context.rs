//! What every subcommand is given: directories, environment, a narrator, where to print.

use std::{
    io::{IsTerminal, Write},
    path::{Path, PathBuf},
};

use serde_json::Value;

use super::{
    arguments::{HostFlags, IsolationFlag, JobArguments, LogFormat, OutputFlags, PolicyFlags},
    config::{Form, output as output_failed},
    json_lines::JsonLines,
    report::{self, Called},
    terminal::{Terminal, printable},
};
use crate::{
    config::{
        environment::Environment,
        paths::Home,
        problem::ConfigError,
        select::{Overlay, Selection},
        syntax::Base,
    },
    drive::{Host, Request},
    fault::{Exit, Failure, Fault},
    narrate::{Event, Level, Narrator, Progress, Sink},
    provider::Isolation,
};

/// What every subcommand is given.
pub(super) struct Context {
    /// How things are said.
    pub(super) output: OutputFlags,
    /// The installation.
    pub(super) host: Host,
    /// How this program was called, for commands to paste.
    pub(super) called: Called,
}

impl Context {
    pub(super) fn new(output: OutputFlags) -> Self {
        let environment = Environment::of_this_process();
        init_tracing(&environment);
        let home = Home::locate(&environment);
        let narrator = Narrator::new(vec![sink(&output, &environment)]).with(|context| {
            context.job_id = Some(job_id());
        });
        Self {
            output,
            host: Host::new(home, environment, narrator),
            called: Called::by(std::env::args()),
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

    /// Prints an error where it is looked for and gives the exit code.
    pub(super) fn report(&self, error: &dyn Fault) -> Exit {
        let secrets = self.host.narrator.secrets();
        if self.output.json {
            self.print_json(&report::json(error, &self.called, secrets));
        }
        // Nobody may be reading: then there is nobody to tell either.
        let _ = match self.output.log_format {
            LogFormat::Human => report::print(&mut std::io::stderr(), error, &self.called, secrets),
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
        let mut out = std::io::stdout();
        let value = self.masked(value.clone());
        let text = if out.is_terminal() {
            serde_json::to_string_pretty(&value)
        } else {
            serde_json::to_string(&value)
        }
        .expect("a JSON value can be written");
        let _ = writeln!(out, "{text}");
    }

    /// How results are printed.
    pub(super) fn form(&self) -> Form {
        if self.output.json {
            Form::Json
        } else {
            Form::Human
        }
    }

    /// Prints a result: as JSON where that was asked for, else as `human` writes it.
    pub(super) fn show(
        &self,
        result: &impl serde::Serialize,
        human: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        if self.output.json {
            self.print_json(&serde_json::to_value(result).expect("results are plain data"));
            return Ok(());
        }
        human(&mut std::io::stdout().lock()).map_err(output_failed)
    }

    /// Prints text that was asked for, secrets masked.
    pub(super) fn print(&self, text: &str) {
        let text = self.host.narrator.secrets().mask(text);
        let _ = std::io::stdout().write_all(printable(&text).as_bytes());
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
            correlation_id: job.correlation_id.clone(),
            ..host_request(&job.host)
        }
    }
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

fn sink(output: &OutputFlags, environment: &Environment) -> Box<dyn Sink> {
    let terminal = || Terminal::new(environment.get("NO_COLOR").is_some());
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
