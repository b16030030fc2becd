//! One provider file that passed every check, and how it is looked at again when it is opened.

use std::path::{Path, PathBuf};

use engine_provider_api::Manifest;
use object::ReadCache;
use semver::Version;

use super::{
    elf::{self, ElfProblem, Glibc},
    error::ProviderFault,
    file::{self, FileProblem, Opened},
    manifest::{self, ManifestProblem},
    search::{Search, Tier},
    trust::{Executable, Trust},
};

/// Beginning of a provider's file name.
pub(super) const PREFIX: &str = "libengine_provider_";
/// End of a provider's file name.
pub(super) const SUFFIX: &str = ".so";

/// A provider that may be opened.
#[derive(Debug, Clone)]
pub struct Found {
    /// What it says about itself.
    pub manifest: Manifest,
    /// Its version, parsed.
    pub version: Version,
    /// Path it was found by.
    pub path: PathBuf,
    /// Where it was found.
    pub tier: Tier,
    /// How far it is believed.
    pub trust: Trust,
    /// Newest glibc it needs.
    pub needs_glibc: Option<Glibc>,
    /// How it is looked at again when it is opened.
    pub(super) rules: Rules,
}

/// What a library is held against; kept, so that opening repeats what listing checked.
#[derive(Debug, Clone)]
pub(super) struct Rules {
    machine: elf::Machine,
    owners: file::Owners,
    executable: Option<Executable>,
}

/// Why a candidate is not usable; one line.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub enum Refusal {
    /// The file itself.
    File(#[from] FileProblem),
    /// Its headers.
    Elf(#[from] ElfProblem),
    /// Its manifest.
    Manifest(#[from] ManifestProblem),
}

/// Looks at one file by its path, whatever its name.
pub fn inspect(path: &Path, search: &Search) -> Result<Found, ProviderFault> {
    examine(path, Tier::Path, &Rules::of(search)).map_err(|refusal| ProviderFault::Unusable {
        name: name_of_file(path).unwrap_or_else(|| path.display().to_string()),
        path: path.to_owned(),
        reason: refusal.to_string(),
    })
}

impl Rules {
    pub(super) fn of(search: &Search) -> Self {
        Self {
            machine: search.machine,
            owners: search.owners.clone(),
            executable: search.executable(),
        }
    }
}

impl Found {
    /// SHA-256 of the file as it is now, 64 hexadecimal digits.
    pub fn sha256(&self) -> Result<String, ProviderFault> {
        let opened = self.reopen()?;
        file::sha256(&opened.file).map_err(|error| ProviderFault::Unusable {
            name: self.manifest.name.clone(),
            path: self.path.clone(),
            reason: FileProblem::Unreadable(error).to_string(),
        })
    }

    /// Opens the file again and repeats every check on the descriptor that will be loaded.
    pub(super) fn reopen(&self) -> Result<Opened, ProviderFault> {
        let unusable = |reason: String| ProviderFault::Unusable {
            name: self.manifest.name.clone(),
            path: self.path.clone(),
            reason,
        };
        let (opened, now) = open_and_examine(&self.path, self.tier, &self.rules)
            .map_err(|refusal| unusable(refusal.to_string()))?;
        if now.manifest != self.manifest || now.trust != self.trust {
            return Err(unusable("it was replaced since it was listed".to_owned()));
        }
        Ok(opened)
    }
}

pub(super) fn examine(path: &Path, tier: Tier, rules: &Rules) -> Result<Found, Refusal> {
    open_and_examine(path, tier, rules).map(|(_, found)| found)
}

fn open_and_examine(path: &Path, tier: Tier, rules: &Rules) -> Result<(Opened, Found), Refusal> {
    let opened = file::open(path, &rules.owners)?;
    let cache = ReadCache::new(&opened.file);
    let library = elf::examine(&cache, &rules.machine)?;
    let (manifest, version) = manifest::read(&library.manifest)?;
    let found = Found {
        manifest,
        version,
        path: path.to_owned(),
        tier,
        trust: Executable::judge(rules.executable.as_ref(), &opened),
        needs_glibc: library.needs_glibc,
        rules: rules.clone(),
    };
    Ok((opened, found))
}

/// `libengine_provider_my_engine.so` names `my-engine`.
pub(super) fn name_of_file(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let name = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    (!name.is_empty()).then(|| name.replace('_', "-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_provider_files_are_candidates() {
        let name = |file: &str| name_of_file(Path::new(file));
        assert_eq!(
            name("/a/libengine_provider_my_engine.so"),
            Some("my-engine".into())
        );
        for other in [
            "libengine_provider_.so",
            "libengine_provider_x.so.1",
            "libx.so",
            "x",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }
}
