//! What a reference to a model elsewhere means, before anything of it is fetched.
//!
//! Each kind of place (URL, hub, S3, OCI registry) answers the same question with a [`Resolved`]: which
//! files, how large, what their digests are, and by which name that never means anything else. What
//! follows is the same for all of them.

mod choose;
pub(crate) mod git_blob;
mod glob;
pub mod hub;
pub(super) mod inside;
mod layout;
mod oci;
mod parts;
#[cfg(feature = "s3")]
mod s3;
#[cfg(test)]
pub(crate) mod testing;
mod url;

use std::{collections::BTreeMap, path::PathBuf};

use engine_provider_api::ModelShape;
use tokio_util::sync::CancellationToken;

#[cfg(feature = "s3")]
pub use self::s3::S3Error;
pub use self::{choose::NoChoice, oci::OciError};
pub(crate) use self::{
    choose::{check_directory, missing_parts},
    hub::split::parts as parts_of,
};
use super::{ACTOR, ModelError, Reference};
use crate::{
    config::environment::Environment,
    narrate::Narrator,
    net::{self, Digest, Net, Source},
};

/// Where a reference is resolved, and what is wanted of what it means.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Asks sources.
    pub net: &'a Net,
    /// Where credentials, endpoints and caches are looked up.
    pub environment: &'a Environment,
    /// Told what is found; knows which texts are secrets.
    pub narrator: &'a Narrator,
    /// Ends requests.
    pub cancel: &'a CancellationToken,
    /// The reference as it was written.
    pub written: &'a str,
    /// Where the file behind a URL can be had as well; the digest tells whether it is the same.
    pub mirrors: &'a [net::Url],
    /// The digest that the model must have, where it is known. Compared by whoever fetches.
    pub digest: Option<&'a Digest>,
    /// Quantisation to pick where there are several.
    pub quant: Option<&'a str>,
    /// Formats that the engine reads, by name suffix; empty: any.
    pub formats: &'a [String],
    /// Whether the engine reads a file or a directory.
    pub shape: ModelShape,
    /// Patterns of files to take; empty: all.
    pub include: &'a [String],
    /// Patterns of files to leave.
    pub exclude: &'a [String],
    /// Files as a lock file has them; empty: those that there are now.
    pub versions: &'a Versions,
}

/// Files of a model by name, each with the version that its place keeps of it, where one is known.
pub type Versions = BTreeMap<String, Option<String>>;

impl Place<'_> {
    /// Whether a file of this name is to be taken.
    fn wants(&self, name: &str) -> bool {
        wants(self.include, self.exclude, name)
    }

    /// Whether the engine reads files of this name.
    fn reads(&self, name: &str) -> bool {
        reads(self.formats, name)
    }
}

/// Whether an engine that reads these formats, by name suffix, reads files of this name; none: any.
fn reads(formats: &[String], name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let fits = |format: &String| name.ends_with(&format!(".{}", format.to_ascii_lowercase()));
    formats.is_empty() || formats.iter().any(fits)
}

/// Whether patterns take a file of this name.
pub(super) fn wants(include: &[String], exclude: &[String], name: &str) -> bool {
    let included = include.is_empty() || glob::fits_any(include, name);
    included && !glob::fits_any(exclude, name)
}

/// Hosts that are asked what a reference means, without ports. Where they send on to, they vouch for.
#[must_use]
pub fn hosts(reference: &Reference, environment: &Environment) -> Vec<String> {
    match reference {
        Reference::Url(url) => url.host_str().map(str::to_owned).into_iter().collect(),
        Reference::HuggingFace(_) => hub::host(environment).into_iter().collect(),
        #[cfg(feature = "s3")]
        Reference::S3 { bucket, .. } => s3::hosts(environment, bucket),
        Reference::Oci(artifact) => artifact.hosts(),
        _ => Vec::new(),
    }
}

/// Asks the place that a reference names what it means now. Nothing of the model is fetched.
pub async fn resolve(place: &Place<'_>, reference: &Reference) -> Result<Resolved, ModelError> {
    let resolved = ask(place, reference).await?;
    if !resolved.picked_from.is_empty() {
        let (written, name) = (place.written, &resolved.files[0].name);
        let from = resolved.picked_from.join(", ");
        let human = format!("{written}: {name} is picked from {from}");
        place.narrator.say(ACTOR, "resolve", written, human);
    }
    Ok(resolved)
}

