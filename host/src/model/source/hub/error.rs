//! What can go wrong with a model of the hub, each with what to do about it.

use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    net::NetError,
    process::quote,
    store::human_bytes,
};

/// Choices shown at most.
const SHOWN: usize = 24;

/// A failure to find out what a reference to the hub means.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// A setting of the environment that cannot be used.
    #[error("{name} is no http or https URL")]
    BadEndpoint {
        /// The variable.
        name: &'static str,
    },
    /// A token that cannot be sent. It is not shown.
    #[error("what {origin} holds is no token")]
    BadToken {
        /// Where it was found.
        origin: String,
    },
    /// The operator said that the hub must not be asked.
    #[error("HF_HUB_OFFLINE is set, so the hub is not asked what this is")]
    Offline,
    /// There is none, or none that may be seen.
    #[error("the hub shows no repository `{repository}`{}", if *signed { " to the owner of the token" } else { "" })]
    NoRepository {
        /// `OWNER/NAME`.
        repository: String,
        /// Its page.
        page: String,
        /// Whether a token was sent.
        signed: bool,
    },
    /// The licence was not accepted, or nobody is logged in.
    #[error("`{repository}` is gated: its authors give it to those who accept their terms")]
    Gated {
        /// `OWNER/NAME`.
        repository: String,
        /// Its page, where they are accepted.
        page: String,
        /// Where the token that was sent was found.
        token: Option<String>,
    },
    /// The hub does not know the token.
    #[error("the hub does not accept the token of {origin}")]
    TokenRefused {
        /// Where it was found.
        origin: String,
    },
    /// Refused for another reason.
    #[error("the hub does not give out `{repository}`")]
    Refused {
        /// `OWNER/NAME`.
        repository: String,
        /// What it says of it.
        said: String,
    },
    /// Taken down.
    #[error("`{repository}` is disabled by the hub")]
    Disabled {
        /// `OWNER/NAME`.
        repository: String,
        /// Its page.
        page: String,
    },
    /// No such branch, tag or commit.
    #[error("`{repository}` has no revision `{revision}`")]
    NoRevision {
        /// `OWNER/NAME`.
        repository: String,
        /// What was asked for.
        revision: String,
        /// Its page.
        page: String,
    },
    /// No such file or directory.
    #[error("`{repository}` has no `{path}`")]
    NoPath {
        /// `OWNER/NAME`.
        repository: String,
        /// What was asked for.
        path: String,
        /// The nearest that there is.
        near: Option<String>,
    },
    /// The engine reads something else.
    #[error("`{repository}` holds {holds}, and this engine reads {reads}")]
    OtherFormat {
        /// `OWNER/NAME`, or a file in it.
        repository: String,
        /// Formats there are.
        holds: String,
        /// Formats that the engine reads.
        reads: String,
        /// What could be done.
        advice: &'static str,
    },
    /// Several models, and nothing says which.
    #[error("`{repository}` has several models, and nothing says which one")]
    Several {
        /// `OWNER/NAME`.
        repository: String,
        /// What there is.
        choices: Vec<Choice>,
    },
    /// No model of this quantisation.
    #[error("`{repository}` has no model of quantisation {quant}")]
    NoQuant {
        /// `OWNER/NAME`.
        repository: String,
        /// What was asked for.
        quant: String,
        /// What there is.
        choices: Vec<Choice>,
    },
    /// Several of this quantisation.
    #[error("`{repository}` has several models of quantisation {quant}")]
    Ambiguous {
        /// `OWNER/NAME`.
        repository: String,
        /// What was asked for.
        quant: String,
        /// Those.
        choices: Vec<Choice>,
    },
    /// Two wishes.
    #[error("the reference asks for {written} and the pool for {wanted}")]
    Contradiction {
        /// In the reference.
        written: String,
        /// In the pool.
        wanted: String,
    },
    /// Parts of a split model are not there.
    #[error("`{name}` is split into {total} files, and not all of them are in the repository")]
    Incomplete {
        /// The first part.
        name: String,
        /// Parts there should be.
        total: usize,
        /// Those that are not there.
        missing: Vec<String>,
    },
    /// Patterns that leave nothing.
    #[error("`include` and `exclude` leave no file of `{repository}`")]
    NothingLeft {
        /// `OWNER/NAME`.
        repository: String,
        /// What there is.
        choices: Vec<Choice>,
    },
    /// Not what a hub answers.
    #[error("{url} is no answer of a hub: {reason}")]
    BadAnswer {
        /// What was asked for.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// It could not be asked.
    #[error("the hub could not be asked")]
    Net {
        /// Why.
        #[source]
        source: Box<NetError>,
    },
}

/// A model that could be meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Its path in the repository; the first part of a split one.
    pub path: String,
    /// Its quantisation, where the name says it.
    pub quant: Option<String>,
    /// Size of all parts, where it is known.
    pub size_bytes: Option<u64>,
}

impl HubError {
    /// Whether this only says that the request was cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Net { source } if matches!(**source, NetError::Cancelled { .. }))
    }
}

