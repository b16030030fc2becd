//! From a chosen pool to a plan, what it would cost, and the command that would run.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use engine_provider_api::{
    Artifact, Facts, Launch, Mode, Plan, PlanRequest, PrepareRequest, PreparedEngine,
};

use super::{
    Chosen, Contained, DriveError, Host, Request,
    contained::{contained, refuse_without_rights, settle_runtime},
    pinned::{Pinned, Pins},
    recorded::{Offers, State},
    request::LockUse,
    room, vet,
};
use crate::{
    act::{self, Artifacts, Expected, FindTool, Toolbox},
    engine,
    facts::{self, Collected, Collector, PackageIndex},
    fault::Failure,
    lock::Part,
    model::{Models, Verify},
    narrate::{Narrator, Work, chain},
    net::{Net, Url, is_loopback},
    policy::{self, Policy},
    process::Identity,
    resolve,
    store::Store,
};

/// Longest time that a plan waits for what branches, tags and models are now. What is then obtained asks
/// again and waits as long as it takes.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// Longest time that a source is waited for when what it says is written down.
const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// A pool with its plan, nothing of it done yet.
pub struct Planned {
    /// The pool, its policy, its provider.
    pub chosen: Chosen,
    /// The machine that was planned for.
    pub facts: Facts,
    /// The plan, mutable references resolved where that needs no network.
    pub plan: Plan,
    /// The plan as its provider wrote it.
    pub(super) written: Plan,
    /// What the lock file beside the pool file pins.
    pub(super) pins: Pins,
    /// What every step would give and cost.
    pub expected: BTreeMap<String, Expected>,
    /// The engine as it would be started.
    pub engine: PreparedEngine,
    /// The container that it would be started in, where it is one.
    pub contained: Option<Contained>,
    /// Why another container runtime is used than the usual one, where that is so.
    pub(super) passed_over: Option<String>,
    /// What the steps are given.
    pub(super) context: act::Context,
    /// Whether the facts describe another machine.
    pub(super) foreign: bool,
    /// Why a branch, tag or model is not known yet, for each of which that is so.
    pub(super) unresolved: Vec<String>,
}

impl Planned {
    /// What is done from now on is told by this narrator.
    pub(super) fn tell_as(&mut self, narrator: &Narrator) {
        self.chosen.narrator = narrator.clone();
        self.context.narrator = narrator.clone();
    }
}

impl Host {
    /// Asks the provider what has to be done and what would run. Changes nothing.
    ///
    /// The provider prepares the expected results here already, so that wrong flags are refused
    /// before an hour of building.
    pub async fn plan(&self, mut chosen: Chosen, request: &Request) -> Result<Planned, Failure> {
        let narrator = chosen.narrator.clone();
        let span = narrator.begin(Work::Plan, "", &chosen.wanted.pool.id);
        chosen.narrator = span.narrator().clone();
        let mut planned = Box::pin(self.plan_within(chosen, request)).await;
        span.end(planned.as_ref().err().map(|failure| &**failure));
        if let Ok(planned) = &mut planned {
            planned.tell_as(&narrator);
        }
        planned
    }

