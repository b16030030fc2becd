//! What a provider may ask for, beyond the shape of its documents.
//!
//! A provider is sandboxed, but the host carries out what its documents say. So what reaches outside
//! the pool is refused here: a model other than the pool's, secrets that the pool does not name, an
//! engine under another name, probes that are more than a question for a version.

use std::collections::BTreeSet;

use engine_provider_api::{
    Act, Launch, Plan, Pool, PreparedEngine, ProviderInfo, Template, ToolProbe,
};

/// Something that a provider asked for and does not get.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Overreach {
    /// What it asked for.
    pub(super) what: String,
    /// Why that is not its to ask for.
    pub(super) why: &'static str,
}

/// Arguments that make a tool print its version and do nothing else.
const VERSION_ARGUMENTS: [&str; 6] = [
    "--version",
    "-version",
    "-V",
    "version",
    "-dumpversion",
    "-dumpfullversion",
];

fn overreach(what: String, why: &'static str) -> Overreach {
    Overreach { what, why }
}

/// Checks the self-description: its tools are asked for their version, before any plan is shown.
pub(super) fn info(info: &ProviderInfo) -> Result<(), Overreach> {
    info.tools.iter().try_for_each(probe)
}

fn probe(probe: &ToolProbe) -> Result<(), Overreach> {
    let is_bare = |name: &&String| {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+._-".contains(&byte);
        !name.is_empty() && !name.starts_with(['-', '.']) && name.bytes().all(plain)
    };
    if let Some(program) = probe.programs.iter().find(|name| !is_bare(name)) {
        return Err(overreach(
            format!("program `{program}` for tool `{}`", probe.name),
            "tools are looked for by bare names",
        ));
    }
    let is_question = |argument: &&String| VERSION_ARGUMENTS.contains(&argument.as_str());
    if let Some(argument) = probe.version_args.iter().find(|one| !is_question(one)) {
        return Err(overreach(
            format!("argument `{argument}` for tool `{}`", probe.name),
            "tools are only asked for their version",
        ));
    }
    Ok(())
}

/// Checks a plan against the pool it is for.
pub(super) fn plan(plan: &Plan, pool: &Pool) -> Result<(), Overreach> {
    let model = pool.provisioning.model.as_ref();
    for step in &plan.steps {
        let Act::StageModel(stage) = &step.act else {
            continue;
        };
        let is_the_pools = model.is_some_and(|model| {
            model.reference == stage.reference
                && model.checksum == stage.digest
                && model.cache_dir == stage.cache_dir
        });
        if !is_the_pools && !stage.reference.starts_with("builtin:") {
            return Err(overreach(
                format!("model `{}`", stage.reference),
                "only the pool's own model is staged, with its checksum and directory",
            ));
        }
    }
    Ok(())
}

/// Checks a prepared engine against the pool it is for.
pub(super) fn prepared(engine: &PreparedEngine, pool: &Pool) -> Result<(), Overreach> {
    if engine.engine != pool.engine {
        return Err(overreach(
            format!("an engine called `{}`", engine.engine),
            "an engine has the name of its pool's engine",
        ));
    }
    let nothing = std::collections::BTreeMap::new();
    let env = match &engine.launch {
        Launch::Process(launch) => &launch.env,
        Launch::Container(launch) => &launch.env,
        Launch::External(_) => &nothing,
    };
    let granted: BTreeSet<String> = pool
        .provisioning
        .env
        .values()
        .flat_map(|value| secrets(&Template::new(value.as_str())))
        .collect();
    let asked = env.values().flat_map(secrets);
    if let Some(secret) = asked.into_iter().find(|name| !granted.contains(name)) {
        return Err(overreach(
            format!("secret `{secret}`"),
            "engines get the secrets that the pool's `provisioning.env` names",
        ));
    }
    Ok(())
}

/// Names of the secrets in a template; none in one that cannot be read, which is refused later.
fn secrets(template: &Template) -> Vec<String> {
    template
        .placeholders()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|name| name.strip_prefix("secret.").map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use engine_provider_api::{
        Mode, Model, ModelSource, Probes, ProcessLaunch, Resources, StageModel, Step, Stop,
    };

    use super::*;

    fn pool() -> Pool {
        let mut pool = Pool::new("p", "toy");
        pool.provisioning.model = Some(ModelSource {
            reference: "file:/models/a.gguf".to_owned(),
            ..ModelSource::default()
        });
        pool.provisioning
            .env
            .insert("TOKEN".to_owned(), "{secret.HF_TOKEN}".to_owned());
        pool
    }

    fn staging(reference: &str, cache_dir: Option<&str>) -> Plan {
        Plan {
            steps: vec![Step {
                id: "model".to_owned(),
                after: Vec::new(),
                act: Act::StageModel(StageModel {
                    reference: reference.to_owned(),
                    cache_dir: cache_dir.map(str::to_owned),
                    ..StageModel::default()
                }),
            }],
            ..Plan::default()
        }
    }

    fn engine(name: &str, secret: &str) -> PreparedEngine {
        PreparedEngine {
            requires: Vec::new(),
            engine: name.to_owned(),
            engine_version: "1".to_owned(),
            provisioning_mode: Mode::Source,
            launch: Launch::Process(ProcessLaunch {
                env: [(
                    "X".to_owned(),
                    Template::new(format!("{{secret.{secret}}}")),
                )]
                .into(),
                ..ProcessLaunch::default()
            }),
            files: Vec::new(),
            probes: Probes::default(),
            stop: Stop::default(),
            resources: Resources::default(),
            model: Model::default(),
            flags: Vec::new(),
            slots_total: 1,
            workloads: Vec::new(),
            profile: engine_provider_api::Profile::default(),
            diagnoses: Vec::new(),
            gpu_evidence: None,
            dialect: String::new(),
            device_mask: Vec::new(),
            build_record: std::collections::BTreeMap::new(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn only_the_pools_own_model_is_staged() {
        assert_eq!(plan(&staging("file:/models/a.gguf", None), &pool()), Ok(()));
        assert_eq!(plan(&staging("builtin:haiku", None), &pool()), Ok(()));
        assert!(plan(&staging("file:/etc/shadow", None), &pool()).is_err());
        assert!(plan(&staging("file:/models/a.gguf", Some("/root/x")), &pool()).is_err());
    }

    #[test]
    fn an_engine_has_its_pools_name_and_secrets() {
        assert_eq!(prepared(&engine("toy", "HF_TOKEN"), &pool()), Ok(()));
        assert!(prepared(&engine("/etc/docker/daemon", "HF_TOKEN"), &pool()).is_err());
        let refused = prepared(&engine("toy", "AWS_SECRET_ACCESS_KEY"), &pool()).unwrap_err();
        assert_eq!(refused.what, "secret `AWS_SECRET_ACCESS_KEY`");
    }

    #[test]
    fn a_probe_is_a_question_for_a_version_and_nothing_else() {
        let asked = |program: &str, argument: &str| {
            probe(&ToolProbe {
                name: "t".to_owned(),
                programs: vec![program.to_owned()],
                version_args: vec![argument.to_owned()],
                extra_directories: Vec::new(),
                needed_by: Vec::new(),
                packages: std::collections::BTreeMap::new(),
            })
        };
        assert_eq!(asked("g++-12", "--version"), Ok(()));
        assert!(asked("/bin/sh", "--version").is_err());
        assert!(asked("../sh", "--version").is_err());
        assert!(asked("sh", "-c").is_err());
    }
}
