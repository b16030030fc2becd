//! The engine as it is run: its command line, environment, probes and proof.

use std::collections::BTreeMap;

use engine_provider_api::{
    ContainerLaunch, DrainProbe, Gpu, GpuEvidence, Launch, Model, ModelFacts, PrepareRequest,
    PreparedEngine, Probes, ProcessLaunch, ProviderError, ReadinessProbe, Resources, Stop,
    Template, VersionProbe,
};
use engine_provider_kit::{
    container, external, flags, gpu,
    model::{inside, public_name},
    python,
    vram::{self, Need, Stored},
};

use crate::{
    MODEL,
    decision::Decision,
    diagnoses,
    flags::number,
    origin::{Origin, Packages},
    program,
};

const WORKLOADS: [&str; 2] = ["completion", "chat"];
const PORT: u16 = 8000;
/// Where the cache lies in the container.
const CACHE: &str = "/cache";
/// The user that vLLM's image is made for.
const USER: &str = "2000:0";
/// Where the compiler is looked for that makes kernels while vLLM starts, after what the packages bring.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";
/// Share of each GPU's memory that vLLM takes where no flag says otherwise.
const UTILISATION: f64 = 0.92;
/// Memory for the context on the processor where nobody says otherwise, in GiB: vLLM alone would take
/// nearly all there is.
const CPU_CONTEXT_GIB: &str = "4";

