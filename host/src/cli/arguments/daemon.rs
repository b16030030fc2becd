//! Arguments of the daemon and of those who talk to it.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::{HostFlags, PolicyFlags, RuntimeFlag, USUAL_HANDOFFS};
use crate::config::duration;

/// Arguments of `host serve`.
#[derive(Debug, Clone, Args)]
pub struct ServeArguments {
    /// What is served.
    #[command(flatten)]
    pub pools: PoolsArguments,
    /// Address of the HTTP API; `none`: only the Unix socket.
    #[arg(long, value_name = "ADDRESS", default_value = crate::api::USUAL_ADDRESS, value_parser = listen)]
    pub listen: Listen,
    /// File with the API's token. Default: `HOST_API_TOKEN`, else a file in HOST_HOME that is made at the
    /// first start.
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// How long engines outlive a daemon that was killed, for the next one to adopt.
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = time)]
    pub orphan_limit: Duration,
    /// What becomes of the engines at TERM and INT: they are drained and stopped, or run on for
    /// `--orphan-limit`, for the next daemon to adopt.
    #[arg(
        long,
        value_name = "stop|keep",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub on_term: OnTerm,
    /// Take over from the daemon that serves this home; its engines run on.
    #[arg(long)]
    pub replace: bool,
    /// End by itself once nothing has run for this long; given by commands that start a daemon.
    #[arg(long, value_name = "DURATION", value_parser = time, hide = true)]
    pub idle_exit: Option<Duration>,
}

/// Which pools a daemon has, and how it treats them.
#[derive(Debug, Clone, Default, Args)]
pub struct PoolsArguments {
    /// Pool file, YAML or JSON. Default: `pools.yaml` here, where there is one.
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only pools of this engine. Without a pool file: the provider's default pool.
    #[arg(long, value_name = "NAME")]
    pub provider: Option<String>,
    /// Container runtime to use for every pool. Default: podman where it works, else docker.
    #[arg(long, value_name = "podman|docker", value_enum)]
    pub container_runtime: Option<RuntimeFlag>,
    /// File with credentials for registries, as `podman login --authfile` writes it.
    #[arg(long, value_name = "FILE")]
    pub authfile: Option<PathBuf>,
    /// Use exactly what `host.lock` beside the pool file pins, or refuse.
    #[arg(long, help_heading = "Policy")]
    pub locked: bool,
    /// What is allowed.
    #[command(flatten)]
    pub policy: PolicyFlags,
    /// How providers are opened and the machine is seen.
    #[command(flatten)]
    pub host: HostFlags,
    /// Directory for handoff files.
    #[arg(long, value_name = "DIR", default_value = USUAL_HANDOFFS)]
    pub handoff_dir: PathBuf,
}

impl PoolsArguments {
    /// What they are where none was given.
    #[must_use]
    pub fn usual() -> Self {
        Self {
            handoff_dir: PathBuf::from(USUAL_HANDOFFS),
            ..Self::default()
        }
    }
}

/// Where HTTP is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Nowhere,
    /// Here.
    At(SocketAddr),
}

/// What becomes of the engines when a daemon is told to end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum OnTerm {
    /// They are drained and stopped.
    #[default]
    Stop,
    /// They run on for `--orphan-limit`, for the next daemon to adopt.
    Keep,
}

/// Arguments of `host up`.
#[derive(Debug, Clone, Args)]
pub struct UpArguments {
    /// Pool. Default: all that are not to wait for demand.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
    /// Return at once instead of when it is ready.
    #[arg(long)]
    pub no_wait: bool,
    /// For the daemon, where none runs yet.
    #[command(flatten)]
    pub pools: PoolsArguments,
}

/// Arguments of `host down`.
#[derive(Debug, Clone, Args)]
#[group(id = "what_goes_down", required = true, multiple = false, args = ["pool", "daemon"])]
pub struct DownArguments {
    /// Pool.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
    /// The daemon itself, and every engine with it.
    #[arg(long)]
    pub daemon: bool,
}

/// Arguments of `host drain`.
#[derive(Debug, Clone, Args)]
pub struct DrainArguments {
    /// Pool.
    #[arg(value_name = "POOL")]
    pub pool: String,
    /// Longest time leases are waited for. Default: the pool's own.
    #[arg(long, value_name = "DURATION", value_parser = time)]
    pub deadline: Option<Duration>,
}

/// Arguments of `host reload`.
#[derive(Debug, Clone, Args)]
pub struct ReloadArguments {
    /// Pool. Default: read the pool file again and apply what differs.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
}

/// Arguments of `host restart`.
#[derive(Debug, Clone, Args)]
pub struct RestartArguments {
    /// Pool.
    #[arg(value_name = "POOL")]
    pub pool: String,
}

/// Arguments of `host status`.
#[derive(Debug, Clone, Args)]
pub struct StatusArguments {
    /// Pool. Default: all.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
    /// Show it again whenever it changes, until interrupted.
    #[arg(long, short)]
    pub watch: bool,
}

/// Arguments of `host events`.
#[derive(Debug, Clone, Args)]
pub struct EventsArguments {
    /// Only what this pool is about.
    #[arg(value_name = "POOL")]
    pub pool: Option<String>,
    /// Only what this job is about.
    #[arg(long, value_name = "ID")]
    pub job: Option<String>,
}

fn time(text: &str) -> Result<Duration, String> {
    let milliseconds = duration::milliseconds(text);
    milliseconds
        .map(Duration::from_millis)
        .ok_or_else(|| "expected a duration such as `500ms`, `60s`, `1m30s`".to_owned())
}

fn listen(text: &str) -> Result<Listen, String> {
    if text == "none" {
        return Ok(Listen::Nowhere);
    }
    let wrong = || "expected `ADDRESS:PORT`, for example `127.0.0.1:9200`, or `none`".to_owned();
    text.parse().map(Listen::At).map_err(|_| wrong())
}
