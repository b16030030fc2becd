//! Whether a line of the lock file was edited since it was written.
//!
//! What a branch, tag or model was when it was locked, nobody but its source can confirm, and a source
//! says what it is *now*. So every table of a pool carries check digits of its own lines: a pin that was
//! edited, or a merge that went wrong, is named without asking anybody. Who edits on purpose can compute
//! them as well: they guard against accidents, and the review against the rest.
//!
//! A seal is a set of words, one for each line of the table: the first digits of the SHA-256 of its path
//! and value. A file without seals is taken as it is.

use std::collections::BTreeSet;

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use toml::Table;

use super::{
    Drift, PoolLock,
    drift::{Leaves, leaves_of},
};
use crate::store::hex;

/// Name of the line with the check digits of its table.
const NAME: &str = "seal";

/// Digits of a word: an accident goes unnoticed once in sixteen million times.
const DIGITS: usize = 6;

/// Every line of a pool's tables that is not as it was written.
#[must_use]
pub fn edits(id: &str, pool: &PoolLock) -> Vec<Drift> {
    let provider = (
        path(&["provider"]),
        &pool.provider.seal,
        table(&pool.provider),
    );
    let model = pool.model.as_ref();
    let model = model.map(|model| (path(&["model"]), &model.seal, table(model)));
    let steps = pool.engine.iter().flat_map(|(mode, steps)| {
        steps
            .iter()
            .map(move |(step, lock)| (path(&["engine", mode, step]), &lock.seal, table(lock)))
    });
    let tables = std::iter::once(provider).chain(model).chain(steps);
    let mut all: Vec<Drift> = tables
        .filter_map(|(at, seal, table)| Some(edits_of(id, &at, seal.as_ref()?, &table)))
        .flatten()
        .collect();
    all.sort_by(|one, other| one.what.cmp(&other.what));
    all
}

/// Writes the seals of the provider.
pub(super) fn seal_provider(pool: &mut PoolLock) {
    pool.provider.seal = Some(seal(&path(&["provider"]), &table(&pool.provider)));
}

/// Writes the seals of what brings the engine in a mode.
pub(super) fn seal_engine(pool: &mut PoolLock, mode: &str) {
    for (step, lock) in pool.engine.get_mut(mode).into_iter().flatten() {
        lock.seal = Some(seal(&path(&["engine", mode, step]), &table(lock)));
    }
}

/// Writes the seal of the model.
pub(super) fn seal_model(pool: &mut PoolLock) {
    if let Some(model) = &mut pool.model {
        model.seal = Some(seal(&path(&["model"]), &table(model)));
    }
}

/// Whether this is the path of a line with check digits.
pub(super) fn is_seal(path: &[String]) -> bool {
    let depth = match path.first().map(String::as_str) {
        Some("engine") => 4,
        _ => 2,
    };
    path.len() == depth && path.last().is_some_and(|name| name == NAME)
}

