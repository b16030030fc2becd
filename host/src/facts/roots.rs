//! Where a machine is looked at: this one, or a made-up one in a directory.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{config::environment::Environment, process::Identity};

/// Where a machine is looked at. All paths given out are those of the machine, below `/`; only
/// [`Roots::real`] adds the directory that stands for `/`.
#[derive(Debug, Clone)]
pub struct Roots {
    root: PathBuf,
    environment: Environment,
    search_path: Vec<PathBuf>,
}

impl Roots {
    /// This machine, seen with these variables.
    #[must_use]
    pub fn of_this_machine(environment: Environment) -> Self {
        Self::at("/", environment)
    }

    /// The machine whose files lie below a directory.
    pub fn at(root: impl Into<PathBuf>, environment: Environment) -> Self {
        Self {
            root: root.into(),
            search_path: environment.search_path(),
            environment,
        }
    }

    /// The variables it is seen with.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Directories in which programs are looked for: `PATH`.
    #[must_use]
    pub fn search_path(&self) -> &[PathBuf] {
        &self.search_path
    }

    /// Where a path of the machine really lies.
    pub fn real(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        if self.root == Path::new("/") {
            return path.to_owned();
        }
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Whether something is at a path.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.real(path).exists()
    }

    /// Text of a file; `None` where it cannot be read.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.real(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Text of a file without blanks around it.
    pub fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        Some(self.text(path)?.trim().to_owned())
    }

    /// Names in a directory, sorted; none where it cannot be read.
    pub fn names(&self, directory: impl AsRef<Path>) -> Vec<String> {
        self.names_that(directory, |_| true)
    }

    /// The same, of those that are `wanted`: directories of programs have thousands of others.
    pub fn names_that(
        &self,
        directory: impl AsRef<Path>,
        wanted: impl Fn(&str) -> bool,
    ) -> Vec<String> {
        let entries = fs::read_dir(self.real(directory)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| wanted(name))
            .collect();
        names.sort();
        names
    }

    /// What a link says; `None` where there is no link.
    pub fn link(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        fs::read_link(self.real(path)).ok()
    }

    /// A path with its links followed, as a path of the machine.
    pub fn followed(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        let Ok(real) = fs::canonicalize(self.real(path)) else {
            return path.to_owned();
        };
        let root = fs::canonicalize(&self.root).unwrap_or_else(|_| self.root.clone());
        match real.strip_prefix(&root) {
            Ok(inside) => Path::new("/").join(inside),
            Err(_) => real,
        }
    }

    /// Whether a path is a program.
    pub fn is_program(&self, path: impl AsRef<Path>) -> bool {
        use std::os::unix::fs::PermissionsExt as _;
        let metadata = fs::metadata(self.real(path));
        metadata.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
    }

    /// First program of this name in the search path.
    #[must_use]
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        let paths = self
            .search_path
            .iter()
            .map(|directory| directory.join(name));
        paths.into_iter().find(|path| self.is_program(path))
    }

    /// Why somebody could not run a program, by the permissions of it and all directories above it,
    /// links followed; `None` where they could.
    pub fn out_of_reach(&self, path: &Path, identity: Identity) -> Option<String> {
        let followed = self.followed(path);
        for path in [path, followed.as_path()] {
            for directory in path.ancestors().skip(1) {
                if !self.permits(directory, identity) {
                    return Some(format!(
                        "uid {} cannot enter `{}`",
                        identity.uid,
                        directory.display()
                    ));
                }
            }
        }
        let runs = self.permits(&followed, identity);
        (!runs).then(|| format!("uid {} cannot run it", identity.uid))
    }

    /// Whether somebody may enter a directory, or run a file.
    fn permits(&self, path: &Path, identity: Identity) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        // The directory that stands for `/` in tests is nobody's business.
        if path == Path::new("/") {
            return true;
        }
        let Ok(metadata) = fs::metadata(self.real(path)) else {
            return false;
        };
        let shift = match metadata {
            _ if identity.uid == 0 => return true,
            ref it if it.uid() == identity.uid => 6,
            ref it if it.gid() == identity.gid => 3,
            _ => 0,
        };
        metadata.mode() >> shift & 1 == 1
    }
}
