//! What is not as it is locked, and what a machine without network lacks.

use std::collections::BTreeMap;

use engine_provider_api::{Act, ExtractImage, Mirror, Plan, PullImage};

use super::{Pins, model::is_immutable};
use crate::{
    act::{self, Context, Expected, Outlook, is_full_commit},
    drive::recorded,
    lock::{self, Drift, LockError, Part, PoolLock},
    policy::NetworkPolicy,
    process::quote,
};

impl Pins {
    /// Refuses where anything is not as it is locked, or was left open; for `--locked` only.
    pub(in crate::drive) fn hold(
        &self,
        pool: &str,
        plan: &Plan,
        now: &PoolLock,
    ) -> Result<(), LockError> {
        let mut drifts = lock::drifts(pool, self.pool.as_ref(), now);
        let locked = self.pool.as_ref();
        let incomparable = locked.map_or_else(Vec::new, |it| lock::incomparable(pool, it));
        for drift in incomparable.into_iter().chain(self.edits(pool)) {
            // What it is now says more.
            if !drifts.iter().any(|known| known.what == drift.what) {
                drifts.push(drift);
            }
        }
        for drift in open_ends(pool, plan).filter(|_| self.pool.is_some()) {
            // A reference that was edited says it already.
            if !drifts.iter().any(|known| known.part == drift.part) {
                drifts.push(drift);
            }
        }
        if drifts.is_empty() {
            return Ok(());
        }
        Err(LockError::Drifted {
            path: self.path.clone(),
            drifts,
            command: self.command.clone(),
        })
    }

    /// Lines of this pool that are not as they were locked.
    pub(super) fn edits(&self, pool: &str) -> Vec<Drift> {
        let locked = self.pool.as_ref();
        locked.map_or_else(Vec::new, |locked| lock::edits(pool, locked))
    }

    /// Refuses what would need a network where there is none, all of it at once.
    pub(in crate::drive) fn need_no_network(
        &self,
        context: &Context,
        plan: &Plan,
        expected: &BTreeMap<String, Expected>,
    ) -> Result<(), LockError> {
        if self.pool.is_none() || context.policy.network.value != NetworkPolicy::Offline {
            return Ok(());
        }
        let missing: Vec<String> = plan
            .steps
            .iter()
            .filter(|step| !is_local(&step.act))
            .filter_map(|step| match &expected[&step.id].outlook {
                Outlook::Fetch { from, .. } => Some(format!(
                    "{}: {}, from {}",
                    step.id,
                    wanted(&step.act),
                    from.join(", else ")
                )),
                outlook => not_installed(&step.act, outlook)
                    .map(|missing| format!("{}: {missing}", step.id)),
            })
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let command = self.command.replacen("lock", "prepare", 1);
        Err(LockError::Missing {
            missing,
            command: format!("{command} --pool {} --locked", quote(&context.pool_id)),
        })
    }
}

/// What a step would install, where it comes over the network.
fn not_installed(act: &Act, outlook: &Outlook) -> Option<String> {
    match (act, outlook) {
        (
            _,
            Outlook::Install {
                tools, packages, ..
            },
        ) => {
            let tools = tools.join(", ");
            Some(format!("{tools}, from packages {}", packages.join(", ")))
        }
        // Policy lets it reach none of them.
        (Act::Build(act), Outlook::Refused { .. }) if !act.network.is_empty() => {
            let hosts = act.network.join(", ");
            Some(format!("a result of commands, with what {hosts} has"))
        }
        _ => None,
    }
}

/// Whether a step finds what it fetches on this machine.
fn is_local(act: &Act) -> bool {
    let Act::Checkout(act) = act else {
        return false;
    };
    act.mirrors.iter().any(|mirror| {
        matches!(mirror, Mirror::Git { url } if act::scheme_of(url) == Some(act::Scheme::File))
    })
}

/// What a step is to fetch, as it is pinned.
fn wanted(act: &Act) -> String {
    match act {
        Act::Checkout(act) => format!("commit {}", act.commit),
        Act::Download(act) => act.digest.clone(),
        Act::PullImage(PullImage { image, .. }) | Act::ExtractImage(ExtractImage { image, .. }) => {
            recorded::image_name(image)
        }
        Act::StageModel(act) => act.reference.clone(),
        _ => "a result".to_owned(),
    }
}

/// What is still mutable in a plan that was pinned.
fn open_ends(pool: &str, plan: &Plan) -> impl Iterator<Item = Drift> {
    plan.steps.iter().filter_map(move |step| {
        let (part, name, open) = match &step.act {
            Act::Checkout(act) if !is_full_commit(&act.commit) => {
                (Part::Engine, "commit", act.commit.clone())
            }
            Act::PullImage(PullImage { image, .. }) if image.digest.is_none() => {
                (Part::Engine, "images", recorded::image_name(image))
            }
            Act::StageModel(act) if act.digest.is_none() && !is_immutable(&act.reference) => {
                (Part::Model, "digest", act.reference.clone())
            }
            Act::InstallPackages(act) if act.version.is_none() => {
                (Part::Engine, "packages", act.program.clone())
            }
            _ => return None,
        };
        Some(Drift {
            pool: pool.to_owned(),
            part: format!("{pool}.{}", part.as_str()),
            what: format!("{}: {}.{name}", part.as_str(), step.id),
            locked: None,
            now: Some(open),
        })
    })
}
