//! Certificate authorities that the environment names: `SSL_CERT_FILE` and `SSL_CERT_DIR`, as OpenSSL and
//! what is built on it read them.
//!
//! Where one of both is set, what they hold is trusted instead of the machine's own authorities. In a
//! directory are looked at: files called by the hash of their subject (`c_rehash`), `.pem` and `.crt`.

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File},
    io::Read as _,
    path::{Path, PathBuf},
};

use reqwest::Certificate;

use super::NetError;
use crate::config::environment::Environment;

/// Files looked at in all directories together. Those of distributions have a few hundred.
const FILES: usize = 10_000;

/// Longest file read of a directory: all authorities of a distribution have a quarter of it.
const FILE_LIMIT_BYTES: u64 = 1 << 20;

type Reason = Box<dyn Error + Send + Sync>;

/// The authorities that are trusted instead of the machine's; `None` where nothing is set.
pub(super) fn of_environment(
    environment: &Environment,
) -> Result<Option<Vec<Certificate>>, NetError> {
    let file = environment.path("SSL_CERT_FILE");
    let directories = environment.path("SSL_CERT_DIR");
    if file.is_none() && directories.is_none() {
        return Ok(None);
    }
    let mut all = Vec::new();
    if let Some(path) = file {
        let of_file = of_file(&path).map_err(|source| NetError::Setting {
            setting: "SSL_CERT_FILE",
            source,
        })?;
        all.extend(of_file);
    }
    if let Some(list) = directories {
        let of_directories = of_directories(&list).map_err(|source| NetError::Setting {
            setting: "SSL_CERT_DIR",
            source,
        })?;
        all.extend(of_directories);
    }
    Ok(Some(all))
}

/// All certificates of a PEM file.
pub(super) fn of_file(path: &Path) -> Result<Vec<Certificate>, Reason> {
    let text = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let all = Certificate::from_pem_bundle(&text)?;
    match all.is_empty() {
        true => Err(format!("{}: no certificate in it", path.display()).into()),
        false => Ok(all),
    }
}

/// All certificates of directories, `:` between them. What cannot be read there is left out, as others
/// do it; nothing at all is an error.
fn of_directories(list: &Path) -> Result<Vec<Certificate>, Reason> {
    let mut files = BTreeSet::new();
    for directory in std::env::split_paths(list) {
        let Ok(entries) = fs::read_dir(&directory) else {
            continue;
        };
        for entry in entries.flatten() {
            let is_named = entry.file_name().to_str().is_some_and(is_certificates_name);
            // One file often has several names.
            if is_named && let Ok(path) = fs::canonicalize(entry.path()) {
                files.insert(path);
            }
            if files.len() > FILES {
                return Err(format!("{}: more than {FILES} files", list.display()).into());
            }
        }
    }
    let texts = files.into_iter().filter_map(read);
    let all: Vec<Certificate> = texts
        .filter_map(|text| Certificate::from_pem_bundle(&text).ok())
        .flatten()
        .collect();
    match all.is_empty() {
        true => Err(format!("{}: no certificate in it", list.display()).into()),
        false => Ok(all),
    }
}

fn read(path: PathBuf) -> Option<Vec<u8>> {
    // Opening a pipe would wait for who writes to it.
    if !fs::metadata(&path).ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    let file = File::open(path).ok()?;
    file.take(FILE_LIMIT_BYTES + 1)
        .read_to_end(&mut text)
        .ok()?;
    (text.len() as u64 <= FILE_LIMIT_BYTES).then_some(text)
}

/// Whether a file of this name has certificates: `5ed36f99.0` has, `5ed36f99.r0` is a revocation list.
fn is_certificates_name(name: &str) -> bool {
    let Some((stem, end)) = name.rsplit_once('.') else {
        return false;
    };
    let is_hash = stem.len() == 8 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = !end.is_empty() && end.bytes().all(|byte| byte.is_ascii_digit());
    matches!(end, "pem" | "crt") || (is_hash && is_number)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::{act::tests::which, net::client::make_client};

    /// A certificate that vouches for nobody.
    fn certificate(directory: &Path) -> PathBuf {
        let path = directory.join("made");
        #[expect(clippy::disallowed_methods, reason = "tests make real certificates")]
        let output = std::process::Command::new(which("openssl"))
            .args([
                "req", "-x509", "-newkey", "ec", "-nodes", "-subj", "/CN=test",
            ])
            .args(["-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"])
            .args(["-keyout", "/dev/null", "-out"])
            .arg(&path)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        path
    }

    fn count(environment: &Environment) -> usize {
        let all = of_environment(environment).unwrap().unwrap();
        assert!(make_client(environment, &crate::net::Verification::default()).is_ok());
        all.len()
    }

    #[test]
    fn files_named_by_hash_and_plain_ones_are_read_once_each() {
        let made = tempfile::tempdir().unwrap();
        let made = certificate(made.path());
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let copy = |to: PathBuf| fs::copy(&made, to).unwrap();
        copy(one.path().join("a.pem"));
        symlink(one.path().join("a.pem"), one.path().join("5ed36f99.0")).unwrap();
        symlink("/nowhere", one.path().join("5ed36f99.1")).unwrap();
        copy(one.path().join("5ed36f99.r0"));
        copy(one.path().join("README"));
        fs::write(one.path().join("junk.crt"), "junk").unwrap();
        fs::create_dir(one.path().join("directory.pem")).unwrap();
        copy(other.path().join("0badcafe.12"));
        let list = std::env::join_paths([one.path(), Path::new("/nowhere"), other.path()]);
        let set = Environment::default().with("SSL_CERT_DIR", list.unwrap());
        assert_eq!(count(&set), 2);
        assert_eq!(count(&set.with("SSL_CERT_FILE", &made)), 3);
        assert!(of_environment(&Environment::default()).unwrap().is_none());
    }

    #[test]
    fn directories_that_have_none_are_refused_by_name() {
        let empty = tempfile::tempdir().unwrap();
        let long = empty.path().join("long.pem");
        fs::write(long, vec![b'x'; 1 + (1 << 20)]).unwrap();
        for path in [empty.path(), Path::new("/nowhere")] {
            let set = Environment::default().with("SSL_CERT_DIR", path);
            let error = of_environment(&set).unwrap_err();
            let told = crate::narrate::chain(&error);
            assert!(told.starts_with("cannot use SSL_CERT_DIR"), "{told}");
            assert!(told.ends_with("no certificate in it"), "{told}");
        }
    }
}
