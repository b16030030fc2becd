//! Artifacts of OCI registries: `oci://REGISTRY/NAME[:TAG][@DIGEST]`.
//!
//! A model in a registry is a manifest whose layers are its files, as ORAS, ModelPack (the CNCF's
//! model specification), Docker's model runner and ramalama push them. Registry, mirrors and
//! credentials are those of images, and so is the client. A layer's digest is its file's; the digest of
//! the manifest, which names them all, is what the reference is pinned to.
//!
//! A layer that is an archive of files, as ModelPack's tools and ORAS make them, is compared with its digest
//! and then unpacked ([`crate::model`]'s `unpacked`): the model has the files in it. Layers of images are
//! refused: what they are only shows in all of them together.

mod error;
mod layer;

use engine_provider_api::ModelShape;
use serde::Deserialize;

pub use self::error::OciError;
use super::{Place, RemoteFile, Resolved, choose::choose};
use crate::{
    container::{Descriptor, Inquirer, Platform, Reference, RemoteArtifact, Runtime},
    model::ModelError,
    net::Source,
};

/// Licences of an artifact (OCI annotations).
const LICENCES: &str = "org.opencontainers.image.licenses";

/// Configuration of ModelPack, which may name licences as well.
const MODELPACK: &str = "application/vnd.cncf.model.config.v1+json";

/// A file of an artifact.
struct File {
    name: String,
    layer: Descriptor,
    source: Source,
    is_archive: bool,
}

pub(super) async fn resolve(
    place: &Place<'_>,
    reference: &Reference,
) -> Result<Resolved, ModelError> {
    let found = ask(place, reference).await;
    found.map_err(|source| ModelError::Oci {
        reference: place.written.to_owned(),
        source: Box::new(source),
    })
}

async fn ask(place: &Place<'_>, reference: &Reference) -> Result<Resolved, OciError> {
    let inquirer = Inquirer {
        net: place.net,
        environment: place.environment,
        secrets: place.narrator.secrets(),
        runtime: Runtime::Podman,
        cancel: place.cancel,
    };
    let platform = Platform::of_machine("");
    let artifact = inquirer
        .artifact(reference, &platform, |kind| kind == MODELPACK)
        .await
        .map_err(|source| OciError::Registry {
            source: Box::new(source),
        })?;
    let pinned = reference.with_digest(&artifact.digest);
    let licence = licence(&artifact);
    let revision = artifact.digest.to_string();
    let what = format!("oci://{reference}");
    let files = layer::files(&what, artifact.layers)?;
    let (files, picked_from) = wanted(place, &what, files)?;
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: format!("oci://{pinned}"),
        revision: Some(revision),
        licence,
        files: files.into_iter().map(remote).collect(),
        picked_from,
    })
}

/// The files that the engine is given, sorted, and what they were chosen from.
fn wanted(
    place: &Place<'_>,
    what: &str,
    mut files: Vec<File>,
) -> Result<(Vec<File>, Vec<String>), OciError> {
    // What of an archive is wanted shows when it is unpacked.
    files.retain(|file| file.is_archive || place.wants(&file.name));
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut from = Vec::new();
    if place.shape == ModelShape::File {
        // What goes with a model for images is none of its own, whatever it is called.
        files.retain(|file| !file.layer.media_type.contains("mmproj"));
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let chosen = choose(place, what, &names)?;
        files.retain(|file| chosen.names.contains(&file.name));
        from = chosen.from;
    }
    if files.is_empty() {
        return Err(OciError::Nothing {
            what: what.to_owned(),
        });
    }
    if let ([_], ModelShape::File) = (&files[..], place.shape) {
        // A model of one file lies nowhere below.
        let file = &mut files[0];
        file.name = file.name.rsplit('/').next().unwrap_or_default().to_owned();
    }
    Ok((files, from))
}

fn remote(file: File) -> RemoteFile {
    RemoteFile {
        name: file.name,
        sources: vec![file.source],
        size_bytes: Some(file.layer.size),
        digest: Some(file.layer.digest),
        version: None,
        local: None,
        kept_as: None,
        git_blob: None,
        is_archive: file.is_archive,
    }
}

/// What is read of a ModelPack configuration.
#[derive(Deserialize)]
struct ModelPack {
    descriptor: Description,
}

#[derive(Deserialize)]
struct Description {
    licenses: Vec<String>,
}

fn licence(artifact: &RemoteArtifact) -> Option<String> {
    let annotated = artifact.annotations.get(LICENCES).cloned();
    let written = || {
        // What else is in it is not kept: somebody may have made it large.
        let config: ModelPack = serde_json::from_slice(artifact.config.as_ref()?).ok()?;
        Some(config.descriptor.licenses.join(" AND "))
    };
    annotated.or_else(written).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests;