impl Fault for HubError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoRepository { .. } | Self::NoRevision { .. } | Self::NoPath { .. } => {
                Exit::NotFound
            }
            Self::Gated { .. }
            | Self::TokenRefused { .. }
            | Self::Refused { .. }
            | Self::Disabled { .. }
            | Self::BadAnswer { .. } => Exit::Network,
            Self::Offline => Exit::Refused,
            Self::Net { source } => source.exit(),
            _ => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        // Neither shown nor kept in the shell's history.
        let log_in = "read -rs HF_TOKEN && export HF_TOKEN";
        match self {
            Self::BadEndpoint { name } => {
                vec![hint(
                    "name the hub or a mirror of it",
                    Some(&format!("export {name}=https://huggingface.co")),
                )]
            }
            Self::BadToken { .. } => vec![hint("give the token alone", Some(log_in))],
            Self::Offline => vec![hint("let it be asked", Some("unset HF_HUB_OFFLINE"))],
            Self::NoRepository {
                page,
                signed: false,
                ..
            } => vec![
                hint(format!("compare the spelling with {page}"), None),
                hint("if it is private, log in", Some(log_in)),
            ],
            Self::NoRepository { page, .. } => vec![hint(
                format!("compare the spelling with {page}, or use a token that may read it"),
                None,
            )],
            Self::Gated { page, token, .. } => {
                let accept = hint(format!("accept the terms at {page}"), None);
                match token {
                    Some(origin) => vec![
                        accept,
                        hint(
                            format!(
                                "make sure that the token of {origin} belongs to whoever accepted them, and may read gated repositories"
                            ),
                            None,
                        ),
                    ],
                    None => vec![accept, hint("then log in", Some(log_in))],
                }
            }
            Self::TokenRefused { .. } => vec![hint(
                "it may have expired: make one that may read at https://huggingface.co/settings/tokens",
                Some(log_in),
            )],
            Self::NoRevision { page, .. } => {
                vec![hint(
                    format!("see the branches and tags at {page}/tree/main"),
                    None,
                )]
            }
            Self::NoPath {
                near: Some(near), ..
            } => {
                vec![hint(format!("there is `{near}`"), None)]
            }
            Self::OtherFormat { advice, .. } => vec![hint(*advice, None)],
            Self::Several { choices, .. } | Self::NoQuant { choices, .. } => pick_hint(choices),
            Self::Ambiguous {
                repository,
                choices,
                ..
            } => choices
                .first()
                .map(|choice| {
                    hint(
                        format!("name the file: `hf:{repository}/{}`", choice.path),
                        None,
                    )
                })
                .into_iter()
                .collect(),
            Self::Contradiction { .. } => vec![hint("leave one of them out", None)],
            Self::Incomplete { .. } => vec![hint(
                "the upload may not be finished: use another revision or repository",
                None,
            )],
            Self::Net { source } => match &**source {
                // No checksum helps: what the hub says decides which one is expected.
                NetError::Insecure { url } => vec![hint(
                    "name the hub by https: what it says decides what is taken",
                    by_https(url).as_deref(),
                )],
                source => source.hints(),
            },
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Several { choices, .. }
            | Self::NoQuant { choices, .. }
            | Self::Ambiguous { choices, .. }
            | Self::NothingLeft { choices, .. } => vec![Detail::new("there is", listed(choices))],
            Self::Incomplete { missing, .. } => {
                let shown: Vec<&str> = missing.iter().map(String::as_str).take(SHOWN).collect();
                vec![Detail::new("missing", shown.join("\n"))]
            }
            Self::Refused { said, .. } if !said.is_empty() => {
                vec![Detail::new("answer", said.clone())]
            }
            Self::Net { source } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::BadEndpoint { .. } | Self::BadToken { .. } => "bad-setting",
            Self::Offline => "offline",
            Self::NoRepository { .. } => "hub-repository-missing",
            Self::Gated { .. } => "hub-gated",
            Self::TokenRefused { .. } => "hub-token-refused",
            Self::Refused { .. } => "hub-refused",
            Self::Disabled { .. } => "hub-disabled",
            Self::NoRevision { .. } => "hub-revision-missing",
            Self::NoPath { .. } => "hub-file-missing",
            Self::OtherFormat { .. } => "model-format",
            Self::Several { .. } | Self::Ambiguous { .. } => "model-ambiguous",
            Self::NoQuant { .. } => "quant-missing",
            Self::Contradiction { .. } => "quant-contradiction",
            Self::Incomplete { .. } => "model-incomplete",
            Self::NothingLeft { .. } => "model-patterns",
            Self::BadAnswer { .. } => "hub-answer",
            Self::Net { source } => source.kind(),
        }
    }
}

/// The command that names the hub of this URL by https.
fn by_https(url: &str) -> Option<String> {
    let (endpoint, _) = url.strip_prefix("http://")?.split_once("/api/models/")?;
    let endpoint = quote(&format!("https://{endpoint}"));
    Some(format!("export HF_ENDPOINT={endpoint}"))
}

fn pick_hint(choices: &[Choice]) -> Vec<Hint> {
    let quant = choices.iter().find_map(|choice| choice.quant.as_deref());
    let human = match quant {
        Some(quant) => format!("pick one, for example with `quant: {quant}`"),
        None => "name the file at the end of the reference".to_owned(),
    };
    vec![hint(human, None)]
}

/// One per line, sizes and names below each other.
fn listed(choices: &[Choice]) -> String {
    let line = |choice: &Choice| {
        let size = choice.size_bytes.map(human_bytes).unwrap_or_default();
        format!("{size:>10}  {}", choice.path)
    };
    let mut lines: Vec<String> = choices.iter().take(SHOWN).map(line).collect();
    if choices.len() > SHOWN {
        lines.push(format!("and {} more", choices.len() - SHOWN));
    }
    lines.join("\n")
}
