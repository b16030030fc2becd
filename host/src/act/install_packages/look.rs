//! What is installed, what is asked for, and what would bring the one to the other.

use std::{cmp::Ordering, path::PathBuf};

use engine_provider_api::{Artifact, ArtifactState, InstallPackages};

use crate::act::{
    Context,
    packages::{self, Database, Family, Offered, PackageError, Packages, Target},
};

/// What there is.
pub(super) enum State {
    /// The program, as it was asked for.
    Right(Box<Artifact>),
    /// Something is missing, said in words, and these packages would bring it.
    Wanting { missing: String, packages: Packages },
}

/// Looks for the program, and for what would bring it.
pub(super) async fn look(context: &Context, act: &InstallPackages) -> Result<State, PackageError> {
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
    program(act, first, version, &programs)
}

/// Name and version of the package that would be installed, where its lists are here and tell.
pub(super) async fn candidate(
    context: &Context,
    act: &InstallPackages,
) -> Result<Option<(String, String)>, PackageError> {
    let Some(database) = Database::of(context) else {
        return Ok(None);
    };
    let source = choose(&database, act).await?;
    if source.aur {
        return Ok(None);
    }
    let target = Target {
        repository: act.repository.clone(),
        ..Target::any(&source.names[0])
    };
    let version = database.candidate(&target).await?;
    Ok(version.map(|version| (target.name, version)))
}

/// The program among those of its package.
fn program(
    act: &InstallPackages,
    package: &str,
    version: String,
    programs: &[PathBuf],
) -> Result<State, PackageError> {
    let named = programs
        .iter()
        .find(|path| path.file_name().is_some_and(|name| *name == *act.program));
    match named {
        Some(path) => Ok(State::Right(Box::new(Artifact {
            state: ArtifactState::Obtained,
            path: Some(path.to_string_lossy().into_owned()),
            labels: [("package", package.to_owned()), ("version", version)]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..Artifact::default()
        }))),
        None => Err(PackageError::NoProgram {
            package: package.to_owned(),
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