fn path(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// The lines of a table, but for its seal.
fn table(lock: &impl Serialize) -> Leaves {
    let mut table = Table::try_from(lock).expect("a lock is plain data");
    table.remove(NAME);
    leaves_of(&table)
}

fn seal(at: &[String], lines: &Leaves) -> String {
    let words: BTreeSet<String> = lines
        .iter()
        .map(|(line, value)| word(at, line, value))
        .collect();
    words.into_iter().collect::<Vec<_>>().join(" ")
}

fn word(at: &[String], line: &[String], value: &str) -> String {
    let mut hash = Sha256::new();
    for part in at.iter().chain(line).map(String::as_str).chain([value]) {
        // Lengths before texts: no two lines are the same bytes.
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())[..DIGITS].to_owned()
}

fn edits_of(id: &str, at: &[String], seal: &str, lines: &Leaves) -> Vec<Drift> {
    let sealed: BTreeSet<&str> = seal.split_whitespace().collect();
    let drift = |line: &[String], locked: &str, now: &str| Drift {
        pool: id.to_owned(),
        part: format!("{id}.{}", at[0]),
        what: [at, line].concat().join("."),
        locked: Some(locked.to_owned()),
        now: Some(now.to_owned()),
    };
    let (kept, edited): (Vec<_>, Vec<_>) = lines
        .iter()
        .partition(|(line, value)| sealed.contains(&*word(at, line, value)));
    let own = || path(&[NAME]);
    if kept.is_empty() && !lines.is_empty() {
        return vec![drift(&own(), seal, "these are not the digits of its table")];
    }
    let gone = sealed.len().saturating_sub(kept.len());
    let all = edited.iter().map(|(line, value)| {
        drift(
            line,
            value,
            "this line was edited: it is not what was locked",
        )
    });
    let mut all: Vec<Drift> = all.collect();
    if gone > edited.len() {
        all.push(drift(&own(), seal, "a line of its table is gone"));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::lock::{ModelLock, ProviderLock, StepLock, document::FileLock};

    fn sealed() -> PoolLock {
        let image = BTreeMap::from([
            ("linux/amd64".to_owned(), "sha256:aa".to_owned()),
            ("linux/arm64".to_owned(), "sha256:bb".to_owned()),
        ]);
        let step = StepLock {
            kind: "pull-image".to_owned(),
            images: BTreeMap::from([("x/y:z".to_owned(), image)]),
            ..StepLock::default()
        };
        let file = FileLock {
            digest: Some("sha256:dd".to_owned()),
            ..FileLock::default()
        };
        let mut pool = PoolLock {
            provider: ProviderLock {
                name: "x".to_owned(),
                ..ProviderLock::default()
            },
            engine: BTreeMap::from([(
                "container".to_owned(),
                BTreeMap::from([("image".to_owned(), step)]),
            )]),
            model: Some(ModelLock {
                reference: "hf:a/b".to_owned(),
                revision: Some("r".to_owned()),
                files: BTreeMap::from([("a.gguf".to_owned(), file)]),
                ..ModelLock::default()
            }),
            ..PoolLock::default()
        };
        seal_provider(&mut pool);
        seal_engine(&mut pool, "container");
        seal_model(&mut pool);
        pool
    }

    fn named(pool: &PoolLock) -> Vec<String> {
        edits("chat", pool).into_iter().map(|it| it.what).collect()
    }

    #[test]
    fn a_line_that_was_edited_is_named_and_no_other() {
        let pool = sealed();
        assert_eq!(named(&pool), Vec::<String>::new());
        let mut edited = pool.clone();
        let step = edited.engine.get_mut("container").unwrap();
        let images = &mut step.get_mut("image").unwrap().images;
        let image = images.get_mut("x/y:z").unwrap();
        image.insert("linux/arm64".to_owned(), "sha256:cc".to_owned());
        edited.model.as_mut().unwrap().revision = Some("s".to_owned());
        let files = &mut edited.model.as_mut().unwrap().files;
        files.get_mut("a.gguf").unwrap().digest = Some("sha256:ee".to_owned());
        assert_eq!(
            named(&edited),
            [
                "engine.container.image.images.x/y:z.linux/arm64",
                "model.files.a.gguf.digest",
                "model.revision"
            ]
        );
        assert_eq!(edits("chat", &edited)[0].part, "chat.engine");
    }

    #[test]
    fn lines_that_are_added_or_gone_and_seals_that_are_edited_are_named() {
        let mut pool = sealed();
        let model = pool.model.as_mut().unwrap();
        model.digest = Some("sha256:ff".to_owned());
        assert_eq!(named(&pool), ["model.digest"]);
        let model = pool.model.as_mut().unwrap();
        (model.digest, model.revision) = (None, None);
        assert_eq!(named(&pool), ["model.seal"]);
        pool.model.as_mut().unwrap().seal = Some("edited".to_owned());
        assert_eq!(named(&pool), ["model.seal"]);
        pool.model.as_mut().unwrap().seal = None;
        assert_eq!(named(&pool), Vec::<String>::new());
    }

    #[test]
    fn lines_of_a_later_version_are_sealed_as_well() {
        let mut pool = sealed();
        let model = pool.model.as_mut().unwrap();
        model.rest.insert("later".to_owned(), "x".into());
        seal_model(&mut pool);
        assert_eq!(named(&pool), Vec::<String>::new());
        let model = pool.model.as_mut().unwrap();
        model.rest.insert("later".to_owned(), "y".into());
        assert_eq!(named(&pool), ["model.later"]);
    }
}
