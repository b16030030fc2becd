//! The engine as it is run: its container, probes and proof.

use std::collections::BTreeMap;

use engine_provider_api::{
    Artifact, ContainerLaunch, DrainProbe, GpuEvidence, Launch, Model, PrepareRequest,
    PreparedEngine, Probes, Profile, ProviderError, ReadinessProbe, Resources, Stop, Template,
    VersionProbe,
};
use engine_provider_kit::{
    container, external, flags, gpu,
    model::{inside, public_name},
    vram::{self, Stored},
};

use crate::{MODEL, decision::Decision, diagnoses, settings};

const WORKLOADS: [&str; 2] = ["completion", "chat"];
const PORT: u16 = 8080;
/// Where the cache lies in the container.
const CACHE: &str = "/data";

pub(crate) fn prepare(
    decision: &Decision,
    request: &PrepareRequest,
) -> Result<PreparedEngine, ProviderError> {
    let mut warnings = decision.warnings.clone();
    let model = request.artifact(MODEL);
    if let (Some(model), true) = (model, decision.requires_gpu()) {
        warnings.extend(check_room(decision, model)?);
    }
    let given = decision.pool.model.clone();
    let id = given.unwrap_or_else(|| public_name(&decision.model.reference));
    let totals = decision.gpus.iter().map(|gpu| gpu.memory_total_bytes);
    // TGI takes all memory there is; what it needs least is the model.
    let vram_bytes = Some(totals.sum()).filter(|total| *total > 0 || decision.gpus.is_empty());
    Ok(PreparedEngine {
        requires: Vec::new(),
        engine: "tgi".to_owned(),
        engine_version: container::version(request),
        provisioning_mode: request.mode,
        launch: Launch::Container(launch(decision, &id)),
        files: Vec::new(),
        probes: probes(),
        stop: Stop {
            drain: Some(DrainProbe {
                path: "/metrics".to_owned(),
                gauge: "tgi_batch_current_size".to_owned(),
                port: None,
            }),
            second_term_ends_at_once: false,
        },
        resources: Resources {
            vram_bytes,
            ..Resources::default()
        },
        model: Model {
            id,
            path: model.and_then(|model| model.path.clone()),
            digest: model.and_then(|model| model.digest.clone()),
        },
        flags: flags::arguments(&decision.flags),
        slots_total: decision.slots,
        workloads: WORKLOADS.map(str::to_owned).to_vec(),
        profile: decision.pool.profile,
        diagnoses: diagnoses::all(),
        // The log does not say where the model lies; the driver does.
        gpu_evidence: decision.requires_gpu().then(|| GpuEvidence {
            driver_memory: true,
            ..GpuEvidence::default()
        }),
        dialect: "openai".to_owned(),
        device_mask: decision.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        build_record: container::record(request),
        warnings,
    })
}

/// What TGI needs least is the weights, each GPU a part of them, and the cache of the longest request
/// where the pool says one: else it makes that as long as there is room.
fn check_room(decision: &Decision, model: &Artifact) -> Result<Option<String>, ProviderError> {
    let (pool, gpus) = (decision.pool, &decision.gpus);
    let made_smaller = decision.flags.iter().any(|flag| flag.name == "--quantize");
    let tokens = pool.ctx.unwrap_or(0).into();
    let least = |facts| vram::least(facts, tokens, Stored::BYTE, made_smaller);
    let facts = model.model.as_ref();
    if let Some((facts, need)) = facts.and_then(|facts| Some((facts, least(facts)?))) {
        return vram::check(pool, gpus, 1.0, &need, facts);
    }
    let size = model.size_bytes;
    size.map_or(Ok(None), |size| gpu::check_room(pool, gpus, size))
}

fn launch(decision: &Decision, id: &str) -> ContainerLaunch {
    let path = inside(id);
    ContainerLaunch {
        image: container::PULL.to_owned(),
        // The image's own entry point makes the driver's libraries known first.
        entrypoint: Vec::new(),
        args: Vec::new(),
        env: environment(decision, &path),
        mounts: vec![
            container::mount(MODEL, &path),
            container::cache("tgi", CACHE),
        ],
        port: PORT,
        usual_port: PORT,
        user: Some("0:0".to_owned()),
        shm_bytes: container::SHM_BYTES,
        read_only_root: false,
        ..ContainerLaunch::default()
    }
}

fn environment(decision: &Decision, path: &str) -> BTreeMap<String, Template> {
    let mut env = decision.environment.clone();
    env.extend(decision.flags.iter().map(settings::variable));
    let mut own = BTreeMap::from([
        ("MODEL_ID", Template::literal(path)),
        ("HOSTNAME", "{address.host}".into()),
        ("PORT", "{address.port}".into()),
        ("USAGE_STATS", "off".into()),
        ("HF_HUB_OFFLINE", "1".into()),
        ("HF_HOME", CACHE.into()),
        ("HUGGINGFACE_HUB_CACHE", CACHE.into()),
        ("TRITON_CACHE_DIR", format!("{CACHE}/triton").into()),
    ]);
    if decision.pool.profile == Profile::Deterministic {
        own.insert("PREFIX_CACHING", "0".into());
    }
    for (name, value) in own {
        env.entry(name.to_owned()).or_insert(value);
    }
    env
}

/// While it loads, nothing listens; 503 means that the model's processes are dead.
fn probes() -> Probes {
    Probes {
        readiness: ReadinessProbe {
            path: "/health".to_owned(),
            ok: vec![200],
            loading: Vec::new(),
        },
        version: Some(VersionProbe {
            path: "/info".to_owned(),
            pointer: "/version".to_owned(),
        }),
        metrics: Some("/metrics".to_owned()),
        metrics_port: None,
    }
}

/// TGI that somebody else started.
pub(crate) fn from_outside() -> external::Family<'static> {
    external::Family {
        engine: "tgi",
        dialect: "openai",
        workloads: &WORKLOADS,
        probes: probes(),
    }
}
