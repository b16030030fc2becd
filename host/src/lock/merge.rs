//! What a new lock takes over from the one before.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Part, PoolLock, ProviderLock, StepLock,
    document::ModelLock,
    is_known_digest,
    seal::{seal_engine, seal_model, seal_provider},
};

/// What is locked anew.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Update {
    /// Parts whose mutable references are asked for again.
    pub parts: BTreeSet<Part>,
    /// Whether all else stays as it is, even where pool file or provider have changed.
    pub only_these: bool,
}

impl Update {
    /// Whether the references of this part are asked for again.
    #[must_use]
    pub fn renews(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }

    /// Whether this part is written as it is now.
    fn writes(&self, part: Part) -> bool {
        !self.only_these || self.renews(part)
    }
}

/// A pool's lock from what it is now and what was locked before: other modes, other machines and what
/// this version does not know survive. What is written is sealed, with whatever was edited in it.
#[must_use]
pub fn merge(before: Option<&PoolLock>, now: PoolLock, update: &Update) -> PoolLock {
    let modes: Vec<String> = now.engine.keys().cloned().collect();
    let is_new = before.is_none();
    let mut merged = match before {
        Some(before) => merge_pool(before, now, update),
        None => now,
    };
    if is_new || update.writes(Part::Engine) {
        modes.iter().for_each(|mode| seal_engine(&mut merged, mode));
    }
    if is_new || update.writes(Part::Model) {
        seal_model(&mut merged);
    }
    if is_new || update.writes(Part::Provider) {
        seal_provider(&mut merged);
    }
    merged
}

fn merge_pool(before: &PoolLock, now: PoolLock, update: &Update) -> PoolLock {
    let mut merged = before.clone();
    // A provider of another version decides anew: what it decided for other machines is not known.
    let same = before.provider.name == now.provider.name
        && before.provider.version == now.provider.version;
    let kept = |part| match (same, update.renews(part)) {
        (false, _) => Kept::Nothing,
        (true, true) => Kept::Others,
        (true, false) => Kept::OthersAndForeign,
    };
    if update.writes(Part::Engine) {
        for (mode, steps) in now.engine {
            let old = merged.engine.remove(&mode).unwrap_or_default();
            merged
                .engine
                .insert(mode, merge_steps(old, steps, kept(Part::Engine)));
        }
    }
    if update.writes(Part::Model) {
        let keep = !update.renews(Part::Model);
        merged.model = now
            .model
            .map(|model| merge_model(before.model.as_ref(), model, keep));
    }
    if update.writes(Part::Provider) {
        merged.provider = merge_provider(&before.provider, now.provider, kept(Part::Provider));
    }
    merged
}

/// What stays of values that depend on the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kept {
    /// Nothing: all of it was decided anew.
    Nothing,
    /// What other machines have.
    Others,
    /// That, and digests of this machine that cannot be computed here: they cannot be replaced by ones that
    /// say the same.
    OthersAndForeign,
}

fn merge_provider(before: &ProviderLock, mut now: ProviderLock, kept: Kept) -> ProviderLock {
    absorb(&mut now.targets, &before.targets, kept);
    now.rest = before.rest.clone();
    now
}

fn merge_steps(
    mut before: BTreeMap<String, StepLock>,
    now: BTreeMap<String, StepLock>,
    kept: Kept,
) -> BTreeMap<String, StepLock> {
    let merged = now.into_iter().map(|(id, mut step)| {
        if let Some(old) = before.remove(&id) {
            absorb(&mut step.commands, &old.commands, kept);
            absorb(&mut step.downloads, &old.downloads, kept);
            if kept != Kept::Nothing {
                absorb_all(&mut step.images, &old.images);
                absorb_all(&mut step.packages, &old.packages);
            }
            if step.commit == old.commit && step.tree.is_none() {
                step.tree.clone_from(&old.tree);
            }
            step.rest = old.rest;
        }
        (id, step)
    });
    merged.collect()
}

fn merge_model(before: Option<&ModelLock>, mut now: ModelLock, keep: bool) -> ModelLock {
    let Some(before) = before else {
        return now;
    };
    if now.reference != before.reference || now.quant != before.quant {
        return now;
    }
    now.rest.clone_from(&before.rest);
    let kept = |digest: &Option<String>| {
        let foreign = digest.as_ref().is_some_and(|text| !is_known_digest(text));
        digest.clone().filter(|_| keep && foreign)
    };
    // A digest that cannot be computed here cannot be replaced by one that says the same.
    if let Some(digest) = kept(&before.digest) {
        now.digest = Some(digest);
    }
    for (name, file) in &mut now.files {
        if let Some(old) = before.files.get(name) {
            file.rest.clone_from(&old.rest);
            if let Some(digest) = kept(&old.digest) {
                file.digest = Some(digest);
            }
        }
    }
    now
}

/// Takes over digests that stay.
fn absorb(now: &mut BTreeMap<String, String>, before: &BTreeMap<String, String>, kept: Kept) {
    for (name, value) in before {
        let stays = match now.contains_key(name) {
            true => kept == Kept::OthersAndForeign && !is_known_digest(value),
            false => kept != Kept::Nothing,
        };
        if stays {
            now.insert(name.clone(), value.clone());
        }
    }
}

/// Takes over what other machines have.
fn absorb_all(
    now: &mut BTreeMap<String, BTreeMap<String, String>>,
    before: &BTreeMap<String, BTreeMap<String, String>>,
) {
    for (name, values) in before {
        let now = now.entry(name.clone()).or_default();
        for (name, value) in values {
            now.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }
}
