//! The command line: every subcommand and flag, with its help.

mod daemon;
mod engine;
mod model;

use std::path::{Path, PathBuf};

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    builder::{
        PossibleValuesParser, Styles, TypedValueParser,
        styling::{AnsiColor, Effects},
    },
};
use engine_provider_api::{GpuPolicy, Mode};

pub use daemon::{
    DownArguments, DrainArguments, EventsArguments, Listen, OnTerm, PoolsArguments,
    ReloadArguments, RestartArguments, ServeArguments, StatusArguments, UpArguments,
};
pub use engine::{EngineArguments, EngineCommand};
pub use model::{AddArguments, CollectArguments, ModelArguments, ModelCommand, ShapeFlag};

const EXAMPLES: &str = "\
Examples:
  host provision --provider llamacpp --gpu prefer     a ready engine from nothing, in the foreground
  host plan --config pools.yaml --pool chat           what would be done and run, nothing is changed
  host provision --config pools.yaml --detach         leave the engine running
  host ps && host stop chat                           see what runs, stop it
  host doctor                                         what this machine lacks, and the fix

Files: a pool file (./pools.yaml or --config) and policies are described in docs/pool-file.md.

Environment:
  HOST_HOME            root of store, state and logs; default: /var/lib/engine-host as root, else
                       ~/.local/share/engine-host
  HOST_PROVIDER_PATH   directories with providers, colons between them
  NO_COLOR, RUST_LOG   no colours; debugging output, for example RUST_LOG=debug
  OTEL_EXPORTER_OTLP_ENDPOINT, TRACEPARENT   traces, described in docs/observing.md";

/// Directory for handoff files where no other is named.
const USUAL_HANDOFFS: &str = ".runtime/engines";

/// Colours of help and of errors about the command line, where they are written to a terminal.
const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .usage(AnsiColor::Green.on_default().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default().effects(Effects::BOLD))
    .placeholder(AnsiColor::Cyan.on_default());

/// Takes an LLM inference engine from a pool file to a running, verified, supervised process.
#[derive(Debug, Parser)]
#[command(
    name = "host",
    version,
    styles = STYLES,
    after_help = EXAMPLES,
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// How to say it.
    #[command(flatten)]
    pub output: OutputFlags,
}

/// Flags about what is printed, understood by every subcommand.
#[derive(Debug, Clone, Default, Args)]
pub struct OutputFlags {
    /// Print the result (and an error) as JSON on standard output.
    #[arg(long, global = true, help_heading = "Output")]
    pub json: bool,
    /// How events on standard error look: lines for people, or one JSON object per line.
    #[arg(
        long,
        global = true,
        value_name = "human|json",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        help_heading = "Output"
    )]
    pub log_format: LogFormat,
    /// Say nothing on standard error but warnings and errors.
    #[arg(long, short, global = true, help_heading = "Output")]
    pub quiet: bool,
}

/// How events look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Lines for people, bars on a terminal.
    #[default]
    Human,
    /// One JSON object per line.
    Json,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Take a pool to a running, ready engine and write its handoff file.
    #[command(after_help = "\
Examples:
  host provision --provider llamacpp --gpu prefer --allow-package-installs
  host provision --config pools.yaml --pool chat --detach

Stays in the foreground until the engine ends; Ctrl-C stops the engine and removes its handoff. \
Where the pool runs already with the same settings, prints its URL and returns at once.")]
    Provision(ProvisionArguments),
    /// Show what would be done and what would run; changes nothing.
    #[command(after_help = "\
Examples:
  host plan --provider llamacpp
  host plan --config pools.yaml --pool chat --facts gpu-box.json --json")]
    Plan(JobArguments),
    /// Do all the work but do not start the engine; prints what would be started.
    #[command(after_help = "\
Examples:
  host prepare --config pools.yaml --pool chat --json")]
    Prepare(JobArguments),
    /// Pin provider, engine and model of a pool file in `host.lock` beside it.
    #[command(after_help = "\
Examples:
  host lock                          pin what is not pinned yet, keep what is
  host lock --check                  whether that would change anything; writes nothing
  host lock --update chat.model      ask for the model of pool `chat` again, and for nothing else
  host provision --locked            exactly what is locked, or a list of what is not

Builds nothing. Branches, tags and versions are asked for; a model whose digest nobody says is fetched.")]
    Lock(LockArguments),
    /// Say, per provider and mode, whether this machine can do it, and what fixes it.
    ///
    /// Judged is each provider's default pool, not a pool file: what one of its pools needs says
    /// `host plan`.
    #[command(after_help = "\
