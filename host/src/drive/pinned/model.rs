//! What a lock file pins of a model.

use std::sync::Arc;

use engine_provider_api::StageModel;

use super::{Pins, Said};
use crate::{
    act::{Context, is_full_commit},
    drive::{LockUse, recorded},
    lock::{self, ModelLock},
    model::{Reference, source::Versions},
};

impl Pins {
    pub(super) fn model(
        &self,
        context: &mut Context,
        lock: Option<&ModelLock>,
        act: &mut StageModel,
    ) -> Option<Said> {
        let lock = lock?;
        let reference = recorded::model_reference(&act.reference, &self.path);
        if reference != lock.reference {
            return Some(self.not_the_same(&reference, &lock.reference));
        }
        if let Some([name, now, locked]) = picked_otherwise(act, lock) {
            let now = format!("{reference}, {name} {now}");
            return Some(self.not_the_same(&now, &format!("{name} {locked}")));
        }
        // The user's own files and what is in this program are compared where `--locked` asks for it.
        let is_elsewhere = !matches!(
            Reference::parse(&act.reference),
            Ok(Reference::File(_) | Reference::Builtin(_)) | Err(_)
        );
        if !is_elsewhere && self.used != LockUse::Exact {
            return None;
        }
        if let Some(pinned) = &lock.pinned
            && is_immutable(pinned)
            && is_a_pin_of(pinned, &act.reference)
        {
            act.reference.clone_from(pinned);
        } else if is_elsewhere {
            context.model_versions = Arc::new(versions(lock));
        }
        let digest = lock.digest.as_ref().filter(|_| act.digest.is_none());
        if let Some(digest) = digest {
            if !lock::is_known_digest(digest) {
                let text = format!(
                    "{}: `{digest}` cannot be compared by this version",
                    lock::FILE
                );
                return Some(Said::Warning(text));
            }
            act.digest = Some(digest.clone());
        }
        let pin = digest.or(lock.pinned.as_ref()).filter(|_| is_elsewhere)?;
        Some(self.note(format!("{reference} is {pin}")))
    }
}

/// What picks other files of a model than it did when it was locked: its name, what it is now and what is
/// locked.
fn picked_otherwise(act: &StageModel, lock: &ModelLock) -> Option<[String; 3]> {
    let quant = |quant: &Option<String>| quant.iter().cloned().collect::<Vec<_>>();
    let all = [
        ("quant", quant(&act.quant), quant(&lock.quant)),
        ("include", act.include.clone(), lock.include.clone()),
        ("exclude", act.exclude.clone(), lock.exclude.clone()),
    ];
    let mut all = all.into_iter();
    let (name, now, locked) = all.find(|(_, now, locked)| now != locked)?;
    let listed = |words: Vec<String>| match words.is_empty() {
        true => "(none)".to_owned(),
        false => words.join(", "),
    };
    Some([name.to_owned(), listed(now), listed(locked)])
}

/// Files with their versions, where any has one: all of them, so that nothing is had that is not locked.
fn versions(lock: &ModelLock) -> Versions {
    let is_any = lock.files.values().any(|file| file.version.is_some());
    let files = lock.files.iter().filter(|_| is_any);
    let files = files.map(|(name, file)| (name.clone(), file.version.clone()));
    files.collect()
}

/// Whether a locked reference can stand in for one that was written: of the same kind of place, and the
/// same there. What is edited into a lock file leads nowhere else.
fn is_a_pin_of(pinned: &str, written: &str) -> bool {
    match (Reference::parse(pinned), Reference::parse(written)) {
        (Ok(Reference::HuggingFace(one)), Ok(Reference::HuggingFace(other))) => {
            one.repository == other.repository
        }
        (
            Ok(Reference::S3 { bucket, key, .. }),
            Ok(Reference::S3 {
                bucket: in_bucket,
                key: prefix,
                ..
            }),
        ) => {
            // Below a prefix lies what was picked.
            let is_below = prefix.is_empty() || prefix.ends_with('/');
            bucket == in_bucket && (key == prefix || is_below && key.starts_with(&prefix))
        }
        (Ok(Reference::Oci(_)), Ok(Reference::Oci(_))) => {
            let name = |text: &str| {
                let text = text.split('@').next().unwrap_or(text);
                let slash = text.rfind('/').unwrap_or(0);
                match text[slash..].find(':') {
                    Some(colon) => text[..slash + colon].to_owned(),
                    None => text.to_owned(),
                }
            };
            name(pinned) == name(written)
        }
        _ => false,
    }
}

/// Whether a model's reference never means anything else.
pub(in crate::drive) fn is_immutable(reference: &str) -> bool {
    match Reference::parse(reference) {
        Ok(Reference::HuggingFace(name)) => name
            .revision
            .is_some_and(|revision| is_full_commit(&revision)),
        Ok(Reference::S3 { version, .. }) => version.is_some(),
        Ok(Reference::Oci(name)) => name.digest().is_some(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_picks_other_files_is_named() {
        let act = StageModel {
            include: vec!["*.gguf".to_owned(), "*.json".to_owned()],
            ..StageModel::default()
        };
        let mut lock = ModelLock {
            include: act.include.clone(),
            exclude: vec!["*.md".to_owned()],
            ..ModelLock::default()
        };
        let told = |lock: &ModelLock| picked_otherwise(&act, lock).map(|words| words.join(" | "));
        assert_eq!(told(&lock).unwrap(), "exclude | (none) | *.md");
        lock.include.pop();
        assert_eq!(told(&lock).unwrap(), "include | *.gguf, *.json | *.gguf");
        lock.quant = Some("Q8_0".to_owned());
        assert_eq!(told(&lock).unwrap(), "quant | (none) | Q8_0");
        lock = ModelLock {
            include: act.include.clone(),
            ..ModelLock::default()
        };
        assert_eq!(told(&lock), None);
    }
}
