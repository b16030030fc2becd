//! From a chosen pool to a plan, what it would cost, and the command that would run.

use std::{collections::BTreeMap, sync::Arc};

use engine_provider_api::{
    Artifact, Facts, Mode, Plan, PlanRequest, PrepareRequest, PreparedEngine,
};

use super::{Chosen, Contained, DriveError, Host, Request, contained::contained, vet};
use crate::{
    act::{self, Artifacts, Expected, FindTool, Toolbox},
    facts::{self, Collected, Collector, PackageIndex},
    fault::Failure,
    narrate::chain,
    net::Net,
    process::Identity,
    resolve,
    store::Store,
};

/// A pool with its plan, nothing of it done yet.
pub struct Planned {
    /// The pool, its policy, its provider.
    pub chosen: Chosen,
    /// The machine that was planned for.
    pub facts: Facts,
    /// The plan, mutable references resolved where that needs no network.
    pub plan: Plan,
    /// What every step would give and cost.
    pub expected: BTreeMap<String, Expected>,
    /// The engine as it would be started.
    pub engine: PreparedEngine,
    /// The container that it would be started in, where it is one.
    pub contained: Option<Contained>,
    /// What the steps are given.
    pub(super) context: act::Context,
    /// Whether the facts describe another machine.
    pub(super) foreign: bool,
    /// Why a branch or tag is not a commit yet, where that is so.
    pub(super) unresolved: Option<String>,
}

impl Host {
    /// Asks the provider what has to be done and what would run. Changes nothing.
    ///
    /// The provider prepares the expected results here already, so that wrong flags are refused
    /// before an hour of building.
    pub async fn plan(&self, chosen: Chosen, request: &Request) -> Result<Planned, Failure> {
        let (
            Collected {
                facts,
                package_index,
                ..
            },
            foreign,
        ) = self.facts(&chosen, request).await?;
        let asked = PlanRequest {
            requires: Vec::new(),
            pool: chosen.wanted.pool.clone(),
            mode: chosen.mode,
            facts: facts.clone(),
        };
        let plan = chosen
            .session
            .plan(&asked)
            .await
            .map_err(|fault| DriveError::refused(&chosen.wanted, fault))?;
        vet::plan(&plan, &chosen.wanted.pool)
            .map_err(|asked| DriveError::overreach(&chosen.info.name, asked))?;
        let context = self.act_context(&chosen, &facts, package_index, &plan);
        let (plan, unresolved) = resolve_if_possible(&context, plan, foreign).await;
        let expected = act::expected(&context, &plan)?;
        let artifacts = artifacts_of(&expected);
        let engine = prepare(&chosen, &facts, &plan, artifacts.clone()).await?;
        let pool = &chosen.wanted.pool;
        let contained = contained(&engine, Some(&plan), pool, &facts, &artifacts)?;
        Ok(Planned {
            chosen,
            facts,
            plan,
            expected,
            engine,
            contained,
            context,
            foreign,
            unresolved,
        })
    }

    /// The machine: this one, or the one that a facts file describes.
    async fn facts(
        &self,
        chosen: &Chosen,
        request: &Request,
    ) -> Result<(Collected, bool), Failure> {
        let Some(path) = &request.facts else {
            return Ok((self.look(chosen).await, false));
        };
        let described = Collected {
            facts: facts::read(path)?,
            ..Collected::default()
        };
        Ok((described, true))
    }

    /// Looks at this machine with the eyes of whoever builds and runs engines here.
    async fn look(&self, chosen: &Chosen) -> Collected {
        let collector = self.collector(chosen.policy.run_as.value);
        let probes = &chosen.info.tools;
        let collected = if wants_containers(chosen) {
            collector.collect_with_containers(probes).await
        } else {
            collector.collect(probes).await
        };
        collected.register_secrets(self.narrator.secrets());
        collected
    }

