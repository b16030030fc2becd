//! Installing: who has root rights here, and how they are used.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::Step;

use super::{INSTALL_LIMIT, Packages, family, is_root, manager::Family, paste_hint};
use crate::{
    act::{
        ACTOR, ActError, CommandFailure, Context,
        command::{self, Job, PATH},
        fill,
    },
    process::{self, Network, Question},
    store,
};

/// Longest time for the question whether sudo works without a password.
const SUDO_LIMIT: Duration = Duration::from_secs(10);

/// Helpers for the Arch User Repository, best first.
const AUR_HELPERS: [&str; 2] = ["paru", "yay"];

/// Name of the log of an installation.
const LOG: &str = "install-packages";

/// Installs packages; the lists of packages are fetched only where that fails without.
pub(super) async fn install(
    context: &Context,
    step: &Step,
    packages: &Packages,
) -> Result<(), ActError> {
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
        failure: Box::new(CommandFailure {
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
