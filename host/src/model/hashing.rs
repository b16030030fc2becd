//! Hashing and copying that takes long: shown while it lasts, and ended when its run is.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::shown_name;
use crate::{
    narrate::{Narrator, Progress, Unit},
    store::Watch,
};

/// Time between two reports, and before the first: what is over by then needs none.
const INTERVAL: Duration = Duration::from_millis(100);

/// Letters of a file's name that are shown.
const SHOWN: usize = 16;

/// Tells how far the reading of a model's files is.
pub(super) struct Hashing {
    narrator: Narrator,
    cancel: CancellationToken,
    /// Files that are being read: when one was last told of, and whether it ever was.
    reading: Mutex<HashMap<PathBuf, (Instant, bool)>>,
}

impl Hashing {
    pub(super) fn new(narrator: &Narrator, cancel: &CancellationToken) -> Self {
        Self {
            narrator: narrator.clone(),
            cancel: cancel.clone(),
            reading: Mutex::default(),
        }
    }

    fn tell(&self, path: &Path, done: u64, total: u64, finished: bool) {
        let name = shown_name(path).chars().take(SHOWN).collect();
        self.narrator.progress(&Progress {
            task: name,
            done,
            total: Some(total),
            unit: Unit::Bytes,
            finished,
        });
    }
}

impl Watch for Hashing {
    fn goes_on(&self, path: &Path, read_bytes: u64, total_bytes: u64) -> bool {
        let goes_on = !self.cancel.is_cancelled();
        let is_over = !goes_on || read_bytes == total_bytes;
        let mut reading = self.reading.lock().expect("no holder panics");
        if is_over {
            let was_told = reading.remove(path).is_some_and(|(_, told)| told);
            drop(reading);
            if was_told {
                self.tell(path, read_bytes, total_bytes, true);
            }
            return goes_on;
        }
        let now = Instant::now();
        let last = reading.entry(path.to_owned()).or_insert((now, false));
        if now.duration_since(last.0) >= INTERVAL {
            *last = (now, true);
            drop(reading);
            self.tell(path, read_bytes, total_bytes, false);
        }
        goes_on
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::store::{Store, StoreError};

    #[test]
    fn a_file_that_is_hashed_is_left_as_soon_as_the_run_ends() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("m.gguf");
        fs::write(&file, vec![0; 1 << 20]).unwrap();
        let (narrator, _) = Narrator::capture();
        let cancel = CancellationToken::new();
        let hashing = std::sync::Arc::new(Hashing::new(&narrator, &cancel));
        let store = Store::at(home.path().join("store")).watched(hashing.clone());
        store.witness_again(&file).unwrap();
        assert!(hashing.reading.lock().unwrap().is_empty());
        cancel.cancel();
        let error = store.witness_again(&file).unwrap_err();
        assert!(matches!(error, StoreError::Cancelled { .. }), "{error}");
        assert!(hashing.reading.lock().unwrap().is_empty());
    }
}
