//! From what is wanted to a pool, its policy and an open provider.

use std::sync::Arc;

use engine_provider_api::{Mode, ProviderInfo};

use super::{DriveError, Host, Request, again::Made, vet};
use crate::{
    config::{
        options,
        pools::Surroundings,
        select::{Selected, Wanted, select},
        syntax::names_a_secret,
    },
    fault::Failure,
    narrate::{Actor, Narrator},
    policy::{self, Layer, Policy},
    provider::{Catalog, Found, Options, Search, Session},
};

/// A pool with everything that decides what becomes of it.
pub struct Chosen {
    /// The pool, policy and flags applied, and where its values stand.
    pub wanted: Wanted,
    /// How the engine comes onto the machine.
    pub mode: Mode,
    /// What may be done.
    pub policy: Policy,
    /// The provider's file.
    pub found: Found,
    /// The provider, open.
    pub session: Session,
    /// What it says of itself.
    pub info: ProviderInfo,
    /// Tells about this pool.
    pub narrator: Narrator,
    /// What was chosen, pinned and resolved before, where it is the same again.
    pub(super) made: Option<Arc<Made>>,
}

impl Host {
    /// Finds the pool, opens its provider and settles what may be done.
    pub async fn choose(&self, request: &Request) -> Result<Chosen, Failure> {
        let surroundings = Surroundings::of(&self.environment);
        let selected = select(&request.selection, &self.pool_files, &surroundings)?;
        let engine = match &selected {
            Selected::Pool(wanted) => wanted.pool.engine.clone(),
            Selected::DefaultPool { engine } => engine.clone(),
        };
        let opened = self.open_provider(&engine, request).await?;
        let (_, _, info) = &opened;
        let mut wanted = match selected {
            Selected::Pool(wanted) => *wanted,
            Selected::DefaultPool { .. } => Wanted::of_default(info.default_pool.clone()),
        };
        wanted.overlay(&request.overlay)?;
        self.settle(opened, wanted, request, None)
    }

    /// Settles what may be done with a pool, the command line applied.
    pub(super) fn settle(
        &self,
        (found, session, info): (Found, Session, ProviderInfo),
        mut wanted: Wanted,
        request: &Request,
        made: Option<Arc<Made>>,
    ) -> Result<Chosen, Failure> {
        let policy = self.policy(&wanted.requests)?;
        wanted.apply(&policy);
        options::check(&info.options_schema, &wanted.pool.options)
            .map_err(|problems| DriveError::options(&wanted, problems))?;
        let mode = mode_of(&wanted, &info)?;
        if let Some(runtime) = &request.overlay.container_runtime {
            wanted.use_runtime(runtime, mode);
        }
        let narrator = self.narrator.with(|context| {
            context.pool_id = Some(wanted.pool.id.clone());
            context.engine = Some(wanted.pool.engine.clone());
            context.policy_label = Some(policy.label.clone());
            if request.correlation_id.is_some() {
                context.correlation_id.clone_from(&request.correlation_id);
            }
        });
        narrator.concerns();
        // Written into the file in spite of the notice: it need not be told as well.
        for (name, value) in &wanted.pool.provisioning.env {
            if names_a_secret(name) && !value.contains("{secret.") {
                self.narrator.secrets().register(value);
            }
        }
        for notice in &wanted.notices {
            narrator.warn(Actor::EngineProvisioner, "notice", &wanted.pool.id, notice);
        }
        Ok(Chosen {
            wanted,
            mode,
            policy,
            found,
            session,
            info,
            narrator,
            made,
        })
    }

    /// The policy in force where this is asked for, weakest request first.
    pub fn policy(&self, requests: &[Layer]) -> Result<Policy, Failure> {
        let caller = Surroundings::of(&self.environment).caller;
        let ceilings = policy::ceilings(&self.home, &caller)?;
        Ok(policy::resolve(&ceilings, requests, &caller)?)
    }

    /// The provider of an engine, found, checked and open.
    pub async fn open_provider(
        &self,
        engine: &str,
        request: &Request,
    ) -> Result<(Found, Session, ProviderInfo), Failure> {
        let search = Search::usual(&request.provider_path, &self.environment, &self.home);
        let found = Catalog::search(&search).select(engine, None)?.clone();
        let options = Options {
            program: self.program.clone(),
            ..Options::default()
        };
        let session = Session::open(&found, request.isolation, &options).await?;
        let info = session.info().await?;
        vet::info(&info).map_err(|asked| DriveError::overreach(engine, asked))?;
        Ok((found, session, info))
    }
}

fn mode_of(wanted: &Wanted, info: &ProviderInfo) -> Result<Mode, DriveError> {
    let usual = info.modes.first().copied();
    let mode = wanted.pool.provisioning.mode.or(usual);
    match mode {
        Some(mode) if info.modes.contains(&mode) => Ok(mode),
        asked => Err(DriveError::Mode {
            provider: info.name.clone(),
            asked,
            modes: info.modes.clone(),
        }),
    }
}
