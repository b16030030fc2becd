//! What is run, how it is asked, and what its log means.

use std::collections::BTreeMap;

use engine_provider_api::{
    ContainerLaunch, Diagnosis, DiagnosisKind, DrainProbe, ExternalLaunch, ExtraPort, GpuEvidence,
    GpuPolicy, Launch, Mode, Mount, Pool, PrepareRequest, Probes, ProcessLaunch, ProviderError,
    ReadinessProbe, Stop, Template, VersionProbe,
};

use crate::{devices, needed, program};

/// Where the model is inside a container.
const MODEL: &str = "/models/model.gguf";

/// How the engine is started in this mode.
pub(crate) fn launch(request: &PrepareRequest) -> Result<Launch, ProviderError> {
    let pool = &request.pool;
    let env = environment(&pool.provisioning.env);
    if let Some(program) = program(pool, request.mode) {
        let mut env = env;
        let devices = devices(request);
        if !devices.is_empty() {
            let devices = Template::new(devices.join(","));
            env.insert("CUDA_VISIBLE_DEVICES".to_owned(), devices);
        }
        return Ok(Launch::Process(ProcessLaunch {
            program,
            args: arguments(pool, "{model.path}"),
            env,
            usual_port: 8080,
            more_ports: more_ports(pool),
        }));
    }
    Ok(match request.mode {
        Mode::Container => Launch::Container(ContainerLaunch {
            image: "image".to_owned(),
            args: arguments(pool, MODEL),
            env,
            mounts: vec![
                mount("{model.path}", MODEL),
                mount("{cache.fixture}", "/cache"),
            ],
            port: 8080,
            more_ports: more_ports(pool),
            read_only_root: true,
            ..ContainerLaunch::default()
        }),
        _ => {
            let external = pool.provisioning.external.clone().unwrap_or_default();
            let url = needed("external.url", external.url)?;
            Launch::External(ExternalLaunch { url })
        }
    })
}

fn arguments(pool: &Pool, model: &str) -> Vec<Template> {
    let address = ["--host", "{address.host}", "--port", "{address.port}"];
    let mut args: Vec<Template> = address.into_iter().map(Template::from).collect();
    args.extend([Template::from("--model"), Template::from(model)]);
    for port in more_ports(pool) {
        args.push(Template::new(format!("--{}-port", port.name)));
        args.push(Template::new(format!("{{port.{}}}", port.name)));
    }
    // What an operator wrote stands for itself: braces in it are no placeholders.
    let flags = pool.provisioning.flags.iter();
    args.extend(flags.map(|flag| Template::literal(flag)));
    args
}

/// A second port, where the pool wants it.
fn more_ports(pool: &Pool) -> Vec<ExtraPort> {
    let wanted = pool.options.get("grpc").is_some_and(|value| value == true);
    let grpc = wanted.then(|| ExtraPort {
        name: "grpc".to_owned(),
        usual_port: 9090,
    });
    grpc.into_iter().collect()
}

fn mount(source: &str, target: &str) -> Mount {
    Mount {
        source: source.into(),
        target: target.to_owned(),
    }
}

/// It computes nothing: that it sees a GPU at all is all the proof there can be.
pub(crate) fn gpu_evidence(policy: GpuPolicy) -> Option<GpuEvidence> {
    (policy == GpuPolicy::Require).then(|| GpuEvidence {
        proofs: vec!["^sees device ".to_owned()],
        ..GpuEvidence::default()
    })
}

pub(crate) fn probes() -> Probes {
    Probes {
        readiness: ReadinessProbe {
            path: "/health".to_owned(),
            ok: vec![200],
            loading: vec![503],
        },
        version: Some(VersionProbe {
            path: "/props".to_owned(),
            pointer: "/build_info".to_owned(),
        }),
        metrics: Some("/metrics".to_owned()),
        metrics_port: None,
    }
}

pub(crate) fn stop() -> Stop {
    Stop {
        drain: Some(DrainProbe {
            path: "/metrics".to_owned(),
            gauge: "fixture_requests_processing".to_owned(),
            ..DrainProbe::default()
        }),
        second_term_ends_at_once: false,
    }
}

pub(crate) fn diagnoses() -> Vec<Diagnosis> {
    vec![
        Diagnosis {
            pattern: "invalid argument: (?<flag>.+)".to_owned(),
            meaning: "this build does not know the flag `$flag`".to_owned(),
            fix: "remove it from `provisioning.flags`".to_owned(),
            ..Diagnosis::default()
        },
        Diagnosis {
            pattern: "failed to open model '(?<path>[^']+)': (?<why>.+)".to_owned(),
            meaning: "the model `$path` cannot be read: $why".to_owned(),
            fix: "check the path and who may read it".to_owned(),
            ..Diagnosis::default()
        },
        Diagnosis {
            pattern: "couldn't bind HTTP server socket".to_owned(),
            meaning: "another program listens on the port".to_owned(),
            fix: "give other `ports`, or none".to_owned(),
            port_taken: true,
            ..Diagnosis::default()
        },
        Diagnosis {
            pattern: "^CUDA error: (?<what>.+)".to_owned(),
            meaning: "the GPU failed: $what".to_owned(),
            fix: "see what the driver says with `nvidia-smi`".to_owned(),
            kind: Some(DiagnosisKind::Gpu),
            ..Diagnosis::default()
        },
    ]
}

/// A secret keeps its name: the host fills it in at launch. Everything else is text as it stands.
fn environment(env: &BTreeMap<String, String>) -> BTreeMap<String, Template> {
    let template = |value: &str| match value.starts_with("{secret.") && value.ends_with('}') {
        true => Template::from(value),
        false => Template::literal(value),
    };
    env.iter()
        .map(|(name, value)| (name.clone(), template(value)))
        .collect()
}
