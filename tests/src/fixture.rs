//! The fixture engine as a real git repository, and pools that build it or run its image.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};

use crate::{ContainerKind, Registry};

/// A pool that builds and runs the fixture engine, named `default`; tests change what they are about.
#[must_use]
pub fn fixture_pool(repository: &Repository) -> Value {
    json!({
        "id": "default",
        "engine": "fixture",
        "gpu": "forbid",
        "provisioning": {
            "source": {
                "repo": repository.url(),
                "ref": repository.commit,
                "build": {"cmake_flags": []},
            },
            "ports": [crate::free_port()],
            "flags": [],
        },
    })
}

/// A pool that runs the fake engine's image of a registry, as `tests/engine` by this digest, named `default`.
#[must_use]
pub fn container_pool(registry: &Registry, digest: &str, kind: ContainerKind, port: u16) -> Value {
    json!({
        "id": "default",
        "engine": "fixture",
        "gpu": "forbid",
        "provisioning": {
            "container": {
                "image": format!("{}/tests/engine", registry.address()),
                "digest": digest,
                "runtime": kind.name(),
            },
            "ports": [port],
        },
    })
}

/// A git repository with the fixture engine's source.
pub struct Repository {
    directory: PathBuf,
    /// Full commit of its `main` branch.
    pub commit: String,
}

impl Repository {
    /// Makes one below `parent`. Equal sources give equal commits.
    ///
    /// # Panics
    ///
    /// When git is missing or fails.
    #[must_use]
    pub fn create(parent: &Path) -> Self {
        let directory = parent.join("fixture-server");
        fs::create_dir_all(&directory).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/server");
        for entry in fs::read_dir(&source).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), directory.join(entry.file_name())).unwrap();
        }
        let mut repository = Self {
            directory,
            commit: String::new(),
        };
        repository.git(&["init", "--quiet", "--initial-branch=main"]);
        repository.git(&["config", "uploadpack.allowAnySHA1InWant", "true"]);
        repository.commit = repository.commit_all("first");
        repository
    }

    /// Commits everything that changed and gives the full commit id.
    pub fn commit_all(&self, message: &str) -> String {
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", message]);
        self.git(&["rev-parse", "HEAD"]).trim().to_owned()
    }

    /// Its directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.directory
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("file://{}", self.directory.display())
    }

    /// Runs git in it.
    ///
    /// # Panics
    ///
    /// When git fails.
    pub fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .current_dir(&self.directory)
            .args(arguments)
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_AUTHOR_NAME", "fixture")
            .env("GIT_AUTHOR_EMAIL", "fixture@localhost")
            .env("GIT_AUTHOR_DATE", "2026-01-01T00:00:00Z")
            .env("GIT_COMMITTER_NAME", "fixture")
            .env("GIT_COMMITTER_EMAIL", "fixture@localhost")
            .env("GIT_COMMITTER_DATE", "2026-01-01T00:00:00Z")
            .output()
            .expect("git is installed by scripts/setup-tests");
        assert!(
            output.status.success(),
            "git {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }
}