    async fn plan_within(&self, mut chosen: Chosen, request: &Request) -> Result<Planned, Failure> {
        let (
            Collected {
                facts,
                package_index,
                ..
            },
            foreign,
        ) = self.facts(&chosen, request).await?;
        let passed_over = match chosen.mode {
            Mode::Container => settle_runtime(&mut chosen.wanted.pool, &facts),
            _ => None,
        };
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
        let mut context = self.act_context(&chosen, &facts, package_index, &plan, request.verify);
        let made = chosen.made.clone();
        let pins = match &made {
            Some(made) => made.pins.clone(),
            None => Pins::of(&chosen, request)?,
        };
        context.refresh_models = request.lock.renews(Part::Model);
        context.refresh_images = request.lock.renews(Part::Engine);
        let written = plan;
        let plan = pin(&chosen, &mut context, &pins, &written, request).await?;
        let known = made.and_then(|made| made.resolved(&written));
        let (plan, unresolved) = match request.lock {
            // Nothing is asked again: it is to be the same.
            _ if known.is_some() => (known.unwrap_or(plan), Vec::new()),
            LockUse::Pins => resolve_if_possible(&context, plan, foreign).await,
            _ if foreign => return Err(DriveError::ForeignFacts.into()),
            // What is to be exact, or is written down, is known.
            LockUse::Exact => {
                resolve::look_here(&context, &plan).await?;
                (plan, Vec::new())
            }
            LockUse::Renew(_) => {
                let resolved = resolve::plan_in_time(&context, &plan, LOCK_LIMIT).await?;
                (resolved.0, Vec::new())
            }
        };
        let expected = act::expected(&context, &plan)?;
        let artifacts = artifacts_of(&expected);
        let mut engine = prepare(&chosen, &facts, &plan, artifacts.clone()).await?;
        let pool = &chosen.wanted.pool;
        let crowded = room::check(&engine, &plan, pool, &facts, &artifacts);
        engine.warnings.extend(crowded.map_err(DriveError::NoRoom)?);
        // Before anything is fetched: once it runs it would be refused all the same.
        engine::refuse_without_evidence(&engine, pool)?;
        reachable(&engine, &chosen.policy)?;
        let contained = contained(&engine, Some(&plan), pool, &facts, &artifacts)?;
        if !foreign {
            refuse_without_rights(&engine, contained.as_ref(), &artifacts)?;
        }
        Ok(Planned {
            chosen,
            facts,
            plan,
            written,
            pins,
            expected,
            engine,
            contained,
            passed_over,
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
        verify: Verify,
    ) -> act::Context {
        let policy = Arc::new(chosen.policy.clone());
        let hosts = act::planned_hosts(plan, facts, &self.environment);
        let gate = act::PlanGate::new(Arc::clone(&policy), hosts);
        let job = chosen.narrator.context().job_id.as_deref();
        act::Context {
            home: self.home.clone(),
            store: Store::open(&self.home).used_by(&chosen.wanted.pool.id),
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
            models: Models::default(),
            verify,
            pool: Arc::new(chosen.wanted.pool.clone()),
            refresh_models: false,
            refresh_images: false,
            trees: Arc::default(),
            model_versions: Arc::default(),
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

/// Puts what is locked into a plan. Where it has to be exact, everything is compared first.
async fn pin(
    chosen: &Chosen,
    context: &mut act::Context,
    pins: &Pins,
    written: &Plan,
    request: &Request,
) -> Result<Plan, Failure> {
    let Pinned {
        mut plan,
        notes,
        warnings,
    } = pins.apply(chosen, context, written)?;
    for note in notes {
        let path = pins.path().to_string_lossy();
        let narrator = &chosen.narrator;
        narrator.say(super::ACTOR, "lock", path, &note);
        plan.notes.push(note);
    }
    plan.warnings.extend(warnings);
    if request.lock == LockUse::Exact {
        let state = State {
            chosen,
            context,
            written,
            plan: &plan,
            expected: &act::expected(context, &plan)?,
            path: pins.path(),
            offers: Offers::No,
        };
        let now = state.record().await?;
        pins.hold(&chosen.wanted.pool.id, &plan, &now)?;
    }
    Ok(plan)
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

/// Whether policy lets the host ask an engine of somebody else. On this machine it always may.
fn reachable(engine: &PreparedEngine, policy: &Policy) -> Result<(), policy::Refusal> {
    let Launch::External(launch) = &engine.launch else {
        return Ok(());
    };
    match Url::parse(&launch.url) {
        Ok(url) if !is_loopback(&url) => {
            let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
            policy.allow_host(host, &[host.to_lowercase()])
        }
        _ => Ok(()),
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
    vet::prepared(&engine, plan, &chosen.wanted.pool, chosen.mode)
        .map_err(|asked| DriveError::overreach(&chosen.info.name, asked))?;
    Ok(engine)
}

/// Turns branches and tags into commits, so that the plan shows what would be built. A plan can be
/// shown without it, for another machine or without network: then it says so.
async fn resolve_if_possible(
    context: &act::Context,
    plan: Plan,
    foreign: bool,
) -> (Plan, Vec<String>) {
    let (plan, open) = match foreign {
        true => {
            let open = resolve::models_within(context, &plan, ANSWER_LIMIT).await;
            (plan, open)
        }
        false => resolve::plan_within(context, &plan, ANSWER_LIMIT).await,
    };
    (plan, open.iter().map(|open| chain(open)).collect())
}

pub(super) fn artifacts_of(expected: &BTreeMap<String, Expected>) -> BTreeMap<String, Artifact> {
    expected
        .iter()
        .map(|(step, expected)| (step.clone(), expected.artifact.clone()))
        .collect()
}
