//! Which of several files is the model, for an engine that reads a file.
//!
//! The rules are those of the hub: a split model is one, complete or refused; projectors and
//! importance matrices are none; a quantisation is a whole word of a name.

use engine_provider_api::StageModel;

use super::{
    Place,
    hub::{
        HubError,
        described::File,
        pick::is_gguf,
        split::{Model, is_companion},
    },
    layout, reads,
};
use crate::fault::{Detail, Exit, Fault, Hint, hint};

/// Names that are shown of a long list.
const MOST_SHOWN: usize = 20;

/// Why no model was chosen.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoChoice {
    /// None that the engine reads.
    #[error("{what} has no file that the engine reads")]
    Format {
        /// Where they are.
        what: String,
        /// Formats that the engine reads, by name suffix.
        formats: Vec<String>,
        /// Files that there are.
        names: Vec<String>,
    },
    /// A directory whose files lie elsewhere than its engine looks.
    #[error(
        "{what} is not laid out as its engine reads it, which looks for {}",
        layout::in_words(layout)
    )]
    Layout {
        /// Where they are.
        what: String,
        /// Where one of them should be.
        layout: Vec<String>,
        /// Files that there are.
        names: Vec<String>,
    },
    /// Several, and nothing says which.
    #[error("{what} has several models, and nothing says which one")]
    Several {
        /// Where they are.
        what: String,
        /// Their first files.
        names: Vec<String>,
    },
    /// None of this quantisation.
    #[error("{what} has no model of quantisation {quant}")]
    Quant {
        /// Where they are.
        what: String,
        /// What was asked for.
        quant: String,
        /// First files of those that there are.
        names: Vec<String>,
    },
    /// Parts of a split model are not there.
    #[error("{what} has only some of the {total} parts of `{name}`")]
    Incomplete {
        /// Where they are.
        what: String,
        /// The first part.
        name: String,
        /// Parts there should be.
        total: usize,
        /// Those that are not there.
        missing: Vec<String>,
    },
    /// A version of one part.
    #[error("`{name}` is one of {total} parts, and its version names none of the others")]
    Version {
        /// The part.
        name: String,
        /// Parts there are.
        total: usize,
    },
}

/// The refusal of a split model of which parts are missing; `name`: its first part.
pub(crate) fn missing_parts(
    what: String,
    name: &str,
    total: usize,
    missing: Vec<String>,
) -> NoChoice {
    NoChoice::Incomplete {
        what,
        name: name.to_owned(),
        total,
        missing,
    }
}

/// Refuses a directory without a file that its engine reads, by name suffix; where any would do, one with
/// nothing but GGUF, which nothing that reads a directory reads; and one that is laid out another way.
pub(crate) fn check_directory<'a>(
    what: &str,
    step: &StageModel,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Result<(), NoChoice> {
    let readable = match &*step.formats {
        [] => !is_gguf(names.clone()),
        formats => names.clone().any(|name| reads(formats, name)),
    };
    let owned = || names.clone().map(str::to_owned).collect();
    if !readable {
        return Err(NoChoice::Format {
            what: what.to_owned(),
            formats: step.formats.clone(),
            names: owned(),
        });
    }
    if !layout::is_laid_out(&step.layout, names.clone()) {
        return Err(NoChoice::Layout {
            what: what.to_owned(),
            layout: step.layout.clone(),
            names: owned(),
        });
    }
    Ok(())
}

