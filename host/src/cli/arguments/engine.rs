//! The command line of `host engine`.

use clap::{Args, Subcommand};

use super::CollectArguments;

/// Arguments of `host engine`.
#[derive(Debug, Clone, Args)]
pub struct EngineArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: EngineCommand,
}

/// `host engine …`
#[derive(Debug, Clone, Subcommand)]
pub enum EngineCommand {
    /// List the engines that are here, built, installed or unpacked, and the sources of engines.
    List,
    /// Remove engines and sources that nothing uses; whoever wants one next makes it again.
    #[command(after_help = "\
Examples:
  host engine remove llamacpp/build --dry-run
  host engine remove 1f2e3d4c5b6a               by the beginning of its key")]
    Remove {
        /// Name, where one thing is called so, or the beginning of a key.
        #[arg(value_name = "NAME|KEY", required = true)]
        engines: Vec<String>,
        /// Only say what would be removed.
        #[arg(long, short = 'n')]
        dry_run: bool,
    },
    /// Remove what was superseded, what crashes have left, and what these limits leave no room for.
    #[command(after_help = "\
Examples:
  host engine gc --dry-run
  host engine gc --max-size 50GB     the least recently used go until the rest fits
  host engine gc --older-than 30d    what was not used for that long goes

Superseded is what a newer one of the same name was made in place of, for the same pool, and what was not \
used since. What an engine or a run uses is never removed. A source that was removed is fetched again by \
whoever builds of it next.")]
    Gc(CollectArguments),
}
