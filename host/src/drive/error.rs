//! What can go wrong between the rooms.

use engine_provider_api::Mode;

use super::{room::NoRoom, vet::Overreach};
use crate::{
    config::{problem::Problem, select::Wanted},
    fault::{Detail, Exit, Fault, Hint, hint},
    provider::ProviderFault,
};

/// Why a journey ended early, where no single room can say.
#[derive(Debug, thiserror::Error)]
pub enum DriveError {
    /// The options of a pool do not fit its provider's schema.
    #[error("pool `{pool}` has options that its engine does not take")]
    Options {
        /// The pool.
        pool: String,
        /// What is wrong, rendered with its place.
        problems: Vec<String>,
    },
    /// The provider does not offer the mode.
    #[error("provider `{provider}` does not offer mode `{}`", asked.map_or("none", Mode::as_str))]
    Mode {
        /// The provider.
        provider: String,
        /// What was asked for.
        asked: Option<Mode>,
        /// What it offers.
        modes: Vec<Mode>,
    },
    /// The provider refused because of a value that stands in a file.
    #[error("{fault}")]
    Refused {
        /// What it said.
        fault: Box<ProviderFault>,
        /// Where the value stands, rendered.
        place: Option<String>,
    },
    /// The provider asked for something that is not its to ask for.
    #[error("provider `{provider}` asked for {what}: {why}")]
    Overreach {
        /// The provider.
        provider: String,
        /// What it asked for.
        what: String,
        /// Why it does not get it.
        why: &'static str,
    },
    /// The model cannot fit.
    #[error("{0}")]
    NoRoom(NoRoom),
    /// Facts of another machine were given to something that acts on this one.
    #[error("`--facts` is for planning: nothing can be done here for the machine it describes")]
    ForeignFacts,
    /// A signal or the embedder ended it; everything was stopped and cleaned.
    #[error("cancelled")]
    Cancelled,
}

impl DriveError {
    /// Options that do not fit, each shown where it stands.
    pub(super) fn options(wanted: &Wanted, problems: Vec<Problem>) -> Self {
        let render = |problem: Problem| {
            let text = match &problem.help {
                Some(help) => format!("{}; {help}", problem.message),
                None => problem.message.clone(),
            };
            place(wanted, &problem.field, &text).unwrap_or(text)
        };
        Self::Options {
            pool: wanted.pool.id.clone(),
            problems: problems.into_iter().map(render).collect(),
        }
    }

    /// What a provider asked for and does not get.
    pub(super) fn overreach(provider: &str, overreach: Overreach) -> Self {
        Self::Overreach {
            provider: provider.to_owned(),
            what: overreach.what,
            why: overreach.why,
        }
    }

    /// A provider's refusal, shown where the value stands that it names.
    pub(super) fn refused(wanted: &Wanted, fault: ProviderFault) -> Self {
        let place = match &fault {
            ProviderFault::Refused { error, .. } => error.field.as_ref().and_then(|field| {
                // What was not written is shown where it would be.
                let verb = wanted.places.exact(field).map_or("belongs", |_| "stands");
                place(wanted, field, &format!("`{field}` {verb} here"))
            }),
            _ => None,
        };
        Self::Refused {
            fault: Box::new(fault),
            place,
        }
    }
}

/// A field's place with its line and a caret, where it stands in a file.
fn place(wanted: &Wanted, field: &str, text: &str) -> Option<String> {
    let source = wanted.places.source()?;
    Some(wanted.places.problem(field, text.to_owned()).render(source))
}

impl Fault for DriveError {
    fn exit(&self) -> Exit {
        match self {
            Self::Options { .. } | Self::Mode { .. } => Exit::Config,
            Self::Refused { fault, .. } => fault.exit(),
            Self::Overreach { .. } => Exit::Provider,
            Self::NoRoom(_) => Exit::Unavailable,
            Self::ForeignFacts => Exit::Usage,
            Self::Cancelled => Exit::Interrupted,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Mode { modes, .. } => {
                let modes: Vec<&str> = modes.iter().map(|mode| mode.as_str()).collect();
                vec![hint(format!("it offers {}", modes.join(", ")), None)]
            }
            Self::Refused { fault, .. } => fault.hints(),
            Self::NoRoom(no_room) => no_room.hints(),
            Self::ForeignFacts => vec![hint("use it with `plan`, or leave `--facts` out", None)],
            Self::Overreach { .. } => vec![hint(
                "use a provider from somebody you trust, and tell its author",
                Some("{host} provider list"),
            )],
            Self::Options { .. } | Self::Cancelled => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Options { problems, .. } => problems
                .iter()
                .map(|problem| Detail::new("where", problem.clone()))
                .collect(),
            Self::Refused { fault, place } => place
                .iter()
                .map(|place| Detail::new("where", place.clone()))
                .chain(fault.details())
                .collect(),
            Self::NoRoom(no_room) => no_room
                .provider_said()
                .map(|said| Detail::new("the provider said", said))
                .into_iter()
                .collect(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Options { .. } => "options-invalid",
            Self::Mode { .. } => "mode-unsupported",
            Self::Refused { fault, .. } => fault.kind(),
            Self::Overreach { .. } => "provider-overreach",
            Self::NoRoom(_) => "POOL_UNAVAILABLE",
            Self::ForeignFacts => "facts-foreign",
            Self::Cancelled => "cancelled",
        }
    }
}
