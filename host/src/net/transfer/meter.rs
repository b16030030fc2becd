//! How far a transfer is, told now and then.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::narrate::{Narrator, Progress, Unit};

/// Time between two reports: what is drawn changes no more often.
const INTERVAL: Duration = Duration::from_millis(50);

/// Counts what arrives over all connections.
pub(super) struct Meter<'a> {
    task: &'a str,
    narrator: &'a Narrator,
    done: AtomicU64,
    received: AtomicU64,
    /// Zero where it is not known.
    total: AtomicU64,
    told: Mutex<Option<Instant>>,
}

impl<'a> Meter<'a> {
    pub(super) fn new(task: &'a str, total: Option<u64>, narrator: &'a Narrator) -> Self {
        Self {
            task,
            narrator,
            done: AtomicU64::new(0),
            received: AtomicU64::new(0),
            total: AtomicU64::new(total.unwrap_or(0)),
            told: Mutex::new(None),
        }
    }

    /// So much is there to begin with.
    pub(super) fn start_at(&self, bytes: u64) {
        self.done.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.done.fetch_add(bytes, Ordering::Relaxed);
        self.received.fetch_add(bytes, Ordering::Relaxed);
        let mut told = self.told.lock().expect("no holder panics");
        if told.is_none_or(|told| told.elapsed() >= INTERVAL) {
            *told = Some(Instant::now());
            drop(told);
            self.tell(false);
        }
    }

    /// What came over the network, whatever became of it.
    pub(super) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn tell(&self, finished: bool) {
        let total = self.total.load(Ordering::Relaxed);
        self.narrator.progress(&Progress {
            task: self.task.to_owned(),
            done: self.done.load(Ordering::Relaxed),
            total: (total > 0).then_some(total),
            unit: Unit::Bytes,
            finished,
        });
    }
}

impl Drop for Meter<'_> {
    fn drop(&mut self) {
        self.tell(true);
    }
}
