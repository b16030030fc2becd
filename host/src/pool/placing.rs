//! Where a replica goes: main memory is looked at, GPUs are reserved before it starts and are its engine's
//! once it is ready.

use std::borrow::Cow;

use engine_provider_api::{Facts, GpuPolicy};

use super::{Need, Placement, Reserved, replica::Replica};
use crate::{
    drive::{Host, Startable},
    facts,
    fault::{Because, Failure},
};

/// An engine prepared for the GPUs that are reserved for it.
#[derive(Debug)]
pub(super) struct Placed {
    pub(super) startable: Startable,
    pub(super) reserved: Reserved,
}

/// Whether where it runs matters: another start may get other GPUs, and must look again.
pub(super) fn uses_gpus(startable: &Startable) -> bool {
    startable.pool().gpu != GpuPolicy::Forbid && !startable.facts().gpus.devices.is_empty()
}

/// What a replica asks for.
fn placement<'a>(startable: &'a Startable, replica: &'a str) -> Placement<'a> {
    let resources = &startable.engine().resources;
    Placement {
        pool: startable.pool(),
        replica,
        need: resources.vram_bytes.map_or(Need::Unknown, Need::Bytes),
        memory_bytes: resources.memory_bytes.unwrap_or(0),
    }
}

impl Replica {
    /// Reserves GPUs for an engine and prepares it for them, where it uses any.
    pub(super) async fn place(&self, host: &Host, base: &Startable) -> Result<Placed, Because> {
        let reservations = &self.shared.reservations;
        let want = placement(base, &self.name);
        let reserved = reservations.place(&want, &self.now(base)).await;
        let mut reserved = reserved.map_err(Failure::from)?;
        let devices = reserved.devices();
        if devices.is_empty() || devices == base.pool().devices {
            let startable = base.clone();
            return Ok(Placed {
                startable,
                reserved,
            });
        }
        let mut request = self.request.clone();
        request.overlay.devices = Some(devices);
        let startable = Box::pin(host.startable(&request)).await?;
        let want = placement(&startable, &self.name);
        let settled = reserved.settle(&want, startable.facts()).await;
        settled.map_err(Failure::from)?;
        Ok(Placed {
            startable,
            reserved,
        })
    }

    /// The machine that an engine was prepared for, with its main memory as it is now: a start after a
    /// crash does not look at the machine anew.
    fn now<'a>(&self, startable: &'a Startable) -> Cow<'a, Facts> {
        let facts = startable.facts();
        if startable.engine().resources.memory_bytes.is_none() {
            return Cow::Borrowed(facts);
        }
        let memory = facts::memory_now(&self.shared.host.environment);
        Cow::Owned(Facts {
            memory,
            ..facts.clone()
        })
    }

    /// Whether another engine fits beside the one that serves.
    pub(super) async fn fits_beside(&self, startable: &Startable) -> bool {
        let want = placement(startable, &self.name);
        let facts = self.now(startable);
        let fits = self.shared.reservations.fits(&want, &facts).await;
        // Where that cannot be told the careful way is taken.
        fits.unwrap_or(false)
    }
}
