//! Provider of `fixture-server`, a small program that cmake builds in seconds.
//!
//! A whole provider: it says what it needs, plans from the pool and the facts, and says what is run, in
//! every mode there is. It performs no effect.

mod launch;
mod source;

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, Device, Download, EngineProvisioner, ExtractImage, GpuPolicy, ImageName, InstallPackages,
    Mode, Model, Observe, Plan, PlanRequest, Pool, PrepareRequest, PreparedEngine, Profile,
    ProviderError, ProviderInfo, PullImage, Resources, StageModel, Step, Template, ToolProbe,
    export_provider,
};
use serde_json::{Value, json};

#[derive(Default)]
struct Fixture;

export_provider!(Fixture, manifest = {
    name: "fixture",
    description: "Builds and runs fixture-server.",
    modes: ["source", "container", "package", "binary", "external"],
});

impl EngineProvisioner for Fixture {
    fn info(&self) -> ProviderInfo {
        ProviderInfo {
            requires: Vec::new(),
            name: "fixture".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            modes: vec![
                Mode::Source,
                Mode::Container,
                Mode::Package,
                Mode::Binary,
                Mode::External,
            ],
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
                    },
                    "in_place": {
                        "type": "boolean",
                        "description": "Whether it is built where it stays."
                    },
                    "paths": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "What is taken out of an image instead of the program alone."
                    },
                    "grpc": {
                        "type": "boolean",
                        "description": "Whether it listens on a second port as well."
                    },
                    "memory_bytes": {
                        "type": "integer",
                        "description": "Main memory that it says it takes."
                    },
                    "vram_bytes": {
                        "type": "integer",
                        "description": "GPU memory that it says it takes."
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
            Mode::Source => source::steps(request)?,
            Mode::Container => vec![step("image", Act::PullImage(pull(pool)?))],
            Mode::Package => vec![step("server", Act::InstallPackages(packages(pool)?))],
            Mode::Binary => vec![step("server", binary(pool)?)],
            Mode::External => Vec::new(),
        };
        if let Some(program) = program(pool, request.mode) {
            steps.push(step("version", Act::Observe(observe(program))));
        }
        if request.mode != Mode::External {
            steps.push(step("model", Act::StageModel(model(pool))));
        }
        Ok(Plan {
            steps,
            notes: vec!["serves one request at a time; that cannot be changed".to_owned()],
            ..Plan::default()
        })
    }

    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
        let pool = &request.pool;
        let model = request.artifact("model");
        Ok(PreparedEngine {
            requires: Vec::new(),
            engine: "fixture".to_owned(),
            engine_version: version(request),
            provisioning_mode: request.mode,
            launch: launch::launch(request)?,
            files: Vec::new(),
            probes: launch::probes(),
            stop: launch::stop(),
            resources: Resources {
                vram_bytes: Some(option(pool, "vram_bytes").unwrap_or(0)),
                memory_bytes: option(pool, "memory_bytes"),
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
            diagnoses: launch::diagnoses(),
            gpu_evidence: launch::gpu_evidence(pool.gpu),
            dialect: "openai".to_owned(),
            device_mask: devices(request),
            build_record: record(request),
            warnings: Vec::new(),
        })
    }
}

/// A setting that the mode cannot do without.
fn needed(field: &str, value: Option<String>) -> Result<String, ProviderError> {
    let field = format!("provisioning.{field}");
    value.ok_or_else(|| ProviderError::invalid(field, "this mode needs it"))
}

fn pull(pool: &Pool) -> Result<PullImage, ProviderError> {
    let container = pool.provisioning.container.clone().unwrap_or_default();
    Ok(PullImage {
        image: ImageName {
            repository: needed("container.image", container.image)?,
            tag: container.tag,
            digest: container.digest,
        },
        ..PullImage::default()
    })
}

fn packages(pool: &Pool) -> Result<InstallPackages, ProviderError> {
    let package = pool.provisioning.package.clone().unwrap_or_default();
    let names = vec![package.name.unwrap_or_else(|| "fixture-server".to_owned())];
    let families = ["apt", "dnf", "pacman"].map(|family| (family.to_owned(), names.clone()));
    Ok(InstallPackages {
        packages: BTreeMap::from(families),
        version: package.version,
        repository: package.repo,
        program: "fixture-server".to_owned(),
        ..InstallPackages::default()
    })
}

