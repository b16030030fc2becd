//! Asking an engine that runs: whether it lives, how busy it is.

use std::{net::SocketAddr, time::Duration};

use super::{
    Instance,
    http::{self, Want},
};

/// Longest time the question how busy it is may take.
const BUSY_LIMIT: Duration = Duration::from_secs(2);

/// Longest time its metrics may take.
const METRICS_LIMIT: Duration = Duration::from_secs(3);

/// Path that is asked where it is not known how the engine is asked.
const ANY_PATH: &str = "/";

/// Asks whether an engine lives, by its readiness probe. Any answer is one, but for server errors that
/// do not mean loading: one that is busy or loading is not dead. `Err` says in words what was seen.
pub(super) async fn alive(instance: &Instance, limit: Duration) -> Result<(), String> {
    let Some(address) = address_of(&instance.url) else {
        return Err(format!("{} is no address", instance.url));
    };
    let probe = &instance.known.probes.readiness;
    let (path, any) = match probe.path.as_str() {
        "" => (ANY_PATH, true),
        path => (path, false),
    };
    match http::get(address, path, Want::Status, limit).await {
        Ok(answer) if any || speaks(answer.status, &probe.loading) => Ok(()),
        Ok(answer) => Err(format!("{path} answers with status {}", answer.status)),
        Err(error) if error.kind() == std::io::ErrorKind::TimedOut => {
            Err(format!("{path} has not answered for {limit:?}"))
        }
        Err(error) => Err(format!("{path} does not answer ({error})")),
    }
}

fn speaks(status: u16, loading: &[u16]) -> bool {
    status < 500 || loading.contains(&status)
}

/// Requests that an engine has in flight, by the gauge that its provider names; `None` where it has
/// none or does not say.
pub async fn in_flight(instance: &Instance) -> Option<f64> {
    let probe = instance.stop.drain.as_ref()?;
    let address = match &probe.port {
        Some(port) => instance.endpoint(port),
        None => address_of(&instance.url),
    };
    let answer = http::get(address?, &probe.path, Want::Body, BUSY_LIMIT).await;
    let answer = answer.ok().filter(|answer| answer.status == 200)?;
    gauge(&String::from_utf8_lossy(&answer.body), &probe.gauge)
}

/// An engine's own metrics page; `None` where it has none or does not answer in time.
pub async fn metrics_of(instance: &Instance) -> Option<String> {
    let probes = &instance.known.probes;
    let path = probes.metrics.as_ref()?;
    let other = probes.metrics_port.as_deref();
    let address = other.and_then(|port| instance.endpoint(port));
    let address = address.or_else(|| address_of(&instance.url))?;
    let answer = http::get(address, path, Want::Body, METRICS_LIMIT).await;
    let answer = answer.ok().filter(|answer| answer.status == 200)?;
    Some(String::from_utf8_lossy(&answer.body).into_owned())
}

/// Address of an instance's URL, `http://127.0.0.1:8080`.
pub(super) fn address_of(url: &str) -> Option<SocketAddr> {
    url.strip_prefix("http://")?
        .trim_end_matches('/')
        .parse()
        .ok()
}

/// Value of a gauge in a Prometheus text, summed over its labels; `None` where it is not there.
fn gauge(text: &str, name: &str) -> Option<f64> {
    let values: Vec<f64> = text
        .lines()
        .filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let value = match rest.strip_prefix('{') {
                Some(labels) => labels.rsplit_once('}')?.1,
                None => rest.strip_prefix(' ')?,
            };
            value.split_whitespace().next()?.parse().ok()
        })
        .collect();
    (!values.is_empty()).then(|| values.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gauge_is_read_with_and_without_labels() {
        let text = "# TYPE llamacpp:requests_processing gauge\n\
                    llamacpp:requests_processing 2\n\
                    llamacpp:requests_processing_total 9\n\
                    vllm:running{model=\"a}b\"} 1.0 1700000000\nvllm:running{model=\"c\"} 3\n";
        assert_eq!(gauge(text, "llamacpp:requests_processing"), Some(2.0));
        assert_eq!(gauge(text, "vllm:running"), Some(4.0));
        assert_eq!(gauge(text, "other"), None);
    }

    #[test]
    fn an_address_is_read_from_a_url() {
        assert_eq!(
            address_of("http://127.0.0.1:8080"),
            Some("127.0.0.1:8080".parse().unwrap())
        );
        assert_eq!(address_of("https://example.org"), None);
    }

    #[test]
    fn whoever_is_busy_or_loads_is_not_dead() {
        for status in [200, 204, 404, 429] {
            assert!(speaks(status, &[]), "{status}");
        }
        assert!(speaks(503, &[503]));
        assert!(!speaks(503, &[]) && !speaks(500, &[503]));
    }
}
