//! A program of the distribution's packages: used where it is installed and right, installed where
//! that is allowed, never replaced by an older one.
//!
//! Nothing is kept: the package database is asked each time, which needs neither rights nor network.

use std::cmp::Ordering;

use engine_provider_api::{Artifact, ArtifactState, InstallPackages, Step};

use super::{
    ACTOR, ActError, Context, Expected, Outlook,
    packages::{self, Database, Family, Offered, PackageError, Packages, Target},
};
use crate::narrate::chain;

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
        return Err(unknown(context, step, &packages).unwrap_or(error));
    }
    match look(context, act).await.map_err(failed)? {
        State::Right(artifact) => Ok(*artifact),
        State::Wanting { packages, .. } => Err(not_asked(context, step, &packages).await),
    }
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

/// What there is.
enum State {
    /// The program, as it was asked for.
    Right(Box<Artifact>),
    /// Something is missing, said in words, and these packages would bring it.
    Wanting { missing: String, packages: Packages },
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

async fn look(context: &Context, act: &InstallPackages) -> Result<State, PackageError> {
    let Some(database) = Database::of(context) else {
        return Err(PackageError::NoManager {
            program: act.program.clone(),
        });
    };
    let source = choose(&database, act).await?;
    let names = source.names;
    let (first, rest) = names.split_first().expect("a table names packages");
    let target = Target {
        name: first.clone(),
        version: act.version.clone(),
        repository: act.repository.clone(),
    };
    if let Some(reason) = database.family.objection(&target) {
        return Err(PackageError::Objection {
            package: first.clone(),
            reason,
        });
    }
    let (installed, programs) =
        tokio::try_join!(database.installed(names), database.programs(first))?;
    let mut packages = Packages::default();
    let missing = rest.iter().filter(|name| !installed.contains_key(*name));
    match source.aur {
        true => packages.aur.extend(missing.cloned()),
        false => packages
            .distribution
            .extend(missing.map(|name| Target::any(name))),
    }
    let there = installed.get(first);
    let right = match (there, &act.version) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(installed), Some(wanted)) => installed == wanted,
    };
    if !right {
        check_version(&database, &target, there, source.aur).await?;
        match source.aur {
            true => {
                packages.aur.insert(first.clone());
            }
            false => {
                packages.distribution.insert(target);
            }
        }
    }
    if packages != Packages::default() {
        let missing = match (there, &act.version) {
            (Some(installed), Some(wanted)) if !right => {
                format!("{first} {wanted} (here: {installed})")
            }
            _ => act.program.clone(),
        };
        return Ok(State::Wanting { missing, packages });
    }
    let version = there.expect("it is right").clone();
    let named = programs
        .iter()
        .find(|path| path.file_name().is_some_and(|name| *name == *act.program));
    match named {
        Some(path) => Ok(State::Right(Box::new(Artifact {
            state: ArtifactState::Obtained,
            path: Some(path.to_string_lossy().into_owned()),
            labels: [("package", first.clone()), ("version", version)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..Artifact::default()
        }))),
        None => Err(PackageError::NoProgram {
            package: first.clone(),
            version,
            program: act.program.clone(),
            has: programs
                .iter()
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                .collect(),
        }),
    }
}

/// Packages by name, and whether they come from the Arch User Repository.
#[derive(Clone, Copy)]
struct Source<'a> {
    names: &'a [String],
    aur: bool,
}

/// The packages of this system: the distribution's own first, unless only the others are there, or
/// only the others can be.
async fn choose<'a>(
    database: &Database<'_>,
    act: &'a InstallPackages,
) -> Result<Source<'a>, PackageError> {
    let table = |family: &str, aur: bool| {
        let names = act.packages.get(family)?.as_slice();
        (!names.is_empty()).then_some(Source { names, aur })
    };
    let own = table(database.family.name(), false);
    let aur = match database.family {
        Family::Pacman => table("aur", true),
        _ => None,
    };
    let (own, aur) = match (own, aur) {
        (Some(own), Some(aur)) => (own, aur),
        (Some(only), None) | (None, Some(only)) => return Ok(only),
        (None, None) => {
            return Err(PackageError::NoTable {
                program: act.program.clone(),
                family: database.family.name(),
                known: act.packages.keys().cloned().collect(),
            });
        }
    };
    let firsts = [own.names[0].clone(), aur.names[0].clone()];
    let installed = database.installed(&firsts).await?;
    if installed.contains_key(&firsts[0]) {
        return Ok(own);
    }
    let offered = database.offered(&Target::any(&firsts[0])).await?;
    match installed.contains_key(&firsts[1]) || offered == Offered::Nothing {
        true => Ok(aur),
        false => Ok(own),
    }
}

/// Refuses a version that cannot be had, or only by going back.
async fn check_version(
    database: &Database<'_>,
    target: &Target,
    installed: Option<&String>,
    aur: bool,
) -> Result<(), PackageError> {
    let Some(wanted) = &target.version else {
        return Ok(());
    };
    let (package, wanted) = (target.name.clone(), wanted.clone());
    let offered = match aur {
        true => Offered::Unknown,
        false => database.offered(target).await?,
    };
    if let Some(installed) = installed
        // What cannot be compared is not risked.
        && database.compare(installed, &wanted).await != Some(Ordering::Less)
    {
        let has_it = matches!(&offered, Offered::Version { version, .. } if *version == wanted);
        return Err(PackageError::Newer {
            command: packages::paste_downgrade(database.family, target, has_it),
            installed: installed.clone(),
            package,
            wanted,
        });
    }
    if aur {
        return Err(PackageError::AurVersion { package, wanted });
    }
    match offered {
        Offered::Version {
            version,
            repository,
        } if version != wanted => Err(PackageError::OtherOffered {
            package,
            wanted,
            offered: version,
            repository,
        }),
        _ => Ok(()),
    }
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
fn unknown(context: &Context, step: &Step, packages: &Packages) -> Option<ActError> {
    if !packages::says_unknown(context, step) {
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
