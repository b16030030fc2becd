//! What the machine's administrator and the user say of registries: containers-registries.conf(5).
//!
//! Podman reads these files itself; here they are read so that what the registry says of an image
//! comes from the same place, and so that docker, which knows nothing of them, pulls from the same
//! mirrors.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::{Reference, ReferenceError};
use crate::{
    config::environment::Environment,
    fault::{Detail, Exit, Fault, Hint, hint},
};

/// The administrator's file.
const SYSTEM: &str = "/etc/containers/registries.conf";

/// The administrator's drop-ins.
const SYSTEM_DROP_INS: &str = "/etc/containers/registries.conf.d";

/// Rules for registries, from all files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    rules: Vec<Rule>,
}

/// A place that may have an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// The image there.
    pub reference: Reference,
    /// Whether the files say that it need not prove who it is.
    pub insecure: bool,
}

/// Why a registry cannot be used as the files say.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be understood.
    #[error("{} is no registries.conf: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The files block it.
    #[error("registries.conf blocks {image}")]
    Blocked {
        /// The image.
        image: String,
        /// The rule's prefix.
        prefix: String,
    },
    /// A rule rewrites a name to something that is none.
    #[error("registries.conf rewrites {image} to something that cannot be used")]
    Rewritten {
        /// The image.
        image: String,
        /// Why.
        #[source]
        source: ReferenceError,
    },
}

impl Fault for RegistriesError {
    fn exit(&self) -> Exit {
        match self {
            Self::Blocked { .. } => Exit::Refused,
            _ => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Blocked { prefix, .. } => vec![hint(
                format!(
                    "use another image, or have `blocked` removed from the rule for `{prefix}`"
                ),
                Some("grep -rn blocked /etc/containers/registries.conf*"),
            )],
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Unreadable { path, .. } | Self::Malformed { path, .. } => {
                vec![Detail::new("where", path.display().to_string())]
            }
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Blocked { .. } => "registry-blocked",
            _ => "bad-registries-conf",
        }
    }
}

#[derive(Debug, Default, Deserialize)]
struct File {
    #[serde(default)]
    registry: Vec<Rule>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Rule {
    prefix: String,
    location: String,
    insecure: bool,
    blocked: bool,
    #[serde(rename = "mirror-by-digest-only")]
    mirror_by_digest_only: bool,
    mirror: Vec<Mirror>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct Mirror {
    location: String,
    insecure: bool,
    #[serde(rename = "pull-from-mirror")]
    pull_from_mirror: String,
}

impl Registries {
    /// Reads the files that podman would read.
    pub fn read(environment: &Environment) -> Result<Self, RegistriesError> {
        let mut all = Self::default();
        for path in files(environment)? {
            match fs::read_to_string(&path) {
                Ok(text) => all
                    .add(&text)
                    .map_err(|reason| RegistriesError::Malformed {
                        path: path.clone(),
                        reason,
                    })?,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(RegistriesError::Unreadable { path, source }),
            }
        }
        Ok(all)
    }

    /// Adds the rules of one file; a later rule for the same prefix replaces an earlier one.
    fn add(&mut self, text: &str) -> Result<(), String> {
        let file: File = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        for mut rule in file.registry {
            if rule.prefix.is_empty() {
                rule.prefix.clone_from(&rule.location);
            }
            rule.prefix = rule.prefix.trim_end_matches('/').to_owned();
            if rule.prefix.is_empty() {
                return Err("a [[registry]] has neither prefix nor location".to_owned());
            }
            self.rules.retain(|other| other.prefix != rule.prefix);
            self.rules.push(rule);
        }
        Ok(())
    }

    /// Where an image may be had: mirrors in their order, then the registry itself.
    pub fn endpoints(&self, image: &Reference) -> Result<Vec<Endpoint>, RegistriesError> {
        let name = image.repository();
        let matching = self.rules.iter().filter_map(|rule| {
            let length = matched(&rule.prefix, &name)?;
            Some((length, rule))
        });
        let Some((length, rule)) = matching.max_by_key(|(_, rule)| rule.prefix.len()) else {
            return Ok(vec![Endpoint {
                reference: image.clone(),
                insecure: false,
            }]);
        };
        if rule.blocked {
            return Err(RegistriesError::Blocked {
                image: image.to_string(),
                prefix: rule.prefix.clone(),
            });
        }
        let at = |location: &str, insecure: bool| {
            let reference = match location.trim_end_matches('/') {
                "" => Ok(image.clone()),
                location => image.moved_to(&format!("{location}{}", &name[length..])),
            };
            reference
                .map(|reference| Endpoint {
                    reference,
                    insecure,
                })
                .map_err(|source| RegistriesError::Rewritten {
                    image: image.to_string(),
                    source,
                })
        };
        let serves = |mirror: &&Mirror| match mirror.pull_from_mirror.as_str() {
            "digest-only" => image.digest().is_some(),
            "tag-only" => image.digest().is_none(),
            _ => !rule.mirror_by_digest_only || image.digest().is_some(),
        };
        let mirrors = rule.mirror.iter().filter(serves);
        mirrors
            .map(|mirror| at(&mirror.location, mirror.insecure))
            .chain([at(&rule.location, rule.insecure)])
            .collect()
    }
}

/// Certificate authorities that are trusted for a registry (containers-certs.d(5)): every `.crt` in a
/// directory called after its host and port.
#[must_use]
pub(super) fn authorities(environment: &Environment, authority: &str) -> Vec<PathBuf> {
    let user = environment.path("HOME");
    let user = user.map(|home| home.join(".config/containers/certs.d"));
    let directories = ["/etc/containers/certs.d", "/etc/docker/certs.d"].map(PathBuf::from);
    let mut all: Vec<PathBuf> = user
        .into_iter()
        .chain(directories)
        .filter_map(|directory| fs::read_dir(directory.join(authority)).ok())
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "crt"))
        .collect();
    all.sort();
    all
}

