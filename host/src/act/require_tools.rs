//! Tools that later steps need: found, installed where that is allowed, else named with the command
//! that installs them.

use engine_provider_api::{
    Artifact, ArtifactState, Hint, RequireTools, Step, Tool, ToolRequirement,
};

use super::{
    ACTOR, ActError, Context, Expected, MissingTool, Outlook, is_at_least,
    packages::{self, Packages, Target},
};
use crate::fault::hint;

pub(super) fn expected(context: &Context, act: &RequireTools) -> Expected {
    let wanted = wanted(context, act);
    let outlook = if wanted.is_empty() {
        Outlook::Cached
    } else {
        let (packages, homeless) = packages_of(context, &wanted);
        let names = |tools: &[&ToolRequirement]| {
            tools
                .iter()
                .map(|tool| tool.name.clone())
                .collect::<Vec<_>>()
        };
        if homeless.is_empty() {
            Outlook::Install {
                tools: names(&wanted),
                packages: packages.names(),
                allowed: context.policy.allow_package_installs.value,
            }
        } else {
            Outlook::Missing {
                tools: names(&homeless),
            }
        }
    };
    let mut artifact = artifact(context, act);
    if outlook != Outlook::Cached {
        artifact.state = ArtifactState::Expected;
    }
    Expected { artifact, outlook }
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &RequireTools,
) -> Result<Artifact, ActError> {
    let names: Vec<&str> = act.tools.iter().map(|tool| tool.name.as_str()).collect();
    let human = format!("looking for {}", names.join(", "));
    context.narrator.say(ACTOR, "preflight", &step.id, human);
    for tool in act.tools.iter().filter(|tool| !tool.optional) {
        context
            .policy
            .allow_tool(&tool.name)
            .map_err(|refusal| ActError::refused(step, refusal))?;
    }
    if !wanted(context, act).is_empty() {
        install_missing(context, step, act).await?;
    }
    Ok(artifact(context, act))
}

fn artifact(context: &Context, act: &RequireTools) -> Artifact {
    let found = |tool: &ToolRequirement| {
        let Tool { path, version } = context.tools.get(&tool.name)?;
        let told = if version.is_empty() {
            path
        } else {
            format!("{path} {version}")
        };
        Some((tool.name.clone(), told))
    };
    Artifact {
        state: ArtifactState::Obtained,
        labels: act.tools.iter().filter_map(found).collect(),
        ..Artifact::default()
    }
}

/// What is wrong with a tool, if anything.
fn problem(context: &Context, tool: &ToolRequirement) -> Option<MissingTool> {
    let too_old = match context.tools.get(&tool.name) {
        None => None,
        Some(found) if is_at_least(&found.version, &tool.minimum_version) => return None,
        Some(found) => Some((found.version, tool.minimum_version.clone())),
    };
    Some(MissingTool {
        name: tool.name.clone(),
        purpose: tool.purpose.clone(),
        too_old,
    })
}

/// Tools to install: required ones that are missing or too old; optional ones only where installing
/// is allowed and something carries them.
fn wanted<'a>(context: &Context, act: &'a RequireTools) -> Vec<&'a ToolRequirement> {
    let allowed = context.policy.allow_package_installs.value;
    let worth_it = |tool: &ToolRequirement| {
        !tool.optional || (allowed && packages_of(context, &[tool]).1.is_empty())
    };
    act.tools
        .iter()
        .filter(|tool| problem(context, tool).is_some() && worth_it(tool))
        .collect()
}

/// Packages that carry these tools here, and the tools that no package is known for.
fn packages_of<'a>(
    context: &Context,
    tools: &[&'a ToolRequirement],
) -> (Packages, Vec<&'a ToolRequirement>) {
    let manager = context.facts.package_manager.as_ref();
    let family = manager.map_or("", |manager| manager.family.as_str());
    let mut packages = Packages::default();
    let mut homeless = Vec::new();
    for tool in tools {
        if let Some(names) = tool.packages.get(family) {
            packages
                .distribution
                .extend(names.iter().map(|name| Target::any(name)));
        } else if family == "pacman"
            && let Some(names) = tool.packages.get("aur")
        {
            packages.aur.extend(names.iter().cloned());
        } else {
            homeless.push(*tool);
        }
    }
    (packages, homeless)
}

async fn install_missing(
    context: &Context,
    step: &Step,
    act: &RequireTools,
) -> Result<(), ActError> {
    let wanted = wanted(context, act);
    let (packages, homeless) = packages_of(context, &wanted);
    let missing = |why: &str, hints: Vec<Hint>| ActError::MissingTools {
        tools: wanted
            .iter()
            .filter_map(|tool| problem(context, tool))
            .collect(),
        why: why.to_owned(),
        hints,
    };
    if !homeless.is_empty() {
        let why = "nothing says which package of this system carries all of them";
        return Err(missing(
            why,
            vec![hint("install them, so that they are on PATH", None)],
        ));
    }
    packages::check_names(&packages)?;
    packages::permit(context, step, &packages)?;
    let _lock = packages::lock(context, step).await?;
    let names = packages.names().join(" ");
    packages::install(context, step, &packages, "which later steps need").await?;
    for tool in &wanted {
        context.tools.look_again(&tool.name).await;
    }
    let still: Vec<&&ToolRequirement> = wanted
        .iter()
        .filter(|tool| !tool.optional && problem(context, tool).is_some())
        .collect();
    if still.is_empty() {
        return Ok(());
    }
    Err(missing(
        &format!("{names} were installed, but do not carry what is needed"),
        Vec::new(),
    ))
}
