//! What is published: repositories with their files, and what git and large-file storage make of them.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use sha1::{Digest as _, Sha1};

use crate::sha256;

/// Who may read a repository.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Everybody.
    #[default]
    Public,
    /// Everybody sees it, and who accepted its terms gets its files.
    Gated,
    /// Who has the token.
    Private,
}

/// The state of a repository at a commit.
#[derive(Debug, Clone, Default)]
pub struct HubRepository {
    /// Content by path. Those that end with `.gguf`, `.safetensors` or `.bin` are in large-file storage.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Who may read it.
    pub access: Access,
}

impl HubRepository {
    /// With these files, for everybody.
    #[must_use]
    pub fn of(files: &[(&str, &[u8])]) -> Self {
        let own = |(path, content): &(&str, &[u8])| ((*path).to_owned(), content.to_vec());
        Self {
            files: files.iter().map(own).collect(),
            access: Access::Public,
        }
    }

    /// The same, for those who may.
    #[must_use]
    pub fn with_access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}

/// A repository with what is told of its files, worked out once.
pub(super) struct Kept {
    pub(super) access: Access,
    pub(super) files: BTreeMap<String, KeptFile>,
}

pub(super) struct KeptFile {
    pub(super) content: Arc<[u8]>,
    pub(super) sha256: String,
    /// What is in git in its place, if it is a large file.
    pub(super) pointer: Option<String>,
    /// Git's name of what is in git.
    pub(super) git_blob: String,
}

impl Kept {
    pub(super) fn of(repository: HubRepository) -> Self {
        let file = |(path, content): (String, Vec<u8>)| {
            let kept = KeptFile::of(&path, content);
            (path, kept)
        };
        Self {
            access: repository.access,
            files: repository.files.into_iter().map(file).collect(),
        }
    }
}

impl KeptFile {
    fn of(path: &str, content: Vec<u8>) -> Self {
        let sha256 = sha256(&content);
        let pointer = is_large(path).then(|| pointer(&sha256, content.len()));
        let in_git = pointer.as_ref().map_or(&*content, String::as_bytes);
        Self {
            git_blob: git_blob(in_git),
            content: content.into(),
            sha256,
            pointer,
        }
    }
}

/// Git's name of a file's content.
#[must_use]
pub fn git_blob(content: &[u8]) -> String {
    let mut hash = Sha1::new_with_prefix(format!("blob {}\0", content.len()));
    hash.update(content);
    hash.finalize()
        .iter()
        .fold(String::new(), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

fn is_large(path: &str) -> bool {
    [".gguf", ".safetensors", ".bin"]
        .iter()
        .any(|suffix| path.ends_with(suffix))
}

/// What large-file storage leaves in git.
fn pointer(sha256: &str, size: usize) -> String {
    format!("version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n")
}
