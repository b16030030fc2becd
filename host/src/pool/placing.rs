//! Where a replica goes: main memory is looked at, GPUs are reserved before it starts and are its engine's
//! once it is ready.

use super::{Need, Placement, Reserved, replica::Replica};
use crate::{
    drive::{Host, Startable, same_gpus},
    fault::{Because, Failure},
};

/// An engine prepared for the GPUs that are reserved for it.
#[derive(Debug)]
pub(super) struct Placed {
    /// What was to be placed; made again where the machine has other GPUs than when it was made.
    pub(super) base: Startable,
    pub(super) startable: Startable,
    pub(super) reserved: Reserved,
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
    /// Reserves GPUs for an engine and prepares it for them, where it uses any. The machine is looked at
    /// first: other engines have come and gone since this one was made.
    pub(super) async fn place(&self, host: &Host, base: &Startable) -> Result<Placed, Because> {
        let facts = host.facts_now(base).await;
        let base = match same_gpus(base.facts(), &facts) {
            true => base.clone(),
            false => self.prepare(host, host.startable_again(base)).await?,
        };
        let reservations = &self.shared.reservations;
        let want = placement(&base, &self.name);
        let reserved = reservations.place(&want, &facts).await;
        let mut reserved = reserved.map_err(Failure::from)?;
        let devices = reserved.devices();
        if devices.is_empty() || devices == base.pool().devices {
            return Ok(Placed {
                startable: base.clone(),
                base,
                reserved,
            });
        }
        let placing = host.startable_on(&base, devices, &facts);
        let startable = self.prepare(host, placing).await?;
        let want = placement(&startable, &self.name);
        let settled = reserved.settle(&want, &facts).await;
        settled.map_err(Failure::from)?;
        Ok(Placed {
            base,
            startable,
            reserved,
        })
    }

    /// What a start would give on the GPUs that an engine of this replica has; where it may not keep them,
    /// or has none, what is to be placed.
    pub(super) async fn place_on(
        &self,
        host: &Host,
        base: &Startable,
        reserved: &Reserved,
    ) -> Result<Startable, Failure> {
        let devices = reserved.devices();
        let want = placement(base, &self.name);
        let stays = devices != base.pool().devices && reserved.may_stay(&want, base.facts());
        match stays {
            true => {
                let placing = host.startable_on(base, devices, base.facts());
                self.prepare(host, placing).await
            }
            false => Ok(base.clone()),
        }
    }

    /// Prepares an engine, while a few others do at most.
    pub(super) async fn prepare(
        &self,
        host: &Host,
        preparing: impl Future<Output = Result<Startable, Failure>>,
    ) -> Result<Startable, Failure> {
        let _permit = tokio::select! {
            permit = self.shared.preparations.acquire() => Some(permit),
            // Then what follows ends at once, and says so.
            () = host.cancel.cancelled() => None,
        };
        Box::pin(preparing).await
    }

    /// Whether another engine fits beside the one that serves.
    pub(super) async fn fits_beside(&self, startable: &Startable) -> bool {
        let want = placement(startable, &self.name);
        let facts = self.shared.host.facts_now(startable).await;
        let fits = self.shared.reservations.fits(&want, &facts).await;
        // Where that cannot be told the careful way is taken.
        fits.unwrap_or(false)
    }
}