/// How much of a name a rule's prefix covers; `None` where it does not match.
fn matched(prefix: &str, name: &str) -> Option<usize> {
    let length = match prefix.strip_prefix("*.") {
        None => name.starts_with(prefix).then_some(prefix.len())?,
        // `*.example.com`: every host below it, and what follows in the path.
        Some(domain) => {
            let host = name.find([':', '/']).unwrap_or(name.len());
            let at = name.find(&format!(".{domain}"))?;
            (at > 0 && at < host).then_some(at + 1 + domain.len())?
        }
    };
    name[length..]
        .chars()
        .next()
        .is_none_or(|next| matches!(next, '/' | ':' | '@'))
        .then_some(length)
}

/// The files, in the order in which they are read.
fn files(environment: &Environment) -> Result<Vec<PathBuf>, RegistriesError> {
    let user = environment
        .path("HOME")
        .map(|home| home.join(".config/containers"));
    let in_user = |name: &str| user.as_ref().map(|user| user.join(name));
    let drop_ins_of =
        |directory: Option<PathBuf>| directory.map_or(Ok(Vec::new()), |it| drop_ins(&it));
    let user_drop_ins = drop_ins_of(in_user("registries.conf.d"))?;
    if let Some(path) = environment.path("CONTAINERS_REGISTRIES_CONF") {
        if !path.exists() {
            let source = io::ErrorKind::NotFound.into();
            return Err(RegistriesError::Unreadable { path, source });
        }
        let mut all = vec![path];
        all.extend(drop_ins(Path::new(SYSTEM_DROP_INS))?);
        all.extend(user_drop_ins);
        return Ok(all);
    }
    // A file of the user's own stands for all of the administrator's.
    if let Some(path) = in_user("registries.conf").filter(|path| path.exists()) {
        return Ok([vec![path], user_drop_ins].concat());
    }
    let mut all = vec![PathBuf::from(SYSTEM)];
    all.extend(drop_ins(Path::new(SYSTEM_DROP_INS))?);
    all.extend(user_drop_ins);
    Ok(all)
}

fn drop_ins(directory: &Path) -> Result<Vec<PathBuf>, RegistriesError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => {
            return Err(RegistriesError::Unreadable {
                path: directory.to_owned(),
                source,
            });
        }
    };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "conf")
        })
        .collect();
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests;
