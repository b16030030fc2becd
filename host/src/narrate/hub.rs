//! Keeps the last events of every pool and job, and lets several follow.
//!
//! Nothing waits for who follows: a slow one misses events, is told how many, and goes on. Memory is
//! bounded: so many events per pool and per job, of those the ones that were told of last, and so many
//! bytes of all together, of which those lose who have most.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use tokio::sync::broadcast::{self, error::RecvError};

use super::{Event, Sink};

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub struct Kept {
    /// Events of one pool, and of one job.
    pub events: usize,
    /// Pools, and jobs.
    pub groups: usize,
    /// Bytes of the events of all pools, and of all jobs; the last event is kept all the same.
    pub bytes: usize,
    /// Events that who follows may be behind, before it misses some.
    pub behind: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            events: 256,
            groups: 256,
            bytes: 2 << 20,
            behind: 1024,
        }
    }
}

/// An event with its number.
#[derive(Debug, Clone)]
pub struct Told {
    /// Counts the events of a hub from 1. A gap means that some were missed or not asked for.
    pub sequence: u64,
    /// What happened.
    pub event: Arc<Event>,
}

/// Which events are asked for. The default: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Of this pool only.
    pub pool: Option<String>,
    /// Of this job only.
    pub job: Option<String>,
}

impl Filter {
    fn wants(&self, event: &Event) -> bool {
        let fits = |wanted: &Option<String>, is: &Option<String>| wanted.is_none() || wanted == is;
        fits(&self.pool, &event.context.pool_id) && fits(&self.job, &event.context.job_id)
    }
}

/// What who follows hears.
#[derive(Debug, Clone)]
pub enum Heard {
    /// Something happened.
    Event(Told),
    /// So many events at least came too fast; which of them were wanted is not known.
    Missed(u64),
}

/// Keeps events and gives them to whoever follows. Cheap to clone; clones are one hub.
#[derive(Debug, Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    kept: Kept,
    memory: Mutex<Memory>,
    live: broadcast::Sender<Told>,
}

#[derive(Debug, Default)]
struct Memory {
    last: u64,
    pools: Groups,
    jobs: Groups,
}

/// The last events of each group; those of nobody under the empty name.
#[derive(Debug, Default)]
struct Groups {
    kept: BTreeMap<String, Group>,
    /// Bytes of all of their events.
    bytes: usize,
    /// Number of the newest event of those groups that were forgotten as a whole.
    forgotten: u64,
}

#[derive(Debug, Default)]
struct Group {
    events: VecDeque<Told>,
    /// Bytes of its events.
    bytes: usize,
    /// Number of the newest event that is no longer kept.
    forgotten: u64,
}

impl Default for Hub {
    fn default() -> Self {
        Self::new(Kept::default())
    }
}

impl Hub {
    /// A hub that keeps so much.
    #[must_use]
    pub fn new(kept: Kept) -> Self {
        Self {
            shared: Arc::new(Shared {
                kept,
                memory: Mutex::default(),
                live: broadcast::channel(kept.behind.max(1)).0,
            }),
        }
    }

    /// What is kept, oldest first.
    #[must_use]
    pub fn recent(&self, filter: &Filter) -> Vec<Told> {
        self.lock().recent(filter)
    }

    /// What is kept beyond the event number `after`, then everything from now on; nothing is missed or
    /// told twice between the two. What came after `after` and is no longer kept is told as missed
    /// first; after 0, nobody asks for it. A number that this hub has not given yet counts as 0.
    #[must_use]
    pub fn follow(&self, filter: Filter, after: u64) -> Follow {
        let memory = self.lock();
        // A number of a daemon before this one.
        let after = if after > memory.last { 0 } else { after };
        let live = self.shared.live.subscribe();
        let mut before: VecDeque<Told> = memory.recent(&filter).into();
        before.retain(|told| told.sequence > after);
        Follow {
            missed: after > 0 && memory.forgotten(&filter) > after,
            before,
            live,
            filter,
        }
    }

    /// The number of the last event; 0 before the first.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.lock().last
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.shared.memory.lock().expect("no holder panics")
    }
}

impl Sink for Hub {
    fn event(&self, event: &Event) {
        let mut memory = self.lock();
        memory.last += 1;
        let told = Told {
            sequence: memory.last,
            event: Arc::new(event.clone()),
        };
        let (kept, context) = (self.shared.kept, &event.context);
        memory.pools.keep(context.pool_id.as_deref(), &told, kept);
        memory.jobs.keep(context.job_id.as_deref(), &told, kept);
        // Under the lock, so that whoever begins to follow misses nothing. Nobody may be following.
        let _ = self.shared.live.send(told);
    }
}

