//! Which commit of llama.cpp, and where it can be had.

use engine_provider_api::{Checkout, Facts, Mirror, Narration, Pool};

/// Where llama.cpp is developed.
pub(crate) const REPOSITORY: &str = "https://github.com/ggml-org/llama.cpp";
/// Commit that this provider's flags, log patterns and tests were taken from.
pub(crate) const PINNED: &str = "0c1e57098bba43ac29e6e3b677cdceebdd22334f";

/// A source tree.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    repository: String,
    reference: String,
    submodules: bool,
}

impl Source {
    pub(crate) fn of(pool: &Pool) -> Self {
        let given = pool.provisioning.source.clone().unwrap_or_default();
        Self {
            repository: given.repo.unwrap_or_else(|| REPOSITORY.to_owned()),
            reference: given.reference.unwrap_or_else(|| PINNED.to_owned()),
            submodules: given.submodules,
        }
    }

    /// Whether it is the commit that this provider knows by heart.
    pub(crate) fn pinned(&self) -> bool {
        self.reference == PINNED
    }

    /// First 12 digits of the commit, where the reference is one and not a branch or tag.
    pub(crate) fn short_commit(&self) -> Option<&str> {
        let full = self.reference.len() == 40;
        let commit = full && self.reference.bytes().all(|byte| byte.is_ascii_hexdigit());
        commit.then(|| &self.reference[..12])
    }

    pub(crate) fn checkout(&self, facts: &Facts) -> Checkout {
        let git = Mirror::Git {
            url: self.repository.clone(),
        };
        let index = self.pinned() && facts.package_index.is_some();
        Checkout {
            mirrors: std::iter::once(git)
                .chain(index.then(index_mirror))
                .collect(),
            commit: self.reference.clone(),
            submodules: self.submodules,
            narration: Narration {
                start: "git-clone".to_owned(),
                ..Narration::default()
            },
        }
    }

    pub(crate) fn note(&self) -> Option<String> {
        (!self.pinned()).then(|| {
            format!(
                "source {} of {}, not the commit this provider was made for: flags are checked \
                 after the build, and package mirrors do not have it",
                self.reference, self.repository
            )
        })
    }
}

/// The same commit, in the source distribution of llama.cpp's Python binding.
fn index_mirror() -> Mirror {
    Mirror::Index {
        project: "llama-cpp-python".to_owned(),
        version: "0.3.36".to_owned(),
        sha256: "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e".to_owned(),
        git_directory: ".git/modules/vendor/llama.cpp".to_owned(),
    }
}
