//! What a model elsewhere consists of: asked for once per run, and refused where it cannot be one.

use std::collections::BTreeSet;

use engine_provider_api::{ModelShape, StageModel};

use super::{
    ModelError, Reference, Request, Stage,
    catalog::Entry,
    fetch::Got,
    names::Key,
    source::{self, Place, Resolved, inside::is_inside},
};

/// Files that a model may have: the largest have some hundred.
const MOST_FILES: usize = 20_000;

/// Whether a digest alone says that the model is here.
pub(super) fn is_here(request: &Request, step: &StageModel) -> Result<bool, ModelError> {
    let blob = request.blob_here(step);
    Ok(blob.map_err(|source| request.failed(source))?.is_some())
}

/// What the place says that the model is, asked once per run; a damaged one is had again from just
/// where it came from.
pub(super) async fn ask(
    stage: &Stage,
    request: &Request,
    step: &StageModel,
    again: Option<&Entry>,
) -> Result<Resolved, ModelError> {
    let key = Key::new(stage, request, step);
    if let Some(resolved) = stage.models.said(&key) {
        return Ok(resolved);
    }
    let pinned = again
        .and_then(|entry| entry.name(key.as_str()))
        .map(|name| name.pinned.as_str())
        // Of a URL only what may be shown was kept.
        .filter(|_| !matches!(request.reference, Reference::Url(_)));
    let written = pinned.unwrap_or(&step.reference);
    let versions = match again {
        Some(entry) if stage.versions.is_empty() => entry.versions(key.as_str()),
        _ => (*stage.versions).clone(),
    };
    let place = Place {
        net: &stage.net,
        environment: &stage.environment,
        narrator: &stage.narrator,
        cancel: &stage.cancel,
        written,
        mirrors: &request.mirrors,
        digest: request.digest.as_ref(),
        quant: step.quant.as_deref(),
        formats: &step.formats,
        shape: step.shape,
        include: &step.include,
        exclude: &step.exclude,
        versions: &versions,
    };
    let mut resolved = source::resolve(&place, &Reference::parse(written)?).await?;
    resolved
        .files
        .retain(|file| file.is_archive || !is_hidden(&file.name));
    if let Some(bad) = resolved.files.iter().find(|file| !is_inside(&file.name)) {
        return Err(ModelError::BadName {
            reference: request.reference.to_string(),
            name: bad.name.clone(),
            reason: "it leads out of its directory, is too long or holds what is no letter",
        });
    }
    if resolved.files.len() > MOST_FILES {
        return Err(ModelError::TooMany {
            reference: request.reference.to_string(),
            count: resolved.files.len(),
            limit: MOST_FILES,
        });
    }
    if resolved.files.is_empty() {
        return Err(ModelError::Empty {
            reference: request.reference.to_string(),
        });
    }
    let plain = resolved.files.iter().filter(|file| !file.is_archive);
    let names: Vec<&str> = plain.map(|file| file.name.as_str()).collect();
    check_places(request, names.iter().copied())?;
    // What archives have in them shows when they are unpacked.
    if !resolved.has_archives() {
        check_formats(request, step, &names)?;
    }
    stage.models.remember(&key, &resolved);
    Ok(resolved)
}

/// Refuses a directory without anything that its engine reads, or with it elsewhere.
pub(super) fn check_formats(
    request: &Request,
    step: &StageModel,
    names: &[&str],
) -> Result<(), ModelError> {
    if step.shape != ModelShape::Directory {
        return Ok(());
    }
    let what = request.reference.to_string();
    let names = names.iter().copied();
    source::check_directory(&what, step, names).map_err(|source| ModelError::Choice {
        reference: what.clone(),
        source: Box::new(source),
    })
}

/// Refuses files that cannot lie beside each other.
fn check_places<'a>(
    request: &Request,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), ModelError> {
    match in_the_way(names) {
        Some(name) => Err(ModelError::BadName {
            reference: request.reference.to_string(),
            name: name.to_owned(),
            reason: "another file stands where it, or its directory, has to be",
        }),
        None => Ok(()),
    }
}

/// A name that two files have, or that one has whose directory another one needs.
fn in_the_way<'a>(mut all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let mut names = BTreeSet::new();
    let twice = all.find(|name| !names.insert(*name));
    let is_above = |name: &&str| {
        let above = name.match_indices('/').map(|(at, _)| &name[..at]);
        above.into_iter().any(|above| names.contains(above))
    };
    let below = || names.iter().copied().find(is_above);
    twice.or_else(below)
}

/// Hidden files are no part of a model: tools keep their notes there.
pub(super) fn is_hidden(name: &str) -> bool {
    name.split('/')
        .any(|part| part.starts_with('.') && part != "." && part != "..")
}

/// Leaves of what archives had in them what is wanted, and refuses what cannot be one model.
pub(super) fn fit_together(
    request: &Request,
    step: &StageModel,
    got: &mut Vec<Got>,
) -> Result<(), ModelError> {
    if step.shape == ModelShape::Directory {
        got.retain(|got| source::wants(&step.include, &step.exclude, &got.file.name));
    }
    if got.is_empty() {
        return Err(ModelError::Empty {
            reference: request.reference.to_string(),
        });
    }
    if got.len() > MOST_FILES {
        return Err(ModelError::TooMany {
            reference: request.reference.to_string(),
            count: got.len(),
            limit: MOST_FILES,
        });
    }
    let names: Vec<&str> = got.iter().map(|got| got.file.name.as_str()).collect();
    check_places(request, names.iter().copied())?;
    check_formats(request, step, &names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_the_way_of(names: &[&'static str]) -> Option<&'static str> {
        in_the_way(names.iter().copied())
    }

    #[test]
    fn files_that_cannot_lie_beside_each_other_are_found() {
        assert_eq!(in_the_way_of(&["a", "b/c", "b/d", "a.b"]), None);
        assert_eq!(in_the_way_of(&["a", "b", "a"]), Some("a"));
        for below in ["a/b", "a/b/c"] {
            assert_eq!(in_the_way_of(&["a", below]), Some(below));
            assert_eq!(in_the_way_of(&[below, "a"]), Some(below));
        }
    }
}