impl Memory {
    fn recent(&self, filter: &Filter) -> Vec<Told> {
        let groups = self.groups(filter).1;
        let mut all: Vec<Told> = groups.flat_map(|it| it.events.iter().cloned()).collect();
        all.retain(|told| filter.wants(&told.event));
        all.sort_by_key(|told| told.sequence);
        all
    }

    /// Number of the newest event that may have been asked for and is no longer kept.
    fn forgotten(&self, filter: &Filter) -> u64 {
        let (all, groups) = self.groups(filter);
        groups.map(|it| it.forgotten).fold(all.forgotten, u64::max)
    }

    /// Where what is asked for is kept, and the groups of it.
    fn groups<'a>(&'a self, filter: &'a Filter) -> (&'a Groups, impl Iterator<Item = &'a Group>) {
        // Every event is kept by its pool; by its job it may be kept for longer.
        let (all, name) = match (&filter.pool, &filter.job) {
            (_, Some(job)) => (&self.jobs, Some(job)),
            (pool, None) => (&self.pools, pool.as_ref()),
        };
        let groups = all.kept.iter();
        let groups = groups.filter(move |(group, _)| name.is_none_or(|name| *group == name));
        (all, groups.map(|(_, group)| group))
    }
}

impl Groups {
    fn keep(&mut self, name: Option<&str>, told: &Told, kept: Kept) {
        let name = name.unwrap_or_default();
        if !self.kept.contains_key(name) && self.kept.len() >= kept.groups.max(1) {
            self.drop_quietest();
        }
        let group = self.kept.entry(name.to_owned()).or_default();
        while group.events.len() >= kept.events.max(1) {
            self.bytes -= group.drop_oldest();
        }
        self.bytes += group.add(told.clone());
        while self.bytes > kept.bytes && (self.kept.len() > 1 || self.kept[name].events.len() > 1) {
            if !self.drop_of_largest() {
                self.drop_quietest();
            }
        }
    }

    /// Forgets the group that was not told of for longest.
    fn drop_quietest(&mut self) {
        let last = |group: &Group| group.events.back().map_or(0, |told| told.sequence);
        let groups = self.kept.iter();
        let quietest = groups.map(|(name, group)| (last(group), name)).min();
        if let Some((last, name)) = quietest.map(|(last, name)| (last, name.clone())) {
            let group = self.kept.remove(&name);
            self.bytes -= group.map_or(0, |group| group.bytes);
            self.forgotten = self.forgotten.max(last);
        }
    }

    /// Forgets the oldest event of the group that takes most, so that who tells much takes nothing from
    /// others; whether there was one to spare.
    fn drop_of_largest(&mut self) -> bool {
        let spare = self.kept.values_mut().filter(|it| it.events.len() > 1);
        let largest = spare.max_by_key(|group| group.bytes);
        let dropped = largest.map(Group::drop_oldest);
        self.bytes -= dropped.unwrap_or(0);
        dropped.is_some()
    }
}

impl Group {
    /// Takes in an event; its bytes.
    fn add(&mut self, told: Told) -> usize {
        let bytes = told.event.bytes();
        self.bytes += bytes;
        self.events.push_back(told);
        bytes
    }

    /// Forgets the oldest event; its bytes.
    fn drop_oldest(&mut self) -> usize {
        let Some(oldest) = self.events.pop_front() else {
            return 0;
        };
        let bytes = oldest.event.bytes();
        self.bytes -= bytes;
        self.forgotten = oldest.sequence;
        bytes
    }
}

/// Hears events, first those that were kept.
#[derive(Debug)]
pub struct Follow {
    /// Something that was asked for is no longer kept; how much is not known.
    missed: bool,
    before: VecDeque<Told>,
    live: broadcast::Receiver<Told>,
    filter: Filter,
}

impl Follow {
    /// Waits for the next; `None` once the hub is gone. May be dropped while it waits: nothing is lost.
    pub async fn next(&mut self) -> Option<Heard> {
        if std::mem::take(&mut self.missed) {
            return Some(Heard::Missed(1));
        }
        if let Some(told) = self.before.pop_front() {
            return Some(Heard::Event(told));
        }
        loop {
            match self.live.recv().await {
                Ok(told) if self.filter.wants(&told.event) => return Some(Heard::Event(told)),
                Ok(_) => {}
                Err(RecvError::Lagged(missed)) => return Some(Heard::Missed(missed)),
                Err(RecvError::Closed) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
