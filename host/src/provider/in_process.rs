//! A provider inside this process: on a thread of its own, so that every wait for it has a limit.
//!
//! A call that hangs cannot be ended here; its thread is left behind and the session is over.

use std::{fs::File, path::Path, sync::mpsc, time::Duration};

use tokio::{sync::oneshot, time::timeout};

use super::{error::ProviderFault, load, worker::Phase};

type Answer = Result<String, String>;

/// A provider's thread.
pub(super) struct Thread {
    calls: mpsc::Sender<Call>,
    gone: oneshot::Receiver<()>,
}

struct Call {
    phase: Phase,
    document: String,
    answer: oneshot::Sender<Answer>,
}

impl Thread {
    /// Starts the thread and opens the library on it.
    pub(super) async fn open(
        provider: &str,
        path: &Path,
        library: File,
        limit: Duration,
    ) -> Result<Self, ProviderFault> {
        let (calls, incoming) = mpsc::channel();
        let (opened, outcome) = oneshot::channel();
        let (going, gone) = oneshot::channel();
        std::thread::Builder::new()
            .name(format!("provider-{provider}"))
            .spawn(move || {
                serve(library, opened, &incoming);
                let _ = going.send(());
            })
            .map_err(|source| ProviderFault::Spawn {
                provider: provider.to_owned(),
                program: path.to_owned(),
                source,
            })?;
        match wait(provider, Phase::Open, limit, outcome).await? {
            Ok(()) => Ok(Self { calls, gone }),
            Err(failure) => Err(ProviderFault::Load {
                provider: provider.to_owned(),
                path: path.to_owned(),
                failure: Box::new(failure),
            }),
        }
    }

    /// Calls an entry.
    pub(super) async fn call(
        &self,
        provider: &str,
        phase: Phase,
        document: String,
        limit: Duration,
    ) -> Result<Answer, ProviderFault> {
        let (answer, outcome) = oneshot::channel();
        let call = Call {
            phase,
            document,
            answer,
        };
        // A thread that is gone drops the sender, which the wait reports.
        let _ = self.calls.send(call);
        wait(provider, phase, limit, outcome).await
    }

    /// Lets the thread drop the provider and end.
    pub(super) async fn quit(self, provider: &str, limit: Duration) -> Result<(), ProviderFault> {
        drop(self.calls);
        wait(provider, Phase::Close, limit, self.gone).await
    }
}

fn serve(
    library: File,
    opened: oneshot::Sender<Result<(), load::LoadFailure>>,
    calls: &mpsc::Receiver<Call>,
) {
    let provider = match load::load(library) {
        Ok(provider) => provider,
        Err(failure) => {
            let _ = opened.send(Err(failure));
            return;
        }
    };
    let _ = opened.send(Ok(()));
    while let Ok(call) = calls.recv() {
        let _ = call
            .answer
            .send(provider.call(call.phase.as_str(), &call.document));
    }
}

async fn wait<T>(
    provider: &str,
    phase: Phase,
    limit: Duration,
    outcome: oneshot::Receiver<T>,
) -> Result<T, ProviderFault> {
    match timeout(limit, outcome).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(_)) => Err(ProviderFault::Crashed {
            provider: provider.to_owned(),
            phase,
            exited: None,
            stderr: Vec::new(),
        }),
        Err(_) => Err(ProviderFault::Hung {
            provider: provider.to_owned(),
            phase,
            limit,
            stderr: Vec::new(),
        }),
    }
}
