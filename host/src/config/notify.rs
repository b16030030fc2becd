//! Whom to tell of handoffs beside their files: `notify{}` of a pool file.

use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, places::Places, problem::Problem, syntax, written::DurationText};

/// Whom to tell of handoffs, every default filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notify {
    /// Where documents are posted to: `https`, or `http` on this machine.
    pub url: String,
    /// Name of the secret that goes along as a Bearer token.
    pub secret: Option<String>,
    /// Longest time one answer may take.
    pub timeout: Duration,
    /// Pause before the first further try; doubled with each.
    pub retry_initial: Duration,
    /// Longest pause.
    pub retry_max: Duration,
}

/// An orchestrator that is told when a replica is bound to a URL, changes or is gone.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Notify")]
pub struct NotifyWritten {
    /// Where documents are posted to: `https://…`, or `http://` on this machine.
    #[schemars(length(min = 1))]
    pub url: String,
    /// Bearer token, by the name of a secret: `{secret.NAME}`.
    #[serde(default)]
    #[schemars(length(min = 1))]
    pub token: Option<String>,
    /// Longest time one answer may take. Default: `10s`.
    #[serde(default)]
    pub timeout: Option<DurationText>,
    /// Pauses between tries.
    #[serde(default)]
    pub retry: Option<RetryWritten>,
}

/// Pauses between tries.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Retry")]
pub struct RetryWritten {
    /// The first pause; each further one is twice as long. Default: `1s`.
    pub initial: Option<DurationText>,
    /// The longest pause. Default: `1m`, or `initial` where that is longer.
    pub max: Option<DurationText>,
}

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(3600);

impl NotifyWritten {
    /// Checks it and fills in what was not written. `places`: where `notify` stands.
    pub(super) fn settle(self, places: &Places, problems: &mut Vec<Problem>) -> Notify {
        let retry = self.retry.unwrap_or_default();
        let mut clock = |field: &str, text: Option<DurationText>, usual: Duration| {
            let Some(text) = text else { return usual };
            let value = duration::milliseconds(&text.0).map(Duration::from_millis);
            match value.filter(|value| (SHORTEST..=LONGEST).contains(value)) {
                Some(value) => value,
                None => {
                    let last = field.rsplit('.').next().unwrap_or(field);
                    let problem = places.problem(field, format!("`{last}` is out of range"));
                    problems.push(problem.help("it is 10ms to 1h"));
                    usual
                }
            }
        };
        let timeout = clock("timeout", self.timeout, Duration::from_secs(10));
        let retry_initial = clock("retry.initial", retry.initial, Duration::from_secs(1));
        let usual = Duration::from_secs(60).max(retry_initial);
        let retry_max = clock("retry.max", retry.max, usual);
        if retry_max < retry_initial {
            let message = "the longest pause is shorter than the first one";
            let problem = places.problem("retry.max", message);
            problems.push(problem.help("make `max` at least as long as `initial`"));
        }
        check_url(&self.url, places, problems);
        Notify {
            secret: self
                .token
                .and_then(|text| secret_of(&text, places, problems)),
            url: self.url,
            timeout,
            retry_initial,
            retry_max,
        }
    }
}

fn check_url(url: &str, places: &Places, problems: &mut Vec<Problem>) {
    if let Err((message, help)) = syntax::url(url) {
        let mut problem = places.problem("url", message);
        problem.help = help.map(Into::into);
        problems.push(problem);
    } else if !["https:", "http:"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
    {
        let problem = places.problem("url", "documents are posted over `https` only");
        problems.push(problem.help("write `https://…`"));
    } else if url.starts_with("http:") && !syntax::is_loopback(url) {
        let problem = places.problem(
            "url",
            "what is posted over plain `http` can be read on the way",
        );
        problems.push(problem.help("write `https://…`; `http://` is for this machine"));
    }
}

/// The name in `{secret.NAME}`. A token itself is refused: files are copied, shown and checked in.
fn secret_of(text: &str, places: &Places, problems: &mut Vec<Problem>) -> Option<String> {
    let name = text
        .strip_prefix("{secret.")
        .and_then(|rest| rest.strip_suffix('}'))
        .filter(|name| syntax::variable_name(name).is_ok());
    if name.is_none() {
        let problem = places.problem("token", "a token does not stand in the file, its name does");
        problems
            .push(problem.help("write `{secret.NAME}`, and put it into the environment as `NAME`"));
    }
    name.map(str::to_owned)
}
