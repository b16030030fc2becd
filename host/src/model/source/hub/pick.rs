//! Which files of a repository are the model.

use super::{
    super::glob::{fits, fits_any},
    described::{File, Repository},
    error::{Choice, HubError},
    name::HubName,
    split::{Model, is_companion},
};

/// What is wanted of a repository.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish<'a> {
    pub(super) name: &'a HubName,
    /// Of the pool; the reference may say one as well.
    pub(super) quant: Option<&'a str>,
    /// Formats that the engine reads, by name suffix; empty: any. Of a directory it must hold one.
    pub(super) formats: &'a [String],
    pub(super) include: &'a [String],
    pub(super) exclude: &'a [String],
}

/// What was picked.
#[derive(Debug, Clone)]
pub(super) struct Picked<'a> {
    /// Names in the model, and the files.
    pub(super) files: Vec<(String, &'a File)>,
    /// Path in the repository that stands for it; `None`: all of it.
    pub(super) path: Option<String>,
    /// What it was picked from, where there was a choice.
    pub(super) from: Vec<String>,
    /// Files that were left out.
    pub(super) left: usize,
}

/// Suffixes of files that hold weights.
const WEIGHTS: &[&str] = &[
    "bin",
    "ckpt",
    "engine",
    "gguf",
    "ggml",
    "h5",
    "msgpack",
    "nemo",
    "onnx",
    "ot",
    "plan",
    "pt",
    "pth",
    "safetensors",
    "tflite",
];

/// The same weights in other forms, for other programs, beside safetensors.
const DUPLICATES: &[&str] = &[
    "*.bin",
    "*.ckpt",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.onnx_data",
    "*.ot",
    "*.pt",
    "*.pth",
    "*.tflite",
    "onnx/",
    "openvino/",
    "coreml/",
];

/// The file, or the parts of the model, for an engine that reads a file.
pub(super) fn one<'a>(wish: Wish<'_>, repository: &'a Repository) -> Result<Picked<'a>, HubError> {
    let name = &wish.name.repository;
    let readable = |file: &&File| is_format(&file.path, wish.formats);
    let models = Model::all(repository.files.iter().filter(readable));
    let quant = quant(wish)?;
    let (model, from) = match &wish.name.path {
        Some(path) => (named(wish, repository, &models, path)?, Vec::new()),
        None => {
            let mut models = models;
            models.retain(|model| {
                let path = model.path();
                !is_companion(path)
                    && (wish.include.is_empty() || fits_any(wish.include, path))
                    && !fits_any(wish.exclude, path)
                    && (!wish.formats.is_empty() || is_weights(path))
            });
            // Nobody said what reads it: what comes as one file is GGUF.
            if wish.formats.is_empty() && models.iter().any(|model| is_gguf_path(model.path())) {
                models.retain(|model| is_gguf_path(model.path()));
            }
            if models.is_empty() {
                return Err(other_format(wish, repository, name));
            }
            let model = match quant {
                Some(quant) => of_quant(name, &models, quant)?,
                None if models.len() == 1 => models[0].clone(),
                None => {
                    return Err(HubError::Several {
                        repository: name.clone(),
                        choices: choices(&models),
                    });
                }
            };
            let from = models.iter().map(|model| model.path().to_owned());
            (model, from.collect())
        }
    };
    model.check()?;
    let path = model.path().to_owned();
    let base = |file: &'a File| {
        let name = file.path.rsplit('/').next().unwrap_or(&file.path);
        (name.to_owned(), file)
    };
    Ok(Picked {
        files: model.files.iter().copied().map(base).collect(),
        path: Some(path),
        from: if models_differ(&from) {
            from
        } else {
            Vec::new()
        },
        left: 0,
    })
}

