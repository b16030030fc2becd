//! The engine as it is run: its command line, environment, probes and proof.

use std::collections::BTreeMap;

use engine_provider_api::{
    ContainerLaunch, DrainProbe, GpuEvidence, Launch, Model, PrepareRequest, PreparedEngine,
    Probes, ProcessLaunch, Profile, ProviderError, ReadinessProbe, Resources, Stop, Template,
    VersionProbe,
};
use engine_provider_kit::{
    container,
    external::Family,
    flags::{self, Flag},
    gpu,
    model::public_name,
    vram as room,
};

use crate::{
    CLONE, DEVICES, Decision, MODEL, VERSION,
    built::{Built, text},
    diagnoses, image,
    origin::Origin,
    own::{SLOTS, all_flags},
    vram,
};

/// What llama.cpp looks like from outside, for an engine that runs already.
pub(crate) fn family() -> Family<'static> {
    Family {
        engine: "llamacpp",
        dialect: "openai",
        workloads: &["completion", "chat"],
        probes: Probes {
            // It may have been started without `--metrics`.
            metrics: None,
            ..probes()
        },
    }
}

pub(crate) fn profile_note(profile: Profile) -> String {
    match profile {
        Profile::Deterministic => format!(
            "profile deterministic: one request at a time, equal requests with equal seeds give \
             equal texts; `profile: throughput` serves {SLOTS} at once"
        ),
        Profile::Throughput => format!(
            "profile throughput: {SLOTS} requests at once; `profile: deterministic` gives equal \
             texts for equal seeds"
        ),
    }
}

pub(crate) fn prepare(
    decision: &Decision,
    request: &PrepareRequest,
) -> Result<PreparedEngine, ProviderError> {
    let built = Built::observe(decision, request)?;
    let mut warnings = decision.warnings.clone();
    warnings.extend(built.shortfall(decision));
    let flags = all_flags(decision, &built, &mut warnings)?;
    let slots_total = slots(&flags)?;
    if decision.pool.profile == Profile::Deterministic && slots_total > 1 {
        warnings.push(format!(
            "{slots_total} slots: equal requests may give different texts in spite of profile deterministic"
        ));
    }
    let vram_bytes = memory(decision, &built, request, &flags, &mut warnings)?;
    let id = model_id(decision);
    let model = request.artifact(MODEL);
    let evidence = built.on_gpu && decision.requires_gpu();
    Ok(PreparedEngine {
        requires: evidence
            .then(|| "gpu-evidence".to_owned())
            .into_iter()
            .collect(),
        engine: "llamacpp".to_owned(),
        engine_version: built
            .version
            .clone()
            .unwrap_or_else(|| decision.origin.later().to_owned()),
        provisioning_mode: request.mode,
        launch: launch(decision, &built, request, &id, &flags),
        files: Vec::new(),
        probes: probes(),
        stop: Stop {
            drain: Some(DrainProbe {
                path: "/metrics".to_owned(),
                gauge: "llamacpp:requests_processing".to_owned(),
                port: None,
            }),
            second_term_ends_at_once: true,
        },
        resources: Resources {
            vram_bytes,
            memory_bytes: main_memory(&built, request, &flags),
        },
        model: Model {
            id,
            path: model.and_then(|model| model.path.clone()),
            digest: model.and_then(|model| model.digest.clone()),
        },
        workloads: workloads(&flags),
        flags: flags::arguments(&flags),
        slots_total,
        profile: decision.pool.profile,
        diagnoses: diagnoses::all(),
        gpu_evidence: evidence.then(|| gpu_evidence(decision)),
        dialect: "openai".to_owned(),
        device_mask: mask(decision, &built),
        build_record: record(decision, request),
        warnings,
    })
}

fn slots(flags: &[Flag]) -> Result<u32, ProviderError> {
    let Some(flag) = flags.iter().rfind(|flag| flag.name == "--parallel") else {
        return Ok(1);
    };
    match flag.value().parse::<i32>() {
        Ok(number) if number > 0 => Ok(number.unsigned_abs()),
        Ok(-1) => Ok(SLOTS),
        _ => {
            let message = format!("`--parallel {}` is no number of slots", flag.value());
            Err(ProviderError::invalid(flag.field.clone(), message))
        }
    }
}

fn workloads(flags: &[Flag]) -> Vec<String> {
    let has = |name: &str| flags.iter().any(|flag| flag.name == name);
    let workloads: &[&str] = match () {
        () if has("--reranking") => &["rerank"],
        () if has("--embeddings") => &["embedding"],
        () => &["completion", "chat"],
    };
    workloads.iter().map(|&name| name.to_owned()).collect()
}

