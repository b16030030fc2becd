//! What containers.conf(5) says: limits, init program, directories of device descriptions.

use std::path::PathBuf;

use serde::Deserialize;

use super::super::{Roots, cdi};

/// What of containers.conf(5) matters here, all its files laid over each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    /// `[containers] default_ulimits`.
    pub default_ulimits: Vec<String>,
    /// `init_path`, in either table: it moved between versions.
    pub init_path: Option<String>,
    /// `[engine] cdi_spec_dirs`.
    pub cdi_spec_dirs: Vec<String>,
    /// Files that were looked for, there or not: the answers depend on them.
    pub files: Vec<PathBuf>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct File {
    containers: ContainersTable,
    engine: EngineTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ContainersTable {
    default_ulimits: Option<Vec<String>>,
    init_path: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct EngineTable {
    init_path: Option<String>,
    cdi_spec_dirs: Option<Vec<String>>,
}

impl Settings {
    /// Reads the files, weakest first. One that cannot be read says nothing: podman itself will
    /// complain about it.
    pub(super) fn read(roots: &Roots) -> Self {
        let mut settings = Self {
            files: files(roots),
            ..Self::default()
        };
        for path in settings.files.clone() {
            let text = roots.text(&path);
            if let Some(file) = text.and_then(|text| toml::from_str(&text).ok()) {
                settings.overlay(file);
            }
        }
        settings
    }

    fn overlay(&mut self, file: File) {
        if let Some(limits) = file.containers.default_ulimits {
            self.default_ulimits = limits;
        }
        if let Some(path) = file.engine.init_path.or(file.containers.init_path) {
            self.init_path = Some(path).filter(|path| !path.is_empty());
        }
        if let Some(directories) = file.engine.cdi_spec_dirs {
            self.cdi_spec_dirs = directories;
        }
    }

    /// Directories of device descriptions, the one that wins last.
    pub(super) fn cdi_directories(&self) -> impl Iterator<Item = &str> {
        let more = self.cdi_spec_dirs.iter().map(String::as_str);
        let usual = cdi::USUAL_DIRECTORIES.into_iter();
        usual
            .clone()
            .chain(more.filter(move |it| !cdi::USUAL_DIRECTORIES.contains(it)))
    }
}

/// Where containers.conf(5) is looked for, weakest first.
fn files(roots: &Roots) -> Vec<PathBuf> {
    let environment = roots.environment();
    let mut files = Vec::new();
    if let Some(only) = environment.path("CONTAINERS_CONF") {
        files.push(only);
    } else {
        files.push(PathBuf::from("/usr/share/containers/containers.conf"));
        with_parts(roots, PathBuf::from("/etc/containers"), &mut files);
        // A root of its own reads no user's file.
        if !rustix::process::geteuid().is_root()
            && let Some(directory) = user_directory(roots)
        {
            with_parts(roots, directory, &mut files);
        }
    }
    files.extend(environment.path("CONTAINERS_CONF_OVERRIDE"));
    files
}

/// `containers.conf` and what lies in `containers.conf.d`.
fn with_parts(roots: &Roots, directory: PathBuf, files: &mut Vec<PathBuf>) {
    files.push(directory.join("containers.conf"));
    let parts = directory.join("containers.conf.d");
    let names = roots.names(&parts).into_iter();
    files.extend(
        names
            .filter(|name| name.ends_with(".conf"))
            .map(|name| parts.join(name)),
    );
}

/// The user's own directory of container settings.
pub(super) fn user_directory(roots: &Roots) -> Option<PathBuf> {
    let environment = roots.environment();
    let home = || Some(environment.path("HOME")?.join(".config"));
    let directory = environment.path("XDG_CONFIG_HOME").or_else(home)?;
    Some(directory.join("containers"))
}
