//! The container that an engine would run in, worked out before anything is fetched.
//!
//! Done with the plan and not only for showing it: without a runtime, or without a device that stands
//! for a GPU, ten gigabytes need not be pulled first.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
};

use engine_provider_api::{
    Act, Artifact, ContainerLaunch, ContainerRuntime, Facts, Launch, Plan, Pool, PreparedEngine,
    Template, TemplateError,
};

use crate::{
    container::{self, Run, Surroundings},
    engine::{self, EngineError},
    fault::Failure,
};

/// A container with the runtime that would run it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contained {
    /// The runtime.
    pub runtime: ContainerRuntime,
    /// The container; what only the start knows is left as a placeholder.
    pub run: Run,
    /// Arguments for the runtime's program, without the marks that the start adds: labels and the
    /// file for its id.
    pub args: Vec<String>,
    /// What of its wishes is not granted here.
    pub warnings: Vec<String>,
}

/// Settles which runtime a pool's container is for, before anything is planned: the image is pulled
/// into the storage of the one that runs it. Says why another than the usual one is taken.
///
/// A machine on which no runtime can be used is told of later, with what the engine wants of it.
pub(super) fn settle_runtime(pool: &mut Pool, facts: &Facts) -> Option<String> {
    let settings = pool.provisioning.container.as_ref();
    if settings.is_some_and(|settings| settings.runtime.is_some()) {
        return None;
    }
    let (runtime, told) =
        container::choose_for(facts, None, &container::gpus_of(pool, facts)).ok()?;
    let told = told?;
    let settings = pool.provisioning.container.get_or_insert_default();
    settings.runtime = Some(runtime.name.clone());
    Some(told)
}

/// The container of an engine that runs in one, on this machine or the one that the facts describe.
///
/// `plan`: names the image while its digest is not known.
pub fn contained(
    engine: &PreparedEngine,
    plan: Option<&Plan>,
    pool: &Pool,
    facts: &Facts,
    artifacts: &BTreeMap<String, Artifact>,
) -> Result<Option<Contained>, Failure> {
    let Launch::Container(launch) = &engine.launch else {
        return Ok(None);
    };
    let settings = pool.provisioning.container.as_ref();
    let wanted = settings.and_then(|settings| settings.runtime.as_deref());
    let runtime = container::choose(facts, wanted)?;
    let surroundings = Surroundings {
        name: "engine-host-{instance}".to_owned(),
        image: image(launch, plan, artifacts),
        address: Some(here(first_port(launch, pool))),
        more_addresses: launch
            .more_ports
            .iter()
            .map(|port| (port.name.clone(), here(port.usual_port)))
            .collect(),
        gpus: engine.device_mask.clone(),
        ..Surroundings::default()
    };
    let run = container::assemble(launch, settings, surroundings, |template| {
        fill(template, launch, artifacts)
    });
    // Templates were read when the provider's document was checked; one that cannot be filled in is
    // refused when it is started.
    let Ok(run) = run else { return Ok(None) };
    Ok(Some(Contained {
        args: container::shown_arguments(runtime, facts, &run)?,
        warnings: container::run_warnings(runtime, &run),
        runtime: runtime.clone(),
        run,
    }))
}

/// Refuses a container that this process could not give what it needs: a cache that its user inside may
/// write in, a model that it may read. Only for this machine, whose user and files are looked at.
pub(super) fn refuse_without_rights(
    engine: &PreparedEngine,
    contained: Option<&Contained>,
    artifacts: &BTreeMap<String, Artifact>,
) -> Result<(), EngineError> {
    let (Launch::Container(launch), Some(contained)) = (&engine.launch, contained) else {
        return Ok(());
    };
    let artifact = artifacts.get(&launch.image);
    let image = artifact.and_then(|artifact| artifact.image.as_ref());
    // Before its registry was asked nothing but its tag is known.
    let image = image.filter(|image| !image.reference.is_empty());
    engine::refuse_without_rights(launch, &contained.runtime, image, &contained.run.mounts)
}

/// Port of this machine that is tried first.
pub(super) fn first_port(launch: &ContainerLaunch, pool: &Pool) -> u16 {
    let usual = match launch.usual_port {
        0 => launch.port,
        port => port,
    };
    pool.provisioning.ports.first().copied().unwrap_or(usual)
}

fn here(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

fn image(
    launch: &ContainerLaunch,
    plan: Option<&Plan>,
    artifacts: &BTreeMap<String, Artifact>,
) -> String {
    let known = artifacts
        .get(&launch.image)
        .and_then(|artifact| artifact.image.as_ref())
        .map(|image| image.reference.clone());
    if let Some(reference) = known.filter(|reference| !reference.is_empty()) {
        return reference;
    }
    let named = plan.and_then(|plan| {
        let step = plan.steps.iter().find(|step| step.id == launch.image)?;
        match &step.act {
            Act::PullImage(pull) => Some(&pull.image),
            _ => None,
        }
    });
    let Some(named) = named else {
        return "(known after pull)".to_owned();
    };
    let digest = named.digest.as_deref();
    let digest = digest.unwrap_or("sha256:(known after pull)");
    format!("{}@{digest}", named.repository)
}

/// Fills in what is known, and leaves the rest.
fn fill(
    template: &Template,
    launch: &ContainerLaunch,
    artifacts: &BTreeMap<String, Artifact>,
) -> Result<String, TemplateError> {
    template.render(|name| {
        let path = |step: &str| artifacts.get(step)?.path.clone();
        container::inside(launch, name)
            .or_else(|| name.strip_suffix(".path").and_then(path))
            .or_else(|| Some(format!("{{{name}}}")))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use engine_provider_api::{Device, GpuPolicy};

    use super::*;

    /// The runtime that is settled for on a machine with GPUs of two vendors, podman's names being those
    /// of one.
    fn settled(pool: &mut Pool) -> Option<String> {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
        let text = std::fs::read_to_string(fixtures.join("podman-two-vendors.json")).unwrap();
        let facts: Facts = serde_json::from_str(&text).unwrap();
        settle_runtime(pool, &facts)
    }

    #[test]
    fn a_gpu_that_no_engine_would_use_decides_nothing() {
        let mut pool = Pool {
            gpu: GpuPolicy::Require,
            ..Pool::new("chat", "toy")
        };
        assert_eq!(settled(&mut pool), None);
        assert_eq!(pool.provisioning.container, None);
        // One that is named does.
        pool.devices = vec![Device::Uuid("GPU-7c1e0a9b8d2f3e4a".to_owned())];
        assert!(
            settled(&mut pool)
                .unwrap()
                .contains("podman was passed over")
        );
    }
}