    /// Looks at this machine for `identity`; `None`: for this process's user.
    #[must_use]
    pub fn collector(&self, identity: Option<Identity>) -> Collector<'static> {
        Collector {
            probe_program: Some(self.program.clone()),
            ..Collector::of_this_machine(&self.environment, &self.home, identity)
        }
    }

    fn act_context(
        &self,
        chosen: &Chosen,
        facts: &Facts,
        package_index: Option<PackageIndex>,
        plan: &Plan,
    ) -> act::Context {
        let policy = Arc::new(chosen.policy.clone());
        let gate = act::PlanGate::new(Arc::clone(&policy), act::planned_hosts(plan, facts));
        let job = chosen.narrator.context().job_id.as_deref();
        act::Context {
            home: self.home.clone(),
            store: Store::open(&self.home),
            keeper: self.keeper.clone(),
            policy,
            package_index: package_index.map(|index| index.url().clone()),
            facts: Arc::new(facts.clone()),
            tools: self.toolbox(chosen, facts),
            narrator: chosen.narrator.clone(),
            cancel: self.cancel.clone(),
            net: Net::new(&self.environment, Arc::new(gate)),
            environment: Arc::new(self.environment.clone()),
            logs: act::Logs::new(&self.home, &chosen.wanted.pool.id, job),
            registries: act::Registries::default(),
            pool: Arc::new(chosen.wanted.pool.clone()),
            pool_id: chosen.wanted.pool.id.clone(),
            engine: chosen.wanted.pool.engine.clone(),
            base: std::env::current_dir().unwrap_or_default(),
        }
    }

    /// The tools that were found, and how one is looked for again after an installation.
    fn toolbox(&self, chosen: &Chosen, facts: &Facts) -> Toolbox {
        let host = self.clone();
        let identity = chosen.policy.run_as.value;
        let probes = chosen.info.tools.clone();
        let find: FindTool = Arc::new(move |name| {
            let (host, probes) = (host.clone(), probes.clone());
            Box::pin(async move {
                let probe = probes.into_iter().find(|probe| probe.name == name)?;
                let mut found = host.collector(identity).collect(&[probe]).await;
                found.facts.tools.remove(&name)
            })
        });
        Toolbox::new(facts.tools.clone(), find)
    }
}

/// Whether the way to the engine leads through an image.
fn wants_containers(chosen: &Chosen) -> bool {
    let binary = chosen.wanted.pool.provisioning.binary.as_ref();
    match chosen.mode {
        Mode::Container => true,
        Mode::Binary => binary.is_some_and(|binary| binary.image.is_some()),
        _ => false,
    }
}

/// Asks the provider what exactly is run, given these results.
pub(super) async fn prepare(
    chosen: &Chosen,
    facts: &Facts,
    plan: &Plan,
    artifacts: Artifacts,
) -> Result<PreparedEngine, Failure> {
    let asked = PrepareRequest {
        requires: Vec::new(),
        pool: chosen.wanted.pool.clone(),
        mode: chosen.mode,
        facts: facts.clone(),
        artifacts,
    };
    let prepared = chosen.session.prepare(&asked).await;
    let engine = prepared.map_err(|fault| DriveError::refused(&chosen.wanted, fault))?;
    vet::prepared(&engine, plan, &chosen.wanted.pool)
        .map_err(|asked| DriveError::overreach(&chosen.info.name, asked))?;
    Ok(engine)
}

/// Turns branches and tags into commits, so that the plan shows what would be built. A plan can be
/// shown without it, for another machine or without network: then it says so.
async fn resolve_if_possible(
    context: &act::Context,
    plan: Plan,
    foreign: bool,
) -> (Plan, Option<String>) {
    if foreign {
        return (plan, None);
    }
    match resolve::plan(context, &plan).await {
        Ok((plan, _)) => (plan, None),
        Err(error) => (plan, Some(chain(&error))),
    }
}

pub(super) fn artifacts_of(expected: &BTreeMap<String, Expected>) -> BTreeMap<String, Artifact> {
    expected
        .iter()
        .map(|(step, expected)| (step.clone(), expected.artifact.clone()))
        .collect()
}
