//! The token that allows everything over TCP.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::ApiError;
use crate::store::hex;

/// Random bytes of a token that is made here.
const BYTES: usize = 32;

/// Shortest token that is accepted from outside.
const SHORTEST: usize = 16;

/// A token. It is never shown; [`Token::identity`] names it.
#[derive(Clone)]
pub struct Token {
    text: String,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(&self.identity())
    }
}

impl Token {
    /// A token from outside, for example from the environment.
    pub fn new(text: &str) -> Result<Self, ApiError> {
        let text = text.trim();
        let fits = text.len() >= SHORTEST && text.bytes().all(|byte| byte.is_ascii_graphic());
        match fits {
            true => Ok(Self {
                text: text.to_owned(),
            }),
            false => Err(ApiError::BadToken { shortest: SHORTEST }),
        }
    }

    /// The token of a file; made, with mode 0600, where there is no such file.
    pub fn of_file(path: &Path) -> Result<Self, ApiError> {
        let failed = |source| ApiError::TokenFile {
            path: path.to_owned(),
            source,
        };
        match read(path) {
            Ok(text) => Self::new(&text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let mut random = [0; BYTES];
                fs::File::open("/dev/urandom")
                    .and_then(|mut source| source.read_exact(&mut random))
                    .map_err(failed)?;
                let token = Self { text: hex(&random) };
                match write(path, &token.text) {
                    // Another daemon was faster.
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        Self::new(&read(path).map_err(failed)?)
                    }
                    written => written.map(|()| token).map_err(failed),
                }
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Where the daemon of a home keeps its token.
    #[must_use]
    pub fn usual_path(home: &crate::config::paths::Home) -> PathBuf {
        home.state().join("api-token")
    }

    /// Whether this is the token, in a time that does not depend on where the two differ.
    #[must_use]
    pub fn is(&self, offered: &str) -> bool {
        // Digests have equal lengths, so that not even the length is told.
        let digest = |text: &str| Sha256::digest(text.as_bytes());
        digest(&self.text).ct_eq(&digest(offered)).into()
    }

    /// Its name in logs: `token:` and the first six digits of its SHA-256.
    #[must_use]
    pub fn identity(&self) -> String {
        let digest = hex(&Sha256::digest(self.text.as_bytes()));
        format!("token:{}", &digest[..6])
    }

    /// The text itself, to register as a secret.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.text
    }
}

/// Reads a token, where nobody else can.
fn read(path: &Path) -> io::Result<String> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        let words = "others may read it; `chmod 600` it, or remove it to get a new one";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, words));
    }
    let mut text = String::new();
    (&mut file).take(4096).read_to_string(&mut text)?;
    Ok(text)
}

/// Writes a token that a crash cannot leave half-written under its name.
fn write(path: &Path, text: &str) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(directory)?;
    let mut beside = tempfile::NamedTempFile::new_in(directory)?;
    beside.write_all(text.as_bytes())?;
    beside.write_all(b"\n")?;
    beside
        .persist_noclobber(path)
        .map_err(|error| error.error)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_token_is_made_once_for_its_owner_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state/api-token");
        let made = Token::of_file(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let again = Token::of_file(&path).unwrap();
        assert!(again.is(made.secret()) && made.secret().len() == 2 * BYTES);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = Token::of_file(&path).unwrap_err();
        let source = std::error::Error::source(&refused).unwrap().to_string();
        assert!(source.contains("chmod 600"), "{source}");
    }

    #[test]
    fn only_the_token_itself_is_the_token_and_logs_name_it() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert!(token.is("0123456789abcdef"));
        for other in [
            "",
            "0123456789abcde",
            "0123456789abcdef0",
            "0123456789abcdeF",
        ] {
            assert!(!token.is(other), "{other}");
        }
        // sha256sum of the text.
        assert_eq!(token.identity(), "token:9f9f51");
        assert_eq!(format!("{token:?}"), token.identity());
        for bad in ["", "short", "with blanks in it, long enough"] {
            assert!(Token::new(bad).is_err(), "{bad}");
        }
    }
}
