//! Tools that later steps need: found, installed where that is allowed, else named with the command
//! that installs them.
//!
//! Installing needs root. A root host runs the package manager itself; otherwise `sudo -n` is tried,
//! then, where a person sits at a terminal, `sudo` that may ask for a password, after saying what
//! for; else the command is printed. Helpers of the Arch User Repository never run as root.

mod install;
mod manager;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use engine_provider_api::{
    Artifact, ArtifactState, Hint, RequireTools, Step, Tool, ToolRequirement,
};

use super::{ACTOR, ActError, Context, Expected, MissingTool, Outlook};
use crate::{
    fault::hint,
    policy::NetworkPolicy,
    store::{self, Patience},
};
use install::{Rights, install};
use manager::is_package_name;
pub(crate) use manager::{Family, is_at_least};

/// Longest time that an installation may take, download included.
const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);

pub(super) fn expected(context: &Context, act: &RequireTools) -> Expected {
    let wanted = wanted(context, act);
    let outlook = if wanted.is_empty() {
        Outlook::Cached
    } else {
        let (packages, homeless) = packages(context, &wanted);
        let names = |tools: &[&ToolRequirement]| {
            tools
                .iter()
                .map(|tool| tool.name.clone())
                .collect::<Vec<_>>()
        };
        if homeless.is_empty() {
            Outlook::Install {
                tools: names(&wanted),
                packages: packages.all(),
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
        !tool.optional || (allowed && packages(context, &[tool]).1.is_empty())
    };
    act.tools
        .iter()
        .filter(|tool| problem(context, tool).is_some() && worth_it(tool))
        .collect()
}

/// Packages to install.
#[derive(Debug, Default, PartialEq, Eq)]
struct Packages {
    distribution: BTreeSet<String>,
    aur: BTreeSet<String>,
}

impl Packages {
    fn all(&self) -> Vec<String> {
        self.distribution.union(&self.aur).cloned().collect()
    }
}

/// Packages that carry these tools here, and the tools that no package is known for.
fn packages<'a>(
    context: &Context,
    tools: &[&'a ToolRequirement],
) -> (Packages, Vec<&'a ToolRequirement>) {
    let manager = context.facts.package_manager.as_ref();
    let family = manager.map_or("", |manager| manager.family.as_str());
    let mut packages = Packages::default();
    let mut homeless = Vec::new();
    for tool in tools {
        if let Some(names) = tool.packages.get(family) {
            packages.distribution.extend(names.iter().cloned());
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
    let (packages, homeless) = packages(context, &wanted);
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
    if let Some(name) = packages.all().iter().find(|name| !is_package_name(name)) {
        return Err(ActError::Plan {
            reason: format!("`{name}` is no package name"),
        });
    }
    permit_install(context, step, &packages)?;
    // One at a time on this machine: package managers lock each other out.
    let lock_path = context.store.lock_path("packages");
    let on_wait = |holder: Option<&store::Holder>| {
        let who = holder.map_or_else(|| "another process".to_owned(), ToString::to_string);
        let human = format!("waiting for {who}, which installs packages");
        context.narrator.say(ACTOR, "wait", &step.id, human);
    };
    let patience = Patience {
        limit: INSTALL_LIMIT,
        cancel: &context.cancel,
        on_wait: &on_wait,
    };
    let _lock = store::lock(&lock_path, "installing packages", patience)
        .await
        .map_err(|source| ActError::store(step, source))?;
    let names = packages.all().join(" ");
    let human = format!("installing {names}, which later steps need");
    context.narrator.say(ACTOR, "install", &names, human);
    let start = Instant::now();
    let rights = if is_root() {
        Rights::Root
    } else {
        Rights::User
    };
    install(context, step, &packages, rights).await?;
    let human = format!("installed {names}");
    context
        .narrator
        .done(ACTOR, "installed", &names, human, start.elapsed());
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

/// Refuses an installation that policy does not allow, with the command that a person can paste.
fn permit_install(context: &Context, step: &Step, packages: &Packages) -> Result<(), ActError> {
    let policy = &context.policy;
    let distribution: Vec<String> = packages.distribution.iter().cloned().collect();
    let aur: Vec<String> = packages.aur.iter().cloned().collect();
    let allowed = || {
        if !distribution.is_empty() {
            policy.allow_package_install(&distribution)?;
        }
        if !aur.is_empty() {
            policy.allow_aur_install(&aur)?;
        }
        // Which hosts the package manager reaches is its own configuration's matter.
        match policy.network.value {
            NetworkPolicy::Offline => policy.allow_host("package servers of this system", &[]),
            _ => Ok(()),
        }
    };
    allowed().map_err(|source| ActError::Refused {
        step: step.id.clone(),
        source: Box::new(source),
        hints: vec![paste_hint(context, packages)],
    })
}

fn paste_hint(context: &Context, packages: &Packages) -> Hint {
    let names: Vec<String> = packages.distribution.iter().cloned().collect();
    let family = family(context);
    match family {
        Some(family) if packages.aur.is_empty() => {
            let command = family.paste(&names, is_root());
            hint("install them yourself", Some(&command))
        }
        _ => {
            let command = format!("paru -S --needed {}", packages.all().join(" "));
            hint("install them yourself", Some(&command))
        }
    }
}

fn family(context: &Context) -> Option<Family> {
    let manager = context.facts.package_manager.as_ref()?;
    Family::of(&manager.family)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
