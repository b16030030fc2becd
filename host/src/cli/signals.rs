//! INT and TERM become a cancellation; what was asked for is cleaned up before the program ends.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::fault::{Exit, Failure};

/// Which signal came first, if any.
#[derive(Debug, Clone, Default)]
pub(super) struct Received(Arc<AtomicU8>);

impl Received {
    /// How the program ends because of it.
    pub(super) fn exit(&self) -> Option<Exit> {
        match self.0.load(Ordering::Relaxed) {
            code if code == Exit::Interrupted.code() => Some(Exit::Interrupted),
            code if code == Exit::Terminated.code() => Some(Exit::Terminated),
            _ => None,
        }
    }

    /// What a failure means: after a signal it is only how the work came to its end.
    pub(super) fn or(&self, failure: Failure) -> Result<Exit, Failure> {
        self.exit().ok_or(failure)
    }
}

/// Cancels `token` on the first INT, TERM or HUP. Further signals are ignored: the keeper bounds how
/// long stopping can take, and a KILL is cleaned up after as well.
pub(super) fn cancel_on_signal(token: CancellationToken) -> Received {
    let received = Received::default();
    let kinds = [
        (SignalKind::interrupt(), Exit::Interrupted),
        (SignalKind::terminate(), Exit::Terminated),
        (SignalKind::hangup(), Exit::Terminated),
    ];
    for (kind, exit) in kinds {
        let mut signals = signal(kind).expect("these signals may be handled");
        let (token, received) = (token.clone(), received.clone());
        tokio::spawn(async move {
            if signals.recv().await.is_some() {
                let first = received.0.compare_exchange(
                    0,
                    exit.code(),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if first.is_ok() {
                    token.cancel();
                }
            }
        });
    }
    received
}
