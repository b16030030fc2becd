//! The Hugging Face hub, or a mirror of it that `HF_ENDPOINT` names.
//!
//! A revision becomes the commit that it is now, and every file is asked for at that commit: what is
//! resolved stays what it is. Large files are known by their SHA-256. Of small ones (configuration,
//! tokenizers) the hub knows only git's name, a SHA-1: it tells whether the right file came whole, and
//! the connection's TLS is what vouches for it; the SHA-256 that it then has is what is kept.
//!
//! An engine that reads a file is given one model of the repository, all parts of it; one that reads a
//! directory all files but hidden ones and, unless patterns say otherwise, those that hold the same
//! weights in other forms. Whatever does not fit is said before anything is fetched.

mod api;
mod cache;
pub(super) mod described;
mod error;
mod name;
pub(super) mod pick;
pub(in crate::model) mod split;
mod token;

use std::path::PathBuf;

use engine_provider_api::ModelShape;

pub use error::{Choice, HubError};
pub use name::HubName;

use self::{
    api::Hub,
    cache::Cached,
    described::{File, Repository},
    pick::{Picked, Wish},
    token::Token,
};
use super::{Place, RemoteFile, Resolved};
use crate::{
    config::environment::Environment,
    model::{ACTOR, ModelError, blocking},
    net::{Digest, Source},
    store::human_bytes,
};

/// The revision that a reference without one means.
const MAIN: &str = "main";

pub(super) async fn resolve(place: &Place<'_>, name: &HubName) -> Result<Resolved, ModelError> {
    ask(place, name).await.map_err(|source| ModelError::Hub {
        reference: place.written.to_owned(),
        source: Box::new(source),
    })
}

/// The host that is asked, which vouches for those that it redirects to; `None` where `HF_ENDPOINT` is
/// no URL.
#[must_use]
pub(super) fn host(environment: &Environment) -> Option<String> {
    let endpoint = api::endpoint(environment).ok()?;
    endpoint.host_str().map(str::to_owned)
}

async fn ask(place: &Place<'_>, name: &HubName) -> Result<Resolved, HubError> {
    if is_set(place.environment, "HF_HUB_OFFLINE") {
        return Err(HubError::Offline);
    }
    let secrets = place.narrator.secrets();
    let endpoint = api::endpoint(place.environment)?;
    if let Some(password) = endpoint.password() {
        secrets.register(password);
    }
    let hub = Hub::new(endpoint, Token::find(place.environment, secrets)?);
    let revision = name.revision.as_deref().unwrap_or(MAIN);
    let repository = hub.describe(place, &name.repository, revision).await?;
    if repository.disabled {
        return Err(HubError::Disabled {
            page: hub.page(&name.repository),
            repository: name.repository.clone(),
        });
    }
    let wish = Wish {
        name,
        quant: place.quant,
        formats: place.formats,
        include: place.include,
        exclude: place.exclude,
    };
    let picked = match place.shape {
        ModelShape::File => pick::one(wish, &repository)?,
        ModelShape::Directory => pick::all(wish, &repository)?,
    };
    if repository.gated {
        hub.check_access(place, &name.repository).await?;
    }
    tell(place, &repository, &picked);
    let locals = locals(place, name, &repository, &picked).await;
    let files = picked.files.iter().zip(locals);
    Ok(Resolved {
        reference: place.written.to_owned(),
        pinned: name
            .pinned(&repository.commit, picked.path.as_deref())
            .to_string(),
        revision: Some(repository.commit.clone()),
        licence: repository.licence.clone(),
        files: files
            .map(|((as_name, file), local)| {
                let url = hub.file(&name.repository, &repository.commit, &file.path);
                let headers = Token::headers(hub.token.as_ref());
                let source = Source {
                    headers,
                    ..Source::from(url)
                };
                remote(as_name, file, source, local)
            })
            .collect(),
        picked_from: picked.from,
    })
}

fn remote(name: &str, file: &File, source: Source, local: Option<PathBuf>) -> RemoteFile {
    RemoteFile {
        name: name.to_owned(),
        sources: vec![source],
        size_bytes: file.size_bytes,
        digest: file.sha256.clone().map(Digest::Sha256),
        // The hub gives a small file git's name as its mark.
        version: file.git_blob.clone(),
        kept_as: None,
        git_blob: file.git_blob.clone(),
        is_archive: false,
        local,
    }
}

/// Says what the reference means now.
fn tell(place: &Place<'_>, repository: &Repository, picked: &Picked<'_>) {
    let sizes = super::total(picked.files.iter().map(|(_, file)| file.size_bytes));
    let size = sizes.map_or(String::new(), |size| format!(", {}", human_bytes(size)));
    let what = match (&picked.files[..], place.shape) {
        ([(name, _)], ModelShape::File) => name.clone(),
        ([(name, _), ..], ModelShape::File) => format!("{name}, in {} parts", picked.files.len()),
        (files, ModelShape::Directory) => format!("{} files", files.len()),
        ([], ModelShape::File) => String::new(),
    };
    let left = match picked.left {
        0 => String::new(),
        left => format!("; {left} left out"),
    };
    let human = format!(
        "{} is {what}{size} at commit {}{left}",
        place.written,
        &repository.commit[..12]
    );
    place.narrator.say(ACTOR, "resolve", place.written, human);
}

/// For each picked file one of the operator's that may be it.
async fn locals(
    place: &Place<'_>,
    name: &HubName,
    repository: &Repository,
    picked: &Picked<'_>,
) -> Vec<Option<PathBuf>> {
    let files: Vec<File> = picked
        .files
        .iter()
        .map(|(_, file)| (*file).clone())
        .collect();
    let Some(root) = cache::root(place.environment) else {
        return vec![None; files.len()];
    };
    let cached = Cached::new(&root, &name.repository, &repository.commit);
    blocking(move || files.iter().map(|file| cached.find(file)).collect()).await
}

/// Where the hub's own tools keep their things.
fn home(environment: &Environment) -> Option<PathBuf> {
    let cache = || {
        let home = || Some(environment.path("HOME")?.join(".cache"));
        let cache = environment.path("XDG_CACHE_HOME").or_else(home)?;
        Some(cache.join("huggingface"))
    };
    environment.path("HF_HOME").or_else(cache)
}

/// Whether a switch is on, as the hub's own tools read it.
fn is_set(environment: &Environment, name: &str) -> bool {
    let value = environment.get(name).unwrap_or_default();
    matches!(
        value.to_ascii_uppercase().as_str(),
        "1" | "ON" | "YES" | "TRUE"
    )
}

#[cfg(test)]
mod tests;