pub(crate) fn prepare(
    decision: Decision,
    request: &PrepareRequest,
) -> Result<PreparedEngine, ProviderError> {
    let mut warnings = decision.warnings.clone();
    let vram_bytes = memory(&decision, request, &mut warnings)?;
    let model = request.artifact(MODEL);
    let id = model_id(&decision);
    let (launch, engine_version, build_record) = match &decision.origin {
        Origin::Image(_) => (
            Launch::Container(in_container(&decision, &id)),
            container::version(request),
            container::record(request),
        ),
        Origin::Packages(packages) => (
            Launch::Process(as_process(&decision, &id)),
            packages.version.to_owned(),
            record(packages, request),
        ),
    };
    let evidence = decision.requires_gpu();
    Ok(PreparedEngine {
        requires: Vec::new(),
        engine: "vllm".to_owned(),
        engine_version,
        provisioning_mode: request.mode,
        launch,
        files: Vec::new(),
        probes: probes(),
        stop: Stop {
            drain: Some(DrainProbe {
                path: "/metrics".to_owned(),
                gauge: "vllm:num_requests_running".to_owned(),
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
        gpu_evidence: evidence.then(gpu_evidence),
        dialect: "openai".to_owned(),
        device_mask: decision.gpus.iter().map(|gpu| gpu.uuid.clone()).collect(),
        build_record: deterministic(&decision, build_record),
        warnings,
    })
}

fn model_id(decision: &Decision) -> String {
    let given = decision.pool.model.clone();
    given.unwrap_or_else(|| public_name(&decision.model.reference))
}

/// Device memory: vLLM takes its share of each GPU, whatever the model's size.
///
/// What it needs least is the weights, each GPU a part of them, and the cache of one request of the
/// longest length: with less it ends with "To serve at least one request with the models's max seq len".
fn memory(
    decision: &Decision,
    request: &PrepareRequest,
    warnings: &mut Vec<String>,
) -> Result<Option<u64>, ProviderError> {
    if decision.gpus.is_empty() {
        return Ok(Some(0));
    }
    let share = number(&decision.flags, "--gpu-memory-utilization", UTILISATION);
    if decision.requires_gpu() {
        check_room(decision, request, share)?;
    }
    let taken = |gpu: &Gpu| (gpu.memory_total_bytes as f64 * share) as u64;
    for gpu in &decision.gpus {
        if gpu.memory_free_bytes < taken(gpu) {
            warnings.push(format!(
                "vLLM takes {} MiB of GPU {}, and {} MiB are free: stop what uses it, or lower \
                 `--gpu-memory-utilization` in `provisioning.flags`",
                taken(gpu) >> 20,
                gpu.index,
                gpu.memory_free_bytes >> 20,
            ));
        }
    }
    let total = decision.gpus.iter().map(|gpu| taken(gpu)).sum();
    Ok(Some(total).filter(|total| *total > 0))
}

fn check_room(
    decision: &Decision,
    request: &PrepareRequest,
    share: f64,
) -> Result<(), ProviderError> {
    let (pool, gpus) = (decision.pool, &decision.gpus);
    let Some(artifact) = request.artifact(MODEL) else {
        return Ok(());
    };
    let facts = artifact.model.as_ref();
    let need = facts.and_then(|facts| Some((facts, need(decision, facts)?)));
    // With less for the cache than its share vLLM is told a size of its own.
    let sized = has(decision, "--kv-cache-memory-bytes");
    if let Some((facts, need)) = need {
        let share = if sized { 1.0 } else { share };
        vram::check(pool, gpus, share, &need, facts)?;
    } else if let Some(size) = artifact.size_bytes {
        gpu::check_room(pool, gpus, size)?;
    }
    Ok(())
}

fn need(decision: &Decision, facts: &ModelFacts) -> Option<Need> {
    let flag = |name: &str| {
        let flag = decision.flags.iter().rfind(|flag| flag.name == name);
        flag.map(flags::Flag::value)
    };
    let longest = flag("--max-model-len").map_or(facts.context_length, |len| len.parse().ok());
    let cached = match flag("--kv-cache-dtype") {
        None | Some("auto" | "bfloat16" | "float16") => Stored::HALF,
        Some(_) => Stored::BYTE,
    };
    let made_smaller = has(decision, "--quantization");
    vram::least(facts, longest.unwrap_or(0), cached, made_smaller)
}

fn has(decision: &Decision, name: &str) -> bool {
    decision.flags.iter().any(|flag| flag.name == name)
}

/// Arguments after the program, with the model at `path`.
fn arguments(decision: &Decision, id: &str, model: [Template; 2]) -> Vec<Template> {
    let mut args = model.to_vec();
    args.extend(["--served-model-name".into(), Template::literal(id)]);
    let address = ["--host", "{address.host}", "--port", "{address.port}"];
    args.extend(address.map(Template::from));
    let flags = flags::arguments(&decision.flags);
    args.extend(flags.iter().map(|argument| Template::literal(argument)));
    args
}

fn in_container(decision: &Decision, id: &str) -> ContainerLaunch {
    let path = inside(id);
    let mut env = environment(decision, CACHE);
    // Whatever number the user has, it has a home and a name.
    env.insert("USER".to_owned(), "vllm".into());
    ContainerLaunch {
        image: container::PULL.to_owned(),
        entrypoint: vec!["vllm".to_owned()],
        args: arguments(decision, id, ["serve".into(), Template::literal(&path)]),
        env,
        mounts: vec![
            container::mount(MODEL, &path),
            container::cache("vllm", CACHE),
        ],
        port: PORT,
        usual_port: PORT,
        user: Some(USER.to_owned()),
        shm_bytes: container::SHM_BYTES,
        // The hook that brings the driver's libraries in writes to the root file system.
        read_only_root: decision.gpus.is_empty(),
        ..ContainerLaunch::default()
    }
}

fn as_process(decision: &Decision, id: &str) -> ProcessLaunch {
    let mut args: Vec<Template> = vec!["-m".into(), "vllm.entrypoints.openai.api_server".into()];
    let model = format!("{{{MODEL}.path}}").into();
    args.extend(arguments(decision, id, ["--model".into(), model]));
    let mut env = environment(decision, "{cache.vllm}");
    env.entry("PATH".to_owned())
        .or_insert_with(|| format!("{{{}.path}}/python/bin:{SYSTEM_PATH}", python::VENV).into());
    if !decision.gpus.is_empty() {
        let ids: Vec<&str> = decision.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        env.insert(
            "CUDA_VISIBLE_DEVICES".to_owned(),
            Template::literal(&ids.join(",")),
        );
    }
    ProcessLaunch {
        program: program(),
        args,
        env,
        usual_port: PORT,
        more_ports: Vec::new(),
    }
}

/// No network for the model, nothing sent home, and all that is written below `cache`.
fn environment(decision: &Decision, cache: &str) -> BTreeMap<String, Template> {
    let mut own = BTreeMap::from([
        ("VLLM_NO_USAGE_STATS", Template::from("1")),
        ("DO_NOT_TRACK", "1".into()),
        ("HF_HUB_OFFLINE", "1".into()),
        ("TRANSFORMERS_OFFLINE", "1".into()),
        ("HOME", cache.into()),
        ("VLLM_CACHE_ROOT", format!("{cache}/vllm").into()),
        (
            "TORCHINDUCTOR_CACHE_DIR",
            format!("{cache}/torchinductor").into(),
        ),
    ]);
    if decision.invariant {
        own.insert("VLLM_BATCH_INVARIANT", "1".into());
    }
    let sized = |name: &str| decision.flags.iter().any(|flag| flag.name == name);
    let sized = sized("--gpu-memory-utilization") || sized("--kv-cache-memory-bytes");
    if decision.gpus.is_empty() && !sized {
        own.insert("VLLM_CPU_KVCACHE_SPACE", CPU_CONTEXT_GIB.into());
    }
    let mut env = decision.environment.clone();
    for (name, value) in own {
        env.entry(name.to_owned()).or_insert(value);
    }
    env
}

/// What profile `deterministic` rests on, beside what is recorded anyway.
fn deterministic(
    decision: &Decision,
    mut record: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let seed = decision.flags.iter().find(|flag| flag.name == "--seed");
    if let Some(seed) = seed {
        record.insert("seed".to_owned(), seed.value().to_owned());
        record.insert("batch_invariant".to_owned(), decision.invariant.to_string());
    }
    record
}

fn record(packages: &Packages, request: &PrepareRequest) -> BTreeMap<String, String> {
    let venv = request.artifact(python::VENV);
    let mut record = venv.map(|venv| venv.labels.clone()).unwrap_or_default();
    record.insert("package".to_owned(), packages.project.to_owned());
    record.insert("version".to_owned(), packages.version.to_owned());
    record
}

/// While it loads, nothing listens; 503 means that the process that computes is dead.
fn probes() -> Probes {
    Probes {
        readiness: ReadinessProbe {
            path: "/health".to_owned(),
            ok: vec![200],
            loading: Vec::new(),
        },
        version: Some(VersionProbe {
            path: "/version".to_owned(),
            pointer: "/version".to_owned(),
        }),
        metrics: Some("/metrics".to_owned()),
        metrics_port: None,
    }
}

/// vLLM names the device that its cache is on. What it takes of it is the driver's to say.
fn gpu_evidence() -> GpuEvidence {
    GpuEvidence {
        proofs: vec![r"GPU KV cache size: [0-9,]+ tokens".to_owned()],
        disproofs: vec![
            r"CPU KV cache size:".to_owned(),
            r"Total CPU offloaded parameters:".to_owned(),
        ],
        driver_memory: true,
        ..GpuEvidence::default()
    }
}

/// vLLM that somebody else started.
pub(crate) fn from_outside() -> external::Family<'static> {
    external::Family {
        engine: "vllm",
        dialect: "openai",
        workloads: &WORKLOADS,
        probes: probes(),
    }
}
