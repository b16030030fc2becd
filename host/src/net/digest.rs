//! Digests as operators and plans write them: `sha256:…`, `sha512:…`.

use std::{fmt, fs::File, io::Read as _, path::Path};

use sha2::{Digest as _, Sha256, Sha512};

use crate::{
    fault::{Exit, Fault, Hint, hint},
    store::{self, Store, StoreError},
};

/// An expected digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Digest {
    /// 64 hexadecimal digits, lower case.
    Sha256(String),
    /// 128 hexadecimal digits, lower case.
    Sha512(String),
}

/// A text that is no digest this program can compare.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DigestError {
    /// Another algorithm, or none named.
    #[error("`{text}` names no digest algorithm that is supported (sha256, sha512)")]
    Algorithm {
        /// The digest as written.
        text: String,
    },
    /// Not the right number of hexadecimal digits.
    #[error("`{text}` is not a whole digest: {expected} hexadecimal digits are needed")]
    Digits {
        /// The digest as written.
        text: String,
        /// Digits that are needed.
        expected: usize,
    },
}

impl Fault for DigestError {
    fn exit(&self) -> Exit {
        Exit::Config
    }

    fn hints(&self) -> Vec<Hint> {
        let Self::Algorithm { text } = self else {
            return Vec::new();
        };
        let hexadecimal = text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let named = match text.len() {
            64 if hexadecimal => format!("sha256:{text}"),
            128 if hexadecimal => format!("sha512:{text}"),
            _ => return vec![hint("give `sha256:` and what `sha256sum` prints", None)],
        };
        vec![hint(format!("write it as `{named}`"), None)]
    }

    fn kind(&self) -> &'static str {
        "bad-digest"
    }
}

impl Digest {
    /// Reads `ALGORITHM:HEX`.
    pub fn parse(text: &str) -> Result<Self, DigestError> {
        let (algorithm, digits) = text.split_once(':').unwrap_or(("", text));
        let (expected, make): (usize, fn(String) -> Self) =
            match algorithm.to_ascii_lowercase().as_str() {
                "sha256" => (64, Self::Sha256),
                "sha512" => (128, Self::Sha512),
                _ => {
                    return Err(DigestError::Algorithm {
                        text: text.to_owned(),
                    });
                }
            };
        if digits.len() == expected && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            Ok(make(digits.to_ascii_lowercase()))
        } else {
            Err(DigestError::Digits {
                text: text.to_owned(),
                expected,
            })
        }
    }

    /// The SHA-256 of a text.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self::Sha256(store::hex(&Sha256::digest(bytes)))
    }

    /// The digest of a text in the algorithm of another.
    #[must_use]
    pub fn of_like(bytes: &[u8], like: &Self) -> Self {
        match like {
            Self::Sha256(_) => Self::of(bytes),
            Self::Sha512(_) => Self::Sha512(store::hex(&Sha512::digest(bytes))),
        }
    }

    /// The digits alone.
    #[must_use]
    pub fn hex(&self) -> &str {
        match self {
            Self::Sha256(hex) | Self::Sha512(hex) => hex,
        }
    }

    /// The digits, of a SHA-256.
    #[must_use]
    pub fn sha256(&self) -> Option<&str> {
        match self {
            Self::Sha256(hex) => Some(hex),
            Self::Sha512(_) => None,
        }
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let algorithm = match self {
            Self::Sha256(_) => "sha256",
            Self::Sha512(_) => "sha512",
        };
        write!(formatter, "{algorithm}:{}", self.hex())
    }
}

/// Hashes a stream: always SHA-256, by which the store names blobs, and SHA-512 where that is
/// expected.
#[derive(Debug, Clone, Default)]
pub(super) struct Hashes {
    sha256: Sha256,
    sha512: Option<Sha512>,
}

impl Hashes {
    pub(super) fn for_expected(expected: Option<&Digest>) -> Self {
        Self {
            sha256: Sha256::new(),
            sha512: matches!(expected, Some(Digest::Sha512(_))).then(Sha512::new),
        }
    }

    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.sha256.update(bytes);
        if let Some(sha512) = &mut self.sha512 {
            sha512.update(bytes);
        }
    }

    pub(super) fn sha256(&self) -> String {
        store::hex(&self.sha256.clone().finalize())
    }

    /// The digest of what was hashed, in the algorithm of `expected`.
    pub(super) fn like(&self, expected: &Digest) -> Digest {
        match (expected, &self.sha512) {
            (Digest::Sha512(_), Some(sha512)) => {
                Digest::Sha512(store::hex(&sha512.clone().finalize()))
            }
            _ => Digest::Sha256(self.sha256()),
        }
    }
}

/// The digest of a file in the algorithm of `like`, told to whom the store tells it. Blocks.
pub(crate) fn hash_file(store: &Store, path: &Path, like: &Digest) -> Result<Digest, StoreError> {
    let failed = |source| StoreError::of_reading(path, source);
    let file = File::open(path).map_err(failed)?;
    let mut file = store.watching(file, path).map_err(failed)?;
    let mut hashes = Hashes::for_expected(Some(like));
    let mut buffer = vec![0; 256 * 1024];
    loop {
        match file.read(&mut buffer).map_err(failed)? {
            0 => return Ok(hashes.like(like)),
            count => hashes.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_read_in_full_or_refused() {
        let digits = "A".repeat(64);
        let digest = Digest::parse(&format!("sha256:{digits}")).unwrap();
        assert_eq!(digest.to_string(), format!("sha256:{}", "a".repeat(64)));
        for bad in ["md5:d41d8cd98f00b204e9800998ecf8427e", &digits, ""] {
            let error = Digest::parse(bad).unwrap_err();
            assert!(matches!(error, DigestError::Algorithm { .. }), "{bad}");
        }
        for bad in ["sha256:12", &format!("sha512:{digits}"), "sha256:"] {
            let error = Digest::parse(bad).unwrap_err();
            assert!(matches!(error, DigestError::Digits { .. }), "{bad}");
        }
    }
}
