//! What a provider may ask for, beyond the shape of its documents.
//!
//! A provider is sandboxed, but the host carries out what its documents say. So what reaches outside
//! the pool is refused here: a model other than the pool's, secrets that the pool does not name, an
//! engine under another name or of another mode, probes that are more than a question for a version
//! (this file); images, programs and packages other than the pool's (`steps`); containers that see more
//! of this machine than the plan's results, programs that were not declared as such, a program where the
//! pool asks for a container, questions to the engine that are more than a path, another engine than the
//! one that the pool attaches to (`launch`).

mod launch;
mod steps;

use engine_provider_api::{Mode, Plan, Pool, PreparedEngine, ProviderInfo, Template, ToolProbe};

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
    plan.steps
        .iter()
        .try_for_each(|step| steps::step(&step.act, plan, pool))
}

/// Checks a prepared engine against the pool it is for, the mode that was asked for and the plan that
/// was checked.
pub(super) fn prepared(
    engine: &PreparedEngine,
    plan: &Plan,
    pool: &Pool,
    mode: Mode,
) -> Result<(), Overreach> {
    if engine.engine != pool.engine {
        return Err(overreach(
            format!("an engine called `{}`", engine.engine),
            "an engine has the name of its pool's engine",
        ));
    }
    // It decides whether an engine is proven, signalled and ended.
    if engine.provisioning_mode != mode {
        return Err(overreach(
            format!("an engine from `{}`", engine.provisioning_mode.as_str()),
            "the pool asks for another mode",
        ));
    }
    launch::launch(engine, plan, pool)
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
mod tests;
