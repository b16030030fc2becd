//! What a server gives a file out for at the moment, and having that renewed once it has ended.
//!
//! All connections of a transfer use one grant. Those that are refused wait until one of them has had
//! it renewed; what is on its way over the others goes on.

use std::sync::{Arc, Mutex};

use reqwest::header::HeaderMap;
use url::Url;

use super::super::{NetError, Source, shown};

/// Renewals of a source in one transfer. Some registries' tokens live for five minutes: these last
/// longer than anybody waits for a model.
const RENEWALS: u32 = 100;

/// Renewals in a row that bring nothing. The first may be what another transfer was given a while ago.
const FRUITLESS: u32 = 2;

/// The way to a source, with what opens it.
#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) source: Arc<Source>,
    /// Where its redirects led, so that not every part asks the way again.
    pub(super) direct: Option<(Url, HeaderMap)>,
    /// Renewals before it.
    number: u32,
    /// Renewals since a server gave out anything, this one among them.
    fruitless: u32,
}

pub(super) struct Access {
    current: Mutex<Grant>,
    /// Held by the connection that has it renewed.
    renewing: tokio::sync::Mutex<()>,
}

const NO_PANIC: &str = "no holder panics";

impl Access {
    pub(super) fn new(source: &Source) -> Self {
        Self {
            current: Mutex::new(Grant {
                source: Arc::new(source.clone()),
                direct: None,
                number: 0,
                fruitless: 0,
            }),
            renewing: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn grant(&self) -> Grant {
        self.current.lock().expect(NO_PANIC).clone()
    }

    /// Notes where the redirects of a grant lead now, as long as it holds.
    pub(super) fn note_direct(&self, grant: &Grant, url: Url, headers: HeaderMap) {
        let mut current = self.current.lock().expect(NO_PANIC);
        if current.number == grant.number {
            current.direct = Some((url, headers));
        }
    }

    /// Notes that what redirects led to gives nothing out any more. Another connection may have found a new
    /// way meanwhile: that one stays.
    pub(super) fn forget_direct(&self, gone: &Url) {
        let mut current = self.current.lock().expect(NO_PANIC);
        if current.direct.as_ref().is_some_and(|(url, _)| url == gone) {
            current.direct = None;
        }
    }

    /// Notes that a server gave something out for a grant.
    pub(super) fn note_given(&self, grant: &Grant) {
        let mut current = self.current.lock().expect(NO_PANIC);
        if current.number == grant.number {
            current.fruitless = 0;
        }
    }

    /// Has a grant renewed that was refused with this status; `false` where that is not possible, or
    /// was not worth it.
    pub(super) async fn renew(&self, refused: &Grant, status: u16) -> Result<bool, NetError> {
        let Some(renewal) = &refused.source.renewal else {
            return Ok(false);
        };
        let _one_at_a_time = self.renewing.lock().await;
        let current = self.grant();
        if current.number != refused.number {
            return Ok(true);
        }
        if current.number >= RENEWALS || current.fruitless >= FRUITLESS {
            return Ok(false);
        }
        let url = || shown(&current.source.url);
        let renewed = renewal.renew(&current.source).await;
        let source = renewed.map_err(|source| match source.is_cancelled() {
            true => NetError::Cancelled { url: url() },
            false => NetError::NotRenewed {
                url: url(),
                status,
                source,
            },
        })?;
        *self.current.lock().expect(NO_PANIC) = Grant {
            source: Arc::new(Source {
                renewal: current.source.renewal.clone(),
                ..source
            }),
            direct: None,
            number: current.number + 1,
            fruitless: current.fruitless + 1,
        };
        Ok(true)
    }
}

/// Whether a status may say that a token or a signature has ended. Servers of S3 say 400 of tokens and
/// 403 of URLs.
pub(super) fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 401 | 403)
}
