//! The engine as it is run: its command line, environment, probes and proof.

use std::collections::BTreeMap;

use engine_provider_api::{
    DrainProbe, ErrorCode, GpuEvidence, Launch, Model, Output, PrepareRequest, PreparedEngine,
    Probes, ProcessLaunch, Profile, ProviderError, ReadinessProbe, Resources, Stop, Template,
    VersionProbe,
};
use engine_provider_kit::{
    flags::{self, Flag},
    help::Help,
    model::public_name,
};

use crate::{
    BUILD, Backend, CLONE, DEVICES, Decision, HELP, MODEL, VERSION, diagnoses, flags::KNOWN,
};

const LATER: &str = "(known after build)";
/// Slots of profile `throughput`; llama-server's own choice where it is left to choose.
const SLOTS: u32 = 4;

pub(crate) fn program() -> Template {
    format!("{{{BUILD}.path}}/bin/llama-server").into()
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
    let flags = all_flags(decision, &built, &mut warnings)?;
    let slots_total = slots(&flags)?;
    if decision.pool.profile == Profile::Deterministic && slots_total > 1 {
        warnings.push(format!(
            "{slots_total} slots: equal requests may give different texts in spite of profile deterministic"
        ));
    }
    let vram_bytes = memory(decision, &built, request, &mut warnings)?;
    let id = model_id(decision);
    let model = request.artifact(MODEL);
    let evidence = built.on_gpu && decision.requires_gpu();
    Ok(PreparedEngine {
        requires: evidence
            .then(|| "gpu-evidence".to_owned())
            .into_iter()
            .collect(),
        engine: "llamacpp".to_owned(),
        engine_version: built.version.clone().unwrap_or_else(|| LATER.to_owned()),
        provisioning_mode: request.mode,
        launch: Launch::Process(launch(decision, &built, &id, &flags)),
        files: Vec::new(),
        probes: probes(),
        stop: Stop {
            drain: Some(DrainProbe {
                path: "/metrics".to_owned(),
                gauge: "llamacpp:requests_processing".to_owned(),
            }),
            second_term_ends_at_once: true,
        },
        resources: Resources { vram_bytes },
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

/// What is known of the program that was built; before the build, what is planned.
struct Built {
    help: Option<Help>,
    /// `<commit, 12 digits>-<back end>`, once it has been observed.
    version: Option<String>,
    on_gpu: bool,
}

impl Built {
    fn observe(decision: &Decision, request: &PrepareRequest) -> Result<Self, ProviderError> {
        let help = request
            .output(HELP)
            .map(text)
            .map(|text| Help::parse(&text));
        let planned = !decision.target.gpus.is_empty();
        let Some(devices) = request.output(DEVICES) else {
            return Ok(Self {
                help,
                version: None,
                on_gpu: planned,
            });
        };
        let prefix = decision.target.backend.device_prefix();
        let seen = listed(devices, prefix);
        let on_gpu = planned && seen >= decision.target.gpus.len();
        if planned && !on_gpu && decision.requires_gpu() {
            return Err(too_few_devices(decision, seen, devices));
        }
        let version = match request.output(VERSION) {
            Some(output) => Some(version(decision, request, output, on_gpu)?),
            None => None,
        };
        Ok(Self {
            help,
            version,
            on_gpu,
        })
    }
}

/// Devices with this prefix in the output of `--list-devices`, one line each: `  CUDA0: NAME (…)`.
fn listed(output: &Output, prefix: &str) -> usize {
    let number = |line: &str| {
        let (name, _) = line.trim_start().split_once(':')?;
        name.strip_prefix(prefix)?.parse::<u32>().ok()
    };
    output.stdout.lines().filter_map(number).count()
}

fn too_few_devices(decision: &Decision, seen: usize, output: &Output) -> ProviderError {
    let message = format!(
        "the llama-server that was built for {} sees {seen} of the {} GPUs that pool `{}` requires",
        decision.target.backend.name(),
        decision.target.gpus.len(),
        decision.pool.id,
    );
    let error = ProviderError::unavailable(message);
    let lines = output.stdout.lines().chain(output.stderr.lines());
    let said = lines.filter(|line| !line.trim().is_empty()).take(8);
    let error = said.fold(error, |error, line| error.because(line.trim()));
    let error = error.hint("check that the user engines run as may open the GPU's device files");
    engine_provider_kit::gpu::allow_processor(error, decision.pool)
}

/// The version from what was observed. A program that names another commit than the one checked
/// out is refused: something else was built.
fn version(
    decision: &Decision,
    request: &PrepareRequest,
    output: &Output,
    on_gpu: bool,
) -> Result<String, ProviderError> {
    let said = text(output);
    let said = said.split_once("commit ").map_or("", |(_, rest)| rest);
    let said = said.split([')', ' ', '\n']).next().unwrap_or_default();
    let checked_out = request
        .artifact(CLONE)
        .and_then(|clone| clone.commit.as_deref());
    let commit = checked_out
        .or(decision.source.short_commit())
        .unwrap_or(said);
    let known = said.len() >= 7 && said.bytes().all(|byte| byte.is_ascii_hexdigit());
    if known && !commit.starts_with(said) {
        let message =
            format!("llama-server says it is commit {said}, but {commit} was checked out");
        return Err(ProviderError::new(ErrorCode::Internal, message));
    }
    let backend = if on_gpu {
        decision.target.backend
    } else {
        Backend::Cpu
    };
    Ok(format!(
        "{}-{}",
        &commit[..commit.len().min(12)],
        backend.name()
    ))
}

fn text(output: &Output) -> String {
    format!("{}\n{}", output.stdout, output.stderr)
}

/// The provider's flags, and the operator's in the place of those they replace.
fn all_flags(
    decision: &Decision,
    built: &Built,
    warnings: &mut Vec<String>,
) -> Result<Vec<Flag>, ProviderError> {
    let mut own = own_flags(decision, built.on_gpu);
    if let Some(help) = &built.help {
        flags::check(&decision.flags, help, "the llama-server that was built")?;
        own.retain(|flag| {
            let known = help.entry(&flag.name).is_some();
            if !known {
                warnings.push(format!(
                    "this llama-server has no `{}`: left out",
                    flag.name
                ));
            }
            known
        });
    }
    Ok(flags::override_with(own, &decision.flags, &KNOWN))
}

fn own_flags(decision: &Decision, on_gpu: bool) -> Vec<Flag> {
    let pool = decision.pool;
    let switch = |name: &str| Flag::own::<&str>(name, []);
    let mut flags = match pool.profile {
        Profile::Deterministic => vec![
            Flag::own("--parallel", ["1"]),
            switch("--no-cont-batching"),
            switch("--no-cache-prompt"),
        ],
        Profile::Throughput => vec![
            Flag::own("--parallel", [SLOTS.to_string()]),
            switch("--kv-unified"),
            switch("--cont-batching"),
        ],
    };
    flags.push(switch("--metrics"));
    flags.push(switch("--no-webui"));
    flags.push(Flag::own("--seed", [decision.options.seed.to_string()]));
    // TERM waits for the next ping of a stream, which is 30 s away by default.
    flags.push(Flag::own("--sse-ping-interval", ["1"]));
    if let Some(ctx) = pool.ctx {
        flags.push(Flag::own("--ctx-size", [ctx.to_string()]));
    }
    if let Some(threads) = threads(decision, on_gpu) {
        flags.push(Flag::own("--threads", [threads.to_string()]));
    }
    if on_gpu {
        flags.extend(gpu_flags(decision));
    }
    flags
}

/// Under `gpu: require` everything on the GPUs, no cache in main memory, and a log that proves it;
/// under `gpu: prefer` the engine fits what it can.
fn gpu_flags(decision: &Decision) -> Vec<Flag> {
    let mut flags = vec![Flag::own("--device", [decision.target.devices().join(",")])];
    if !decision.pool.tensor_split.is_empty() {
        let shares: Vec<String> = decision
            .pool
            .tensor_split
            .iter()
            .map(f64::to_string)
            .collect();
        flags.push(Flag::own("--tensor-split", [shares.join(",")]));
    }
    if decision.requires_gpu() {
        for (name, value) in [
            ("--n-gpu-layers", "all"),
            ("--fit", "off"),
            ("--cache-ram", "0"),
            ("--ctx-checkpoints", "0"),
            ("--log-verbosity", "4"),
        ] {
            flags.push(Flag::own(name, [value]));
        }
    }
    flags
}

/// On the processor one thread per core: two hardware threads share one floating-point unit on x86.
fn threads(decision: &Decision, on_gpu: bool) -> Option<u32> {
    let cpu = decision.facts.cpu.threads;
    let per_core = if decision.facts.os.arch == "x86_64" {
        2
    } else {
        1
    };
    let default = (!on_gpu && cpu > 0).then(|| (cpu / per_core).max(1));
    decision.options.threads.or(default)
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

/// Refuses a model that cannot fit whatever else happens; the model's size is the least it takes.
fn memory(
    decision: &Decision,
    built: &Built,
    request: &PrepareRequest,
    warnings: &mut Vec<String>,
) -> Result<Option<u64>, ProviderError> {
    if !built.on_gpu {
        return Ok(Some(0));
    }
    let Some(size) = request.artifact(MODEL).and_then(|model| model.size_bytes) else {
        return Ok(None);
    };
    let total: u64 = decision
        .target
        .gpus
        .iter()
        .map(|gpu| gpu.memory_total_bytes)
        .sum();
    let free: u64 = decision
        .target
        .gpus
        .iter()
        .map(|gpu| gpu.memory_free_bytes)
        .sum();
    let mib = |bytes: u64| bytes >> 20;
    if decision.requires_gpu() && total > 0 && size > total {
        return Err(ProviderError::unavailable(format!(
            "the model takes at least {} MiB, and the GPUs of pool `{}` have {} MiB",
            mib(size),
            decision.pool.id,
            mib(total)
        ))
        .hint("use a smaller quantisation or more `devices`, or set `gpu: prefer`"));
    }
    if decision.requires_gpu() && total > 0 && size > free {
        warnings.push(format!(
            "the model takes at least {} MiB, and {} MiB of GPU memory are free",
            mib(size),
            mib(free)
        ));
    }
    Ok(Some(size))
}

fn launch(decision: &Decision, built: &Built, id: &str, flags: &[Flag]) -> ProcessLaunch {
    let mut args: Vec<Template> = [
        "--host",
        "{address.host}",
        "--port",
        "{address.port}",
        "--model",
    ]
    .map(Into::into)
    .to_vec();
    args.push(format!("{{{MODEL}.path}}").into());
    args.push("--alias".into());
    args.push(Template::literal(id));
    let flags = flags::arguments(flags);
    args.extend(flags.iter().map(|argument| Template::literal(argument)));
    let mut env = decision.environment.clone();
    let mask = decision.target.mask().filter(|_| built.on_gpu);
    if let Some((name, value)) = mask {
        env.insert(name.to_owned(), Template::literal(&value));
    }
    ProcessLaunch {
        program: program(),
        args,
        env,
        usual_port: 8080,
    }
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
    }
}

fn mask(decision: &Decision, built: &Built) -> Vec<String> {
    let gpus = decision.target.gpus.iter().filter(|_| built.on_gpu);
    gpus.map(|gpu| gpu.uuid.clone()).collect()
}

fn record(decision: &Decision, request: &PrepareRequest) -> BTreeMap<String, String> {
    let build = request.artifact(BUILD);
    let mut record = build.map(|build| build.labels.clone()).unwrap_or_default();
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
