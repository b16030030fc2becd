//! The engine as it is run: its command line, ports, probes and proof.

use engine_provider_api::{
    ContainerLaunch, DrainProbe, ExtraPort, GpuEvidence, GpuPolicy, Launch, Mode, Model,
    PrepareRequest, PreparedEngine, Probes, ProviderError, ReadinessProbe, Resources, Stop,
    Template, VersionProbe,
};
use engine_provider_kit::{
    container,
    external::Family,
    flags::{self as kit_flags, Flag},
};

use crate::{
    Decision, MODEL, diagnoses, flags,
    options::Backend,
    package,
    repository::{self, Repository},
};

const HTTP: u16 = 8000;
const GRPC: u16 = 8001;
const METRICS: u16 = 8002;
/// User `triton-server` of NVIDIA's images.
const USER: &str = "1000:1000";

/// What Triton looks like from outside, for an engine that runs already.
pub(crate) fn family() -> Family<'static> {
    Family {
        engine: "triton",
        dialect: "kserve",
        workloads: &["inference"],
        probes: Probes {
            metrics: None,
            metrics_port: None,
            ..probes(None)
        },
    }
}

pub(crate) fn prepare(
    decision: &Decision,
    request: &PrepareRequest,
) -> Result<PreparedEngine, ProviderError> {
    let on_gpu = !decision.gpus.is_empty();
    let required = on_gpu && decision.pool.gpu == GpuPolicy::Require;
    let flags = flags::all(own_flags(decision), &decision.flags);
    let model = request.artifact(MODEL);
    let name = decision.name.clone();
    let in_container = request.mode == Mode::Container;
    let (launch, files) = if in_container {
        let made = Repository::mounted(decision, &name);
        let launch = ContainerLaunch {
            mounts: made.mounts,
            ..container(decision, &flags)
        };
        (Launch::Container(launch), made.files)
    } else {
        (
            Launch::Process(process(decision, request, &flags)?),
            Vec::new(),
        )
    };
    let mut build_record = container::record(request);
    if !in_container {
        let server = package::SERVER_VERSION.to_owned();
        build_record.insert("tritonserver".to_owned(), server);
    }
    let mask = decision.gpus.iter().map(|gpu| gpu.uuid.clone());
    Ok(PreparedEngine {
        requires: required
            .then(|| "gpu-evidence".to_owned())
            .into_iter()
            .collect(),
        engine: "triton".to_owned(),
        engine_version: match in_container {
            true => container::version(request),
            false => package::VERSION.to_owned(),
        },
        provisioning_mode: request.mode,
        launch,
        files,
        probes: probes(decision.model_is_known().then_some(name.as_str())),
        stop: Stop {
            drain: Some(DrainProbe {
                path: "/metrics".to_owned(),
                gauge: "nv_inference_pending_request_count".to_owned(),
                port: Some("metrics".to_owned()),
            }),
            second_term_ends_at_once: false,
        },
        resources: Resources {
            vram_bytes: match on_gpu {
                true => model.and_then(|model| model.size_bytes),
                false => Some(0),
            },
            ..Resources::default()
        },
        model: Model {
            id: name,
            path: model.and_then(|model| model.path.clone()),
            digest: model.and_then(|model| model.digest.clone()),
        },
        flags: kit_flags::arguments(&flags),
        slots_total: 1,
        workloads: vec![workload(decision.options.backend).to_owned()],
        profile: decision.pool.profile,
        diagnoses: diagnoses::all(),
        gpu_evidence: required.then(evidence),
        dialect: "kserve".to_owned(),
        device_mask: mask.collect(),
        build_record,
        warnings: decision.warnings.clone(),
    })
}

fn workload(backend: Option<Backend>) -> &'static str {
    match backend {
        Some(Backend::Vllm | Backend::TensorrtLlm) => "completion",
        _ => "inference",
    }
}

/// Ends with 1 where a model does not load, and leaves requests the time that the host leaves it.
fn own_flags(decision: &Decision) -> Vec<Flag> {
    let grace_s = decision.pool.stop.grace_ms / 1000;
    let mut flags = vec![
        Flag::own("--strict-readiness", ["true"]),
        Flag::own("--exit-on-error", ["true"]),
        Flag::own(
            "--exit-timeout-secs",
            [grace_s.saturating_sub(1).to_string()],
        ),
    ];
    if decision.gpus.is_empty() {
        flags.push(Flag::own("--allow-gpu-metrics", ["false"]));
    }
    flags
}

