//! Bringing an engine down: drain, TERM, grace, KILL, wait.
//!
//! The same steps for an engine of this host and for one that another host or a detached keeper
//! has; they differ only in how it is held ([`Grip`]). Once TERM is asked of a keeper, KILL follows
//! by itself, even if whoever asked is gone by then.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio_util::sync::CancellationToken;

use super::{
    EngineError, Instance, State,
    http::{self, Want},
};
use crate::{
    config::paths::Home,
    narrate::{Actor, Narrator},
    process::{Control, Running},
};

/// Longest time requests in flight are waited for before TERM.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);

/// Pause between two looks at what is in flight.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which an engine that ends at once on a second TERM gets one.
const SECOND_TERM_AFTER: Duration = Duration::from_secs(1);

/// Longest time between KILL and the end of everything, minder's clean-up included.
const KILL_LIMIT: Duration = Duration::from_secs(15);

/// Longest time one question to the engine may take.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// How an engine is held.
pub(super) enum Grip<'a> {
    /// As this host's own child.
    Own(&'a Running),
    /// Through the keeper of another host.
    Keeper(Control),
    /// By its process alone: its keeper does not answer or is of another version.
    Direct,
}

/// Ends an engine that any host of this home has started. Cancelling `hurry` skips draining and
/// grace. Returns once nothing of it is left.
pub async fn stop_instance(
    home: &Home,
    instance: &Instance,
    narrator: &Narrator,
    hurry: &CancellationToken,
) -> Result<(), EngineError> {
    let mut grip = match Control::connect(home, instance.address).await {
        Ok(control) => Grip::Keeper(control),
        Err(_) => Grip::Direct,
    };
    let stopped = bring_down(&mut grip, instance, narrator, hurry).await;
    if stopped.is_ok() {
        // Already done by its minder, unless that was killed.
        instance.forget(home);
    }
    stopped
}

/// Ends an engine, however it is held, and tells so.
pub(super) async fn bring_down(
    grip: &mut Grip<'_>,
    instance: &Instance,
    narrator: &Narrator,
    hurry: &CancellationToken,
) -> Result<(), EngineError> {
    let start = Instant::now();
    // First of all: nobody is to send it anything new.
    let _ = std::fs::remove_file(&instance.handoff);
    let ended = async {
        if instance.state == State::Ready {
            drain(instance, narrator, hurry).await;
        }
        end(grip, instance, hurry).await
    };
    let ended = ended.await;
    let target = instance.url.clone();
    match &ended {
        Ok(()) => narrator.done(
            Actor::EngineProvisioner,
            "stop",
            target,
            format!("engine of pool {} stopped", instance.pool_id),
            start.elapsed(),
        ),
        Err(error) => narrator.fail(Actor::EngineProvisioner, "stop", target, error),
    }
    ended
}

async fn drain(instance: &Instance, narrator: &Narrator, hurry: &CancellationToken) {
    let Some(probe) = &instance.stop.drain else {
        return;
    };
    let Some(address) = address_of(&instance.url) else {
        return;
    };
    let start = Instant::now();
    let mut told = false;
    while start.elapsed() < DRAIN_LIMIT && !hurry.is_cancelled() && instance.is_alive() {
        let answer = http::get(address, &probe.path, Want::Body, ASK_LIMIT).await;
        // One that does not say how busy it is cannot be waited for.
        let Some(in_flight) = answer
            .ok()
            .filter(|answer| answer.status == 200)
            .and_then(|answer| gauge(&String::from_utf8_lossy(&answer.body), &probe.gauge))
        else {
            return;
        };
        if in_flight <= 0.0 {
            return;
        }
        if !std::mem::replace(&mut told, true) {
            narrator.say(
                Actor::EngineProvisioner,
                "drain",
                instance.url.clone(),
                format!(
                    "waiting up to {} s for {in_flight} requests in flight",
                    DRAIN_LIMIT.as_secs()
                ),
            );
        }
        tokio::select! {
            () = tokio::time::sleep(DRAIN_INTERVAL) => {}
            () = hurry.cancelled() => {}
        }
    }
}

async fn end(
    grip: &mut Grip<'_>,
    instance: &Instance,
    hurry: &CancellationToken,
) -> Result<(), EngineError> {
    let grace = Duration::from_millis(instance.grace_ms);
    grip.begin_end(instance).await?;
    let first_wait = if instance.stop.second_term_ends_at_once {
        SECOND_TERM_AFTER.min(grace / 2)
    } else {
        grace
    };
    if grip.gone_within(instance, first_wait, hurry).await? {
        return Ok(());
    }
    if instance.stop.second_term_ends_at_once && !hurry.is_cancelled() {
        grip.term(instance).await?;
        let rest = grace.saturating_sub(first_wait);
        if grip.gone_within(instance, rest, hurry).await? {
            return Ok(());
        }
    }
    grip.kill(instance).await?;
    if grip
        .gone_within(instance, KILL_LIMIT, &CancellationToken::new())
        .await?
    {
        return Ok(());
    }
    let tree = instance.process.tree();
    Err(EngineError::Survivors {
        pids: tree.iter().map(|process| process.pid).collect(),
    })
}

impl Grip<'_> {
    /// TERM, with KILL after the grace, as far as a keeper is there to see to it.
    async fn begin_end(&mut self, instance: &Instance) -> Result<(), EngineError> {
        match self {
            Self::Own(running) => running.end(),
            Self::Keeper(control) => drop(control.end().await?),
            Self::Direct => signal(instance, Signal::TERM),
        }
        Ok(())
    }

    async fn term(&mut self, instance: &Instance) -> Result<(), EngineError> {
        match self {
            Self::Own(running) => running.signal(Signal::TERM),
            Self::Keeper(control) => drop(control.signal(Signal::TERM).await?),
            Self::Direct => signal(instance, Signal::TERM),
        }
        Ok(())
    }

    async fn kill(&mut self, instance: &Instance) -> Result<(), EngineError> {
        match self {
            Self::Own(running) => running.kill_tree(),
            Self::Keeper(control) => drop(control.kill_tree().await?),
            Self::Direct => {
                for process in instance.process.tree() {
                    let _ = process.signal(Signal::KILL);
                }
            }
        }
        Ok(())
    }

    /// Whether everything is gone within this time; `hurry` ends the wait early.
    async fn gone_within(
        &mut self,
        instance: &Instance,
        limit: Duration,
        hurry: &CancellationToken,
    ) -> Result<bool, EngineError> {
        let gone = async {
            match self {
                Self::Own(running) => running.wait().await.map(|ended| ended.survivors),
                Self::Keeper(control) => match control.wait().await {
                    Some(ended) => Ok(ended.survivors),
                    None => {
                        until_dead(instance).await;
                        Ok(Vec::new())
                    }
                },
                Self::Direct => {
                    until_dead(instance).await;
                    Ok(Vec::new())
                }
            }
        };
        tokio::select! {
            biased;
            gone = tokio::time::timeout(limit, gone) => match gone {
                Err(_) => Ok(false),
                Ok(survivors) => match survivors? {
                    pids if pids.is_empty() => Ok(true),
                    pids => Err(EngineError::Survivors { pids }),
                },
            },
            () = hurry.cancelled() => Ok(false),
        }
    }
}

fn signal(instance: &Instance, signal: Signal) {
    let _ = instance.process.signal(signal);
}

async fn until_dead(instance: &Instance) {
    while instance.is_alive() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
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
}
