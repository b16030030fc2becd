//! Telling an orchestrator of handoffs, beside their files: `notify{}` of the pool file.
//!
//! Each change of a binding becomes one document ([`Notice`]) that is posted until it is taken, with
//! growing pauses. For every replica only its newest state waits: an orchestrator that was away for an
//! hour hears what is, not what was, and nothing grows meanwhile. The same document has the same
//! `Idempotency-Key` however often it is posted. Posts go through [`crate::net`], so that the policy's
//! list of hosts, proxies and certificates hold for them too.

mod queue;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt as _};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use self::queue::{NOTICE_SCHEMA, Notice};
use self::queue::{Queue, Waiting};
use super::{Supervision, backoff};
use crate::{
    config::{Notify, environment::Environment},
    fault::{Detail, Exit, Fault, Hint, hint},
    handoff::HandoffEvent,
    narrate::{Actor, Narrator},
    net::{Net, NetError, Url, shown},
    policy::Policy,
};

/// Header that tells a server that it has had a document already.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// How long the last changes are waited for and told once the end was asked for.
const FAREWELL_LIMIT: Duration = Duration::from_secs(3);

/// How long it must be quiet before the last changes are all there.
const QUIET: Duration = Duration::from_millis(250);

/// Statuses for which the same document would be refused again.
const FOR_GOOD: [u16; 9] = [301, 302, 307, 308, 400, 405, 413, 415, 422];

/// Tells an orchestrator of handoffs.
#[derive(Clone)]
pub struct Callback {
    net: Net,
    url: Url,
    headers: HeaderMap,
    settings: Notify,
    narrator: Narrator,
}

/// Why an orchestrator cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum CallbackError {
    /// The token is not there.
    #[error("the secret `{name}` that `notify.token` names is not set")]
    NoSecret {
        /// Name of the secret.
        name: String,
    },
    /// The token cannot be sent.
    #[error("the secret `{name}` that `notify.token` names holds what no header can")]
    BadSecret {
        /// Name of the secret.
        name: String,
    },
    /// The URL cannot be used, or policy does not allow it.
    #[error("the orchestrator of `notify.url` cannot be told")]
    Net(#[from] NetError),
}

impl Fault for CallbackError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoSecret { .. } | Self::BadSecret { .. } => Exit::Config,
            Self::Net(source) => source.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NoSecret { name } => vec![hint(
                "put it into the environment of the daemon",
                Some(&format!("export {name}=…")),
            )],
            Self::BadSecret { .. } => vec![hint("a token is one line of visible characters", None)],
            Self::Net(source) => source.hints(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Net(source) => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoSecret { .. } => "no-secret",
            Self::BadSecret { .. } => "bad-secret",
            Self::Net(source) => source.kind(),
        }
    }
}

impl Callback {
    /// Looks whether it can be done at all: the token is there, the policy allows the host. Nothing is
    /// sent. Which host to tell is the operator's word, so under `network: as-planned` it is allowed.
    pub fn new(
        settings: &Notify,
        environment: &Environment,
        policy: Arc<Policy>,
        narrator: &Narrator,
    ) -> Result<Self, CallbackError> {
        let url = Url::parse(&settings.url).map_err(|_| NetError::BadUrl {
            url: settings.url.clone(),
        })?;
        let named: Vec<String> = url.host_str().map(str::to_owned).into_iter().collect();
        let gate = move |host: &str, _: Option<&str>| policy.allow_host(host, &named);
        let net = Net::new(environment, Arc::new(gate));
        net.check_host(&url)?;
        Ok(Self {
            headers: headers(settings, environment, narrator)?,
            net,
            url,
            settings: settings.clone(),
            narrator: narrator.clone(),
        })
    }

    /// Tells every change of a watch, until it ends or `cancel` asks for the end: then what has changed
    /// by then, for example because the engines were stopped, is told once more, within 3 s.
    pub async fn run(
        &self,
        mut changes: impl Stream<Item = HandoffEvent> + Unpin,
        cancel: CancellationToken,
    ) {
        let mut queue = Queue::default();
        let mut failures = 0;
        let mut due = Instant::now();
        let mut ended = false;
        while !(ended && queue.is_empty()) {
            tokio::select! {
                () = cancel.cancelled() => {
                    let farewell = self.say_the_last(&mut queue, &mut changes, ended);
                    let _ = timeout(FAREWELL_LIMIT, farewell).await;
                    return;
                }
                change = changes.next(), if !ended => match change {
                    Some(change) => queue.put(&change),
                    None => ended = true,
                },
                () = tokio::time::sleep_until(due), if !queue.is_empty() => {
                    due = self.tell_next(&mut queue, &mut failures, &cancel).await;
                }
            }
        }
    }

