//! INT and TERM become a cancellation; what was asked for is cleaned up before the program ends. Asked
//! a second time, cleaning up hurries.

use std::sync::{
    Arc,
    atomic::{AtomicU8, Ordering},
};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::fault::{Exit, Failure};

/// What signals have asked for so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Received {
    /// Exit code of the first signal; 0 before there was one.
    first: Arc<AtomicU8>,
    /// Cancelled by the first signal.
    stop: CancellationToken,
    /// Cancelled by an INT or TERM after the first signal.
    hurry: CancellationToken,
}

impl Received {
    /// How the program ends because of it.
    pub(super) fn exit(&self) -> Option<Exit> {
        match self.first.load(Ordering::Relaxed) {
            code if code == Exit::Interrupted.code() => Some(Exit::Interrupted),
            code if code == Exit::Terminated.code() => Some(Exit::Terminated),
            _ => None,
        }
    }

    /// What a failure means: after a signal it is only how the work came to its end.
    pub(super) fn or(&self, failure: Failure) -> Result<Exit, Failure> {
        self.exit().ok_or(failure)
    }

    /// Cancelled once somebody asks a second time: draining and grace are skipped then.
    pub(super) fn hurry(&self) -> &CancellationToken {
        &self.hurry
    }

    /// Takes one signal. A terminal that goes away may send several HUP: they never hurry.
    fn receive(&self, kind: SignalKind) {
        let exit = if kind == SignalKind::interrupt() {
            Exit::Interrupted
        } else {
            Exit::Terminated
        };
        let relaxed = Ordering::Relaxed;
        let first = self
            .first
            .compare_exchange(0, exit.code(), relaxed, relaxed);
        if first.is_ok() {
            self.stop.cancel();
        } else if kind != SignalKind::hangup() {
            self.hurry.cancel();
        }
    }
}

/// Cancels `token` on the first INT, TERM or HUP, and [`Received::hurry`] on an INT or TERM after it.
pub(super) fn cancel_on_signal(token: CancellationToken) -> Received {
    let received = Received {
        stop: token,
        ..Received::default()
    };
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        let mut signals = signal(kind).expect("these signals may be handled");
        let received = received.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                received.receive(kind);
            }
        });
    }
    received
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_stops_and_names_the_exit_and_the_second_hurries() {
        let received = Received::default();
        assert_eq!(received.exit(), None);
        received.receive(SignalKind::interrupt());
        assert!(received.stop.is_cancelled() && !received.hurry().is_cancelled());
        received.receive(SignalKind::terminate());
        assert!(received.hurry().is_cancelled());
        assert_eq!(received.exit(), Some(Exit::Interrupted));
    }

    #[test]
    fn a_terminal_that_goes_away_does_not_hurry() {
        let received = Received::default();
        for _ in 0..2 {
            received.receive(SignalKind::hangup());
        }
        assert_eq!(received.exit(), Some(Exit::Terminated));
        assert!(!received.hurry().is_cancelled());
    }
}
