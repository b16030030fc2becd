//! Provider of `fixture-server`, a small program that cmake builds in seconds.
//!
//! A whole provider: it says what it needs, plans from the pool and the facts, and says what is run.
//! It performs no effect.

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, Attempt, BuildStep, Checkout, Command, Diagnosis, Download, DrainProbe, EngineProvisioner,
    ErrorCode, GpuPolicy, Launch, Mirror, Mode, Model, Narration, Observe, Plan, PlanRequest, Pool,
    PrepareRequest, PreparedEngine, Probes, ProcessLaunch, Profile, Progress, ProviderError,
    ProviderInfo, ReadinessProbe, RequireTools, Resources, StageModel, Step, Stop, Template,
    ToolProbe, ToolRequirement, VersionProbe, When, export_provider,
};
use serde_json::{Value, json};

#[derive(Default)]
struct Fixture;

export_provider!(Fixture, manifest = {
    name: "fixture",
    description: "Builds and runs fixture-server.",
    modes: ["source", "binary"],
});

impl EngineProvisioner for Fixture {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "fixture".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![Mode::Source, Mode::Binary],
            tools: vec![
                probe("git", &["git"], "git"),
                probe("cmake", &["cmake"], "cmake"),
                probe("cc", &["cc", "gcc", "clang"], "build-essential"),
                ToolProbe {
                    needed_by: Vec::new(),
                    ..probe("ninja", &["ninja", "ninja-build"], "ninja-build")
                },
            ],
            options_schema: json!({
                "type": "object",
                "additionalProperties": false,
                "properties": {
                    "retry_when": {
                        "type": "string",
                        "description": "Pattern in a failed build's log after which it is tried again."
                    },
                    "retry_flags": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "cmake flags of that second attempt."
                    }
                }
            }),
            default_pool: Pool {
                gpu: GpuPolicy::Forbid,
                ..Pool::new("default", "fixture")
            },
            homepage: None,
        }
    }

    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError> {
        let pool = &request.pool;
        let mut steps = match request.mode {
            Mode::Source => source_steps(request)?,
            Mode::Binary => vec![step("server", Act::Download(download(pool)?))],
            other => return Err(unsupported(other)),
        };
        steps.push(step("version", Act::Observe(observe(request.mode))));
        steps.push(step("model", Act::StageModel(model(pool))));
        Ok(Plan {
            steps,
            notes: vec!["serves one request at a time; that cannot be changed".to_owned()],
            ..Plan::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        let pool = &request.pool;
        let mut args: Vec<Template> = ["--host", "{address.host}", "--port", "{address.port}"]
            .into_iter()
            .chain(["--model", "{model.path}"])
            .map(Template::from)
            .collect();
        // What an operator wrote stands for itself: braces in it are no placeholders.
        args.extend(
            pool.provisioning
                .flags
                .iter()
                .map(|flag| Template::literal(flag)),
        );
        let model = request.artifact("model");
        Ok(PreparedEngine {
            requires: Vec::new(),
            engine: "fixture".to_owned(),
            engine_version: version(request),
            provisioning_mode: request.mode,
            launch: Launch::Process(ProcessLaunch {
                program: program(request.mode),
                args,
                env: environment(&pool.provisioning.env),
                usual_port: 8080,
                ..ProcessLaunch::default()
            }),
            files: Vec::new(),
            probes: Probes {
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
            },
            stop: Stop {
                drain: Some(DrainProbe {
                    path: "/metrics".to_owned(),
                    gauge: "fixture_requests_processing".to_owned(),
                    ..DrainProbe::default()
                }),
                second_term_ends_at_once: false,
            },
            resources: Resources {
                vram_bytes: Some(0),
            },
            model: Model {
                id: pool.model.clone().unwrap_or_else(|| reference(pool)),
                path: model.and_then(|artifact| artifact.path.clone()),
                digest: model.and_then(|artifact| artifact.digest.clone()),
            },
            flags: pool.provisioning.flags.clone(),
            slots_total: 1,
            workloads: vec!["completion".to_owned()],
            profile: Profile::Deterministic,
            diagnoses: diagnoses(),
            gpu_evidence: None,
            dialect: "openai".to_owned(),
            device_mask: Vec::new(),
            build_record: BTreeMap::new(),
            warnings: Vec::new(),
        })
    }
}

fn source_steps(request: &PlanRequest) -> Result<Vec<Step>, ProviderError> {
    let source = request.pool.provisioning.source.clone().unwrap_or_default();
    let url = source.repo.ok_or_else(|| {
        ProviderError::invalid(
            "provisioning.source.repo",
            "a source build needs the URL of a repository",
        )
    })?;
    Ok(vec![
        step("tools", Act::RequireTools(tools())),
        Step {
            after: vec!["tools".to_owned()],
            ..step(
                "source",
                Act::Checkout(Checkout {
                    mirrors: vec![Mirror::Git { url }],
                    commit: source.reference.unwrap_or_else(|| "main".to_owned()),
                    submodules: source.submodules,
                    narration: narration("git-clone"),
                }),
            )
        },
        step("build", Act::Build(build(request)?)),
    ])
}

fn tools() -> RequireTools {
    let tool = |name: &str, purpose: &str, package: &str| ToolRequirement {
        name: name.to_owned(),
        purpose: purpose.to_owned(),
        packages: BTreeMap::from([("apt".to_owned(), vec![package.to_owned()])]),
        ..ToolRequirement::default()
    };
    RequireTools {
        tools: vec![
            tool("git", "to fetch the source", "git"),
            tool("cmake", "to build", "cmake"),
            tool("cc", "to compile", "build-essential"),
            ToolRequirement {
                optional: true,
                ..tool("ninja", "to build faster", "ninja-build")
            },
        ],
    }
}

fn build(request: &PlanRequest) -> Result<BuildStep, ProviderError> {
    let settings = request
        .pool
        .provisioning
        .source
        .clone()
        .unwrap_or_default()
        .build;
    let mut arguments: Vec<Template> = vec![
        "-S".into(),
        "{source.path}".into(),
        "-B".into(),
        "{work}".into(),
        "-DCMAKE_BUILD_TYPE=Release".into(),
        "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={work}/bin".into(),
    ];
    let ninja = request.facts.tool("ninja").map(|_| "Ninja".to_owned());
    if let Some(generator) = settings.generator.or(ninja) {
        arguments.extend(["-G".into(), Template::literal(&generator)]);
    }
    arguments.extend(
        settings
            .cmake_flags
            .iter()
            .map(|flag| Template::literal(flag)),
    );

    let mut attempts = vec![attempt("as configured", None, &arguments)];
    if let Some(pattern) = text_option(&request.pool, "retry_when")? {
        let flags = list_option(&request.pool, "retry_flags")?;
        arguments.extend(flags.iter().map(|flag| Template::literal(flag)));
        let when = When {
            log: Some(pattern),
            ..When::default()
        };
        attempts.push(attempt("with retry_flags", Some(when), &arguments));
    }
    Ok(BuildStep {
        attempts,
        outputs: vec!["bin/fixture-server".to_owned()],
        ..BuildStep::default()
    })
}

fn attempt(title: &str, when: Option<When>, configure: &[Template]) -> Attempt {
    let command = |id: &str, args: Vec<Template>| Command {
        id: id.to_owned(),
        program: "{tool.cmake}".into(),
        args,
        narration: narration(id),
        ..Command::default()
    };
    let build = ["--build", "{work}", "--parallel", "{jobs}"].map(Template::from);
    let progress = if configure.contains(&Template::from("Ninja")) {
        Progress::Counter
    } else {
        Progress::Percent
    };
    Attempt {
        title: title.to_owned(),
        when,
        commands: vec![
            command("cmake-configure", configure.to_vec()),
            Command {
                progress: Some(progress),
                ..command("cmake-build", build.to_vec())
            },
        ],
    }
}

fn narration(start: &str) -> Narration {
    Narration {
        start: start.to_owned(),
        retry: "cmake-retry".to_owned(),
        failed: "cmake-failed".to_owned(),
    }
}

fn download(pool: &Pool) -> Result<Download, ProviderError> {
    let binary = pool.provisioning.binary.clone().unwrap_or_default();
    let needed = |field: &str, value: Option<String>| {
        let field = format!("provisioning.binary.{field}");
        value.ok_or_else(|| ProviderError::invalid(field, "mode binary needs it"))
    };
    Ok(Download {
        urls: vec![needed("url", binary.url)?],
        digest: needed("checksum", binary.checksum)?,
        program: true,
        ..Download::default()
    })
}

fn observe(mode: Mode) -> Observe {
    Observe {
        program: program(mode),
        args: vec!["--version".into()],
        timeout_ms: 5_000,
        ..Observe::default()
    }
}

fn program(mode: Mode) -> Template {
    match mode {
        Mode::Binary => "{server.path}".into(),
        _ => "{build.path}/bin/fixture-server".into(),
    }
}

fn model(pool: &Pool) -> StageModel {
    let source = pool.provisioning.model.clone().unwrap_or_default();
    StageModel {
        reference: reference(pool),
        digest: source.checksum,
        cache_dir: source.cache_dir,
        quant: pool.quant.clone(),
        formats: vec!["gguf".to_owned()],
        ..StageModel::default()
    }
}

fn reference(pool: &Pool) -> String {
    let model = pool.provisioning.model.as_ref();
    model.map_or_else(
        || "builtin:haiku".to_owned(),
        |model| model.reference.clone(),
    )
}

fn diagnoses() -> Vec<Diagnosis> {
    vec![
        Diagnosis {
            pattern: "invalid argument: (?<flag>.+)".to_owned(),
            meaning: "this build does not know the flag `$flag`".to_owned(),
            fix: "remove it from `provisioning.flags`".to_owned(),
            port_taken: false,
        },
        Diagnosis {
            pattern: "failed to open model '(?<path>[^']+)': (?<why>.+)".to_owned(),
            meaning: "the model `$path` cannot be read: $why".to_owned(),
            fix: "check the path and who may read it".to_owned(),
            port_taken: false,
        },
        Diagnosis {
            pattern: "couldn't bind HTTP server socket".to_owned(),
            meaning: "another program listens on the port".to_owned(),
            fix: "give other `ports`, or none".to_owned(),
            port_taken: true,
        },
    ]
}

/// Source: the commit. Binary: what it printed and what it is.
fn version(request: &PrepareRequest) -> String {
    let digits = |text: &str| text.chars().take(12).collect::<String>();
    let known = match request.mode {
        Mode::Source => request
            .artifact("source")
            .and_then(|source| source.commit.as_deref())
            .map(|commit| format!("{}-cpu", digits(commit))),
        _ => request.output("version").and_then(|output| {
            let digest = request.artifact("server")?.digest.as_deref()?;
            let digest = digits(digest.strip_prefix("sha256:")?);
            let said = output.stderr.strip_prefix("version: ")?;
            let version = said.split_whitespace().next()?;
            Some(format!("{version}+sha256:{digest}"))
        }),
    };
    known.unwrap_or_else(|| "(known after build)".to_owned())
}

fn text_option(pool: &Pool, name: &str) -> Result<Option<String>, ProviderError> {
    match pool.options.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ProviderError::invalid(
            format!("options.{name}"),
            "must be a text",
        )),
    }
}

