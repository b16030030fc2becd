//! Installing: who has root rights here, and how they are used.

use std::{
    collections::BTreeMap,
    fs,
    io::IsTerminal as _,
    path::{Path, PathBuf},
    time::Duration,
};

use engine_provider_api::Step;

use super::{Database, Family, INSTALL_LIMIT, Packages, family, paste_hint};
use crate::{
    act::{
        ACTOR, ActError, CommandFailure, Context,
        command::{self, Job, PATH},
        fill,
    },
    process::{self, Network, Privileges, Question},
    store,
};

/// Longest time for the question whether sudo works without a password.
const SUDO_LIMIT: Duration = Duration::from_secs(10);

/// Helpers for the Arch User Repository, best first.
const AUR_HELPERS: [&str; 2] = ["paru", "yay"];

/// Name of the log of an installation.
const LOG: &str = "install-packages";

/// What this process may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    Root,
    User,
}

/// Installs packages; the lists of packages are fetched only where that fails without.
pub(super) async fn run(
    context: &Context,
    step: &Step,
    packages: &Packages,
    rights: Rights,
) -> Result<(), ActError> {
    if !packages.aur.is_empty() {
        install_from_aur(context, step, packages, rights).await?;
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
    let runner = Runner::choose(context, packages, rights).await?;
    runner
        .install(context, step, packages, family, &program)
        .await
}

/// Whether an installation failed because the lists of packages here are missing or old.
async fn lists_are_stale(
    context: &Context,
    step: &Step,
    packages: &Packages,
    family: Family,
) -> Result<bool, ActError> {
    Ok(match log_of(context, step)? {
        Some(log) => family.lists_are_stale(&log),
        // Of pacman only its log tells whether there are lists: newer ones may break the system.
        None => family == Family::Apt && lacks_one(context, packages).await,
    })
}

/// Whether the lists of packages here lack one of these.
async fn lacks_one(context: &Context, packages: &Packages) -> bool {
    let Some(database) = Database::of(context) else {
        return false;
    };
    for target in &packages.distribution {
        if matches!(database.candidate(target).await, Ok(None)) {
            return true;
        }
    }
    false
}

/// Whether a failed installation says that there is no such package, or not in this version; one that a
/// person attended says it to them alone, and the lists are asked.
pub(in crate::act) async fn says_unknown(
    context: &Context,
    step: &Step,
    packages: &Packages,
) -> bool {
    match (log_of(context, step), family(context)) {
        (Ok(Some(log)), Some(family)) => family.says_unknown(&log),
        (Ok(None), Some(_)) => lacks_one(context, packages).await,
        _ => false,
    }
}

/// Fetches the lists of packages.
pub(super) async fn refresh(
    context: &Context,
    step: &Step,
    packages: &Packages,
    rights: Rights,
) -> Result<(), ActError> {
    let (Some(family), Some(manager)) = (family(context), &context.facts.package_manager) else {
        return Ok(());
    };
    let Some(arguments) = family.refresh() else {
        return Ok(());
    };
    let program = family.program(Path::new(&manager.path));
    let human = "fetching the lists of packages";
    context.narrator.say(ACTOR, "install", &step.id, human);
    let runner = Runner::choose(context, packages, rights).await?;
    runner.run(context, step, &program, arguments).await
}

/// What the last installation of this step printed; `None` where it printed to the terminal.
fn log_of(context: &Context, step: &Step) -> Result<Option<String>, ActError> {
    let path = fill::log_path(context, step, LOG)?;
    Ok(path.exists().then(|| command::read_log(&path, 1 << 20)))
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
    async fn choose(
        context: &Context,
        packages: &Packages,
        rights: Rights,
    ) -> Result<Self, ActError> {
        if rights == Rights::Root {
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

    /// Installs packages of the distribution with the manager's `program`.
    async fn install(
        &self,
        context: &Context,
        step: &Step,
        packages: &Packages,
        family: Family,
        program: &Path,
    ) -> Result<(), ActError> {
        let arguments = family.install(&packages.words(family));
        let failed = match self.run(context, step, program, arguments.clone()).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        match family.refresh() {
            Some(refresh) if lists_are_stale(context, step, packages, family).await? => {
                let human = "fetching the lists of packages";
                context.narrator.say(ACTOR, "install", &step.id, human);
                self.run(context, step, program, refresh).await?;
                self.run(context, step, program, arguments).await
            }
            _ => Err(failed),
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
        privileges: Privileges::Fixed,
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
    let log = fill::log_path(context, step, LOG)?;
    let text = format!("{}{}", answer.stdout, answer.stderr);
    store::write_file(&log, 0o640, text.as_bytes())
        .map_err(|source| ActError::store(step, source))?;
    ended(context, step, sudo, &question.args, answer.exited)
}

/// Runs a program at the terminal, which has what it prints: there is no log.
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
    // An earlier one says nothing of this run.
    let _ = fs::remove_file(fill::log_path(context, step, LOG)?);
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
    let log = fill::log_path(context, step, LOG)?;
    let words = std::iter::once(program.to_string_lossy().into_owned());
    let words: Vec<String> = words.chain(args.iter().cloned()).collect();
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
            tail: command::tail(context, &log),
            log: if log.exists() { log } else { PathBuf::new() },
            wanted_network: false,
            disk_full: false,
        }),
    })
}

