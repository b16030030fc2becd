//! What one run knows of models: what their sources said, and which of them it uses.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use engine_provider_api::ModelFacts;

use super::{names::Key, source::Resolved};
use crate::store::{Lock, Use, Uses};

/// What sources said of models during this run, so that what a plan showed is what is fetched, and the
/// models that this run keeps from being removed until it ends. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Models(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    resolved: BTreeMap<Key, Resolved>,
    facts: BTreeMap<Key, ModelFacts>,
    /// By id of the model.
    held: BTreeMap<String, Arc<Use>>,
}

impl Models {
    pub(super) fn said(&self, key: &Key) -> Option<Resolved> {
        self.lock().resolved.get(key).cloned()
    }

    pub(super) fn remember(&self, key: &Key, resolved: &Resolved) {
        self.lock().resolved.insert(key.clone(), resolved.clone());
    }

    /// What a model that is not here says that it is.
    pub(super) fn facts(&self, key: &Key) -> Option<ModelFacts> {
        self.lock().facts.get(key).cloned()
    }

    pub(super) fn learn(&self, key: &Key, facts: ModelFacts) {
        self.lock().facts.insert(key.clone(), facts);
    }

    pub(super) fn keep(&self, id: &str, lock: Lock) {
        let held = Arc::new(Use::of(lock));
        self.lock().held.insert(id.to_owned(), held);
    }

    /// The models that this run uses.
    #[must_use]
    pub fn uses(&self) -> Uses {
        Uses::all(self.lock().held.values().cloned())
    }

    /// Everything that was resolved during this run, for a lock file.
    #[must_use]
    pub fn resolved(&self) -> Vec<Resolved> {
        self.lock().resolved.values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().expect("no holder panics")
    }
}
