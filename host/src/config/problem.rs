//! What is wrong with a file, shown with file, line and caret.

use std::{fmt::Write as _, path::PathBuf};

use super::document::{Place, Source};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    narrate::Secrets,
};

/// Longest part of a source line that is shown.
const SHOWN_COLUMNS: usize = 100;

/// Something wrong, or worth saying, at a place of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problem {
    /// Path of the field, for example `pools[0].provisioning.mode`; empty for the file as a whole.
    pub field: String,
    /// Where, if the value stands in a text.
    pub place: Option<Place>,
    /// What is wrong, one lower-case phrase.
    pub message: String,
    /// What to write instead.
    pub help: Option<Box<str>>,
    /// Other places that have to do with it, each with what it is.
    pub also: Vec<(Place, String)>,
}

impl Problem {
    /// A problem with a field.
    pub fn new(field: impl Into<String>, place: Option<Place>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            place,
            message: message.into(),
            ..Self::default()
        }
    }

    /// Adds what to write instead.
    #[must_use]
    pub fn help(mut self, text: impl Into<Box<str>>) -> Self {
        self.help = Some(text.into());
        self
    }

    /// Adds another place that has to do with it.
    #[must_use]
    pub fn also(mut self, place: Option<Place>, text: impl Into<String>) -> Self {
        self.also.extend(place.map(|place| (place, text.into())));
        self
    }

    /// The problem with the line it stands in; secrets in that line are masked.
    ///
    /// ```text
    /// pools.yaml:7:13: `sorce` is not a mode
    ///     |
    ///   7 |       mode: sorce
    ///     |             ^^^^^ did you mean `source`?
    /// ```
    #[must_use]
    pub fn render(&self, source: &Source) -> String {
        let secrets = Secrets::default();
        let path = source.path.display();
        let message = secrets.mask(&self.message);
        let help = secrets.mask(self.help.as_deref().unwrap_or(""));
        let Some(place) = self.place else {
            return match help.is_empty() {
                false => format!("{path}: {message} ({help})"),
                true => format!("{path}: {message}"),
            };
        };
        let mut text = format!("{path}:{}:{}: {message}", place.line, place.column);
        snippet(&mut text, source, place, '^', &help);
        for (place, words) in &self.also {
            snippet(&mut text, source, *place, '-', words);
        }
        text
    }
}

fn snippet(text: &mut String, source: &Source, place: Place, mark: char, words: &str) {
    let secrets = Secrets::default();
    let whole = source.text.lines().nth(place.line - 1).unwrap_or("");
    // As a whole, before a part of it is taken: nobody knows half a secret.
    let masked = secrets.mask(whole);
    let before: String = whole.chars().take(place.column - 1).collect();
    let column = secrets.mask(&before).chars().count() + 1;
    let (line, column) = window(&masked, column);
    let number = place.line;
    let _ = write!(text, "\n{:>5} |\n{number:>5} | {line}\n{:>5} |", "", "");
    // A masked line has other columns: a caret would point at the wrong word.
    if masked == whole {
        let indent = line.chars().chain(std::iter::repeat(' ')).take(column - 1);
        let indent: String = indent.map(|c| if c == '\t' { '\t' } else { ' ' }).collect();
        let room = line.chars().count().saturating_sub(column - 1).max(1);
        let marks = mark.to_string().repeat(place.length.min(room));
        let _ = write!(text, " {indent}{marks}");
    }
    if !words.is_empty() {
        let _ = write!(text, " {words}");
    }
}

/// The part of a long line around a column, and the column within it.
fn window(line: &str, column: usize) -> (String, usize) {
    if line.chars().count() <= SHOWN_COLUMNS {
        return (line.to_owned(), column);
    }
    let start = column.saturating_sub(SHOWN_COLUMNS / 2);
    let shown: String = line.chars().skip(start).take(SHOWN_COLUMNS).collect();
    (shown, column - start)
}

/// The name nearest to a word, where one is near enough to be what was meant.
#[must_use]
pub fn nearest<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['-', '_', '.'], "");
    let word = plain(word);
    let near = |name: &str| {
        let name = plain(name);
        let shared = word
            .chars()
            .zip(name.chars())
            .take_while(|(a, b)| a == b)
            .count();
        let distance = strsim::damerau_levenshtein(&word, &name);
        let mistyped = distance <= (name.len().max(word.len()) / 3).max(1);
        let begun = shared >= 4 && shared * 3 >= word.len() * 2;
        (mistyped || begun).then_some(distance)
    };
    let named = names
        .into_iter()
        .filter_map(|name| Some((near(name)?, name)));
    named
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Names in back quotes, joined with commas.
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names.into_iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// Why the operator's wishes could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A file could not be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What it is for.
        kind: FileKind,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file is wrong; everything that is wrong with it.
    #[error("`{}` has {}", source_text.path.display(), count(problems.len()))]
    Invalid {
        /// The file and its text.
        source_text: Source,
        /// What it is for.
        kind: FileKind,
        /// What is wrong, in the order of the file.
        problems: Vec<Problem>,
    },
    /// There is neither a pool file nor a provider.
    #[error("nothing says which engine is wanted: there is no pool file and no `--provider`")]
    NothingGiven,
    /// A pool file has no such pool.
    #[error("`{}` has no pool `{wanted}`", path.display())]
    NoSuchPool {
        /// The pool file.
        path: PathBuf,
        /// What was asked for.
        wanted: String,
        /// Pools it has.
        known: Vec<String>,
    },
    /// A pool of a file is wanted, and there is no file.
    #[error("there is no pool file here, and so no pool `{wanted}`")]
    NoPoolFile {
        /// What was asked for.
        wanted: String,
    },
    /// Neither pools nor all engines are named.
    #[error("nothing says which engines are to be stopped")]
    NothingToStop,
    /// A pool file has no pool of an engine.
    #[error("`{}` has no pool of engine `{engine}`", path.display())]
    NoPoolOfEngine {
        /// The pool file.
        path: PathBuf,
        /// What was asked for.
        engine: String,
        /// Engines it has pools of.
        known: Vec<String>,
    },
    /// A flag has a value that cannot be used.
    #[error("`{flag}`: {message}")]
    BadFlag {
        /// The flag.
        flag: &'static str,
        /// What is wrong with its value.
        message: String,
        /// What to write instead.
        help: Option<String>,
    },
    /// `--pool` and `--provider` contradict each other.
    #[error("pool `{pool}` is of engine `{engine}`, but `--provider {provider}` was given")]
    OtherEngine {
        /// The pool asked for.
        pool: String,
        /// Its engine.
        engine: String,
        /// The provider asked for.
        provider: String,
    },
}