fn list_option(pool: &Pool, name: &str) -> Result<Vec<String>, ProviderError> {
    let value = pool.options.get(name).cloned().unwrap_or(json!([]));
    serde_json::from_value(value)
        .map_err(|_| ProviderError::invalid(format!("options.{name}"), "must be a list of texts"))
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

fn unsupported(mode: Mode) -> ProviderError {
    ProviderError::new(
        ErrorCode::UnsupportedMode,
        format!("mode `{mode}` is not offered; source and binary are"),
    )
}

fn probe(name: &str, programs: &[&str], package: &str) -> ToolProbe {
    ToolProbe {
        name: name.to_owned(),
        programs: programs
            .iter()
            .map(|program| (*program).to_owned())
            .collect(),
        version_args: vec!["--version".to_owned()],
        extra_directories: Vec::new(),
        needed_by: vec![Mode::Source],
        packages: BTreeMap::from([("apt".to_owned(), vec![package.to_owned()])]),
    }
}

fn step(id: &str, act: Act) -> Step {
    Step {
        id: id.to_owned(),
        after: Vec::new(),
        act,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_provider_api::{Facts, Tool};

    fn request(pool: serde_json::Value) -> PlanRequest {
        PlanRequest {
            requires: Vec::new(),
            pool: serde_json::from_value(pool).unwrap(),
            mode: Mode::Source,
            facts: Facts::default(),
        }
    }

    #[test]
    fn without_a_repository_the_field_that_is_missing_is_named() {
        let request = request(json!({"id": "p", "engine": "fixture"}));
        let refusal = Fixture.plan(&request).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("provisioning.source.repo"));
    }

    #[test]
    fn ninja_is_used_where_the_machine_has_it() {
        let mut request = request(json!({
            "id": "p", "engine": "fixture",
            "provisioning": {"source": {"repo": "https://example.org/x.git"}},
        }));
        let generator = |request: &PlanRequest| {
            let arguments = build(request).unwrap().attempts[0].commands[0].args.clone();
            arguments.contains(&Template::from("Ninja"))
        };
        assert!(!generator(&request));
        request
            .facts
            .tools
            .insert("ninja".to_owned(), Tool::default());
        assert!(generator(&request));
    }
}