impl Fault for NoChoice {
    fn exit(&self) -> Exit {
        Exit::Config
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Format { formats, names, .. } if is_for_another(formats, names) => vec![hint(
                "use the repository that it was made from, or llama.cpp for this one",
                None,
            )],
            Self::Format { .. } => {
                vec![hint("name a model in a format that the engine reads", None)]
            }
            Self::Layout { layout, names, .. } => {
                vec![hint(layout::advice(layout, names), None)]
            }
            Self::Several { .. } => vec![
                hint(
                    "pick one, for example with `quant:` and a word of its name",
                    None,
                ),
                hint(
                    "for an engine that reads a whole repository, say so with \
                     `host model add --as directory`",
                    None,
                ),
            ],
            Self::Quant { .. } => {
                vec![hint(
                    "set `quant:` to a word of the name of one of them",
                    None,
                )]
            }
            Self::Incomplete { .. } => {
                vec![hint("put the missing parts beside the others", None)]
            }
            Self::Version { .. } => vec![hint("leave the version out", None)],
        }
    }

    fn details(&self) -> Vec<Detail> {
        let list = |label, names: &[String]| {
            (!names.is_empty()).then(|| Detail::new(label, listed(names)))
        };
        let all = match self {
            Self::Format { formats, names, .. } => [list("reads", formats), list("it has", names)],
            Self::Layout { names, .. }
            | Self::Several { names, .. }
            | Self::Quant { names, .. } => [list("it has", names), None],
            Self::Incomplete { missing, .. } => [list("missing", missing), None],
            Self::Version { .. } => [None, None],
        };
        all.into_iter().flatten().collect()
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Format { .. } | Self::Layout { .. } => "model-format",
            Self::Several { .. } | Self::Quant { .. } => "model-ambiguous",
            Self::Incomplete { .. } | Self::Version { .. } => "model-incomplete",
        }
    }
}

/// Whether the weights among these files are GGUF, and the engine reads something else.
fn is_for_another(formats: &[String], names: &[String]) -> bool {
    let reads_gguf = formats.iter().any(|format| format == "gguf");
    !reads_gguf && is_gguf(names.iter().map(String::as_str))
}

/// The first of many names, and how many there are besides.
fn listed(names: &[String]) -> String {
    let shown = names.len().min(MOST_SHOWN);
    let first = names[..shown].join(", ");
    match names.len() - shown {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// A model that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Names of its files, all parts in their order.
    pub(super) names: Vec<String>,
    /// First files of all models that there were, where there was a choice.
    pub(super) from: Vec<String>,
}

/// Chooses the model among these files; `what` has them.
pub(super) fn choose(place: &Place<'_>, what: &str, names: &[&str]) -> Result<Chosen, NoChoice> {
    let readable = names
        .iter()
        .filter(|name| place.reads(name) && !is_companion(name));
    let mut files: Vec<File> = readable
        .map(|name| File {
            path: (*name).to_owned(),
            ..File::default()
        })
        .collect();
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let models = Model::all(files.iter());
    let firsts = |models: &[Model<'_>]| -> Vec<String> {
        models.iter().map(|model| model.path().to_owned()).collect()
    };
    let what = what.to_owned();
    let mut fitting = models.clone();
    if let Some(quant) = place.quant {
        fitting.retain(|model| model.is_quant(quant));
        if fitting.is_empty() {
            fitting = models.clone();
            fitting.retain(|model| model.is_below_quant(quant));
        }
    }
    let model = match (&fitting[..], place.quant) {
        ([model], _) => model,
        ([], Some(quant)) if !models.is_empty() => {
            return Err(NoChoice::Quant {
                what,
                quant: quant.to_owned(),
                names: firsts(&models),
            });
        }
        ([], _) => {
            return Err(NoChoice::Format {
                what,
                formats: place.formats.to_vec(),
                names: names.iter().map(|name| (*name).to_owned()).collect(),
            });
        }
        (several, _) => {
            return Err(NoChoice::Several {
                what,
                names: firsts(several),
            });
        }
    };
    if let Err(HubError::Incomplete {
        name,
        total,
        missing,
    }) = model.check()
    {
        return Err(NoChoice::Incomplete {
            what,
            name,
            total,
            missing,
        });
    }
    Ok(Chosen {
        names: model.files.iter().map(|file| file.path.clone()).collect(),
        from: match models.len() {
            1 => Vec::new(),
            _ => firsts(&models),
        },
    })
}

#[cfg(test)]
mod tests;