Examples:
  host doctor
  host doctor --provider llamacpp --gpu prefer
  host doctor --facts gpu-box.json --json")]
    Doctor(DoctorArguments),
    /// Print what this machine is and has.
    #[command(after_help = "\
Examples:
  host facts
  host facts --json > this-machine.json     for `--facts` elsewhere, or a bug report
  host facts --facts gpu-box.json           what was recorded there, for people")]
    Facts(FactsArguments),
    /// Keep the pools of a pool file up, and serve an API about them.
    #[command(after_help = "\
Examples:
  host serve                                   pools.yaml here; API on 127.0.0.1:9200
  host serve --config /etc/engine-host/pools.yaml --listen none
  host serve --replace                         take over from a running daemon, its engines run on

HUP reads the pool file again and applies what differs. TERM and INT stop every engine, unless \
--on-term keep. Killed, its engines run on for --orphan-limit, for the next daemon to adopt.")]
    Serve(ServeArguments),
    /// Bring pools up and keep them up; starts a daemon where none runs.
    #[command(after_help = "\
Examples:
  host up                  every pool that does not wait for demand
  host up chat")]
    Up(UpArguments),
    /// Stop a pool, or the daemon with all of them.
    #[command(after_help = "\
Examples:
  host down chat
  host down --daemon")]
    Down(DownArguments),
    /// Show what the daemon knows of its pools.
    #[command(after_help = "\
Examples:
  host status
  host status --watch
  host status chat --json")]
    Status(StatusArguments),
    /// Stop a pool once its requests are finished.
    Drain(DrainArguments),
    /// Swap a pool's engines for what the pool file has now; on failure the old ones serve.
    #[command(after_help = "\
Examples:
  host reload chat
  host reload              apply whatever differs in the pool file")]
    Reload(ReloadArguments),
    /// Stop and start a pool's engines.
    Restart(RestartArguments),
    /// Follow what the daemon does.
    Events(EventsArguments),
    /// List the engines of this installation.
    Ps,
    /// Stop engines.
    #[command(after_help = "\
Examples:
  host stop chat
  host stop --all")]
    Stop(StopArguments),
    /// Print an engine's log.
    #[command(after_help = "\
Examples:
  host logs chat -f
  host logs -n 100")]
    Logs(LogsArguments),
    /// List, add, verify and remove the models that are here.
    #[command(after_help = "\
Examples:
  host model list
  host model add builtin:haiku
  host model gc --max-size 50GB --older-than 30d --dry-run")]
    Model(ModelArguments),
    /// List and remove the engines and sources that are here.
    #[command(after_help = "\
Examples:
  host engine list
  host engine remove llamacpp/build
  host engine gc --older-than 30d --dry-run")]
    Engine(EngineArguments),
    /// Show what takes space, and what a clean-up would free.
    #[command(after_help = "\
Examples:
  host disk
  host disk --json")]
    Disk,
    /// List and inspect providers; executes none of them.
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Check a pool file, print its schema, show the policy in force.
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script.
    #[command(after_help = "\
Examples:
  host completions bash > /etc/bash_completion.d/host")]
    Completions {
        /// Shell to complete in.
        shell: clap_complete::Shell,
    },
    /// Write the manual pages.
    Man {
        /// Directory to write `host.1` and one page per subcommand into.
        directory: PathBuf,
    },
}

impl Command {
    /// Whether it stays and serves.
    #[must_use]
    pub fn serves(&self) -> bool {
        matches!(self, Self::Serve(_))
    }

    /// `--authfile`, of the commands that have it.
    #[must_use]
    pub fn authfile(&self) -> Option<&Path> {
        let file = match self {
            Self::Provision(arguments) => &arguments.job.authfile,
            Self::Plan(job) | Self::Prepare(job) => &job.authfile,
            Self::Lock(lock) => &lock.authfile,
            Self::Serve(arguments) => &arguments.pools.authfile,
            Self::Up(arguments) => &arguments.pools.authfile,
            _ => return None,
        };
        file.as_deref()
    }
}

