//! Traces of this run, to the collector that the environment names.

use std::future::Future;
#[cfg(feature = "otlp")]
use std::time::Duration;

use crate::{
    config::environment::Environment,
    drive::Host,
    narrate::{Secrets, Sink},
};
#[cfg(feature = "otlp")]
use crate::{
    narrate::Actor,
    net::Net,
    otlp::{Otlp, Settings},
};

/// Longest time that the end of the program waits for the collector.
#[cfg(feature = "otlp")]
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Where traces go, if anywhere.
#[derive(Default)]
pub(super) struct Traces {
    #[cfg(feature = "otlp")]
    otlp: Option<Otlp>,
}

#[cfg(feature = "otlp")]
impl Traces {
    /// What the environment says, and why that cannot be used where it cannot.
    pub(super) fn of(environment: &Environment) -> (Self, Option<String>) {
        match Settings::of(environment) {
            Ok(settings) => {
                let otlp = settings.map(Otlp::new);
                (Self { otlp }, None)
            }
            Err(error) => (Self::default(), Some(error.to_string())),
        }
    }

    pub(super) fn sink(&self) -> Option<Box<dyn Sink>> {
        let otlp = self.otlp.clone()?;
        Some(Box::new(otlp))
    }

    pub(super) fn register_secrets(&self, secrets: &Secrets) {
        let Some(otlp) = &self.otlp else { return };
        otlp.secrets().for_each(|secret| secrets.register(secret));
    }

    /// Sends traces while this goes on, and what is left when it is done.
    pub(super) async fn during<T>(&self, host: &Host, work: impl Future<Output = T>) -> T {
        let Some(otlp) = self.otlp.clone() else {
            return work.await;
        };
        let net = Net::new(&host.environment, otlp.gate());
        let narrator = host.narrator.clone();
        let sender = otlp.clone();
        let sending = tokio::spawn(async move { sender.send(&net, &narrator).await });
        let outcome = work.await;
        if !otlp.close(LAST_WORDS).await {
            let human =
                format!("traces are lost: the collector did not answer within {LAST_WORDS:?}");
            let narrator = &host.narrator;
            narrator.warn(Actor::EngineProvisioner, "notice", otlp.host(), human);
        }
        sending.abort();
        outcome
    }
}

#[cfg(not(feature = "otlp"))]
impl Traces {
    /// None, and why where somebody asks for them.
    pub(super) fn of(environment: &Environment) -> (Self, Option<String>) {
        let names = [
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "OTEL_EXPORTER_OTLP_ENDPOINT",
        ];
        let asked = names
            .into_iter()
            .find(|name| environment.get(name).is_some());
        let refused = |name| {
            format!(
                "{name} needs the feature `otlp`, which this program was built without; no traces are sent"
            )
        };
        (Self::default(), asked.map(refused))
    }

    pub(super) fn sink(&self) -> Option<Box<dyn Sink>> {
        None
    }

    pub(super) fn register_secrets(&self, _: &Secrets) {}

    pub(super) async fn during<T>(&self, _: &Host, work: impl Future<Output = T>) -> T {
        work.await
    }
}
