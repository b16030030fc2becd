//! The distribution's packages: what is asked of their manager, who may install, and how.
//!
//! Installing needs root. A root host runs the package manager itself; otherwise `sudo -n` is tried,
//! then, where a person sits at a terminal, `sudo` that may ask for a password, after saying what
//! for; else the command is printed. Helpers of the Arch User Repository never run as root.
//!
//! Names come from plugins and pool files: they are checked, and stand after the end of options.

mod database;
mod error;
mod family;
mod install;

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use engine_provider_api::{Hint, Step};

pub(super) use database::{Database, Offered};
pub use error::PackageError;
pub(crate) use family::{Family, is_at_least};
use family::{is_package_name, is_version};
use install::Rights;
pub(super) use install::says_unknown;

use super::{ACTOR, ActError, Context, Turn, take_turn};
use crate::{
    fault::hint,
    policy::{self, NetworkPolicy},
    store::Lock,
};

/// Longest time that an installation may take, download included.
const INSTALL_LIMIT: Duration = Duration::from_secs(30 * 60);

/// A package as it is wanted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Target {
    pub(super) name: String,
    /// Exact version; `None`: the newest.
    pub(super) version: Option<String>,
    /// Where it must come from.
    pub(super) repository: Option<String>,
}

impl Target {
    /// In whatever version there is.
    pub(super) fn any(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            version: None,
            repository: None,
        }
    }
}

/// Packages to install.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Packages {
    pub(super) distribution: BTreeSet<Target>,
    pub(super) aur: BTreeSet<String>,
}

impl Packages {
    /// All names.
    pub(super) fn names(&self) -> Vec<String> {
        let names: BTreeSet<&String> = self
            .distribution
            .iter()
            .map(|target| &target.name)
            .chain(&self.aur)
            .collect();
        names.into_iter().cloned().collect()
    }

    /// All of them, as a person would name them.
    pub(super) fn shown(&self, context: &Context) -> Vec<String> {
        match family(context) {
            Some(family) => {
                let aur = self.aur.iter().cloned();
                self.words(family).into_iter().chain(aur).collect()
            }
            None => self.names(),
        }
    }

    /// Packages of the distribution as they are named on the command line.
    pub(super) fn words(&self, family: Family) -> Vec<String> {
        let targets = self.distribution.iter();
        targets.map(|target| family.word(target)).collect()
    }
}

/// The family of this machine's package manager, where it is known.
pub(super) fn family(context: &Context) -> Option<Family> {
    let manager = context.facts.package_manager.as_ref()?;
    Family::of(&manager.family)
}

/// Refuses names, versions and repositories that could be something else.
pub(super) fn check_names(packages: &Packages) -> Result<(), ActError> {
    let bad = |what: &str, text: &str| {
        let reason = format!("`{text}` is no {what}");
        Err(ActError::Plan { reason })
    };
    if let Some(name) = packages.names().iter().find(|name| !is_package_name(name)) {
        return bad("package name", name);
    }
    for target in &packages.distribution {
        for (what, text) in [
            ("package version", &target.version),
            ("package repository", &target.repository),
        ] {
            match text {
                Some(text) if !is_version(text) => return bad(what, text),
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether policy allows an installation.
pub(super) fn allowed(context: &Context, packages: &Packages) -> Result<(), policy::Refusal> {
    let policy = &context.policy;
    let distribution: Vec<String> = packages
        .distribution
        .iter()
        .map(|target| target.name.clone())
        .collect();
    let aur: Vec<String> = packages.aur.iter().cloned().collect();
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
}

/// Refuses an installation that policy does not allow, with the command that a person can paste.
pub(super) fn permit(context: &Context, step: &Step, packages: &Packages) -> Result<(), ActError> {
    allowed(context, packages).map_err(|source| ActError::Refused {
        step: step.id.clone(),
        source: Box::new(source),
        hints: vec![paste_hint(context, packages)],
    })
}

/// Waits until nobody else installs packages for this installation of the host: package managers
/// lock each other out.
pub(super) async fn lock(context: &Context, step: &Step) -> Result<Lock, ActError> {
    let turn = Turn {
        of: "packages",
        lock: "packages",
        doing: "installing packages",
        limit: INSTALL_LIMIT,
        waiting: &|who| format!("waiting for {who}, which installs packages"),
    };
    take_turn(context, step, turn).await
}

/// Installs packages, telling so; `purpose` is why.
pub(super) async fn install(
    context: &Context,
    step: &Step,
    packages: &Packages,
    purpose: &str,
) -> Result<(), ActError> {
    let names = packages.names().join(" ");
    let human = format!("installing {names}, {purpose}");
    context.narrator.say(ACTOR, "install", &names, human);
    context.narrator.makes();
    let start = Instant::now();
    install::run(context, step, packages, rights()).await?;
    let human = format!("installed {names}");
    context
        .narrator
        .done(ACTOR, "installed", &names, human, start.elapsed());
    Ok(())
}

/// Fetches the lists of packages.
pub(super) async fn refresh(
    context: &Context,
    step: &Step,
    packages: &Packages,
) -> Result<(), ActError> {
    install::refresh(context, step, packages, rights()).await
}

pub(super) fn paste_hint(context: &Context, packages: &Packages) -> Hint {
    let command = match family(context) {
        Some(family) if packages.aur.is_empty() => family.paste(&packages.words(family), is_root()),
        _ => format!("paru -S --needed {}", packages.names().join(" ")),
    };
    hint("install them yourself", Some(&command))
}

/// What a person would type to go back to an older version.
pub(super) fn paste_downgrade(family: Family, target: &Target, offered: bool) -> String {
    family.paste_downgrade(target, offered, is_root())
}

/// What a person would type to learn of newer packages.
pub(super) fn paste_refresh(context: &Context) -> String {
    family(context).map_or_else(String::new, |family| family.paste_refresh(is_root()))
}

fn rights() -> Rights {
    if is_root() {
        Rights::Root
    } else {
        Rights::User
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