async fn ask(place: &Place<'_>, reference: &Reference) -> Result<Resolved, ModelError> {
    match reference {
        Reference::HuggingFace(name) => hub::resolve(place, name).await,
        Reference::Url(url) if place.shape == ModelShape::File => match parts::urls(url) {
            Some(urls) => parts::resolve(place, url, &urls).await,
            None => url::resolve(place, url).await,
        },
        #[cfg(feature = "s3")]
        Reference::S3 {
            bucket,
            key,
            version,
        } => s3::resolve(place, bucket, key, version.as_deref()).await,
        #[cfg(not(feature = "s3"))]
        Reference::S3 { .. } => Err(ModelError::LeftOut {
            reference: place.written.to_owned(),
            feature: "s3",
        }),
        Reference::Oci(artifact) => oci::resolve(place, artifact).await,
        other => Err(other.unsupported_as(place.written, place.shape)),
    }
}

/// A model as its source has it now.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The reference as it was written.
    pub reference: String,
    /// A reference to exactly this, whatever its source publishes later: a hub's commit, an OCI digest,
    /// the version of an S3 object. A plain URL is its own: its digest is all that there is.
    pub pinned: String,
    /// Commit, version or strong `ETag`, where the source has one.
    pub revision: Option<String>,
    /// Licence, where the source says it, for example `apache-2.0`.
    pub licence: Option<String>,
    /// Its files, sorted by name; at least one. An engine that reads a file and has several here is
    /// given the first, beside which the others must lie.
    pub files: Vec<RemoteFile>,
    /// What a quantisation was picked from, where it was.
    pub picked_from: Vec<String>,
}

/// A file of a model.
#[derive(Debug, Clone)]
pub struct RemoteFile {
    /// Path in the model, `/` between its parts; none of them is empty, `.` or `..`.
    pub name: String,
    /// Where it can be had, best first; at least one. Headers may hold credentials.
    pub sources: Vec<Source>,
    /// Size, where it is known.
    pub size_bytes: Option<u64>,
    /// Digest of its content, where its source says one.
    pub digest: Option<Digest>,
    /// What changes when the content does, where there is no digest: a strong `ETag`, without
    /// its quotes.
    pub version: Option<String>,
    /// Version by which its place keeps just this, whatever lies under its name later, where the model's
    /// own reference does not say that.
    pub kept_as: Option<String>,
    /// Git's name of its content, 40 hexadecimal digits, where its source says that instead of a
    /// digest: [`git_blob::differs`] compares it.
    pub git_blob: Option<String>,
    /// A file of the user's that may be just this, in a cache of another program. To be compared with
    /// the digest before it is used, and never changed.
    pub local: Option<PathBuf>,
    /// Whether it is an archive, of which the model has the files and not itself.
    pub is_archive: bool,
}

impl RemoteFile {
    /// Its size, where that holds wherever it is had: what one of several places says binds no other.
    pub(super) fn sure_size_bytes(&self) -> Option<u64> {
        self.size_bytes.filter(|_| self.sources.len() == 1)
    }

    /// Digest of a file of the model, where its source says it; that of an archive is none.
    pub(super) fn content_digest(&self) -> Option<&Digest> {
        self.digest.as_ref().filter(|_| !self.is_archive)
    }
}

impl Resolved {
    /// Versions of its files, where their place keeps older ones.
    pub(super) fn versions(&self) -> BTreeMap<String, String> {
        let files = self.files.iter();
        let kept = files.filter_map(|file| Some((file.name.clone(), file.kept_as.clone()?)));
        kept.collect()
    }

    /// Bytes of all files, where every size is known.
    #[must_use]
    pub fn size_bytes(&self) -> Option<u64> {
        let size = |file: &RemoteFile| file.size_bytes.filter(|_| !file.is_archive);
        total(self.files.iter().map(size))
    }

    /// The same, where it holds wherever the files are had.
    pub(super) fn sure_size_bytes(&self) -> Option<u64> {
        let all = self.files.iter();
        let is_sure = all.clone().all(|file| file.sure_size_bytes().is_some());
        self.size_bytes().filter(|_| is_sure)
    }

    /// Whether what it consists of is known before it is fetched.
    pub(super) fn has_archives(&self) -> bool {
        self.files.iter().any(|file| file.is_archive)
    }
}

/// The sum of sizes that are all known. What a server says may be more than can be counted.
fn total(sizes: impl IntoIterator<Item = Option<u64>>) -> Option<u64> {
    let mut sizes = sizes.into_iter();
    sizes.try_fold(0_u64, |sum, size| Some(sum.saturating_add(size?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_cannot_be_counted_are_the_largest_there_is() {
        assert_eq!(total([Some(1), Some(2)]), Some(3));
        assert_eq!(total([Some(1), None]), None);
        assert_eq!(total([Some(u64::MAX), Some(2)]), Some(u64::MAX));
    }
}
