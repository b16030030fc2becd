//! Tools that later steps need: found, installed where that is allowed, else named with the command
//! that installs them.
//!
//! Installing needs root. A root host runs the package manager itself; otherwise `sudo -n` is tried,
//! then, where a person sits at a terminal, `sudo` that may ask for a password, after saying what
//! for; else the command is printed. Helpers of the Arch User Repository never run as root.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::{
    Artifact, ArtifactState, Hint, RequireTools, Step, Tool, ToolRequirement,
};

use super::{
    ACTOR, ActError, Context, Expected, MissingTool, Outlook,
    command::{self, Job, PATH},
    fill,
    install::{Family, is_at_least, is_package_name},
};
use crate::{
    fault::hint,
    policy::NetworkPolicy,
    process::{self, Network, Question},
    store::{self, Patience},
};

/// Longest time that an installation may take, download included.
const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Longest time for the question whether sudo works without a password.
const SUDO_LIMIT: Duration = Duration::from_secs(10);

/// Helpers for the Arch User Repository, best first.
const AUR_HELPERS: [&str; 2] = ["paru", "yay"];

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
    let start = std::time::Instant::now();
    install(context, step, &packages).await?;
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

async fn install(context: &Context, step: &Step, packages: &Packages) -> Result<(), ActError> {
    if !packages.aur.is_empty() {
        install_from_aur(context, step, packages).await?;
    }
    if packages.distribution.is_empty() {
        return Ok(());
    }
    let (Some(family), Some(manager)) = (family(context), &context.facts.package_manager) else {
        return Err(ActError::Plan {
            reason: "no package manager is known here".to_owned(),
        });
    };
    let program = family.program(Path::new(&manager.path));
    let names: Vec<String> = packages.distribution.iter().cloned().collect();
    let runner = Runner::choose(context, packages).await?;
    let arguments = family.install(&names);
    let failed = match runner.run(context, step, &program, arguments.clone()).await {
        Ok(()) => return Ok(()),
        Err(error) => error,
    };
    let log = command::read_log(&fill::log_path(context, LOG), 1 << 20);
    match family.refresh() {
        Some(refresh) if family.lists_are_stale(&log) => {
            let human = "fetching the lists of packages";
            context.narrator.say(ACTOR, "install", &step.id, human);
            runner.run(context, step, &program, refresh).await?;
            runner.run(context, step, &program, arguments).await
        }
        _ => Err(failed),
    }
}

/// Name of the log of an installation.
const LOG: &str = "install-packages";

/// How root rights are had.
enum Runner {
    /// This process has them.
    Root,
    /// `sudo` gives them without asking.
    Silent(PathBuf),
    /// `sudo` asks the person at the terminal.
    Asking(PathBuf),
}

impl Runner {
    async fn choose(context: &Context, packages: &Packages) -> Result<Self, ActError> {
        if is_root() {
            return Ok(Self::Root);
        }
        let refused = |why: &str| ActError::MissingTools {
            tools: Vec::new(),
            why: why.to_owned(),
            hints: vec![paste_hint(context, packages)],
        };
        let Some(sudo) = find(context, "sudo") else {
            return Err(refused("installing needs root, and there is no sudo here"));
        };
        let question = Question {
            program: sudo.clone(),
            args: vec!["-n".to_owned(), "true".to_owned()],
            env: environment(context),
            identity: None,
            limit: SUDO_LIMIT,
        };
        match process::ask(&question).await {
            Ok(answer) if answer.exited.success() => Ok(Self::Silent(sudo)),
            _ if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() => {
                Ok(Self::Asking(sudo))
            }
            _ => Err(refused(
                "installing needs root, sudo wants a password, and there is no terminal to ask at",
            )),
        }
    }

    async fn run(
        &self,
        context: &Context,
        step: &Step,
        program: &Path,
        arguments: Vec<String>,
    ) -> Result<(), ActError> {
        match self {
            Self::Root => as_root(context, step, program, arguments).await,
            Self::Silent(sudo) => {
                let mut all = vec!["-n".to_owned()];
                all.extend(through_sudo(program, arguments));
                quietly(context, step, sudo, all).await
            }
            Self::Asking(sudo) => {
                let all = through_sudo(program, arguments);
                let words = format!(
                    "sudo may ask for your password now: root rights are used for `{}` only",
                    all.join(" ")
                );
                context.narrator.say(ACTOR, "sudo", &step.id, words);
                attend(context, step, sudo, all).await
            }
        }
    }
}

/// Arguments for sudo; it clears the environment, so what apt must know comes back here.
fn through_sudo(program: &Path, arguments: Vec<String>) -> Vec<String> {
    let mut all = vec![
        "--".to_owned(),
        "/usr/bin/env".to_owned(),
        "DEBIAN_FRONTEND=noninteractive".to_owned(),
        "LC_ALL=C.UTF-8".to_owned(),
        program.to_string_lossy().into_owned(),
    ];
    all.extend(arguments);
    all
}

