//! Providers found: every candidate with what became of it, nothing executed.
//!
//! Only files named `libengine_provider_*.so` are candidates. For a name, the first tier that has a
//! usable provider of it wins, then the highest version within that tier. What loses is listed with
//! the path it lost to, what is broken or foreign with its one-line reason.

use std::{
    collections::{BTreeMap, HashSet},
    path::{Path, PathBuf},
};

use engine_provider_api::Manifest;
use semver::Version;

use super::{
    error::{Absence, ProviderFault},
    found::{Found, PREFIX, Refusal, Rules, SUFFIX, examine, name_of_file},
    manifest::ManifestProblem,
    search::{Search, Tier},
};

/// One candidate.
#[derive(Debug)]
pub struct Entry {
    /// Where it was found.
    pub tier: Tier,
    /// Its path.
    pub path: PathBuf,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a candidate.
#[derive(Debug)]
pub enum Outcome {
    /// It is what its name stands for.
    Chosen(Found),
    /// Usable, but another one is chosen.
    Shadowed {
        /// The loser.
        found: Found,
        /// The winner's path.
        by: PathBuf,
        /// Why it lost.
        because: Shadow,
    },
    /// Not usable.
    Refused(Refusal),
}

/// Why a usable provider is not chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shadow {
    /// A tier that is searched earlier has the name.
    EarlierTier,
    /// The same tier has a higher version.
    HigherVersion,
    /// The same tier has the same version at a path that sorts first.
    SameVersion,
}

impl Entry {
    /// The provider's name: its manifest's, else what the file name says.
    #[must_use]
    pub fn name(&self) -> String {
        match self.manifest() {
            Some(manifest) => manifest.name.clone(),
            None => name_of_file(&self.path).unwrap_or_default(),
        }
    }

    /// Its manifest, where one could be read; also that of a contract this host cannot serve.
    #[must_use]
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.outcome {
            Outcome::Chosen(found) | Outcome::Shadowed { found, .. } => Some(&found.manifest),
            Outcome::Refused(Refusal::Manifest(ManifestProblem::Contract { manifest, .. })) => {
                Some(manifest)
            }
            Outcome::Refused(_) => None,
        }
    }

    /// Why it is not used, one line; `None` for a chosen one.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        match &self.outcome {
            Outcome::Chosen(_) => None,
            Outcome::Shadowed { by, because, .. } => Some(match because {
                Shadow::EarlierTier => format!("shadowed by {}", by.display()),
                Shadow::HigherVersion => format!("older than {}", by.display()),
                Shadow::SameVersion => format!("same version as {}", by.display()),
            }),
            Outcome::Refused(refusal) => Some(refusal.to_string()),
        }
    }
}

/// Everything that was found, tier by tier, each sorted by path.
#[derive(Debug)]
pub struct Catalog {
    /// The candidates.
    pub entries: Vec<Entry>,
    /// Directories that exist but could not be read, with the reason.
    pub unreadable: Vec<(PathBuf, String)>,
    search: Search,
}

