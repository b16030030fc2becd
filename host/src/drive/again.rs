//! An engine once more, of what it was made of: whatever the pool file, its lock file and the branches that
//! they name say by then.

use std::sync::{Arc, Mutex};

use engine_provider_api::{Device, Facts, GpuPolicy, Plan};

use super::{Chosen, Host, Request, Startable, pinned::Pins};
use crate::{config::select::Wanted, facts, fault::Failure};

/// What an engine was made of.
#[derive(Debug)]
pub(super) struct Made {
    request: Request,
    /// The pool, policy and flags applied.
    pub(super) wanted: Wanted,
    pub(super) pins: Pins,
    /// The plan as its provider wrote it.
    written: Plan,
    /// The plan that was carried out: the same with every branch, tag and model resolved.
    pub(super) resolved: Plan,
    /// Made of the same for certain GPUs.
    placed: Mutex<Vec<Startable>>,
}

impl Made {
    pub(super) fn new(
        request: &Request,
        wanted: Wanted,
        pins: Pins,
        [written, resolved]: [Plan; 2],
    ) -> Self {
        Self {
            request: request.clone(),
            wanted,
            pins,
            written,
            resolved,
            placed: Mutex::default(),
        }
    }

    /// What a plan was resolved to then, where it is the same plan.
    pub(super) fn resolved(&self, written: &Plan) -> Option<Plan> {
        (self.written == *written).then(|| self.resolved.clone())
    }

    /// Those GPUs, where it was made for them before and they are as they were.
    fn placed(&self, devices: &[Device], facts: &Facts) -> Option<Startable> {
        let placed = self.placed.lock().expect("no holder panics");
        let mut same = placed.iter().filter(|it| it.pool().devices == devices);
        same.find(|it| same_gpus(it.facts(), facts)).cloned()
    }

    fn keep(&self, startable: &Startable) {
        let mut placed = self.placed.lock().expect("no holder panics");
        placed.retain(|it| it.pool().devices != startable.pool().devices);
        placed.push(startable.clone());
    }
}

/// Whether a machine has the same GPUs; what is free of them may differ.
pub(crate) fn same_gpus(one: &Facts, two: &Facts) -> bool {
    let ids = |facts: &Facts| -> Vec<String> {
        let devices = facts.gpus.devices.iter();
        devices.map(|gpu| gpu.uuid.clone()).collect()
    };
    one.gpus.status == two.gpus.status && ids(one) == ids(two)
}

impl Host {
    /// What a startable was made of, made once more: on the machine as it is now.
    pub async fn startable_again(&self, base: &Startable) -> Result<Startable, Failure> {
        self.make_again(base.made(), None).await
    }

    /// The same for these GPUs in place of the pool's own. `facts` are those of now; what was made for these
    /// GPUs before is given again.
    pub async fn startable_on(
        &self,
        base: &Startable,
        devices: Vec<Device>,
        facts: &Facts,
    ) -> Result<Startable, Failure> {
        if let Some(placed) = base.made().placed(&devices, facts) {
            return Ok(placed);
        }
        let startable = self.make_again(base.made(), Some(devices)).await?;
        base.made().keep(&startable);
        Ok(startable)
    }

    /// The machine that an engine was prepared for, with its main memory and GPUs as they are now.
    pub async fn facts_now(&self, startable: &Startable) -> Facts {
        let facts = startable.facts();
        let uses_gpus = startable.pool().gpu != GpuPolicy::Forbid;
        Facts {
            memory: facts::memory_now(&self.environment),
            gpus: match uses_gpus && !facts.gpus.devices.is_empty() {
                true => self.collector(None).gpus().await,
                false => facts.gpus.clone(),
            },
            ..facts.clone()
        }
    }

    async fn make_again(
        &self,
        made: &Arc<Made>,
        devices: Option<Vec<Device>>,
    ) -> Result<Startable, Failure> {
        let chosen = Box::pin(self.choose_again(made, devices)).await?;
        let planned = Box::pin(self.plan(chosen, &made.request)).await?;
        let obtained = Box::pin(self.obtain(planned, &made.request)).await?;
        Ok(obtained.startable())
    }

    /// Chooses what was chosen.
    async fn choose_again(
        &self,
        made: &Arc<Made>,
        devices: Option<Vec<Device>>,
    ) -> Result<Chosen, Failure> {
        let opened = self
            .open_provider(&made.wanted.pool.engine, &made.request)
            .await?;
        let mut wanted = made.wanted.clone();
        // They were told when it was chosen.
        wanted.notices.clear();
        if let Some(devices) = devices {
            wanted.pool.devices = devices;
        }
        self.settle(opened, wanted, &made.request, Some(Arc::clone(made)))
    }
}