fn environment(context: &Context) -> BTreeMap<String, String> {
    let mut env = context.passed_environment();
    let fixed = [
        ("PATH", PATH),
        ("HOME", "/root"),
        ("DEBIAN_FRONTEND", "noninteractive"),
        ("LC_ALL", "C.UTF-8"),
    ];
    env.extend(fixed.map(|(name, value)| (name.to_owned(), value.to_owned())));
    env
}

async fn as_root(
    context: &Context,
    step: &Step,
    program: &Path,
    args: Vec<String>,
) -> Result<(), ActError> {
    let job = Job {
        step,
        id: LOG,
        program: program.to_owned(),
        args,
        env: environment(context),
        directory: PathBuf::from("/"),
        identity: None,
        network: Network::Host,
        meter: None,
        limit: Some(INSTALL_LIMIT),
    };
    command::run(context, job).await
}

/// Runs sudo without a terminal. Not through the keeper, whose children cannot gain rights.
async fn quietly(
    context: &Context,
    step: &Step,
    sudo: &Path,
    args: Vec<String>,
) -> Result<(), ActError> {
    let question = Question {
        program: sudo.to_owned(),
        args,
        env: environment(context),
        identity: None,
        limit: INSTALL_LIMIT,
    };
    let answer = tokio::select! {
        () = context.cancel.cancelled() => return Err(ActError::cancelled(step)),
        answer = process::ask(&question) => answer,
    };
    let answer = answer.map_err(|source| ActError::process(step, source))?;
    fill::make_log_directory(context, step)?;
    let log = fill::log_path(context, LOG);
    let text = format!("{}{}", answer.stdout, answer.stderr);
    store::write_file(&log, 0o640, text.as_bytes())
        .map_err(|source| ActError::store(step, source))?;
    ended(context, step, sudo, &question.args, answer.exited)
}

async fn attend(
    context: &Context,
    step: &Step,
    program: &Path,
    args: Vec<String>,
) -> Result<(), ActError> {
    let mut env = context.passed_environment();
    env.extend(
        context
            .environment
            .pick(["HOME", "USER", "TERM", "XDG_CONFIG_HOME"]),
    );
    env.insert("PATH".to_owned(), PATH.to_owned());
    let exited = tokio::select! {
        () = context.cancel.cancelled() => return Err(ActError::cancelled(step)),
        exited = process::attend(program, &args, &env) => exited,
    };
    let exited = exited.map_err(|source| ActError::process(step, source))?;
    ended(context, step, program, &args, exited)
}

fn ended(
    context: &Context,
    step: &Step,
    program: &Path,
    args: &[String],
    exited: process::Exited,
) -> Result<(), ActError> {
    if exited.success() {
        return Ok(());
    }
    let log = fill::log_path(context, LOG);
    let words = std::iter::once(program.to_string_lossy().into_owned());
    let words: Vec<String> = words.chain(args.iter().cloned()).collect();
    let tail = command::read_log(&log, 2 << 10);
    Err(ActError::Command {
        step: step.id.clone(),
        failure: Box::new(super::CommandFailure {
            id: LOG.to_owned(),
            command: words
                .iter()
                .map(|word| process::quote(word))
                .collect::<Vec<_>>()
                .join(" "),
            directory: PathBuf::from("/"),
            exited,
            tail: tail.lines().map(str::to_owned).collect(),
            log,
            wanted_network: false,
            disk_full: false,
        }),
    })
}

async fn install_from_aur(
    context: &Context,
    step: &Step,
    packages: &Packages,
) -> Result<(), ActError> {
    let names: Vec<String> = packages.aur.iter().cloned().collect();
    let refused = |why: &str| ActError::MissingTools {
        tools: Vec::new(),
        why: why.to_owned(),
        hints: vec![paste_hint(context, packages)],
    };
    if is_root() {
        return Err(refused(
            "packages of the Arch User Repository are never built as root",
        ));
    }
    let Some(helper) = AUR_HELPERS.iter().find_map(|name| find(context, name)) else {
        return Err(refused("neither paru nor yay is here"));
    };
    if !std::io::stdin().is_terminal() {
        return Err(refused(
            "its helper asks for a password, and there is no terminal to ask at",
        ));
    }
    let words = format!("building {} from the Arch User Repository", names.join(" "));
    context.narrator.say(ACTOR, "sudo", &step.id, words);
    attend(context, step, &helper, Family::Pacman.install(&names)).await
}

fn find(context: &Context, program: &str) -> Option<PathBuf> {
    let usual = ["/usr/bin", "/usr/local/bin", "/bin"].map(PathBuf::from);
    let paths = context.environment.search_path();
    paths
        .into_iter()
        .chain(usual)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}
