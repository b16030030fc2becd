//! The guard of a reservation: who has it has the place.

use engine_provider_api::{Device, Facts};

use super::{Placement, Reservations, ReserveError, Share, book::Entry, choose};
use crate::process::ProcessIdentity;

/// The place of one replica. Dropped, it is free for others.
#[derive(Debug)]
pub struct Reserved {
    reservations: Reservations,
    /// `None`: it was given back or left to the engine.
    entry: Option<Entry>,
}

impl Reserved {
    pub(super) fn new(reservations: &Reservations, entry: Entry) -> Self {
        let guard = Self {
            reservations: reservations.clone(),
            entry: Some(entry),
        };
        guard.remember();
        guard
    }

    /// The GPUs, for [`crate::config::Overlay::devices`]; empty where it uses none.
    #[must_use]
    pub fn devices(&self) -> Vec<Device> {
        let ids = self.shares().iter().map(|share| share.uuid.clone());
        ids.map(Device::Uuid).collect()
    }

    /// How much of which GPU.
    #[must_use]
    pub fn shares(&self) -> &[Share] {
        self.entry.as_ref().map_or(&[], |entry| &entry.devices)
    }

    /// Whether a replica may keep its GPUs, as its pool and the machine are now.
    pub(in crate::pool) fn may_stay(&self, want: &Placement<'_>, facts: &Facts) -> bool {
        !self.shares().is_empty() && choose::may_stay(want, self.shares(), &facts.gpus)
    }

    /// Device memory over all its GPUs, in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.shares().iter().map(|share| share.bytes).sum()
    }

    /// Says what the replica takes, once it is prepared for exactly these GPUs. Where that is more than
    /// they have room for it is refused, and what was reserved before stays so.
    pub async fn settle(
        &mut self,
        want: &Placement<'_>,
        facts: &Facts,
    ) -> Result<(), ReserveError> {
        let Some(entry) = self.entry.clone().filter(|it| !it.devices.is_empty()) else {
            return Ok(());
        };
        let changed = self
            .reservations
            .change(|book| {
                let others: Vec<Entry> = book.others(&entry.id);
                let devices = choose::choose_on(want, &entry, &facts.gpus, &others)?;
                let entry = Entry { devices, ..entry };
                book.put(entry.clone());
                Ok(entry)
            })
            .await?;
        self.entry = Some(changed);
        self.remember();
        Ok(())
    }

    /// Hands it to the engine, which is ready: from now on its memory is in the driver's figures, and
    /// the reservation means something for as long as that process lives.
    pub async fn transfer_to(&mut self, engine: ProcessIdentity) -> Result<(), ReserveError> {
        let Some(entry) = &mut self.entry else {
            return Ok(());
        };
        entry.owner = engine;
        entry.allocated = true;
        // What it has taken the machine knows.
        let was_claimed = entry.memory.take().is_some();
        let entry = entry.clone();
        // First here: whatever becomes of the file, it is written as it is known here.
        self.remember();
        if entry.is_empty() && !was_claimed {
            return Ok(());
        }
        self.reservations
            .change(|book| {
                book.put(entry);
                Ok(())
            })
            .await
    }

    /// Gives it back; others see it free when this returns.
    pub async fn release(mut self) -> Result<(), ReserveError> {
        match self.give_back() {
            true => self.reservations.change(|_| Ok(())).await,
            false => Ok(()),
        }
    }

    /// Leaves it to the engine, which outlives this process: it stays for as long as that one lives.
    pub fn leave(mut self) {
        if let Some(entry) = self.entry.take().filter(|it| !it.is_empty()) {
            let mut held = self.reservations.held();
            held.entries.remove(&entry.id);
            held.left.push(entry.id);
            drop(held);
            self.reservations.write_soon();
        }
    }

    /// Keeps in memory what is reserved, for the case that the file is lost.
    fn remember(&self) {
        if let Some(entry) = self.entry.as_ref() {
            let mut held = self.reservations.held();
            match entry.is_empty() {
                true => held.entries.remove(&entry.id),
                false => held.entries.insert(entry.id.clone(), entry.clone()),
            };
        }
    }

    /// Whether there is something to be written down.
    fn give_back(&mut self) -> bool {
        let Some(entry) = self.entry.take().filter(|it| !it.is_empty()) else {
            return false;
        };
        let mut held = self.reservations.held();
        held.entries.remove(&entry.id);
        if let Some(claim) = entry.memory {
            // It has not become ready: what it was to take is there for those placed after it.
            let later = held
                .entries
                .values_mut()
                .filter(|it| it.since >= entry.since);
            for other in later.filter_map(|it| it.memory.as_mut()) {
                other.left = other.left.saturating_add(claim.bytes);
            }
        }
        held.returned.push(entry.id);
        true
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        if self.give_back() {
            self.reservations.write_soon();
        }
    }
}