/// The files of the repository, or of a directory in it, for an engine that reads a directory.
pub(super) fn all<'a>(wish: Wish<'_>, repository: &'a Repository) -> Result<Picked<'a>, HubError> {
    let name = &wish.name.repository;
    let below = wish.name.path.as_ref().map(|path| format!("{path}/"));
    let inside: Vec<(String, &File)> = repository
        .files
        .iter()
        .filter_map(|file| {
            let name = match &below {
                Some(below) => file.path.strip_prefix(below.as_str())?,
                None => &file.path,
            };
            Some((name.to_owned(), file))
        })
        // Hidden files are no part of a model; git's and the hub's notes are among them.
        .filter(|(name, _)| !name.split('/').any(|part| part.starts_with('.')))
        .collect();
    if let Some(path) = &wish.name.path
        && inside.is_empty()
    {
        return match repository.files.iter().any(|file| file.path == *path) {
            true => Err(HubError::OtherFormat {
                repository: format!("{name}/{path}"),
                holds: "one file".to_owned(),
                reads: "a directory with all files of a model".to_owned(),
                advice: "refer to the repository, or to a directory in it",
            }),
            false => Err(no_path(repository, name, path)),
        };
    }
    let of_transformers = is_transformers(&inside);
    let count = inside.len();
    let files: Vec<(String, &File)> = inside
        .iter()
        .filter(|(name, _)| {
            let wanted = match wish.include {
                [] => !(of_transformers && is_duplicate(name)),
                include => fits_any(include, name),
            };
            wanted && !fits_any(wish.exclude, name)
        })
        .cloned()
        .collect();
    if files.is_empty() {
        return Err(HubError::NothingLeft {
            repository: name.clone(),
            choices: choices(&Model::all(inside.iter().map(|(_, file)| *file))),
        });
    }
    let readable = |(name, _): &(String, &File)| is_format(name, wish.formats);
    if !files.iter().any(readable)
        || (wish.formats.is_empty() && is_gguf(files.iter().map(|(name, _)| name.as_str())))
    {
        return Err(other_format(wish, repository, name));
    }
    Ok(Picked {
        left: count - files.len(),
        files,
        path: wish.name.path.clone(),
        from: Vec::new(),
    })
}

/// The quantisation that is wanted, by the reference or by the pool.
fn quant<'a>(wish: Wish<'a>) -> Result<Option<&'a str>, HubError> {
    match (wish.name.quant.as_deref(), wish.quant) {
        (Some(written), Some(wanted)) if !written.eq_ignore_ascii_case(wanted) => {
            Err(HubError::Contradiction {
                written: written.to_owned(),
                wanted: wanted.to_owned(),
            })
        }
        (written, wanted) => Ok(written.or(wanted)),
    }
}

/// The model that a path names, by any of its parts.
fn named<'a>(
    wish: Wish<'_>,
    repository: &'a Repository,
    models: &[Model<'a>],
    path: &str,
) -> Result<Model<'a>, HubError> {
    let name = &wish.name.repository;
    if let Some(model) = models.iter().find(|model| model.has(path)) {
        return match wish.quant {
            Some(quant) if !model.is_below_quant(quant) => Err(HubError::Contradiction {
                written: path.to_owned(),
                wanted: format!("quantisation {quant}"),
            }),
            _ => Ok(model.clone()),
        };
    }
    match repository.files.iter().any(|file| file.path == path) {
        true => Err(other_format(wish, repository, &format!("{name}/{path}"))),
        false => Err(no_path(repository, name, path)),
    }
}

fn of_quant<'a>(name: &str, models: &[Model<'a>], quant: &str) -> Result<Model<'a>, HubError> {
    let filtered = |fits: &dyn Fn(&Model<'a>) -> bool| -> Vec<Model<'a>> {
        models.iter().filter(|model| fits(model)).cloned().collect()
    };
    let mut fitting = filtered(&|model| model.is_quant(quant));
    if fitting.is_empty() {
        fitting = filtered(&|model| model.is_below_quant(quant));
    }
    let (repository, quant) = (name.to_owned(), quant.to_owned());
    match fitting.len() {
        1 => Ok(fitting.remove(0)),
        0 => Err(HubError::NoQuant {
            repository,
            quant,
            choices: choices(models),
        }),
        _ => Err(HubError::Ambiguous {
            repository,
            quant,
            choices: choices(&fitting),
        }),
    }
}

