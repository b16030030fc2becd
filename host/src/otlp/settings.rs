//! Where traces go, by the variables that the specification of OpenTelemetry names.
//!
//! Unlike there, nothing is sent unless an endpoint is named: a program that asks `localhost` on every
//! run because nobody said otherwise is a nuisance.

use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::config::environment::Environment;

/// Longest time for one request, answers to failures included, unless a variable says otherwise: the
/// specification's default.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where traces go and under which name.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Where requests are sent.
    pub(super) endpoint: Url,
    /// Sent along; values are secret.
    pub(super) headers: HeaderMap,
    /// Longest time for one request.
    pub(super) timeout: Duration,
    /// What describes this program: names and values.
    pub(super) resource: Vec<(String, String)>,
}

/// A variable of OpenTelemetry that cannot be used. Its value is not repeated: it may be secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable} cannot be used: {reason}; no traces are sent")]
pub struct SettingsError {
    /// The variable.
    pub variable: &'static str,
    /// Why.
    pub reason: &'static str,
}

impl Settings {
    /// Reads the variables; `None` where nobody asks for traces.
    pub fn of(environment: &Environment) -> Result<Option<Self>, SettingsError> {
        let off = |name, value: &str| {
            let is = environment.get(name);
            is.is_some_and(|is| is.trim().eq_ignore_ascii_case(value))
        };
        if off("OTEL_SDK_DISABLED", "true") || off("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let Some(endpoint) = endpoint(environment)? else {
            return Ok(None);
        };
        check_protocol(environment)?;
        Ok(Some(Self {
            endpoint,
            headers: headers(environment)?,
            timeout: timeout(environment)?,
            resource: resource(environment)?,
        }))
    }

    /// Texts that must not be told.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.headers.values().filter_map(|value| {
            let text = value.to_str().ok()?;
            // What is known of an `Authorization` may come without its scheme.
            Some(text.split_once(' ').map_or(text, |(_, secret)| secret))
        })
    }
}

/// The value of a variable for traces, else for all signals.
fn either<'a>(
    environment: &'a Environment,
    traces: &'static str,
    all: &'static str,
) -> Option<(&'static str, &'a str)> {
    let get = |name| environment.get(name).map(|value| (name, value.trim()));
    get(traces).or_else(|| get(all))
}