impl Catalog {
    /// Looks at every candidate. Executes nothing; a missing directory is an empty one.
    #[must_use]
    pub fn search(search: &Search) -> Self {
        let rules = Rules::of(search);
        let mut entries = Vec::new();
        let mut unreadable = Vec::new();
        let mut seen = HashSet::new();
        for (tier, directory) in &search.directories {
            match candidates(directory) {
                Ok(paths) => {
                    for path in paths {
                        let canonical = path.canonicalize().unwrap_or_else(|_| path.clone());
                        if seen.insert(canonical) {
                            entries.push((*tier, examine(&path, *tier, &rules), path));
                        }
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => unreadable.push((directory.clone(), error.to_string())),
            }
        }
        Self {
            entries: judge(entries),
            unreadable,
            search: search.clone(),
        }
    }

    /// The provider that a name stands for. With a version: the first tier that has exactly it.
    pub fn select(&self, name: &str, version: Option<&Version>) -> Result<&Found, ProviderFault> {
        let usable = self.entries.iter().find_map(|entry| {
            match &entry.outcome {
                Outcome::Chosen(found) if version.is_none() => Some(found),
                Outcome::Chosen(found) | Outcome::Shadowed { found, .. } => {
                    (version == Some(&found.version)).then_some(found)
                }
                Outcome::Refused(_) => None,
            }
            .filter(|found| found.manifest.name == name)
        });
        usable.ok_or_else(|| self.explain_absence(name, version))
    }

    /// Names that can be selected, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self
            .entries
            .iter()
            .filter_map(|entry| match &entry.outcome {
                Outcome::Chosen(found) => Some(found.manifest.name.as_str()),
                _ => None,
            })
            .collect();
        names.sort_unstable();
        names
    }

    fn explain_absence(&self, name: &str, version: Option<&Version>) -> ProviderFault {
        let broken = self.entries.iter().find_map(|entry| match &entry.outcome {
            Outcome::Refused(refusal) if entry.name() == name => {
                Some((entry.path.clone(), refusal.to_string()))
            }
            _ => None,
        });
        if let (Some((path, reason)), None) = (broken, version) {
            return ProviderFault::Unusable {
                name: name.to_owned(),
                path,
                reason,
            };
        }
        ProviderFault::NotFound(Box::new(Absence {
            name: name.to_owned(),
            version: version.cloned(),
            known: self.names().into_iter().map(str::to_owned).collect(),
            searched: self.search.directories.clone(),
            build: self
                .search
                .executable
                .as_deref()
                .and_then(|executable| build_command(executable, name)),
            install: self
                .search
                .install_into
                .as_deref()
                .map(|directory| install_command(directory, name)),
        }))
    }
}

/// Paths in a directory that are named like providers, sorted.
fn candidates(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(directory)?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .filter(|path| name_of_file(path).is_some())
        .collect();
    paths.sort();
    Ok(paths)
}

/// Decides for each name who wins; `entries` come in the order of the tiers.
fn judge(entries: Vec<(Tier, Result<Found, Refusal>, PathBuf)>) -> Vec<Entry> {
    let mut winners: BTreeMap<String, (Tier, Version, PathBuf)> = BTreeMap::new();
    for (tier, found, path) in &entries {
        let Ok(found) = found else { continue };
        let better = winners
            .get(&found.manifest.name)
            .is_none_or(|(best, version, _)| best == tier && found.version > *version);
        if better {
            winners.insert(
                found.manifest.name.clone(),
                (*tier, found.version.clone(), path.clone()),
            );
        }
    }
    entries
        .into_iter()
        .map(|(tier, found, path)| {
            let outcome = match found {
                Ok(found) => place(found, &winners),
                Err(refusal) => Outcome::Refused(refusal),
            };
            Entry {
                tier,
                path,
                outcome,
            }
        })
        .collect()
}

fn place(found: Found, winners: &BTreeMap<String, (Tier, Version, PathBuf)>) -> Outcome {
    let (tier, version, by) = &winners[&found.manifest.name];
    let because = if found.path == *by {
        return Outcome::Chosen(found);
    } else if found.tier != *tier {
        Shadow::EarlierTier
    } else if found.version < *version {
        Shadow::HigherVersion
    } else {
        Shadow::SameVersion
    };
    Outcome::Shadowed {
        by: by.clone(),
        found,
        because,
    }
}

/// The command that builds a provider beside this executable, where that is a cargo checkout.
fn build_command(executable: &Path, name: &str) -> Option<String> {
    let directory = executable.parent()?;
    if !directory.join(".fingerprint").is_dir() {
        return None;
    }
    let profile = match directory.file_name()?.to_str()? {
        "debug" => String::new(),
        "release" => " --release".to_owned(),
        other => format!(" --profile {other}"),
    };
    Some(format!("cargo build{profile} -p engine-provider-{name}"))
}

fn install_command(directory: &Path, name: &str) -> String {
    let file = format!("{PREFIX}{}{SUFFIX}", name.replace('-', "_"));
    format!(
        "install -D -m 755 {file} {}",
        crate::process::quote(&directory.join(&file).display().to_string())
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{manifest, trust::Trust};

    fn found(tier: Tier, version: &str, path: &str) -> (Tier, Result<Found, Refusal>, PathBuf) {
        let text = format!(
            r#"{{"name":"x","version":"{version}","contract":"1.0.0","modes":["source"]}}"#
        );
        let (manifest, version) = manifest::read(&text).unwrap();
        let found = Found {
            manifest,
            version,
            path: path.into(),
            tier,
            trust: Trust::ThirdParty,
            needs_glibc: None,
            rules: Rules::of(&Search::nowhere(None)),
        };
        (tier, Ok(found), path.into())
    }

    #[test]
    fn the_first_tier_wins_then_the_highest_version_and_losers_say_why() {
        let entries = judge(vec![
            found(Tier::Flag, "1.9.0", "/f/a"),
            found(Tier::Flag, "1.10.0", "/f/b"),
            found(Tier::Flag, "1.10.0", "/f/c"),
            found(Tier::User, "9.0.0", "/u/a"),
        ]);
        let reasons: Vec<_> = entries.iter().map(Entry::reason).collect();
        assert_eq!(
            reasons,
            [
                Some("older than /f/b".to_owned()),
                None,
                Some("same version as /f/b".to_owned()),
                Some("shadowed by /f/b".to_owned()),
            ]
        );
    }

    #[test]
    fn nothing_found_names_the_build_command_only_in_a_checkout() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("release");
        std::fs::create_dir_all(target.join(".fingerprint")).unwrap();
        assert_eq!(
            build_command(&target.join("host"), "vllm").as_deref(),
            Some("cargo build --release -p engine-provider-vllm")
        );
        assert_eq!(build_command(Path::new("/usr/bin/host"), "vllm"), None);
    }
}
