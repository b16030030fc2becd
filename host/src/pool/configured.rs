//! A pool as the pool file has it, and what differs between two readings of the file.

use std::collections::BTreeMap;

use super::{ConfigChanges, Supervision};
use crate::{
    config::{pools::PoolEntry, select::DEFAULT_POOL},
    policy::Layer,
};

/// A pool as the pool file has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Configured {
    /// Pool.
    pub(super) id: String,
    /// Engine family.
    pub(super) engine: String,
    /// Whether it is started without demand.
    pub(super) preload: bool,
    /// How it is kept up.
    pub(super) supervision: Supervision,
    replicas: u32,
    /// Everything about its engines, for comparison.
    whole: engine_provider_api::Pool,
    /// What it asks of policy, wherever that is written.
    requests: Vec<Layer>,
}

impl Configured {
    /// The default pool of an engine's provider, which stands in no file: what it is beyond its name is
    /// asked of the provider when it is started.
    pub(super) fn of_default(engine: &str) -> Self {
        let whole = engine_provider_api::Pool::new(DEFAULT_POOL, engine);
        Self {
            id: whole.id.clone(),
            engine: whole.engine.clone(),
            preload: true,
            supervision: Supervision::default(),
            replicas: 1,
            whole,
            requests: Vec::new(),
        }
    }

    /// Names of its replicas.
    pub(super) fn replica_names(&self) -> Vec<String> {
        (0..self.replicas)
            .map(|number| format!("r{number}"))
            .collect()
    }
}

impl From<PoolEntry> for Configured {
    fn from(entry: PoolEntry) -> Self {
        Self {
            id: entry.pool.id.clone(),
            engine: entry.pool.engine.clone(),
            preload: entry.pool.preload,
            supervision: entry.supervision,
            replicas: entry.pool.replicas,
            whole: entry.pool,
            requests: entry
                .requests
                .into_iter()
                .map(Layer::without_places)
                .collect(),
        }
    }
}

/// What differs.
pub(super) fn changes_between(
    old: &BTreeMap<&String, &Configured>,
    new: &BTreeMap<String, Configured>,
) -> ConfigChanges {
    let absent = |name: &&&String| !new.contains_key(**name);
    let added = |name: &&String| !old.contains_key(name);
    let differs =
        |(name, pool): &(&String, &Configured)| old.get(name).is_some_and(|before| before != pool);
    ConfigChanges {
        added: new.keys().filter(added).cloned().collect(),
        removed: old
            .keys()
            .filter(absent)
            .map(|name| (*name).clone())
            .collect(),
        changed: new
            .iter()
            .filter(differs)
            .map(|(name, _)| name.clone())
            .collect(),
        ..ConfigChanges::default()
    }
}

/// Pools that are wanted up by the new reading, and were not by the old one: whoever has taken one down
/// that was, has done so on purpose.
pub(super) fn called_for(
    old: &BTreeMap<&String, &Configured>,
    new: &BTreeMap<String, Configured>,
) -> Vec<String> {
    let before = |name: &String| old.get(name).is_some_and(|it| it.preload);
    let called = new.iter().filter(|(name, it)| it.preload && !before(name));
    called.map(|(name, _)| name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{
        document::Source,
        pools::{Surroundings, read},
        syntax::Base,
    };

    const FILE: &str = r"
policy:
  allow_package_installs: true
pools:
  - id: chat
    engine: toy
    gpu: prefer
  - id: code
    engine: toy
    gpu: forbid
";

    fn pools(text: &str) -> BTreeMap<String, Configured> {
        let source = Source::new(std::path::Path::new("pools.yaml"), text.to_owned());
        let caller = Surroundings::default().caller;
        let loaded = read(&source, &Base::default(), &caller).unwrap();
        let pools = loaded.pools.into_iter().map(Configured::from);
        pools.map(|pool| (pool.id.clone(), pool)).collect()
    }

    fn changes(old: &str, new: &str) -> ConfigChanges {
        let old = pools(old);
        changes_between(&old.iter().collect(), &pools(new))
    }

    #[test]
    fn what_moved_in_the_file_has_not_changed() {
        let moved = format!("# A line more.\n\n{FILE}");
        assert_eq!(changes(FILE, &moved), ConfigChanges::default());
    }

    #[test]
    fn pools_are_called_for_once_they_are_to_run_without_demand() {
        let resting = FILE.replace("gpu: forbid", "preload: false");
        let (all, one) = (pools(FILE), pools(&resting));
        assert_eq!(called_for(&BTreeMap::new(), &one), ["chat"]);
        assert_eq!(called_for(&one.iter().collect(), &all), ["code"]);
        assert_eq!(called_for(&all.iter().collect(), &one), [""; 0]);
    }

    #[test]
    fn what_a_file_says_of_policy_is_a_change_of_the_pools_that_it_is_about() {
        let own = FILE.replace("forbid", "require");
        assert_eq!(changes(FILE, &own).changed, ["code"]);
        let shared = FILE.replace("installs: true", "installs: false");
        assert_eq!(changes(FILE, &shared).changed, ["chat", "code"]);
    }
}