/// Which pool, and what overrides it.
#[derive(Debug, Clone, Default, Args)]
pub struct JobArguments {
    /// Pool file, YAML or JSON. Default: `pools.yaml` here, where there is one.
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Pool of that file. Default: its first (of the provider's engine, with --provider).
    #[arg(long, short, value_name = "ID")]
    pub pool: Option<String>,
    /// Provider, by name. Without a pool file: use its default pool.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// How the engine comes onto the machine: source, container, package, binary or external. Default:
    /// the pool's, else the provider's.
    #[arg(long, value_name = "MODE", value_parser = mode(), hide_possible_values = true)]
    pub mode: Option<Mode>,
    /// Container runtime to use. Default: podman where it works, else docker.
    #[arg(
        long,
        value_name = "podman|docker",
        value_enum,
        hide_possible_values = true
    )]
    pub container_runtime: Option<RuntimeFlag>,
    /// File with credentials for registries, as `podman login --authfile` writes it.
    #[arg(long, value_name = "FILE")]
    pub authfile: Option<PathBuf>,
    /// Model to serve instead of the pool's, for example `./model.gguf`.
    #[arg(long, value_name = "REFERENCE")]
    pub model: Option<String>,
    /// Hash the model again, though it looks as it did when it was hashed.
    #[arg(long)]
    pub verify: bool,
    /// What is allowed.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// How providers are opened and the machine is seen.
    #[command(flatten)]
    pub host: HostFlags,
    /// Use exactly what `host.lock` beside the pool file pins, or refuse and list what differs.
    #[arg(long, help_heading = "Policy")]
    pub locked: bool,
    /// Directory for handoff files.
    #[arg(long, value_name = "DIR", default_value = USUAL_HANDOFFS)]
    pub handoff_dir: PathBuf,
    /// Passed through to every event as `correlation_id`.
    #[arg(long, value_name = "ID", hide_short_help = true)]
    pub correlation_id: Option<String>,
}

/// Flags that allow or forbid something, within the machine's policy.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Policy")]
pub struct PolicyFlags {
    /// Whether a GPU must, may or must not be used. Default: require; nothing falls back silently.
    #[arg(
        long,
        value_name = "require|prefer|forbid",
        value_parser = gpu(),
        hide_possible_values = true
    )]
    pub gpu: Option<GpuPolicy>,
    /// Install missing distribution packages that the plan names.
    #[arg(long)]
    pub allow_package_installs: bool,
    /// Download programs that the plan names.
    #[arg(long)]
    pub allow_binary_downloads: bool,
    /// Reach no network at all.
    #[arg(long)]
    pub offline: bool,
}

/// How providers are found and opened, and how the machine is seen.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Host")]
pub struct HostFlags {
    /// Directory with providers, searched before all others; may be given several times.
    #[arg(long, value_name = "DIR")]
    pub provider_path: Vec<PathBuf>,
    /// Where providers run: in a sandboxed worker process, or in this one.
    #[arg(
        long,
        value_name = "worker|in-process",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub isolation: IsolationFlag,
    /// Take the machine described in this file, from `host facts --json`, for this one.
    #[arg(long, value_name = "FILE")]
    pub facts: Option<PathBuf>,
}

/// Which container runtime is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum RuntimeFlag {
    /// Podman.
    Podman,
    /// Docker.
    Docker,
}

impl RuntimeFlag {
    /// The word used in pool files and facts.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Podman => "podman",
            Self::Docker => "docker",
        }
    }
}

/// Where providers run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum IsolationFlag {
    /// In a sandboxed worker process.
    #[default]
    Worker,
    /// In this process.
    InProcess,
}

/// Arguments of `host provision`.
#[derive(Debug, Clone, Default, Args)]
pub struct ProvisionArguments {
    /// Which pool.
    #[command(flatten)]
    pub job: JobArguments,
    /// Leave the engine running and return once it is ready.
    #[arg(long, short)]
    pub detach: bool,
}

/// Arguments of `host lock`.
#[derive(Debug, Clone, Default, Args)]
pub struct LockArguments {
    /// Pool file, YAML or JSON. Default: `pools.yaml` here, where there is one.
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Pool of that file, may be given several times. Default: all of them.
    #[arg(long = "pool", short, value_name = "ID")]
    pub pools: Vec<String>,
    /// Only pools of this engine. Without a pool file: the provider's default pool.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Lock the pools for this mode instead of their own; other modes stay locked.
    #[arg(long, value_name = "MODE", value_parser = mode(), hide_possible_values = true)]
    pub mode: Option<Mode>,
    /// Say whether the lock file is complete and as it would be written; write nothing.
    #[arg(long)]
    pub check: bool,
    /// Ask again for what is named: `POOL`, `POOL.provider`, `POOL.engine`, `POOL.model`; without a
    /// name for everything. What is not named stays as it is.
    #[arg(long, value_name = "NAME", num_args = 0..)]
    pub update: Option<Vec<String>>,
    /// Container runtime to use. Default: podman where it works, else docker.
    #[arg(
        long,
        value_name = "podman|docker",
        value_enum,
        hide_possible_values = true
    )]
    pub container_runtime: Option<RuntimeFlag>,
    /// File with credentials for registries, as `podman login --authfile` writes it.
    #[arg(long, value_name = "FILE")]
    pub authfile: Option<PathBuf>,
    /// What is allowed.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// Directory with providers, searched before all others; may be given several times.
    #[arg(long, value_name = "DIR", help_heading = "Host")]
    pub provider_path: Vec<PathBuf>,
    /// Where providers run: in a sandboxed worker process, or in this one.
    #[arg(
        long,
        value_name = "worker|in-process",
        value_enum,
        default_value_t,
        hide_possible_values = true,
        help_heading = "Host"
    )]
    pub isolation: IsolationFlag,
}

