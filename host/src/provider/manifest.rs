//! A provider's manifest: read from its note, checked, nothing believed.

use engine_provider_api::{
    Document as _, DocumentError, Manifest,
    version::{VersionError, check_contract},
};
use semver::Version;

/// Longest manifest text; a listing reads hundreds of them.
const LONGEST_BYTES: usize = 64 * 1024;

/// Longest description shown, in characters.
const LONGEST_DESCRIPTION: usize = 200;

/// Why a manifest is not accepted, one line each.
#[derive(Debug, thiserror::Error)]
pub enum ManifestProblem {
    /// Not a manifest.
    #[error("its manifest cannot be read: {}", one_line(.0))]
    Unreadable(#[source] DocumentError),
    /// Too long.
    #[error("its manifest has {0} bytes, more than any manifest needs")]
    TooLong(usize),
    /// Not a name.
    #[error("its manifest names it `{}`, which is no provider name ([a-z0-9-], at most 63)", .0.escape_debug())]
    Name(String),
    /// Not a semver.
    #[error("its manifest gives version `{}`, which is no semantic version", .0.escape_debug())]
    Version(String),
    /// Built against a contract that cannot be served.
    #[error("{problem}")]
    Contract {
        /// The manifest, for listings.
        manifest: Box<Manifest>,
        /// Why not.
        problem: VersionError,
    },
}

fn one_line(error: &DocumentError) -> String {
    crate::narrate::chain(error).replace('\n', " ")
}

/// Reads and checks a manifest's text; its version comes parsed beside it.
pub fn read(text: &str) -> Result<(Manifest, Version), ManifestProblem> {
    if text.len() > LONGEST_BYTES {
        return Err(ManifestProblem::TooLong(text.len()));
    }
    let mut manifest = Manifest::read(text).map_err(ManifestProblem::Unreadable)?;
    if !is_name(&manifest.name) {
        return Err(ManifestProblem::Name(manifest.name));
    }
    let Ok(version) = Version::parse(&manifest.version) else {
        return Err(ManifestProblem::Version(manifest.version));
    };
    manifest.description = printable(&manifest.description);
    match check_contract(&manifest.contract) {
        Ok(()) => Ok((manifest, version)),
        Err(problem) => Err(ManifestProblem::Contract {
            manifest: Box::new(manifest),
            problem,
        }),
    }
}

/// `[a-z0-9-]{1,63}`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

/// A foreign text as a listing may show it: no control characters that could move a cursor.
fn printable(text: &str) -> String {
    text.chars()
        .filter(|character| !character.is_control())
        .take(LONGEST_DESCRIPTION)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, version: &str, contract: &str) -> String {
        format!(
            r#"{{"name":"{name}","version":"{version}","contract":"{contract}","modes":["source"]}}"#
        )
    }

    #[test]
    fn a_good_manifest_comes_with_its_version_parsed() {
        let (manifest, version) = read(&manifest("llamacpp", "0.4.2", "1.9.0")).unwrap();
        assert_eq!(manifest.name, "llamacpp");
        assert_eq!(version, Version::new(0, 4, 2));
    }

    #[test]
    fn each_wrong_part_is_named() {
        let cases = [
            ("{", "its manifest cannot be read: not a Manifest document"),
            (
                &*manifest("Llama", "1.0.0", "1.0.0"),
                "its manifest names it `Llama`",
            ),
            (
                &*manifest("../x", "1.0.0", "1.0.0"),
                "its manifest names it `../x`",
            ),
            (
                &*manifest("x", "one", "1.0.0"),
                "its manifest gives version `one`",
            ),
            (
                &*manifest("x", "1.0.0", "2.0.0"),
                "contract `2.0.0` cannot be served by a host that speaks 1.",
            ),
        ];
        for (text, reason) in cases {
            let refusal = read(text).unwrap_err().to_string();
            assert!(refusal.starts_with(reason), "{refusal}");
            assert!(!refusal.contains('\n'), "{refusal}");
        }
    }

    #[test]
    fn a_description_cannot_steer_a_terminal() {
        let text = r#"{"name":"x","version":"1.0.0","contract":"1.0.0","modes":[],"description":"a\u001b[2Jb"}"#;
        assert_eq!(read(text).unwrap().0.description, "a[2Jb");
    }
}
