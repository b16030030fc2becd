//! `host facts` and `host doctor`: what the machine is, and what it can do.

use std::path::Path;

use engine_provider_api::{
    Facts, Mode, ModelSource, Plan, PlanRequest, Pool, ProviderError, ProviderInfo, ToolProbe,
};

use super::{
    arguments::{DoctorArguments, FactsArguments, RuntimeFlag},
    context::{Context, host_request, overlay},
    doctor::{self, MissingModel},
    facts,
};
use crate::{
    config::{paths::Home, select::Wanted},
    drive::Request,
    engine,
    facts::Collected,
    fault::{Exit, Failure},
    policy::Policy,
    provider::{Catalog, ProviderFault, Search, Session},
    store::{self, StoreError},
};

/// `host facts`: this machine, with the tools that providers ask for, or the one that a facts file
/// describes.
pub(super) async fn show_facts(
    context: &Context,
    arguments: &FactsArguments,
) -> Result<Exit, Failure> {
    let request = host_request(&arguments.host);
    if let Some(path) = &request.facts {
        let described = Collected {
            facts: crate::facts::read(path)?,
            ..Collected::default()
        };
        return shown(context, &described);
    }
    let mut probes = Vec::new();
    for engine in engines(context, arguments.provider.as_deref(), &request) {
        let (_, _, info) = context.host.open_provider(&engine, &request).await?;
        probes.extend(info.tools);
    }
    probes.sort_by(|one, other| one.name.cmp(&other.name));
    probes.dedup_by(|one, other| one.name == other.name);
    let policy = context.host.policy(&[])?;
    let collector = context.host.collector(policy.run_as.value);
    let found = collector.collect_with_containers(&probes).await;
    found.register_secrets(context.host.narrator.secrets());
    shown(context, &found)
}

fn shown(context: &Context, found: &Collected) -> Result<Exit, Failure> {
    facts::write(&mut std::io::stdout(), found, context.form()).map_err(super::config::output)?;
    Ok(Exit::Success)
}

/// `host doctor`: a verdict for every provider and mode.
pub(super) async fn run_doctor(
    context: &Context,
    arguments: &DoctorArguments,
) -> Result<Exit, Failure> {
    let request = Request {
        overlay: overlay(&arguments.policy),
        ..host_request(&arguments.host)
    };
    let runtime = arguments.container_runtime.map(RuntimeFlag::as_str);
    let mut rows = Vec::new();
    let mut machine = None;
    for engine in engines(context, arguments.provider.as_deref(), &request) {
        let (_, session, info) = context.host.open_provider(&engine, &request).await?;
        let mut wanted = Wanted::of_default(info.default_pool.clone());
        wanted.overlay(&request.overlay)?;
        let policy = context.host.policy(&wanted.requests)?;
        wanted.apply(&policy);
        let facts = machine_of(context, &request, &policy, &info.tools).await?;
        let plans = plans(&session, &info, &wanted, &facts).await?;
        let root = rustix::process::geteuid().is_root();
        let mut judged = doctor::judge(&info, &facts, &policy, &plans, runtime, root);
        for (row, (mode, _)) in judged.iter_mut().zip(&plans) {
            if let Some(missing) = missing_model(&session, &wanted, *mode, &facts).await? {
                doctor::add_missing_model(row, missing);
            }
        }
        if request.facts.is_none() {
            let has = |program: &str| is_here(context, program);
            doctor::add_missing_packages(&mut judged, &plans, &facts, &policy, root, has);
        }
        if request.facts.is_none()
            && let Err(problem) = usable_home(&context.host.home, &policy)
        {
            doctor::add_home_problem(&mut judged, &problem);
        }
        rows.extend(judged);
        machine = Some(facts);
    }
    let machine = match machine {
        Some(facts) => facts,
        None => machine_of(context, &request, &context.host.policy(&[])?, &[]).await?,
    };
    let report = doctor::Report {
        rows,
        runtimes: doctor::runtimes(&machine, runtime),
        left: doctor::left_containers(&engine::left(&context.host.home)),
    };
    doctor::write(
        &mut std::io::stdout(),
        &report,
        context.form(),
        &context.called,
    )
    .map_err(super::config::output)?;
    Ok(doctor::exit(&report.rows))
}