/// A program by URL, or one that is taken out of an image.
fn binary(pool: &Pool) -> Result<Act, ProviderError> {
    let binary = pool.provisioning.binary.clone().unwrap_or_default();
    if let Some(image) = binary.image {
        let path = needed("binary.program", binary.program)?;
        return Ok(Act::ExtractImage(ExtractImage {
            image: ImageName {
                repository: needed("binary.image.image", image.image)?,
                tag: image.tag,
                digest: Some(needed("binary.image.digest", image.digest)?),
            },
            paths: match source::list_option(pool, "paths")? {
                paths if paths.is_empty() => vec![path.clone()],
                paths => paths,
            },
            program: Some(path),
            ..ExtractImage::default()
        }));
    }
    let mut urls = vec![needed("binary.url", binary.url)?];
    urls.extend(binary.mirrors);
    Ok(Act::Download(Download {
        urls,
        digest: needed("binary.checksum", binary.checksum)?,
        program: true,
        ..Download::default()
    }))
}

fn observe(program: Template) -> Observe {
    Observe {
        program,
        args: vec!["--version".into()],
        timeout_ms: 5_000,
        ..Observe::default()
    }
}

/// What runs on this machine itself, in the modes where something does.
fn program(pool: &Pool, mode: Mode) -> Option<Template> {
    let binary = pool.provisioning.binary.as_ref();
    match mode {
        Mode::Source => Some("{build.path}/bin/fixture-server".into()),
        Mode::Package => Some("{server.path}".into()),
        // Files of an image lie below the step's result under the paths that they have in it.
        Mode::Binary => Some(match binary.and_then(|binary| binary.image.as_ref()) {
            Some(_) => {
                let path = binary.and_then(|binary| binary.program.as_deref());
                Template::new(format!("{{server.path}}{}", path.unwrap_or_default()))
            }
            None => "{server.path}".into(),
        }),
        Mode::Container | Mode::External => None,
    }
}

fn model(pool: &Pool) -> StageModel {
    let source = pool.provisioning.model.clone().unwrap_or_default();
    StageModel {
        reference: reference(pool),
        mirrors: source.mirrors,
        digest: source.checksum,
        cache_dir: source.cache_dir,
        include: source.include,
        exclude: source.exclude,
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

/// What it is told to say that it takes.
fn option(pool: &Pool, name: &str) -> Option<u64> {
    pool.options.get(name).and_then(Value::as_u64)
}

/// GPUs by the driver's ids: those the pool names, or all.
fn devices(request: &PrepareRequest) -> Vec<String> {
    let pool = &request.pool;
    if pool.gpu == GpuPolicy::Forbid {
        return Vec::new();
    }
    let all = request.facts.gpus.devices.iter();
    let wanted = all.filter(|gpu| {
        let named = |device: &Device| match device {
            Device::Index(index) => *index == gpu.index,
            Device::Uuid(uuid) => *uuid == gpu.uuid,
        };
        pool.devices.is_empty() || pool.devices.iter().any(named)
    });
    wanted.map(|gpu| gpu.uuid.clone()).collect()
}

/// Source: the commit. Container: the digest. Package: its version. Binary: what it printed and what
/// it is.
fn version(request: &PrepareRequest) -> String {
    let digits = |text: &str| text.chars().take(12).collect::<String>();
    let known = match request.mode {
        Mode::Source => request
            .artifact("source")
            .and_then(|source| source.commit.as_deref())
            .map(|commit| format!("{}-cpu", digits(commit))),
        Mode::Container => request
            .image("image")
            .map(|image| image.digest.clone())
            .filter(|digest| !digest.is_empty()),
        Mode::Package => request
            .artifact("server")
            .and_then(|package| package.labels.get("version").cloned()),
        Mode::Binary => request.output("version").and_then(|output| {
            let digest = request.artifact("server")?.digest.as_deref()?;
            let digest = digits(digest.strip_prefix("sha256:")?);
            let said = output.stderr.strip_prefix("version: ")?;
            let version = said.split_whitespace().next()?;
            Some(format!("{version}+sha256:{digest}"))
        }),
        Mode::External => Some("(as it runs)".to_owned()),
    };
    known.unwrap_or_else(|| "(known after build)".to_owned())
}

/// What an image says of itself, for the record.
fn record(request: &PrepareRequest) -> BTreeMap<String, String> {
    let image = request.image("image");
    let version = image.and_then(|image| image.version());
    let version = version.map(|version| ("image_version".to_owned(), version.to_owned()));
    version.into_iter().collect()
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
