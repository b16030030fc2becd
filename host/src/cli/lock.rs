//! `host lock`: everything mutable that a pool file names is asked for once and written down.

use std::{collections::BTreeSet, fmt::Write as _, path::Path, time::Duration};

use serde::Serialize;

use super::{arguments::LockArguments, context::Context, signals};
use crate::{
    config::{
        pools::{Surroundings, load},
        select::file_of,
    },
    drive::{LockUse, Request, lock_command, lock_path},
    fault::{Exit, Failure},
    lock::{self, Document, Drift, LockError, Part, PoolLock, Update, merge},
    narrate::Actor,
    process::quote,
    store::{self, Patience, Store},
};

/// Longest wait for another process that writes a lock file: it reads and writes a small file.
const WRITE_LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn run(context: &Context, arguments: &LockArguments) -> Result<Exit, Failure> {
    let received = signals::cancel_on_signal(context.host.cancel.clone());
    match journey(context, arguments).await {
        Ok(exit) => Ok(exit),
        Err(failure) => received.or(failure),
    }
}

async fn journey(context: &Context, arguments: &LockArguments) -> Result<Exit, Failure> {
    let request = context.lock_request(arguments);
    let path = lock_path(&request);
    let before = lock::read(&path)?;
    let (pools, mut known) = pools(context, &request, &arguments.pools)?;
    let updates = updates(arguments, &pools, before.as_ref())?;
    let mut locked = Vec::new();
    for (pool, update) in updates {
        let mut request = request.clone();
        request.selection.pool = pool;
        request.lock = LockUse::Renew(update.clone());
        let host = &context.host;
        let chosen = host.choose(&request).await?;
        let planned = host.plan(chosen, &request).await?;
        let id = planned.chosen.wanted.pool.id.clone();
        let now = planned.lock(&path, !arguments.check).await?;
        locked.push((id, now, update));
    }
    let _writer = match arguments.check {
        true => None,
        false => Some(writer(context, &path).await?),
    };
    // Another process may have written it meanwhile.
    let before = lock::read(&path)?.unwrap_or_default();
    let mut after = before.clone();
    let without_file = known.is_empty();
    for (id, now, update) in locked {
        let merged = merge(before.pools.get(&id), now, &update);
        known.push(id.clone());
        after.pools.insert(id, merged);
    }
    if arguments.pools.is_empty() && arguments.update.is_none() && !without_file {
        after.pools.retain(|id, _| known.contains(id));
    }
    let mut report = Report::new(&path, &before, &after);
    let mut command = lock_command(&request);
    if arguments.check {
        // Known only where something was fetched.
        report.changes.retain(|change| !change.is_told_later());
        report.changes.extend(edits(&before, &after));
        let pools = after.pools.iter();
        let foreign: Vec<Drift> = pools
            .flat_map(|(id, pool)| lock::incomparable(id, pool))
            .collect();
        if let Some(drift) = foreign.first() {
            // Else it stays what it is.
            command = format!("{command} --update {}", quote(&drift.part));
        }
        report.changes.extend(foreign);
        report.changed = !report.changes.is_empty();
    }
    if arguments.check && report.changed {
        return Err(LockError::Outdated {
            path,
            drifts: report.changes,
            command,
        }
        .into());
    }
    if !arguments.check {
        tell_edits(context, &before, &after);
        lock::tidy(&path)?;
        if after != before || !path.exists() {
            lock::write(&path, &after)?;
        }
    }
    context.show(&report, |out| out.write_all(report.render().as_bytes()))?;
    Ok(Exit::Success)
}

/// Lines that somebody edited and that stay as they are.
fn edits(before: &Document, after: &Document) -> Vec<Drift> {
    let edits = before
        .pools
        .iter()
        .flat_map(|(id, pool)| lock::edits(id, pool));
    let moved: Vec<Drift> = lock::changes(before, after);
    edits
        .filter(|edit| {
            !moved
                .iter()
                .any(|it| (&it.pool, &it.what) == (&edit.pool, &edit.what))
        })
        .collect()
}