fn no_path(repository: &Repository, name: &str, path: &str) -> HubError {
    let lower = path.to_lowercase();
    let distance = |file: &&File| strsim::damerau_levenshtein(&file.path.to_lowercase(), &lower);
    let near = repository.files.iter().min_by_key(distance);
    let near = near.filter(|file| distance(file) <= lower.len() / 3);
    HubError::NoPath {
        repository: name.to_owned(),
        path: path.to_owned(),
        near: near.map(|file| file.path.clone()),
    }
}

/// The error for an engine that reads none of this.
fn other_format(wish: Wish<'_>, repository: &Repository, what: &str) -> HubError {
    let of = |path: &str| suffix(path).filter(|suffix| WEIGHTS.contains(&suffix.as_str()));
    let mut holds: Vec<String> = match &wish.name.path {
        Some(path) if is_file(repository, path) => suffix(path).into_iter().collect(),
        _ => repository
            .files
            .iter()
            .filter_map(|file| of(&file.path))
            .collect(),
    };
    holds.sort();
    holds.dedup();
    let gguf = |formats: &[String]| formats.iter().any(|format| format == "gguf");
    HubError::OtherFormat {
        repository: what.to_owned(),
        advice: match (gguf(wish.formats), gguf(&holds)) {
            _ if repository
                .files
                .iter()
                .any(|file| is_readable(wish, &file.path)) =>
            {
                "name a model of the repository, or leave the path out to see which there are"
            }
            (true, false) => {
                "use a repository with GGUF files of this model (their names often end with `-GGUF`), \
                 or vLLM or TGI for this one"
            }
            (false, true) => "use the repository that it was made from, or llama.cpp for this one",
            _ => "use another repository, or another engine",
        },
        holds: match holds.is_empty() {
            true => "no weights".to_owned(),
            false => holds.join(", "),
        },
        reads: match wish.formats.is_empty() {
            true => "model repositories".to_owned(),
            false => wish.formats.join(", "),
        },
    }
}

/// Whether the engine could be given a file, by its name.
fn is_readable(wish: Wish<'_>, path: &str) -> bool {
    !wish.formats.is_empty() && is_format(path, wish.formats) && !is_companion(path)
}

fn choices(models: &[Model<'_>]) -> Vec<Choice> {
    models.iter().map(Model::choice).collect()
}

fn models_differ(from: &[String]) -> bool {
    from.len() > 1
}

fn is_file(repository: &Repository, path: &str) -> bool {
    repository.files.iter().any(|file| file.path == path)
}

fn is_format(path: &str, formats: &[String]) -> bool {
    let suffix = suffix(path);
    let same = |format: &String| suffix.as_deref() == Some(&format.to_ascii_lowercase());
    formats.is_empty() || formats.iter().any(same)
}

fn is_weights(path: &str) -> bool {
    suffix(path).is_some_and(|suffix| WEIGHTS.contains(&suffix.as_str()))
}

fn suffix(path: &str) -> Option<String> {
    let name = path.rsplit('/').next()?;
    Some(name.rsplit_once('.')?.1.to_ascii_lowercase())
}

/// Whether it is laid out as the `transformers` library does: only then is it known what is twice there.
fn is_transformers(files: &[(String, &File)]) -> bool {
    let has = |fits: fn(&str) -> bool| files.iter().any(|(name, _)| fits(name));
    has(|name| name == "config.json")
        && has(|name| !name.contains('/') && name.ends_with(".safetensors"))
}

/// Whether all weights among these files are GGUF, which nothing that reads a directory reads.
pub(in crate::model::source) fn is_gguf<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let mut weights = names.filter(|name| is_weights(name)).peekable();
    weights.peek().is_some() && weights.all(is_gguf_path)
}

fn is_gguf_path(path: &str) -> bool {
    suffix(path).as_deref() == Some("gguf")
}

fn is_duplicate(name: &str) -> bool {
    DUPLICATES.iter().any(|pattern| fits(pattern, name))
}

#[cfg(test)]
mod tests;