async fn install_from_aur(
    context: &Context,
    step: &Step,
    packages: &Packages,
    rights: Rights,
) -> Result<(), ActError> {
    let names: Vec<String> = packages.aur.iter().cloned().collect();
    let refused = |why: &str| ActError::MissingTools {
        tools: Vec::new(),
        why: why.to_owned(),
        hints: vec![paste_hint(context, packages)],
    };
    if rights == Rights::Root {
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

pub(super) fn find(context: &Context, program: &str) -> Option<PathBuf> {
    let usual = ["/usr/bin", "/usr/local/bin", "/bin"].map(PathBuf::from);
    let paths = context.environment.search_path();
    paths
        .into_iter()
        .chain(usual)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use engine_provider_api::PackageManager;
    use serde_json::json;

    use super::*;
    use crate::{
        act::{
            packages::Target,
            tests::{Bench, bench, plan, script},
        },
        config::environment::Environment,
        fault::Fault as _,
    };

    /// A bench whose `PATH` has a `sudo` that does this.
    fn with_sudo(work: &str) -> Bench {
        let mut bench = bench(&[]);
        let home = bench.home.path();
        let calls = home.join("calls");
        let sudo = format!("echo \"$*\" >> {}\n{work}", calls.display());
        script(&home.join("sudo"), &sudo);
        let path = home.to_string_lossy().into_owned();
        bench.context.environment = Arc::new(Environment::from_pairs([("PATH", path)]));
        Arc::make_mut(&mut bench.context.facts).package_manager = Some(PackageManager {
            family: "apt".to_owned(),
            path: "/usr/bin/apt".to_owned(),
        });
        bench
    }

    fn toy() -> (Step, Packages) {
        let plan = plan(json!([{"id": "tools", "kind": "require-tools", "tools": []}]));
        let packages = Packages {
            distribution: [Target::any("toy-tools")].into(),
            ..Packages::default()
        };
        (plan.steps[0].clone(), packages)
    }

    async fn install_toy(bench: &Bench) -> (Result<(), ActError>, String) {
        let (step, packages) = toy();
        let result = run(&bench.context, &step, &packages, Rights::User).await;
        let calls = fs::read_to_string(bench.home.path().join("calls")).unwrap_or_default();
        (result, calls)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sudo_is_asked_whether_it_works_silently_and_then_used_for_the_installation_alone() {
        let bench = with_sudo("exit 0");
        let (result, calls) = install_toy(&bench).await;
        result.unwrap();
        let lines: Vec<&str> = calls.lines().collect();
        assert_eq!(lines[0], "-n true");
        assert!(
            lines[1].starts_with("-n -- /usr/bin/env DEBIAN_FRONTEND=noninteractive"),
            "{calls}"
        );
        assert!(
            lines[1].ends_with(
                "/usr/bin/apt-get -y --no-install-recommends -o \
                DPkg::Lock::Timeout=300 install -- toy-tools"
            ),
            "{calls}"
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_failed_installation_shows_the_command_and_what_it_said() {
        let bench =
            with_sudo("[ \"$*\" = '-n true' ] || { echo 'E: broken packages' >&2; exit 100; }");
        let (result, _) = install_toy(&bench).await;
        let error = result.unwrap_err();
        assert_eq!(
            error.to_string(),
            "step `tools`: `install-packages` ended with exit code 100"
        );
        let ActError::Command { failure, .. } = error else {
            panic!("another error");
        };
        assert_eq!(failure.tail, ["E: broken packages"]);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_person_attends_names_no_log_and_the_lists_are_asked_whether_they_are_old() {
        for (candidate, words) in [("(none)", "install update install"), ("1.0", "install")] {
            let mut bench = with_sudo("case \"$*\" in *update) ;; *) exit 100;; esac");
            let home = bench.home.path().to_owned();
            script(
                &home.join("apt-cache"),
                &format!("echo '  Candidate: {candidate}'"),
            );
            let apt = home.join("apt").to_string_lossy().into_owned();
            let facts = Arc::make_mut(&mut bench.context.facts);
            facts.package_manager.as_mut().unwrap().path = apt;
            let context = &bench.context;
            let (step, packages) = toy();
            // An earlier run's.
            let log = fill::log_path(context, &step, LOG).unwrap();
            fs::create_dir_all(log.parent().unwrap()).unwrap();
            fs::write(&log, "E: Unable to locate package").unwrap();

            let runner = Runner::Asking(home.join("sudo"));
            let program = home.join("apt-get");
            let installed = runner.install(context, &step, &packages, Family::Apt, &program);
            let error = installed.await.unwrap_err();
            assert!(error.hints().is_empty(), "{:?}", error.hints());
            assert!(error.details().iter().all(|it| it.label != "log"));
            let unknown = says_unknown(context, &step, &packages).await;
            assert_eq!(unknown, candidate == "(none)");
            let calls = fs::read_to_string(home.join("calls")).unwrap();
            let word = |line: &str| {
                let mut all = ["install", "update"].into_iter();
                all.find(|word| line.split(' ').any(|one| one == *word))
            };
            let called: Vec<&str> = calls.lines().filter_map(word).collect();
            assert_eq!(called.join(" "), words, "{calls}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_a_password_or_a_terminal_the_command_is_named() {
        use std::io::IsTerminal as _;
        if std::io::stdin().is_terminal() && std::io::stderr().is_terminal() {
            // A person would be asked.
            return;
        }
        let bench = with_sudo("exit 1");
        let (result, calls) = install_toy(&bench).await;
        assert_eq!(calls, "-n true\n", "nothing was installed");
        let command = result.unwrap_err().hints()[0].command.clone().unwrap();
        assert!(
            command.ends_with("apt-get install -y toy-tools"),
            "{command}"
        );
    }
}
