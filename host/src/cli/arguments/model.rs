//! The command line of `host model`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use crate::store::Limits;

/// Arguments of `host model`.
#[derive(Debug, Clone, Args)]
pub struct ModelArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: ModelCommand,
    /// Directory that models are kept in, as a pool's `cache_dir`. Default: the store.
    #[arg(long, global = true, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// `host model …`
#[derive(Debug, Clone, Subcommand)]
pub enum ModelCommand {
    /// List the models that are here.
    List,
    /// Show everything that is known of one model.
    #[command(after_help = "\
Examples:
  host model show haiku
  host model show --json https://example.org/model.gguf")]
    Show {
        /// Id, the beginning of one, digest, or reference.
        #[arg(value_name = "MODEL")]
        model: String,
    },
    /// Obtain and verify a model, without a pool; a user's own file stays where it is.
    #[command(after_help = "\
Examples:
  host model add builtin:haiku
  host model add https://example.org/model.gguf --checksum sha256:…
  host model add hf:owner/name-GGUF --quant Q4_K_M
  host model add --refresh hf:owner/name@main     what the branch is now")]
    Add(AddArguments),
    /// Hash models again and say which are damaged.
    #[command(after_help = "\
Examples:
  host model verify            all of them
  host model verify haiku")]
    Verify {
        /// Models; default: all.
        #[arg(value_name = "MODEL")]
        models: Vec<String>,
    },
    /// Start nothing new with these models; a clean-up removes them once nothing uses them.
    #[command(after_help = "\
Examples:
  host model retire haiku
  host model add builtin:haiku     takes it back")]
    Retire {
        /// Models.
        #[arg(value_name = "MODEL", required = true)]
        models: Vec<String>,
    },
    /// Remove models that nothing uses; a user's own file stays where it is.
    #[command(after_help = "\
Examples:
  host model remove haiku")]
    Remove {
        /// Models.
        #[arg(value_name = "MODEL", required = true)]
        models: Vec<String>,
    },
    /// Remove what was retired, what crashes have left, and what these limits leave no room for.
    #[command(after_help = "\
Examples:
  host model gc --dry-run
  host model gc --max-size 50GB     the least recently used go until the rest fits
  host model gc --older-than 30d    what was not used for that long goes

What an engine or a run uses is never removed.")]
    Gc(CollectArguments),
}

/// Arguments of `host model add`.
#[derive(Debug, Clone, Default, Args)]
pub struct AddArguments {
    /// Reference: a path, `builtin:`, `https:`, `hf:`, `s3:`, `oci:`.
    #[arg(value_name = "REFERENCE")]
    pub reference: String,
    /// Quantisation to pick where there are several, for example `Q4_K_M`.
    #[arg(long, value_name = "NAME")]
    pub quant: Option<String>,
    /// Files to take from a repository, `*` for any text; default: what an engine needs.
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<String>,
    /// Files to leave.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<String>,
    /// What it must be, `sha256:…` or `sha512:…`.
    #[arg(long, value_name = "DIGEST")]
    pub checksum: Option<String>,
    /// Where the file behind a URL can be had as well, tried in this order; needs `--checksum`.
    #[arg(long = "mirror", value_name = "URL", requires = "checksum")]
    pub mirrors: Vec<String>,
    /// Whether an engine reads it as a file (llama.cpp) or as a directory (vLLM, TGI, Triton).
    #[arg(
        long = "as",
        value_name = "file|directory",
        value_enum,
        default_value_t,
        hide_possible_values = true
    )]
    pub shape: ShapeFlag,
    /// Ask the source though the model is here, and take what it gives now.
    #[arg(long)]
    pub refresh: bool,
    /// Hash it again, though it looks as it did when it was hashed.
    #[arg(long)]
    pub verify: bool,
    /// Reach no network at all.
    #[arg(long)]
    pub offline: bool,
}

/// What an engine reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum ShapeFlag {
    /// A file.
    #[default]
    File,
    /// A directory.
    Directory,
}

/// Arguments of `host model gc` and `host engine gc`.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct CollectArguments {
    /// What is listed may take in all, for example `50GB` or `512MiB`.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Longest time without use, for example `30d` or `12h`.
    #[arg(long, value_name = "TIME", value_parser = age)]
    pub older_than: Option<jiff::SignedDuration>,
    /// Only say what would be removed.
    #[arg(long, short = 'n')]
    pub dry_run: bool,
}

impl From<CollectArguments> for Limits {
    fn from(arguments: CollectArguments) -> Self {
        Self {
            max_size_bytes: arguments.max_size,
            older_than: arguments.older_than,
        }
    }
}

fn size(text: &str) -> Result<u64, String> {
    let bad = || "expected a size such as `50GB`, `512MiB` or `1000000`".to_owned();
    let (number, unit) = split(text).ok_or_else(bad)?;
    let (base, power) = match unit.to_ascii_lowercase().trim_end_matches('b') {
        "" => (1, 0),
        "k" => (1000, 1),
        "m" => (1000, 2),
        "g" => (1000, 3),
        "t" => (1000, 4),
        "ki" => (1024, 1),
        "mi" => (1024, 2),
        "gi" => (1024, 3),
        "ti" => (1024, 4),
        _ => return Err(bad()),
    };
    number.checked_mul(u64::pow(base, power)).ok_or_else(bad)
}

fn age(text: &str) -> Result<jiff::SignedDuration, String> {
    let bad = || "expected a time such as `30d`, `12h` or `2w`".to_owned();
    let (number, unit) = split(text).ok_or_else(bad)?;
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        "w" => 7 * 24 * 60 * 60,
        _ => return Err(bad()),
    };
    let number = i64::try_from(number).map_err(|_| bad())?;
    let seconds = number.checked_mul(seconds).ok_or_else(bad)?;
    Ok(jiff::SignedDuration::from_secs(seconds))
}

/// A whole number and what follows it.
fn split(text: &str) -> Option<(u64, &str)> {
    let end = text
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(text.len());
    Some((text[..end].parse().ok()?, text[end..].trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_ages_carry_their_unit() {
        for (text, bytes) in [
            ("50GB", 50_000_000_000),
            ("512MiB", 512 << 20),
            ("1g", 1_000_000_000),
            ("17", 17),
            ("0", 0),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "GB", "-1", "5 apples", "99999999999TB", "1.5GB"] {
            assert!(size(bad).is_err(), "{bad}");
        }
        assert_eq!(age("30d").unwrap().as_hours(), 720);
        for bad in ["30", "", "d", "99999999999999999w"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