/// Arguments of `host doctor`.
#[derive(Debug, Clone, Default, Args)]
pub struct DoctorArguments {
    /// Only this provider.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Only this container runtime. Default: podman where it works, else docker.
    #[arg(long, value_name = "podman|docker", value_enum)]
    pub container_runtime: Option<RuntimeFlag>,
    /// What is allowed.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// How providers are opened and the machine is seen.
    #[command(flatten)]
    pub host: HostFlags,
}

/// Arguments of `host facts`.
#[derive(Debug, Clone, Default, Args)]
pub struct FactsArguments {
    /// Look for the tools of this provider only. Default: those of all providers.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// How providers are opened and the machine is seen.
    #[command(flatten)]
    pub host: HostFlags,
}

/// Arguments of `host stop`.
#[derive(Debug, Clone, Default, Args)]
#[group(multiple = false)]
pub struct StopArguments {
    /// Pools to stop.
    #[arg(value_name = "POOL")]
    pub pools: Vec<String>,
    /// Stop every engine of this installation.
    #[arg(long)]
    pub all: bool,
}

/// Arguments of `host logs`.
#[derive(Debug, Clone, Default, Args)]
pub struct LogsArguments {
    /// Pool whose engine's log is printed. Default: the only one there is.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
    /// Keep printing what is added, until the engine is gone.
    #[arg(long, short)]
    pub follow: bool,
    /// Lines from the end to begin with.
    #[arg(long, short = 'n', value_name = "COUNT", default_value_t = 200)]
    pub lines: usize,
}

/// `host provider …`
#[derive(Debug, Subcommand)]
pub enum ProviderCommand {
    /// List the providers that are found, and what is wrong with those that cannot be used.
    List {
        /// Directory with providers, searched before all others; may be given several times.
        #[arg(long, value_name = "DIR")]
        provider_path: Vec<PathBuf>,
    },
    /// Show what one provider says of itself.
    Inspect {
        /// Name of a provider, or path of its library.
        name: String,
        /// Directory with providers, searched before all others; may be given several times.
        #[arg(long, value_name = "DIR")]
        provider_path: Vec<PathBuf>,
    },
}

/// `host config …`
#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Check a pool file and say everything that is wrong with it.
    ///
    /// No provider is run: what stands under `options` is the provider's own, and is checked by
    /// `host plan`.
    Check {
        /// Pool file. Default: `pools.yaml` here.
        file: Option<PathBuf>,
        /// The same, written as other commands want it.
        #[arg(long, short, value_name = "FILE", conflicts_with = "file")]
        config: Option<PathBuf>,
        /// Directory with providers, searched before all others; may be given several times.
        #[arg(long, value_name = "DIR")]
        provider_path: Vec<PathBuf>,
    },
    /// Print the JSON Schema of pool files.
    Schema,
    /// Show every policy setting in force, and who set it.
    Policy {
        /// Pool file whose policy is included. Default: `pools.yaml` here, where there is one.
        #[arg(long, short, value_name = "FILE")]
        config: Option<PathBuf>,
    },
}

fn mode() -> impl TypedValueParser<Value = Mode> {
    word(&["source", "container", "package", "binary", "external"])
}

fn gpu() -> impl TypedValueParser<Value = GpuPolicy> {
    word(&["require", "prefer", "forbid"])
}

/// Reads one of these words the way pool files do, so that both accept the same ones.
fn word<T>(words: &[&'static str]) -> impl TypedValueParser<Value = T>
where
    T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words.iter().copied())
        .try_map(|word| serde_json::from_value(serde_json::Value::String(word)))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_main_job_parses() {
        let cli = Cli::try_parse_from([
            "host",
            "provision",
            "--provider",
            "llamacpp",
            "--gpu",
            "prefer",
            "--allow-package-installs",
        ])
        .unwrap();
        let Command::Provision(arguments) = cli.command else {
            panic!("{:?}", cli.command);
        };
        assert_eq!(arguments.job.policy.gpu, Some(GpuPolicy::Prefer));
        assert!(arguments.job.policy.allow_package_installs);
    }

    #[test]
    fn every_subcommand_explains_itself() {
        for command in Cli::command().get_subcommands() {
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}