    /// Posts what waits longest; gives when the next may be posted.
    async fn tell_next(
        &self,
        queue: &mut Queue,
        failures: &mut u32,
        cancel: &CancellationToken,
    ) -> Instant {
        let Some(waiting) = queue.first().cloned() else {
            return Instant::now();
        };
        match self.post(&waiting, cancel).await {
            Ok(()) => {
                *failures = 0;
                queue.told(&waiting);
                self.narrator.say(
                    Actor::PoolManager,
                    "notify",
                    shown(&self.url),
                    format!("the orchestrator knows that {}", waiting.words),
                );
            }
            Err(NetError::Cancelled { .. }) => {}
            Err(error) if is_for_good(&error) => {
                *failures = 0;
                queue.told(&waiting);
                let target = shown(&self.url);
                self.narrator
                    .fail(Actor::PoolManager, "notify", target, &error);
            }
            Err(error) => {
                *failures = failures.saturating_add(1);
                let pause = self.pause(*failures, &error);
                if *failures == 1 {
                    self.worry(&waiting, &error);
                }
                return Instant::now() + pause;
            }
        }
        Instant::now()
    }

    async fn post(&self, waiting: &Waiting, cancel: &CancellationToken) -> Result<(), NetError> {
        let mut headers = self.headers.clone();
        let key = HeaderValue::from_str(&waiting.key).expect("a digest is hexadecimal");
        headers.insert(IDEMPOTENCY_KEY, key);
        let telling = self
            .net
            .tell(&self.url, &headers, waiting.document.clone(), cancel);
        let limit = self.settings.timeout;
        timeout(limit, telling).await.unwrap_or_else(|_| {
            Err(NetError::Stalled {
                url: shown(&self.url),
                bytes: 0,
                limit,
            })
        })
    }

    fn pause(&self, failures: u32, error: &NetError) -> Duration {
        let pauses = Supervision {
            backoff_initial: self.settings.retry_initial,
            backoff_max: self.settings.retry_max,
            ..Supervision::default()
        };
        let pause = backoff::pause(failures, backoff::dice(), &pauses);
        match error {
            NetError::Status {
                retry_after: Some(asked),
                ..
            } => (*asked).clamp(pause, self.settings.retry_max.max(pause)),
            _ => pause,
        }
    }

    /// Said once for a row of failures: an orchestrator that is away would fill the log.
    fn worry(&self, waiting: &Waiting, error: &NetError) {
        let human = format!(
            "the orchestrator could not be told that {}; it is tried again: {}",
            waiting.words,
            crate::narrate::chain(error)
        );
        let target = shown(&self.url);
        self.narrator
            .warn(Actor::PoolManager, "notify", target, human);
    }

    /// Collects what still comes until it is quiet, then posts each once.
    async fn say_the_last(
        &self,
        queue: &mut Queue,
        changes: &mut (impl Stream<Item = HandoffEvent> + Unpin),
        ended: bool,
    ) {
        if !ended {
            while let Ok(Some(change)) = timeout(QUIET, changes.next()).await {
                queue.put(&change);
            }
        }
        let (never, mut failures) = (CancellationToken::new(), 0);
        while !queue.is_empty() && failures == 0 {
            self.tell_next(queue, &mut failures, &never).await;
        }
    }
}

impl std::fmt::Debug for Callback {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Its headers hold the token.
        formatter
            .debug_struct("Callback")
            .field("url", &shown(&self.url))
            .finish_non_exhaustive()
    }
}

fn headers(
    settings: &Notify,
    environment: &Environment,
    narrator: &Narrator,
) -> Result<HeaderMap, CallbackError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let Some(name) = &settings.secret else {
        return Ok(headers);
    };
    let token = environment
        .get(name)
        .filter(|token| !token.is_empty())
        .ok_or_else(|| CallbackError::NoSecret { name: name.clone() })?;
    narrator.secrets().register(token);
    let value = HeaderValue::from_str(&format!("Bearer {token}"));
    let mut value = value.map_err(|_| CallbackError::BadSecret { name: name.clone() })?;
    value.set_sensitive(true);
    headers.insert(AUTHORIZATION, value);
    Ok(headers)
}

/// Whether posting the same again would not help. Wrong credentials are not among it: a token is put
/// right at the server too.
fn is_for_good(error: &NetError) -> bool {
    match error {
        NetError::Status { status, .. } => FOR_GOOD.contains(status),
        NetError::Forbidden { .. } | NetError::Insecure { .. } | NetError::BadUrl { .. } => true,
        _ => false,
    }
}
