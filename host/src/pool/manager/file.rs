//! What a manager takes from the pool file, at its start and again.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

use super::{PoolManager, at_rest};
use crate::{
    config::{
        pools::{Loaded, Surroundings},
        problem::ConfigError,
        select::{Selection, file_of},
    },
    drive::{Host, Request},
    fault::Failure,
    narrate::Actor,
    pool::{
        Code, LastError, PoolError, Want,
        configured::{Configured, called_for, changes_between},
        telling::Wanted,
    },
};

/// Longest time for which what has changed in a file waits for what is no longer in it.
const REMOVAL_LIMIT: Duration = Duration::from_secs(15);

/// What came of a reload.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct ConfigChanges {
    /// Pools that are new in the file.
    pub added: Vec<String>,
    /// Pools that are no longer in it; they are stopped.
    pub removed: Vec<String>,
    /// Pools that it says something else about; those that run are reloaded.
    pub changed: Vec<String>,
    /// Whether its `notify` says something else.
    #[serde(default)]
    pub notify: bool,
    /// Pools for which it could not be carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<NotApplied>,
}

/// A pool for which the pool file could not be carried out.
#[derive(
    Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
)]
pub struct NotApplied {
    /// Pool.
    pub pool_id: String,
    /// What to act on.
    pub code: Code,
    /// Why, and what serves now.
    pub error: LastError,
}

/// What a manager takes from the pool file.
pub(super) struct File {
    /// Pools by name.
    pub(super) pools: BTreeMap<String, Configured>,
    /// Whom to tell of handoffs.
    pub(super) wanted: Option<Wanted>,
}

impl File {
    /// Reads it.
    pub(super) fn read(host: &Host, request: &Request) -> Result<Self, PoolError> {
        let (pools, loaded) = pools_of(host, request).map_err(|error| PoolError::Config {
            source: Failure::from(error).into(),
        })?;
        let wanted = match &loaded {
            Some(loaded) => Wanted::of(loaded, host, request),
            None => Ok(None),
        };
        let wanted = wanted.map_err(|error| PoolError::Notify {
            source: error.into(),
        })?;
        let named = pools.into_iter().map(|pool| (pool.id.clone(), pool));
        Ok(Self {
            pools: named.collect(),
            wanted,
        })
    }
}

/// The pools of the pool file. Where there is none it is as if it had one: the default pool of the
/// provider that the command line names.
pub(super) fn pools_of(
    host: &Host,
    request: &Request,
) -> Result<(Vec<Configured>, Option<Arc<Loaded>>), ConfigError> {
    let selection = &request.selection;
    let Some(path) = file_of(selection) else {
        let engine = selection.provider.as_deref();
        let engine = engine.ok_or(ConfigError::NothingGiven)?;
        return Ok((vec![Configured::of_default(engine)], None));
    };
    let surroundings = Surroundings::of(&host.environment);
    let whole = selection.directory.join(&path);
    let loaded = host.pool_files.load(&whole, &surroundings)?;
    let pools = loaded.pools.iter().cloned().map(Configured::from).collect();
    Ok((of_engine(pools, selection, &path)?, Some(loaded)))
}

/// Those of the engine that the command line names, if it names one.
fn of_engine(
    pools: Vec<Configured>,
    selection: &Selection,
    path: &Path,
) -> Result<Vec<Configured>, ConfigError> {
    let Some(engine) = &selection.provider else {
        return Ok(pools);
    };
    let known: BTreeSet<String> = pools.iter().map(|pool| pool.engine.clone()).collect();
    if !known.contains(engine) {
        return Err(ConfigError::NoPoolOfEngine {
            path: path.to_owned(),
            engine: engine.clone(),
            known: known.into_iter().collect(),
        });
    }
    let of_it = pools.into_iter().filter(|pool| pool.engine == *engine);
    Ok(of_it.collect())
}