fn tell_edits(context: &Context, before: &Document, after: &Document) {
    for edit in edits(before, after) {
        let value = edit.locked.unwrap_or_default();
        let place = format!("{}.{}", edit.pool, edit.what);
        let human = format!(
            "`{place}` was edited since it was locked: it stays {value}; `--update {}` asks for it again",
            edit.part
        );
        let narrator = &context.host.narrator;
        narrator.warn(Actor::EngineProvisioner, "lock", place, human);
    }
}

/// Names of the pools that are meant, those that are wanted checked against the file, and of all that it has:
/// another engine's are none of these, and stay locked. None without a file: the default pool of the provider
/// is meant.
fn pools(
    context: &Context,
    request: &Request,
    wanted: &[String],
) -> Result<(Vec<String>, Vec<String>), Failure> {
    let Some(file) = file_of(&request.selection) else {
        return Ok((Vec::new(), Vec::new()));
    };
    let surroundings = Surroundings::of(&context.host.environment);
    let loaded = load(&file, &surroundings)?;
    let engine = request.selection.provider.as_deref();
    let of_engine = |id: &str| engine.is_none_or(|engine| engine == id);
    let entries = loaded.pools.iter().map(|entry| &entry.pool);
    let meant = entries.clone().filter(|pool| of_engine(&pool.engine));
    let mut ids: Vec<String> = meant.map(|pool| pool.id.clone()).collect();
    // One that is not there is refused where it is chosen.
    ids.extend(
        wanted
            .iter()
            .filter(|id| !ids.contains(id))
            .cloned()
            .collect::<Vec<_>>(),
    );
    Ok((ids, entries.map(|pool| pool.id.clone()).collect()))
}

/// Which pools are locked, and what of them is asked for again. `None`: the provider's default pool.
fn updates(
    arguments: &LockArguments,
    pools: &[String],
    before: Option<&Document>,
) -> Result<Vec<(Option<String>, Update)>, LockError> {
    let all: Vec<Option<String>> = match (pools, arguments.pools.as_slice()) {
        ([], []) => vec![None],
        (_, []) => pools.iter().cloned().map(Some).collect(),
        (_, wanted) => wanted.iter().cloned().map(Some).collect(),
    };
    let Some(names) = &arguments.update else {
        return Ok(all.into_iter().map(|id| (id, Update::default())).collect());
    };
    let everything = Update {
        parts: Part::ALL.into(),
        only_these: false,
    };
    if names.is_empty() {
        return Ok(all.into_iter().map(|id| (id, everything.clone())).collect());
    }
    for name in names {
        let is_it = |id: &Option<String>| parts(name, id.as_deref().unwrap_or("default")).is_some();
        if !all.iter().any(is_it) {
            return Err(unknown(name, &all));
        }
    }
    let named = all.into_iter().filter_map(|id| {
        let shown = id.as_deref().unwrap_or("default");
        let mut chosen = BTreeSet::new();
        names
            .iter()
            .filter_map(|name| parts(name, shown))
            .for_each(|some| chosen.extend(some));
        let is_new = before.is_none_or(|document| !document.pools.contains_key(shown));
        let only_these = chosen.len() < Part::ALL.len() && !is_new;
        let update = Update {
            parts: chosen,
            only_these,
        };
        (!update.parts.is_empty()).then_some((id, update))
    });
    Ok(named.collect())
}

/// What a name of `--update` means for a pool; `None` where it is about another one.
fn parts(name: &str, pool: &str) -> Option<Vec<Part>> {
    if name == pool {
        return Some(Part::ALL.into());
    }
    let word = name.strip_prefix(pool)?.strip_prefix('.')?;
    let part = Part::ALL.into_iter().find(|part| part.as_str() == word)?;
    Some(vec![part])
}

fn unknown(name: &str, pools: &[Option<String>]) -> LockError {
    let names = pools.iter().flat_map(|id| {
        let id = id.as_deref().unwrap_or("default");
        let parts = Part::ALL.map(|part| format!("{id}.{}", part.as_str()));
        std::iter::once(id.to_owned()).chain(parts)
    });
    LockError::NoSuchName {
        name: name.to_owned(),
        known: names.collect(),
    }
}

