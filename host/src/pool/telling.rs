//! Whom a manager tells of handoffs: begun with it, changed with its pool file, ended last.

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Callback;
use crate::{
    config::{Loaded, Notify},
    drive::{Host, Request},
    fault::Failure,
    handoff::{self, WatchSettings},
    policy::{self, Policy},
};

/// What the pool file says of whom to tell, and what policy says of that.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    settings: Notify,
    policy: Arc<Policy>,
}

impl PartialEq for Wanted {
    /// Whether it says the same, wherever that is written.
    fn eq(&self, other: &Self) -> bool {
        let values = |policy: &Policy| {
            let rows = policy::rows(policy).into_iter();
            rows.map(|row| (row.setting, row.value)).collect::<Vec<_>>()
        };
        self.settings == other.settings && values(&self.policy) == values(&other.policy)
    }
}

impl Wanted {
    /// `None` where the file names nobody. Under the policy that the file and the request ask for.
    pub(super) fn of(
        loaded: &Loaded,
        host: &Host,
        request: &Request,
    ) -> Result<Option<Self>, Failure> {
        let Some(settings) = loaded.notify.clone() else {
            return Ok(None);
        };
        // `policy{}` of the file comes first in every pool.
        let shared = loaded.pools.first().and_then(|it| it.requests.first());
        let mut requests: Vec<_> = shared.cloned().into_iter().collect();
        requests.push(request.overlay.layer());
        let policy = Arc::new(host.policy(&requests)?);
        let wanted = Self { settings, policy };
        // Nothing is sent; what could never be sent is refused with the file.
        wanted.callback(host)?;
        Ok(Some(wanted))
    }

    fn callback(&self, host: &Host) -> Result<Callback, Failure> {
        let policy = Arc::clone(&self.policy);
        let environment = &host.environment;
        let callback = Callback::new(&self.settings, environment, policy, &host.narrator)?;
        Ok(callback)
    }
}

/// Who is told now.
#[derive(Debug, Default)]
pub(super) struct Telling {
    now: Mutex<Option<Told>>,
}

#[derive(Debug)]
struct Told {
    wanted: Wanted,
    end: DropGuard,
    task: JoinHandle<()>,
}

impl Telling {
    /// Tells whoever is wanted from now on, every handoff that stands first; whether that is a change.
    /// Who is told no longer still hears what has changed by now.
    pub(super) fn change(&self, wanted: Option<Wanted>, host: &Host, handoffs: &Path) -> bool {
        let mut now = self.now.lock().expect("no holder panics");
        if now.as_ref().map(|told| &told.wanted) == wanted.as_ref() {
            return false;
        }
        // Dropping the one before asks for its end, which it takes its time for.
        *now = wanted.and_then(|wanted| {
            // It was made before, when it was found to be right.
            let callback = wanted.callback(host).ok()?;
            let settings = WatchSettings {
                home: Some(host.home.clone()),
                ..WatchSettings::default()
            };
            let watch = handoff::watch_with(handoffs, settings);
            let end = CancellationToken::new();
            let until = end.clone();
            Some(Told {
                wanted,
                end: end.drop_guard(),
                task: tokio::spawn(async move { callback.run(watch, until).await }),
            })
        });
        true
    }

    /// Tells what has changed last, and ends.
    pub(super) async fn end(&self) {
        let told = self.now.lock().expect("no holder panics").take();
        if let Some(Told { end, task, .. }) = told {
            drop(end);
            let _ = task.await;
        }
    }
}
