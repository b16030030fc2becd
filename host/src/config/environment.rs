//! The only file that reads the process environment.
//!
//! Everything else is given what it needs, so that tests and embedders can give something else.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

/// A snapshot of the variables of a process.
#[derive(Debug, Clone, Default)]
pub struct Environment(BTreeMap<OsString, OsString>);

impl Environment {
    /// The environment of this process, read now.
    #[must_use]
    pub fn of_this_process() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the file that may read the environment"
        )]
        Self(std::env::vars_os().collect())
    }

    /// An environment made of these pairs, for tests and embedders.
    pub fn from_pairs<K: Into<OsString>, V: Into<OsString>>(
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        Self(
            pairs
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The same environment with one variable set.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.0.insert(name.into(), value.into());
        self
    }

    /// A variable that is set, not empty and UTF-8.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0
            .get(std::ffi::OsStr::new(name))?
            .to_str()
            .filter(|value| !value.is_empty())
    }

    /// A variable that holds a path.
    #[must_use]
    pub fn path(&self, name: &str) -> Option<PathBuf> {
        self.0
            .get(std::ffi::OsStr::new(name))
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    }

    /// Directories of `PATH`, relative and empty ones left out.
    #[must_use]
    pub fn search_path(&self) -> Vec<PathBuf> {
        self.0
            .get(std::ffi::OsStr::new("PATH"))
            .map(|path| {
                std::env::split_paths(path)
                    .filter(|directory| directory.is_absolute())
                    .collect()
            })
            .unwrap_or_default()
    }

    /// All variables that are UTF-8, for a program that the user would start.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, String> {
        let pairs = self.0.iter();
        pairs
            .filter_map(|(name, value)| {
                Some((name.to_str()?.to_owned(), value.to_str()?.to_owned()))
            })
            .collect()
    }

    /// The variables named, those that are set and UTF-8.
    #[must_use]
    pub fn pick<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> BTreeMap<String, String> {
        names
            .into_iter()
            .filter_map(|name| Some((name.to_owned(), self.get(name)?.to_owned())))
            .collect()
    }
}