/// Device memory: what the model's header tells, else its size. Under `gpu: require` it must fit.
fn memory(
    decision: &Decision,
    built: &Built,
    request: &PrepareRequest,
    flags: &[Flag],
    warnings: &mut Vec<String>,
) -> Result<Option<u64>, ProviderError> {
    if !built.on_gpu {
        return Ok(Some(0));
    }
    let (pool, gpus) = (decision.pool, &decision.target.gpus);
    let artifact = request.artifact(MODEL);
    let facts = artifact.and_then(|artifact| artifact.model.as_ref());
    if let Some((facts, need)) = facts.and_then(|facts| Some((facts, vram::need(facts, flags)?))) {
        if decision.requires_gpu() {
            warnings.extend(room::check(pool, gpus, 1.0, &need, facts)?);
        }
        return Ok(Some(need.total()));
    }
    let size = artifact.and_then(|artifact| artifact.size_bytes);
    if let (Some(size), true) = (size, decision.requires_gpu()) {
        warnings.extend(gpu::check_room(pool, gpus, size)?);
    }
    Ok(size)
}

/// Main memory of an engine that computes on the processor; beside a GPU it depends on what fits there.
fn main_memory(built: &Built, request: &PrepareRequest, flags: &[Flag]) -> Option<u64> {
    let artifact = request.artifact(MODEL).filter(|_| !built.on_gpu)?;
    let facts = artifact.model.as_ref();
    let known = facts.and_then(|facts| vram::in_main_memory(facts, flags));
    known.or(artifact.size_bytes)
}

fn launch(
    decision: &Decision,
    built: &Built,
    request: &PrepareRequest,
    id: &str,
    flags: &[Flag],
) -> Launch {
    let in_container = matches!(decision.origin, Origin::Image(_));
    let path = request
        .artifact(MODEL)
        .and_then(|model| model.path.as_deref());
    let inside = image::model_path(id, path);
    let model = match in_container {
        true => Template::literal(&inside),
        false => format!("{{{MODEL}.path}}").into(),
    };
    let mut args: Vec<Template> = ["--host", "{address.host}", "--port", "{address.port}"]
        .map(Into::into)
        .to_vec();
    args.extend(["--model".into(), model]);
    args.extend(["--alias".into(), Template::literal(id)]);
    let flags = flags::arguments(flags);
    args.extend(flags.iter().map(|argument| Template::literal(argument)));
    if in_container {
        // Devices are the host's business there, and are counted from 0 inside.
        return Launch::Container(ContainerLaunch {
            env: decision.environment.clone(),
            ..image::launch(&inside, args)
        });
    }
    let mut env = decision.origin.env();
    env.extend(decision.environment.clone());
    let mask = decision.target.mask().filter(|_| built.on_gpu);
    if let Some((name, value)) = mask {
        env.insert(name.to_owned(), Template::literal(&value));
    }
    Launch::Process(ProcessLaunch {
        program: decision.origin.program(),
        args,
        env,
        usual_port: 8080,
        more_ports: Vec::new(),
    })
}

fn model_id(decision: &Decision) -> String {
    let given = decision.pool.model.clone();
    given.unwrap_or_else(|| public_name(&decision.reference.reference))
}

fn probes() -> Probes {
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

/// The log at verbosity 4 names each buffer with its device.
///
/// The input layer always lies in main memory. It is at most as large as all the rest together, so
/// half of all bytes on the GPUs would do, were it not for models with embeddings per layer. A layer
/// in main memory has its cache there too, which [`GpuEvidence::disproofs`] looks for.
fn gpu_evidence(decision: &Decision) -> GpuEvidence {
    GpuEvidence {
        devices: decision.target.devices(),
        buffers: ["model", "(?:KV|RS)"]
            .map(|kind| {
                format!(
                    r"\s(?P<device>\S+?)(?:_Split)? {kind} buffer size\s*=\s*(?P<mib>[0-9.]+) MiB"
                )
            })
            .to_vec(),
        least_percent: 40,
        disproofs: vec![r"\s(?:CPU\S*|\S+_Host) (?:KV|RS) buffer size".to_owned()],
        ..GpuEvidence::default()
    }
}

fn mask(decision: &Decision, built: &Built) -> Vec<String> {
    let gpus = decision.target.gpus.iter().filter(|_| built.on_gpu);
    gpus.map(|gpu| gpu.uuid.clone()).collect()
}

fn record(decision: &Decision, request: &PrepareRequest) -> BTreeMap<String, String> {
    let build = request.artifact(decision.origin.step());
    let mut record = build.map(|build| build.labels.clone()).unwrap_or_default();
    if matches!(decision.origin, Origin::Image(_)) {
        record.extend(container::record(request));
    }
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            record.insert(name.to_owned(), value);
        }
    };
    add("backend", Some(decision.target.backend.name().to_owned()));
    add(
        "commit",
        request
            .artifact(CLONE)
            .and_then(|clone| clone.commit.clone()),
    );
    add(
        "attempt",
        build
            .and_then(|build| build.attempt)
            .map(|attempt| attempt.to_string()),
    );
    add("program", build.and_then(|build| build.digest.clone()));
    if let Origin::Binary(binary) = &decision.origin {
        add("origin", Some(binary.origin()));
    }
    add(
        "version",
        request
            .output(VERSION)
            .map(|output| text(output).trim().to_owned()),
    );
    add(
        "devices",
        request
            .output(DEVICES)
            .map(|output| output.stdout.trim().to_owned()),
    );
    record
}