impl PoolManager {
    /// Reads the pool file again and applies what differs, nothing else. A file that does not hold
    /// changes nothing.
    pub async fn reload_config(&self) -> Result<ConfigChanges, PoolError> {
        let manager = self.clone();
        // A task of its own: half a file is not applied because nobody waits any more.
        let applying = self.inner.tasks.spawn(async move { manager.apply().await });
        applying.await.expect("nobody cancels it")
    }

    async fn apply(&self) -> Result<ConfigChanges, PoolError> {
        let inner = &self.inner;
        let (mut changes, called) = self.make_known().await?;
        self.stop_removed(&changes.removed).await;
        let runs = |pool: &&String| {
            let status = inner.registry.status(pool);
            status.is_ok_and(|it| it.want == Want::Up || !at_rest(&it))
        };
        let reloads: Vec<&String> = changes.changed.iter().filter(runs).collect();
        let ups = called.iter().filter(|pool| !reloads.contains(pool));
        let ups = ups.map(|pool| async move { (pool, self.up(pool).await) });
        let reloads = reloads.iter();
        let reloads = reloads.map(|&pool| async move { (pool, self.reload(pool).await) });
        let (reloaded, up) = futures_util::future::join(
            futures_util::future::join_all(reloads),
            futures_util::future::join_all(ups),
        )
        .await;
        let done = reloaded.into_iter().chain(up);
        let failed = done.filter_map(|(pool, done)| Some((pool, done.err()?)));
        changes.failed = failed
            .map(|(pool, error)| self.not_applied(pool, &error))
            .collect();
        Ok(changes)
    }

    /// Stops pools that are in the file no longer. What they have is free for others as a rule when this
    /// returns; one that has leases for longer than that drains on.
    async fn stop_removed(&self, removed: &[String]) {
        let stops = removed.iter().map(|pool| {
            let (manager, pool) = (self.clone(), pool.clone());
            self.inner.tasks.spawn(async move {
                let _ = manager.drain(&pool, None).await;
                manager.inner.forget(&pool);
            })
        });
        let all = futures_util::future::join_all(stops);
        let _ = tokio::time::timeout(REMOVAL_LIMIT, all).await;
    }

    fn not_applied(&self, pool: &str, error: &PoolError) -> NotApplied {
        let secrets = self.inner.host.narrator.secrets();
        NotApplied {
            pool_id: pool.to_owned(),
            code: error.code(),
            error: LastError::of(error).masked(secrets),
        }
    }

    /// Reads the pool file, and makes known what it says now; with the pools that it wants up from now on.
    /// Whoever reads it a second time meanwhile compares with what this one has left.
    async fn make_known(&self) -> Result<(ConfigChanges, Vec<String>), PoolError> {
        let inner = &self.inner;
        let _one_at_a_time = inner.reading.lock().await;
        let (host, request) = (inner.host.clone(), inner.request.clone());
        let reading = tokio::task::spawn_blocking(move || File::read(&host, &request));
        let File {
            pools: fresh,
            wanted,
        } = reading.await.expect("reading does not panic")?;
        let (mut changes, called) = {
            let pools = inner.pools();
            let old = pools.iter().filter(|(_, it)| !it.is_leaving);
            let old = old.map(|(name, it)| (name, &it.configured)).collect();
            (changes_between(&old, &fresh), called_for(&old, &fresh))
        };
        changes.notify = inner.tell(wanted);
        changes.removed.iter().for_each(|pool| inner.let_go(pool));
        for (name, configured) in fresh {
            // One that came back before it had stopped is known.
            let is_new = changes.added.contains(&name);
            if (is_new || changes.changed.contains(&name)) && !inner.configure(&configured) {
                inner.add(configured);
            }
        }
        let human = format!(
            "pool file read again: {} added, {} removed, {} changed{}",
            changes.added.len(),
            changes.removed.len(),
            changes.changed.len(),
            if changes.notify { ", `notify` too" } else { "" }
        );
        let narrator = &inner.host.narrator;
        narrator.say(Actor::PoolManager, "reload", "pool file", human);
        Ok((changes, called))
    }
}
