//! How a failure with a model ends the program, and what helps.

use std::path::Path;

use engine_provider_api::ModelShape;

use super::ModelError;
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    model::source::parts_of,
    process::quote,
};

impl Fault for ModelError {
    fn exit(&self) -> Exit {
        match self {
            Self::Missing { .. } => Exit::NotFound,
            Self::Mismatch { .. }
            | Self::OwnChanged { .. }
            | Self::Changed { .. }
            | Self::OtherBlob { .. } => Exit::Verification,
            Self::Hub { source, .. } => source.exit(),
            Self::Retired { .. } => Exit::Refused,
            Self::Unverified { source, .. } => source.exit(),
            Self::Choice { source, .. } => source.exit(),
            Self::BadName { .. }
            | Self::Archive { .. }
            | Self::TooMany { .. }
            | Self::Empty { .. } => Exit::Verification,
            Self::Net { source, .. } => source.exit(),
            Self::Store { source, .. } => source.exit(),
            #[cfg(feature = "s3")]
            Self::S3 { source, .. } => source.exit(),
            Self::Oci { source, .. } => source.exit(),
            _ => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Unsupported {
                shape: ModelShape::Directory,
                ..
            } => vec![hint(
                "download it into a directory and refer to that by path",
                None,
            )],
            Self::NotADirectory { .. } => vec![hint(
                "this engine reads a directory with all files of the model: refer to that",
                None,
            )],
            Self::Unfit { .. } => vec![hint(
                "copy the directory with `cp -rL`, which copies what links lead to, and refer to the copy",
                None,
            )],
            Self::Mismatch { path, .. } if is_part(path) => vec![hint(
                "the checksum of a split model is that of the list of its parts: correct \
                 `provisioning.model.checksum`",
                Some(&of_parts(path)),
            )],
            Self::Mismatch { path, .. } if path.is_dir() => vec![hint(
                "compare with the checksum that it had, then correct `provisioning.model.checksum`",
                Some(&format!(
                    "cd {} && find -L . -type f -not -path '*/.*' -printf '%P\\0' | LC_ALL=C sort -z | \
                     xargs -0 sha256sum | sha256sum",
                    quote(&path.to_string_lossy())
                )),
            )],
            Self::Unsupported { .. } => vec![hint(
                "download the file and refer to it by path, or give its https URL with a checksum",
                None,
            )],
            Self::LeftOut { feature, .. } => vec![hint(
                "download the model and refer to it by path, or build the program with the feature",
                Some(&format!("cargo add engine-host --features {feature}")),
            )],
            Self::UnknownBuiltin { known, .. } => known
                .iter()
                .map(|name| hint(format!("use `builtin:{name}`"), None))
                .collect(),
            Self::OwnChanged { path, .. } => vec![hint(
                format!(
                    "put back what was there, or, if the change is meant, set \
                     `provisioning.model.checksum` to what {} is now",
                    path.display()
                ),
                None,
            )],
            Self::Changed { again, .. } => vec![hint(
                "if the change is expected, take what is there now",
                Some(&format!("{{host}} model add --refresh {again}")),
            )],
            Self::Retired { again, .. } => vec![hint(
                "take it back, if it is still wanted",
                Some(&format!("{{host}} model add {again}")),
            )],
            Self::OtherBlob { again, .. } => vec![
                hint(
                    "fetch it again: it may have been damaged on its way",
                    Some(&format!("{{host}} model add {again}")),
                ),
                hint(
                    "if that changes nothing, the mirror or proxy in between gives another file: see \
                     HF_ENDPOINT and the proxy variables",
                    None,
                ),
            ],
            Self::BadMirrors { .. } => vec![hint(
                "give the file's URL, its `checksum`, and https URLs of the same file as `mirrors`",
                None,
            )],
            Self::NothingToPick { option, .. } => vec![hint(
                format!("leave `{option}` out, or name a repository, for example with `hf:`"),
                None,
            )],
            Self::Choice { source, .. } => source.hints(),
            Self::BadReference { .. } => vec![hint(
                "write a path, `https://…`, `hf:owner/name`, `s3://bucket/key`, \
                 `oci://registry/name:tag`, or `builtin:haiku`",
                None,
            )],
            Self::Format { formats, .. } => vec![hint(
                format!(
                    "name a file that ends with .{}, or another engine",
                    formats.join(" or .")
                ),
                None,
            )],
            Self::Empty { .. } => vec![hint(
                "look at what `include` and `exclude` leave of it, or name another model",
                None,
            )],
            Self::Unverified { source, .. } => {
                let mut hints = vec![hint(
                    "set `provisioning.model.checksum` to what its publisher says",
                    None,
                )];
                hints.extend(source.hints());
                hints
            }
            Self::Mismatch { path, .. } => vec![hint(
                "compare with the checksum its publisher gives, then fetch it again or correct \
                 `provisioning.model.checksum`",
                // What lies elsewhere has a reference in place of a path.
                path.is_file()
                    .then(|| format!("sha256sum {}", quote(&path.to_string_lossy())))
                    .as_deref(),
            )],
            Self::Missing { .. } => vec![hint(
                "what names no source is a path: a model of the hub is named like \
                 `hf:owner/name`, a built-in one like `builtin:haiku`",
                None,
            )],
            Self::NotAFile {
                what: "a directory",
                ..
            } => vec![hint(
                "name the file in it that is the model; for an engine that reads a whole \
                 directory, say so with `host model add --as directory`",
                None,
            )],
            Self::NotAFile { what: "empty", .. } => vec![hint(
                "it may not have been copied whole: copy it again",
                None,
            )],
            Self::NotAFile { .. } => vec![hint("name the file that is the model", None)],
            Self::Archive { .. } => vec![hint(
                "have its publisher push the files themselves, each as a layer",
                None,
            )],
            Self::BadName { .. } | Self::TooMany { .. } => vec![hint(
                "leave out what is no part of the model, with `exclude` or `include`",
                None,
            )],
            Self::BadDigest { source, .. } => source.hints(),
            Self::Net { source, .. } => source.hints(),
            Self::Hub { source, .. } => source.hints(),
            Self::Store { source, .. } => source.hints(),
            #[cfg(feature = "s3")]
            Self::S3 { source, .. } => source.hints(),
            Self::Oci { source, .. } => source.hints(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Mismatch {
                expected, actual, ..
            }
            | Self::OwnChanged {
                expected, actual, ..
            } => vec![
                Detail::new("expected", expected.to_string()),
                Detail::new("actual", actual.to_string()),
            ],
            Self::OtherBlob {
                expected, actual, ..
            } => vec![
                Detail::new("expected", format!("git blob {expected}")),
                Detail::new("actual", format!("git blob {actual}")),
            ],
            Self::Net { source, .. } | Self::Changed { source, .. } => source.details(),
            Self::Hub { source, .. } => source.details(),
            Self::Store { source, .. } => source.details(),
            #[cfg(feature = "s3")]
            Self::S3 { source, .. } => source.details(),
            Self::Oci { source, .. } => source.details(),
            Self::Unverified { source, .. } => source.details(),
            Self::Choice { source, .. } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::BadReference { .. } => "bad-model-reference",
            Self::BadMirrors { .. } => "bad-model-mirrors",
            Self::Unsupported { .. } => "unsupported-model-reference",
            Self::LeftOut { .. } => "feature-left-out",
            Self::UnknownBuiltin { .. } => "unknown-builtin",
            Self::Format { .. } => "model-format",
            Self::Missing { .. } => "model-missing",
            Self::NotAFile { .. } => "model-not-a-file",
            Self::NotADirectory { .. } => "model-not-a-directory",
            Self::Unfit { .. } => "model-unfit",
            Self::BadDigest { .. } => "bad-digest",
            Self::Mismatch { .. }
            | Self::OwnChanged { .. }
            | Self::Changed { .. }
            | Self::OtherBlob { .. } => "digest-mismatch",
            Self::Retired { .. } => "model-retired",
            Self::Unverified { .. } => "model-unverified",
            Self::NothingToPick { .. } => "nothing-to-pick",
            Self::Choice { source, .. } => source.kind(),
            Self::BadName { .. } => "model-bad-name",
            Self::Archive { .. } => "model-bad-archive",
            Self::TooMany { .. } => "model-too-many-files",
            Self::Empty { .. } => "model-empty",
            Self::Net { source, .. } => source.kind(),
            Self::Hub { source, .. } => source.kind(),
            Self::Store { source, .. } => source.kind(),
            #[cfg(feature = "s3")]
            Self::S3 { source, .. } => source.kind(),
            Self::Oci { source, .. } => source.kind(),
        }
    }
}

/// Whether a path is that of a part of a split model.
fn is_part(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    path.is_file() && name.and_then(parts_of).is_some()
}

/// The command that prints the checksum of a split model.
fn of_parts(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let parts = parts_of(&name).unwrap_or_default();
    let parts: Vec<String> = parts.iter().map(|part| quote(part)).collect();
    let above = path.parent().unwrap_or(path).to_string_lossy();
    let parts = parts.join(" ");
    format!("cd {} && sha256sum {parts} | sha256sum", quote(&above))
}
