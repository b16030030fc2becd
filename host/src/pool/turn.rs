//! What reaches work while it is carried out: that it is pointless by now, or that it is waited for no
//! longer.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

/// One piece of work, as those see it who may end it early. Clones are the same.
#[derive(Debug, Clone)]
pub(super) struct Turn {
    given_up: CancellationToken,
    hurry: CancellationToken,
    because: Arc<OnceLock<&'static str>>,
}

impl Turn {
    /// Work that is pointless once `end` is cancelled.
    pub(super) fn until(end: &CancellationToken) -> Self {
        Self {
            given_up: end.child_token(),
            hurry: CancellationToken::new(),
            because: Arc::default(),
        }
    }

    /// Something came that makes it pointless. What was said first stands.
    pub(super) fn give_up(&self, because: &'static str) {
        let _ = self.because.set(because);
        self.given_up.cancel();
    }

    pub(super) fn is_given_up(&self) -> bool {
        self.given_up.is_cancelled()
    }

    /// Ends what is done on the way.
    pub(super) fn given_up(&self) -> &CancellationToken {
        &self.given_up
    }

    /// Why it was given up.
    pub(super) fn because(&self) -> &'static str {
        self.because.get().unwrap_or(&"the manager ends")
    }

    /// Cancelled: what still waits for leases waits no longer.
    pub(super) fn hurry(&self) -> &CancellationToken {
        &self.hurry
    }
}