/// This machine with these tools and its container runtimes, or the one that a facts file describes.
async fn machine_of(
    context: &Context,
    request: &Request,
    policy: &Policy,
    tools: &[ToolProbe],
) -> Result<Facts, Failure> {
    if let Some(path) = &request.facts {
        return Ok(crate::facts::read(path)?);
    }
    let collector = context.host.collector(policy.run_as.value);
    Ok(collector.collect_with_containers(tools).await.facts)
}

/// Whether a program of a package can be found: distributions put some where no PATH leads.
fn is_here(context: &Context, program: &str) -> bool {
    let usual = ["/usr/bin", "/usr/local/bin", "/usr/games"].map(std::path::PathBuf::from);
    let directories = context.host.environment.search_path().into_iter();
    directories
        .chain(usual)
        .any(|directory| directory.join(program).is_file())
}

/// Whether the home can be written to, and entered by whoever builds and runs engines.
fn usable_home(home: &Home, policy: &Policy) -> Result<(), StoreError> {
    let there = home.root().ancestors().find(|path| path.exists());
    if let Some(path) = there {
        rustix::fs::access(path, rustix::fs::Access::WRITE_OK)
            .map_err(|error| StoreError::io("write to", path, error.into()))?;
    }
    let users = [policy.run_as.value, policy.engine_identity()];
    users
        .into_iter()
        .flatten()
        .try_for_each(|user| store::ensure_reachable(&home.store(), user))
}

/// What the provider would do in each of its modes.
async fn plans(
    session: &Session,
    info: &ProviderInfo,
    wanted: &Wanted,
    facts: &Facts,
) -> Result<Vec<(Mode, Result<Plan, ProviderError>)>, Failure> {
    let mut plans = Vec::new();
    for mode in &info.modes {
        let request = PlanRequest {
            requires: Vec::new(),
            pool: with_a_model(&wanted.pool, *mode),
            mode: *mode,
            facts: facts.clone(),
        };
        let answer = match session.plan(&request).await {
            Ok(plan) => Ok(plan),
            Err(ProviderFault::Refused { error, .. }) => Err(*error),
            Err(fault) => return Err(fault.into()),
        };
        plans.push((*mode, answer));
    }
    Ok(plans)
}

/// What of a model the default pool lacks in a mode, though a machine may be ready for one.
async fn missing_model(
    session: &Session,
    wanted: &Wanted,
    mode: Mode,
    facts: &Facts,
) -> Result<Option<MissingModel>, Failure> {
    if mode == Mode::External {
        return Ok(None);
    }
    if let Some(model) = &wanted.pool.provisioning.model {
        let is_path = model.reference.starts_with(['.', '/']);
        let missing = is_path && !Path::new(&model.reference).exists();
        return Ok(missing.then(|| MissingModel::not_here(&model.reference)));
    }
    let request = PlanRequest {
        requires: Vec::new(),
        pool: wanted.pool.clone(),
        mode,
        facts: facts.clone(),
    };
    match session.plan(&request).await {
        Err(ProviderFault::Refused { error, .. }) => Ok(MissingModel::refused(&error)),
        Err(fault) => Err(fault.into()),
        Ok(_) => Ok(None),
    }
}

/// The pool with what an operator would have to say about the model. The question here is whether the
/// machine can serve one, and no provider should answer it with "which?".
fn with_a_model(pool: &Pool, mode: Mode) -> Pool {
    let mut pool = pool.clone();
    let provisioning = &mut pool.provisioning;
    if mode == Mode::External {
        provisioning.model = None;
        let external = provisioning.external.get_or_insert_default();
        external
            .url
            .get_or_insert_with(|| "http://127.0.0.1:8080".to_owned());
        pool.model.get_or_insert_with(|| "model".to_owned());
    } else if provisioning.model.is_none() {
        provisioning.model = Some(ModelSource {
            reference: "file:/srv/models/model".to_owned(),
            ..ModelSource::default()
        });
    }
    pool
}

/// The engines asked about: the one named, else all that have a usable provider.
fn engines(context: &Context, named: Option<&str>, request: &Request) -> Vec<String> {
    match named {
        Some(name) => vec![name.to_owned()],
        None => {
            let host = &context.host;
            let search = Search::usual(&request.provider_path, &host.environment, &host.home);
            let catalog = Catalog::search(&search);
            catalog.names().into_iter().map(str::to_owned).collect()
        }
    }
}
