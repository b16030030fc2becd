//! What a model is, known from the first bytes of its files.
//!
//! [`of_path`] looks at a file or directory, [`of_remote`] at the same elsewhere, by asking for the first
//! bytes of one or two files. Three formats are known: GGUF in one file or in parts, safetensors, and a
//! repository with `config.json`. Everything else is `None`: nothing is known, nothing is wrong.
//!
//! What is read was written by anybody. It is bounded, decides about estimates alone, and never about
//! whether a file is the right one: that is for its digest.

mod describe;
mod error;
pub mod gguf;
mod look;
mod pick;
mod places;
mod repository;
pub mod safetensors;

use std::{path::Path, pin::pin, task};

use engine_provider_api::ModelFacts;
use tokio_util::sync::CancellationToken;

pub use error::{FactsError, HeaderError};

use super::source::Resolved;
use crate::net::Net;

/// Says what the model at a path is: a file with all its parts beside it, or a directory. Reads the
/// beginnings of files, some megabytes; blocks that long.
pub fn of_path(path: &Path) -> Result<Option<ModelFacts>, FactsError> {
    let place = places::Local::open(path)?;
    let looking = pin!(look::look(&place));
    let mut context = task::Context::from_waker(task::Waker::noop());
    match looking.poll(&mut context) {
        task::Poll::Ready(facts) => facts,
        task::Poll::Pending => unreachable!("reading local files waits for nobody"),
    }
}

/// Says what a GGUF file in memory is.
pub(super) fn of_bytes(bytes: &[u8]) -> Result<ModelFacts, HeaderError> {
    let header = gguf::Header::read(bytes)?;
    Ok(describe::describe(&[header]).expect("there is a header"))
}

/// Says what GGUF headers tell, of all files of a model.
#[doc(hidden)]
pub fn of_headers(headers: &[gguf::Header]) -> Option<ModelFacts> {
    describe::describe(headers)
}

/// Says what a `config.json` tells, or how many parameters an index does.
#[doc(hidden)]
pub fn of_repository(text: &[u8]) -> Option<ModelFacts> {
    let facts = repository::describe(text).ok()?;
    let bytes = repository::index(text).ok()?.total_bytes;
    let parameters = bytes.and_then(|bytes| repository::parameters(bytes, &facts));
    Some(ModelFacts {
        parameters,
        ..facts
    })
}

/// Says what a model elsewhere is, by the first bytes of its files; of many parts, of the first ones.
///
/// Some hundred kilobytes are fetched, some megabytes where a vocabulary is large; a source that does
/// not answer is followed by the next.
pub async fn of_remote(
    net: &Net,
    resolved: &Resolved,
    cancel: &CancellationToken,
) -> Result<Option<ModelFacts>, FactsError> {
    if resolved.has_archives() {
        return Ok(None);
    }
    look::look(&places::Remote {
        net,
        files: &resolved.files,
        cancel,
    })
    .await
}

#[cfg(test)]
mod tests;
