//! Access that ends: tokens of registries live for minutes, signed URLs for hours, large models longer.
//!
//! What gives a source out again is its own kind's to know. Here it is a question that can be asked.

use std::{error::Error, fmt, sync::Arc};

use futures_util::future::BoxFuture;

use super::{NetError, Source};
use crate::fault::{Detail, Exit, Failure, Fault, Hint};

/// Knows how a source is had again whose server no longer gives it out.
pub(crate) trait Renew: Send + Sync {
    /// Where the same bytes can be had now. What is no longer the same is an error. `refused` is what
    /// the server does not accept any more; another transfer may have had it renewed meanwhile.
    fn renew<'a>(&'a self, refused: &'a Source) -> BoxFuture<'a, Result<Source, NotRenewed>>;
}

/// A shared [`Renew`]; shows nothing of what it holds.
#[derive(Clone)]
pub(crate) struct Renewal(Arc<dyn Renew>);

impl Renewal {
    pub(crate) fn new(renew: impl Renew + 'static) -> Self {
        Self(Arc::new(renew))
    }

    pub(super) async fn renew(&self, refused: &Source) -> Result<Source, NotRenewed> {
        self.0.renew(refused).await
    }
}

impl fmt::Debug for Renewal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Renewal")
    }
}

/// Why a source was not renewed, in the words of its kind.
#[derive(Debug)]
pub struct NotRenewed(Failure);

// It is no `Fault`, or it could not be made of all that are: the error around it asks for its parts.
impl NotRenewed {
    /// Whether it only says that a server did not answer this time.
    pub(super) fn is_passing(&self) -> bool {
        self.cause().is_some_and(NetError::is_worth_retrying)
    }

    /// Whether it only says that somebody ended it.
    pub(super) fn is_cancelled(&self) -> bool {
        matches!(self.cause(), Some(NetError::Cancelled { .. }))
    }

    /// The failure of this room that is behind it, if one is.
    fn cause(&self) -> Option<&NetError> {
        let mut cause: Option<&(dyn Error + 'static)> = Some(&*self.0);
        while let Some(error) = cause {
            let boxed = error.downcast_ref::<Box<NetError>>().map(|inner| &**inner);
            if let Some(found) = error.downcast_ref::<NetError>().or(boxed) {
                return Some(found);
            }
            cause = error.source();
        }
        None
    }

    pub(super) fn exit(&self) -> Exit {
        self.0.exit()
    }

    pub(super) fn hints(&self) -> Vec<Hint> {
        self.0.hints()
    }

    pub(super) fn details(&self) -> Vec<Detail> {
        self.0.details()
    }

    pub(super) fn kind(&self) -> &'static str {
        self.0.kind()
    }
}

impl<E: Fault + 'static> From<E> for NotRenewed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl fmt::Display for NotRenewed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl Error for NotRenewed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
