//! A program of the distribution's packages: used where it is installed and right, installed where
//! that is allowed, never replaced by an older one.
//!
//! Nothing is kept: the package database is asked each time, which needs neither rights nor network.

mod look;

use engine_provider_api::{Artifact, InstallPackages, Step};

use super::{
    ACTOR, ActError, Context, Expected, Outlook,
    packages::{self, Database, Family, Offered, PackageError, Packages, Target},
};
use crate::narrate::chain;
use look::{State, look};

pub(super) fn expected(context: &Context, act: &InstallPackages) -> Result<Expected, ActError> {
    check_names(act)?;
    let artifact = Artifact::default();
    let outlook = match asked_aside(context, act) {
        Ok(State::Right(artifact)) => {
            return Ok(Expected {
                artifact: *artifact,
                outlook: Outlook::Cached,
            });
        }
        Ok(State::Wanting { missing, packages }) => {
            let allowed = context.policy.allow_package_installs.value;
            match packages::allowed(context, &packages) {
                // More is in the way than the flag that the outlook names.
                Err(refusal) if allowed => Outlook::Refused {
                    why: format!("{refusal}: {}", refusal.allow),
                },
                _ => Outlook::Install {
                    tools: vec![missing],
                    packages: packages.shown(context),
                    allowed,
                },
            }
        }
        Err(error) => Outlook::Unsupported { why: chain(&error) },
    };
    Ok(Expected { artifact, outlook })
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &InstallPackages,
) -> Result<Artifact, ActError> {
    check_names(act)?;
    let word = match act.narration.start.as_str() {
        "" => "preflight",
        word => word,
    };
    let human = format!("looking for {}", act.program);
    context.narrator.say(ACTOR, word, &step.id, human);
    let failed = |source| package(step, source);
    let packages = match look(context, act).await.map_err(failed)? {
        State::Right(artifact) => return Ok(*artifact),
        State::Wanting { packages, .. } => packages,
    };
    packages::permit(context, step, &packages)?;
    let _lock = packages::lock(context, step).await?;
    // Another host may have installed it meanwhile.
    let packages = match look(context, act).await.map_err(failed)? {
        State::Right(artifact) => return Ok(*artifact),
        State::Wanting { packages, .. } => packages,
    };
    learn_versions(context, step, act, &packages).await?;
    let purpose = format!("for {}", act.program);
    if let Err(error) = packages::install(context, step, &packages, &purpose).await {
        return Err(unknown(context, step, &packages).await.unwrap_or(error));
    }
    match look(context, act).await.map_err(failed)? {
        State::Right(artifact) => Ok(*artifact),
        State::Wanting { packages, .. } => Err(not_asked(context, step, &packages).await),
    }
}

/// Name and version of the package that an installation would bring now, as far as the lists of packages
/// on this machine tell: no server is asked.
pub(crate) async fn candidate(
    context: &Context,
    step: &Step,
    act: &InstallPackages,
) -> Result<Option<(String, String)>, ActError> {
    check_names(act)?;
    let found = look::candidate(context, act).await;
    found.map_err(|source| package(step, source))
}

/// What a person would type so that the lists of packages tell.
pub(crate) fn refresh_command(context: &Context) -> String {
    packages::paste_refresh(context)
}

fn package(step: &Step, source: PackageError) -> ActError {
    ActError::Package {
        step: step.id.clone(),
        source: Box::new(source),
    }
}

fn check_names(act: &InstallPackages) -> Result<(), ActError> {
    let named = act.packages.values().flatten().map(|name| Target {
        name: name.clone(),
        version: act.version.clone(),
        repository: act.repository.clone(),
    });
    packages::check_names(&Packages {
        distribution: named.collect(),
        ..Packages::default()
    })
}

/// Asks from a thread of its own: a plan is not made of tasks.
fn asked_aside(context: &Context, act: &InstallPackages) -> Result<State, PackageError> {
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime needs a few descriptors only")
                .block_on(look(context, act))
        });
        asking.join().expect("asking does not panic")
    })
}

/// Where a version is asked for that the manager cannot choose: fetches the lists, if there were
/// none, and looks whether it is the one that is offered.
async fn learn_versions(
    context: &Context,
    step: &Step,
    act: &InstallPackages,
    packages: &Packages,
) -> Result<(), ActError> {
    let Some(database) = Database::of(context).filter(|it| it.family == Family::Pacman) else {
        return Ok(());
    };
    for target in packages
        .distribution
        .iter()
        .filter(|it| it.version.is_some())
    {
        let failed = |source: PackageError| package(step, source);
        let offered = database.offered(target).await;
        if offered.map_err(|source| failed(source.into()))? == Offered::Unknown {
            packages::refresh(context, step, packages).await?;
            look(context, act).await.map_err(failed)?;
        }
    }
    Ok(())
}

/// The reason of a failed installation, where no repository has a package.
async fn unknown(context: &Context, step: &Step, packages: &Packages) -> Option<ActError> {
    if !packages::says_unknown(context, step, packages).await {
        return None;
    }
    let source = PackageError::Unknown {
        package: packages.shown(context).join(" "),
        refresh: packages::paste_refresh(context),
    };
    Some(package(step, source))
}

/// Says what an installation that succeeded did not bring.
async fn not_asked(context: &Context, step: &Step, packages: &Packages) -> ActError {
    let target = packages.distribution.first().cloned();
    let name = match &target {
        Some(target) => target.name.clone(),
        None => packages.names().join(" "),
    };
    let installed = match Database::of(context) {
        Some(database) => {
            let versions = database.installed(std::slice::from_ref(&name)).await;
            versions.unwrap_or_default().remove(&name)
        }
        None => None,
    };
    let source = PackageError::NotAsked {
        package: name,
        installed,
        wanted: target.and_then(|target| target.version),
    };
    package(step, source)
}