fn arguments(repository: &str, flags: &[Flag]) -> Vec<Template> {
    let mut args: Vec<Template> = Vec::new();
    for (service, port) in [
        ("http", "{address.port}"),
        ("grpc", "{port.grpc}"),
        ("metrics", "{port.metrics}"),
    ] {
        args.extend([
            format!("--{service}-address").into(),
            "{address.host}".into(),
        ]);
        args.extend([format!("--{service}-port").into(), port.into()]);
    }
    args.extend(["--model-repository".into(), repository.into()]);
    let flags = kit_flags::arguments(flags);
    args.extend(flags.iter().map(|argument| Template::literal(argument)));
    args
}

fn more_ports() -> Vec<ExtraPort> {
    [("grpc", GRPC), ("metrics", METRICS)]
        .map(|(name, usual_port)| ExtraPort {
            name: name.to_owned(),
            usual_port,
        })
        .to_vec()
}

/// The image's own entrypoint stays: it chooses the CUDA libraries that go with the driver.
fn container(decision: &Decision, flags: &[Flag]) -> ContainerLaunch {
    let backend = decision.options.backend;
    let language_model = matches!(backend, Some(Backend::Vllm | Backend::TensorrtLlm));
    let mut args = vec!["tritonserver".into()];
    args.extend(arguments(repository::INSIDE, flags));
    let mut env = decision.environment.clone();
    if backend == Some(Backend::Vllm) {
        for (name, value) in [("VLLM_NO_USAGE_STATS", "1"), ("HF_HUB_OFFLINE", "1")] {
            env.entry(name.to_owned()).or_insert_with(|| value.into());
        }
    }
    ContainerLaunch {
        image: container::PULL.to_owned(),
        args,
        env,
        port: HTTP,
        more_ports: more_ports(),
        user: Some(USER.to_owned()),
        shm_bytes: match language_model {
            true => 2 * container::SHM_BYTES,
            false => container::SHM_BYTES,
        },
        unlimited_memlock: true,
        // Back ends for language models compile into their user's home.
        read_only_root: !language_model,
        ..ContainerLaunch::default()
    }
}

fn process(
    decision: &Decision,
    request: &PrepareRequest,
    flags: &[Flag],
) -> Result<engine_provider_api::ProcessLaunch, ProviderError> {
    package::check(request.output(package::STUB), decision.facts)?;
    let args = arguments(&format!("{{{MODEL}.path}}"), flags);
    let mut env = decision.environment.clone();
    if !decision.gpus.is_empty() {
        let ids: Vec<&str> = decision.gpus.iter().map(|gpu| gpu.uuid.as_str()).collect();
        let ids = Template::literal(&ids.join(","));
        env.insert("CUDA_VISIBLE_DEVICES".to_owned(), ids);
    }
    Ok(engine_provider_api::ProcessLaunch {
        usual_port: HTTP,
        more_ports: more_ports(),
        ..package::launch(decision.facts, args, env)?
    })
}

/// An empty repository is ready at once, so where the model's name is known it is asked for.
fn probes(model: Option<&str>) -> Probes {
    let path = model.map_or_else(
        || "/v2/health/ready".to_owned(),
        |name| format!("/v2/models/{name}/ready"),
    );
    Probes {
        readiness: ReadinessProbe {
            path,
            ok: vec![200],
            // 400 while models load.
            loading: vec![400, 503],
        },
        version: Some(VersionProbe {
            path: "/v2".to_owned(),
            pointer: "/version".to_owned(),
        }),
        metrics: Some("/metrics".to_owned()),
        metrics_port: Some("metrics".to_owned()),
    }
}

/// Its log says where nothing can be held on a GPU; what is held there the driver says.
fn evidence() -> GpuEvidence {
    GpuEvidence {
        disproofs: vec!["CUDA memory pool disabled".to_owned()],
        driver_memory: true,
        ..GpuEvidence::default()
    }
}