/// The right to write a lock file, among the processes of this installation.
async fn writer(context: &Context, path: &Path) -> Result<store::Lock, Failure> {
    let host = &context.host;
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = store::hex(&<sha2::Sha256 as sha2::Digest>::digest(
        whole.as_os_str().as_encoded_bytes(),
    ));
    let place = Store::open(&host.home).lock_path(&format!("lockfile-{}", &name[..32]));
    let on_wait = |who: &str| {
        let human = format!("waiting for {who}, which writes the same file");
        let narrator = &host.narrator;
        narrator.say(
            Actor::EngineProvisioner,
            "wait",
            path.to_string_lossy(),
            human,
        );
    };
    let patience = Patience {
        limit: WRITE_LIMIT,
        cancel: &host.cancel,
        on_wait: &on_wait,
    };
    let doing = format!("writing {}", path.display());
    Ok(store::lock(&place, &doing, patience).await?)
}

/// What `host lock --json` prints.
#[derive(Debug, Serialize)]
struct Report {
    schema: u32,
    /// The lock file.
    path: String,
    /// Whether it was changed, or with `--check` would be.
    changed: bool,
    /// Every value that changed.
    changes: Vec<Drift>,
    /// What is locked, as it stands in the file.
    pools: std::collections::BTreeMap<String, PoolLock>,
}

impl Report {
    fn new(path: &Path, before: &Document, after: &Document) -> Self {
        let changes = lock::changes(before, after);
        Self {
            schema: 1,
            path: path.display().to_string(),
            changed: !changes.is_empty(),
            changes,
            pools: after.pools.clone(),
        }
    }

    /// The changes for people: a line for what is new, two values for what moved.
    fn render(&self) -> String {
        let names: Vec<&str> = self.pools.keys().map(String::as_str).collect();
        let mut text = String::new();
        let mut pool = "";
        for change in &self.changes {
            if change.pool != pool {
                pool = &change.pool;
                let _ = writeln!(text, "{pool}");
            }
            let what = &change.what;
            let _ = match (&change.locked, &change.now) {
                (Some(was), Some(now)) => writeln!(text, "  ~ {what}\n      {was}\n    → {now}"),
                (None, Some(now)) => writeln!(text, "  + {what}  {now}"),
                (Some(was), None) => writeln!(text, "  - {what}  {was}"),
                (None, None) => Ok(()),
            };
        }
        let verdict = match self.changed {
            true => match self.changes.len() {
                1 => "1 value written".to_owned(),
                count => format!("{count} values written"),
            },
            false => "nothing to change".to_owned(),
        };
        let _ = writeln!(text, "{}: {verdict}; locks {}", self.path, names.join(", "));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(names: &[&str]) -> Result<Vec<(Option<String>, Update)>, LockError> {
        let arguments = LockArguments {
            update: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..LockArguments::default()
        };
        let mut before = Document::default();
        for id in ["chat", "chat.x", "code"] {
            before.pools.insert(id.to_owned(), PoolLock::default());
        }
        updates(
            &arguments,
            &["chat".to_owned(), "code".to_owned()],
            Some(&before),
        )
    }

    #[test]
    fn an_update_moves_only_what_is_named() {
        let one = update(&["chat.model", "chat.engine"]).unwrap();
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].0.as_deref(), Some("chat"));
        assert!(one[0].1.renews(Part::Model) && !one[0].1.renews(Part::Provider));
        assert!(one[0].1.only_these);
        let whole = update(&["code"]).unwrap();
        assert!(whole[0].1.renews(Part::Provider) && !whole[0].1.only_these);
        assert_eq!(update(&[]).unwrap().len(), 2);
    }

    #[test]
    fn a_name_that_means_nothing_is_refused_with_those_that_do() {
        for name in ["other", "chat.", "chat.modell", "chatmodel"] {
            let error = update(&["code", name]).unwrap_err();
            assert!(
                matches!(&error, LockError::NoSuchName { known, .. } if known.contains(&"code.engine".to_owned())),
                "{name}: {error}"
            );
        }
    }
}