fn endpoint(environment: &Environment) -> Result<Option<Url>, SettingsError> {
    const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let found = either(environment, TRACES, "OTEL_EXPORTER_OTLP_ENDPOINT");
    let Some((variable, text)) = found else {
        return Ok(None);
    };
    let bad = |reason| SettingsError { variable, reason };
    let mut url = Url::parse(text).map_err(|_| bad("it is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(bad("it is not an http URL"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("it carries a password; OTEL_EXPORTER_OTLP_HEADERS can"));
    }
    if variable != TRACES {
        let path = format!("{}/v1/traces", url.path().trim_end_matches('/'));
        url.set_path(&path);
    }
    Ok(Some(url))
}

fn check_protocol(environment: &Environment) -> Result<(), SettingsError> {
    let found = either(
        environment,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL",
        "OTEL_EXPORTER_OTLP_PROTOCOL",
    );
    match found {
        None | Some((_, "http/protobuf")) => Ok(()),
        Some((variable, _)) => Err(SettingsError {
            variable,
            reason: "only http/protobuf is spoken here",
        }),
    }
}

fn headers(environment: &Environment) -> Result<HeaderMap, SettingsError> {
    let found = either(
        environment,
        "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
        "OTEL_EXPORTER_OTLP_HEADERS",
    );
    let mut headers = HeaderMap::new();
    let Some((variable, text)) = found else {
        return Ok(headers);
    };
    let bad = |reason| SettingsError { variable, reason };
    for (name, value) in pairs(text).ok_or_else(|| bad("it is not a list of NAME=VALUE"))? {
        let name = HeaderName::from_bytes(name.as_bytes());
        let value = HeaderValue::from_str(&value);
        let name = name.map_err(|_| bad("a name in it is not a header's"))?;
        let mut value = value.map_err(|_| bad("a value in it is not a header's"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

fn timeout(environment: &Environment) -> Result<Duration, SettingsError> {
    let found = either(
        environment,
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "OTEL_EXPORTER_OTLP_TIMEOUT",
    );
    let Some((variable, text)) = found else {
        return Ok(TIMEOUT);
    };
    let bad = |_| SettingsError {
        variable,
        reason: "it is not a number of milliseconds",
    };
    Ok(Duration::from_millis(text.parse().map_err(bad)?))
}

/// What describes this program: its own words, then those of the operator, which win.
fn resource(environment: &Environment) -> Result<Vec<(String, String)>, SettingsError> {
    let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let mut all = vec![
        own("service.name", "engine-host"),
        own("service.version", env!("CARGO_PKG_VERSION")),
    ];
    let mut put = |name: String, value: String| match all.iter_mut().find(|it| it.0 == name) {
        Some(known) => known.1 = value,
        None => all.push((name, value)),
    };
    const ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";
    if let Some(text) = environment.get(ATTRIBUTES) {
        let bad = || SettingsError {
            variable: ATTRIBUTES,
            reason: "it is not a list of NAME=VALUE",
        };
        for (name, value) in pairs(text).ok_or_else(bad)? {
            put(name, value);
        }
    }
    if let Some(name) = environment.get("OTEL_SERVICE_NAME") {
        put("service.name".to_owned(), name.to_owned());
    }
    Ok(all)
}

/// A list `NAME=VALUE,…` in which values are percent-encoded (W3C Baggage, which the specification
/// refers to); `None` where it is none.
fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let entries = text.split(',').map(str::trim);
    let entries = entries.filter(|entry| !entry.is_empty());
    let pair = |entry: &str| {
        let (name, value) = entry.split_once('=')?;
        let name = name.trim();
        (!name.is_empty()).then_some((name.to_owned(), decoded(value.trim())?))
    };
    entries.map(pair).collect()
}

/// A percent-encoded text, read.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(after.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = &after[2..];
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

    fn of(pairs: &[(&str, &str)]) -> Result<Option<Settings>, SettingsError> {
        Settings::of(&Environment::from_pairs(pairs.iter().copied()))
    }

    fn endpoint_of(pairs: &[(&str, &str)]) -> String {
        of(pairs).unwrap().unwrap().endpoint.to_string()
    }

    #[test]
    fn without_an_endpoint_or_switched_off_nothing_is_sent() {
        for pairs in [
            &[][..],
            &[("OTEL_SERVICE_NAME", "x")],
            &[ENDPOINT, ("OTEL_SDK_DISABLED", "true")],
            &[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")],
        ] {
            assert!(of(pairs).unwrap().is_none(), "{pairs:?}");
        }
    }

    #[test]
    fn the_endpoint_follows_the_specification() {
        assert_eq!(endpoint_of(&[ENDPOINT]), "http://127.0.0.1:4318/v1/traces");
        let with_path = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://collector/base/");
        assert_eq!(
            endpoint_of(&[with_path]),
            "https://collector/base/v1/traces"
        );
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/exactly");
        assert_eq!(endpoint_of(&[ENDPOINT, own]), "http://other/exactly");
    }

    #[test]
    fn headers_and_names_are_read_and_percent_decoded() {
        let settings = of(&[
            ENDPOINT,
            (
                "OTEL_EXPORTER_OTLP_HEADERS",
                "authorization=Basic%20c2VjcmV0, x-team=a%2Cb",
            ),
            (
                "OTEL_RESOURCE_ATTRIBUTES",
                "service.name=ignored,deployment.environment=test",
            ),
            ("OTEL_SERVICE_NAME", "gpu box"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ])
        .unwrap()
        .unwrap();
        assert_eq!(settings.headers["authorization"], "Basic c2VjcmV0");
        assert_eq!(settings.headers["x-team"], "a,b");
        assert_eq!(settings.secrets().collect::<Vec<_>>(), ["c2VjcmV0", "a,b"]);
        assert_eq!(settings.timeout, Duration::from_millis(250));
        let resource: Vec<_> = settings
            .resource
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            resource,
            [
                "service.name=gpu box",
                "service.version=0.1.0",
                "deployment.environment=test"
            ]
        );
    }

    #[test]
    fn what_cannot_be_used_is_named_and_its_value_is_not() {
        let bad = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "secret-host"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "ftp://secret-host"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://user:secret@host"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc-secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "secret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%zzsecret"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "secret"),
            ("OTEL_RESOURCE_ATTRIBUTES", "secret"),
        ];
        for (variable, value) in bad {
            let error = of(&[ENDPOINT, (variable, value)]).unwrap_err();
            assert_eq!(error.variable, variable);
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
