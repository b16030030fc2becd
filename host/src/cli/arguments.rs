//! The command line: every subcommand and flag, with its help.

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use engine_provider_api::{GpuPolicy, Mode};

const EXAMPLES: &str = "\
Examples:
  host provision --provider llamacpp --gpu prefer     a ready engine from nothing, in the foreground
  host plan --config pools.yaml --pool chat           what would be done and run, nothing is changed
  host provision --config pools.yaml --detach         leave the engine running
  host ps && host stop chat                           see what runs, stop it
  host doctor                                         what this machine lacks, and the fix

Files: a pool file (./pools.yaml or --config) and policies are described in docs/pool-file.md.
Environment: HOST_HOME (root of store, state and logs; default: /var/lib/engine-host as root, else
~/.local/share/engine-host), HOST_PROVIDER_PATH, NO_COLOR, RUST_LOG.";

/// Takes an LLM inference engine from a pool file to a running, verified, supervised process.
#[derive(Debug, Parser)]
#[command(
    name = "host",
    version,
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
    /// How events on standard error look.
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
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

Stays in the foreground until the engine ends; Ctrl-C stops the engine and removes its handoff. Where
the pool runs already with the same settings, prints its URL and returns at once.")]
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
    /// Say, per provider and mode, whether this machine can do it, and what fixes it.
    Doctor(DoctorArguments),
    /// Print what this machine is and has.
    #[command(after_help = "\
Examples:
  host facts
  host facts --json > this-machine.json     for `--facts` elsewhere, or a bug report")]
    Facts(FactsArguments),
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
    /// `--authfile`, of the commands that have it.
    #[must_use]
    pub fn authfile(&self) -> Option<&Path> {
        let job = match self {
            Self::Provision(arguments) => &arguments.job,
            Self::Plan(job) | Self::Prepare(job) => job,
            _ => return None,
        };
        job.authfile.as_deref()
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
    /// How the engine comes onto the machine.
    #[arg(long, value_name = "MODE", value_parser = mode)]
    pub mode: Option<Mode>,
    /// Container runtime to use. Default: podman where it works, else docker.
    #[arg(long, value_name = "podman|docker", value_enum)]
    pub container_runtime: Option<RuntimeFlag>,
    /// File with credentials for registries, as `podman login --authfile` writes it.
    #[arg(long, value_name = "FILE")]
    pub authfile: Option<PathBuf>,
    /// Model to serve instead of the pool's, for example `./model.gguf`.
    #[arg(long, value_name = "REFERENCE")]
    pub model: Option<String>,
    /// What is allowed.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// How providers are opened and the machine is seen.
    #[command(flatten)]
    pub host: HostFlags,
    /// Directory for handoff files.
    #[arg(long, value_name = "DIR", default_value = ".runtime/engines")]
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
    #[arg(long, value_name = "require|prefer|forbid", value_parser = gpu)]
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
    #[arg(long, value_enum, default_value_t)]
    pub isolation: IsolationFlag,
    /// Plan for the machine described in this file, from `host facts --json`.
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

/// Arguments of `host doctor`.
#[derive(Debug, Clone, Default, Args)]
pub struct DoctorArguments {
    /// Only this provider.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
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
#[group(required = true, multiple = false)]
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
    Check {
        /// Pool file. Default: `pools.yaml` here.
        file: Option<PathBuf>,
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

fn mode(text: &str) -> Result<Mode, String> {
    word(text, "source, container, package, binary, external")
}

fn gpu(text: &str) -> Result<GpuPolicy, String> {
    word(text, "require, prefer, forbid")
}

/// Reads a word the way pool files do, so that both accept the same ones.
fn word<T: serde::de::DeserializeOwned>(text: &str, words: &str) -> Result<T, String> {
    serde_json::from_value(serde_json::Value::String(text.to_owned()))
        .map_err(|_| format!("expected one of: {words}"))
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