/// What a file that an operator gives is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// It names pools.
    Pools,
    /// It is a ceiling of policy.
    Policy,
    /// It describes a machine.
    Facts,
}

fn count(problems: usize) -> String {
    match problems {
        1 => "an error".to_owned(),
        many => format!("{many} errors"),
    }
}

impl ConfigError {
    /// The problems of a file; sorts them by place.
    #[must_use]
    pub fn invalid(kind: FileKind, source: &Source, mut problems: Vec<Problem>) -> Self {
        problems.sort_by_key(|problem| problem.place);
        Self::Invalid {
            source_text: source.clone(),
            kind,
            problems,
        }
    }
}

impl Fault for ConfigError {
    fn exit(&self) -> Exit {
        match self {
            Self::Read { .. } | Self::Invalid { .. } => Exit::Config,
            Self::NothingGiven
            | Self::NothingToStop
            | Self::OtherEngine { .. }
            | Self::BadFlag { .. } => Exit::Usage,
            Self::NoSuchPool { .. } | Self::NoPoolFile { .. } | Self::NoPoolOfEngine { .. } => {
                Exit::NotFound
            }
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Read { kind, source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                match kind {
                    FileKind::Pools => {
                        let words = "write it; what may stand in it says";
                        vec![hint(words, Some("{host} config schema"))]
                    }
                    FileKind::Facts => {
                        let words = "make one on the machine to plan for";
                        vec![hint(words, Some("{host} facts --json > facts.json"))]
                    }
                    FileKind::Policy => Vec::new(),
                }
            }
            Self::Read { .. } => Vec::new(),
            Self::Invalid {
                source_text, kind, ..
            } => {
                let file = crate::process::quote(&source_text.path.to_string_lossy());
                let (words, command) = match kind {
                    FileKind::Pools => ("check it with", format!("{{host}} config check {file}")),
                    FileKind::Policy => ("look at it with", "{host} config policy".to_owned()),
                    FileKind::Facts => ("plan again", "{again}".to_owned()),
                };
                let words = format!("once it is corrected, {words}");
                vec![hint(words, Some(&command))]
            }
            Self::NothingGiven => vec![
                hint(
                    "name a provider to use its default pool",
                    Some("{again} --provider llamacpp"),
                ),
                hint(
                    "see which providers there are",
                    Some("{host} provider list"),
                ),
            ],
            Self::NoSuchPool { wanted, known, .. } => {
                let names = known.iter().map(String::as_str);
                match nearest(wanted, names.clone()) {
                    Some(name) => vec![hint(format!("did you mean `--pool {name}`?"), None)],
                    None => vec![hint(format!("its pools are {}", list(names)), None)],
                }
            }
            Self::NoPoolFile { .. } => vec![hint(
                "name one with `--config`; without it there is the provider's own pool, `default`",
                Some("{again} --pool default"),
            )],
            Self::NothingToStop => vec![
                hint("see what runs, and name its pool", Some("{host} ps")),
                hint("stop all of them", Some("{again} --all")),
            ],
            Self::NoPoolOfEngine { known, .. } => vec![hint(
                format!("it has pools of {}", list(known.iter().map(String::as_str))),
                None,
            )],
            Self::BadFlag { help, .. } => help.iter().map(|help| hint(help, None)).collect(),
            Self::OtherEngine { .. } => vec![hint("leave `--provider` out", None)],
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Invalid {
                source_text,
                problems,
                ..
            } => problems
                .iter()
                .map(|problem| Detail::new("where", problem.render(source_text)))
                .collect(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Read { .. } => "config-unreadable",
            Self::Invalid { .. } => "config-invalid",
            Self::NothingGiven => "no-pool-given",
            Self::NoSuchPool { .. } => "no-such-pool",
            Self::NoPoolFile { .. } => "no-pool-file",
            Self::NothingToStop => "nothing-to-stop",
            Self::NoPoolOfEngine { .. } => "no-pool-of-engine",
            Self::BadFlag { .. } => "bad-flag",
            Self::OtherEngine { .. } => "pool-of-other-engine",
        }
    }
}

#[cfg(test)]
mod tests;
