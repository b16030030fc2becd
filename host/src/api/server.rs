//! Listening, and who is let in.

use std::{
    io,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    ApiError, Limits, Peer, Token,
    connection::{self, Attended, Room},
    gate::Gate,
    leases::Leases,
};
use crate::{
    narrate::{Hub, Metrics, TraceContext},
    pool::{Ending, PoolManager},
};

/// Connections beyond those that are served, to which only this is said.
const TURNED_AWAY: usize = 32;

/// A manager, served. Cheap to clone.
#[derive(Clone)]
pub struct Api {
    state: State,
    gate: Gate,
    limits: Limits,
    connections: TaskTracker,
}

/// What handlers share.
#[derive(Clone)]
pub(super) struct State {
    pub(super) manager: PoolManager,
    pub(super) hub: Hub,
    pub(super) metrics: Metrics,
    pub(super) leases: Arc<Leases>,
    /// Tells this daemon from those before it.
    pub(super) name: String,
    /// Longest time that who follows events hears nothing.
    pub(super) heartbeat: Duration,
    /// Streams that never end by themselves end with this.
    pub(super) end: CancellationToken,
    /// Who ends the daemon waits here.
    pub(super) told_to_end: watch::Sender<Option<Ending>>,
}

impl Api {
    /// Serves a manager; what is told is followed in `hub`, and counted in `metrics`. Must be called in
    /// a tokio runtime, in which leases expire.
    #[must_use]
    pub fn new(
        manager: PoolManager,
        hub: Hub,
        metrics: Metrics,
        token: Token,
        limits: Limits,
    ) -> Self {
        let narrator = manager.host().narrator.clone();
        narrator.secrets().register(token.secret());
        let end = CancellationToken::new();
        let state = State {
            manager,
            hub,
            metrics,
            leases: Leases::new(narrator, end.clone()),
            name: format!("{:08x}", TraceContext::root().span.get() >> 32),
            heartbeat: limits.heartbeat,
            end,
            told_to_end: watch::Sender::new(None),
        };
        Self {
            gate: Gate::new(&state, token, limits.clone()),
            state,
            limits,
            connections: TaskTracker::new(),
        }
    }

    /// Opens the Unix socket. One that a dead daemon has left is replaced; whoever calls holds the
    /// lock of the daemon, so that nobody else does so at the same time.
    pub fn bind_unix(path: &Path) -> Result<UnixListener, ApiError> {
        let failed = |source| ApiError::Socket {
            path: path.to_owned(),
            source,
        };
        if let Some(directory) = path.parent() {
            let mut builder = std::fs::DirBuilder::new();
            builder
                .recursive(true)
                .mode(0o755)
                .create(directory)
                .map_err(failed)?;
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        // The peer's user is asked as well: between these two lines others could connect.
        let bits = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(path, bits).map_err(failed)?;
        Ok(listener)
    }

    /// Opens a TCP port.
    pub async fn bind_tcp(address: SocketAddr) -> Result<TcpListener, ApiError> {
        let failed = |source| ApiError::Listen { address, source };
        TcpListener::bind(address).await.map_err(failed)
    }

    /// Serves the Unix socket until cancelled.
    pub async fn serve_unix(&self, listener: UnixListener, cancel: &CancellationToken) {
        let own = rustix::process::geteuid().as_raw();
        let accept = || async {
            let (stream, _) = listener.accept().await?;
            let uid = stream.peer_cred()?.uid();
            // Nothing is owed to strangers.
            let known = uid == own || uid == 0;
            Ok(known.then_some((stream, Peer::Local { uid })))
        };
        self.serve(accept, cancel).await;
    }

    /// Serves a TCP port until cancelled.
    pub async fn serve_tcp(&self, listener: TcpListener, cancel: &CancellationToken) {
        let accept = || async {
            let (stream, _) = listener.accept().await?;
            // Where it was reached decides; one listener may have several addresses.
            let here = stream.local_addr()?;
            Ok(Some((stream, Peer::Tcp { here })))
        };
        self.serve(accept, cancel).await;
    }

    /// Attends to whoever comes through a door. Seats are the door's own, so that a crowd at one does
    /// not close the other.
    async fn serve<S, F>(&self, accept: impl Fn() -> F, cancel: &CancellationToken)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        F: Future<Output = io::Result<Option<(S, Peer)>>>,
    {
        let seats = Arc::new(Semaphore::new(self.limits.connections));
        let places = Arc::new(Semaphore::new(self.limits.connections + TURNED_AWAY));
        loop {
            let Some(place) = wait(&places, cancel).await else {
                return;
            };
            let accepted = tokio::select! {
                accepted = accept() => accepted,
                () = cancel.cancelled() => return,
            };
            match accepted {
                Ok(Some((stream, peer))) => {
                    let seat = Arc::clone(&seats).try_acquire_owned().ok();
                    let room = match &seat {
                        Some(_) => Room::Enough(peer),
                        None => Room::None,
                    };
                    self.attend(stream, room, (place, seat));
                }
                Ok(None) => {}
                Err(_) => pause().await,
            }
        }
    }

    fn attend<S>(&self, stream: S, room: Room, held: impl Send + 'static)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let attended = Attended {
            stream: TokioIo::new(stream),
            room,
            gate: self.gate.clone(),
            limits: self.limits.clone(),
            end: self.state.end.clone(),
        };
        self.connections.spawn(async move {
            connection::attend(attended).await;
            drop(held);
        });
    }

    /// Resolves once a client has told the daemon to end, with what becomes of its engines.
    pub async fn told_to_end(&self) -> Ending {
        let mut told = self.state.told_to_end.subscribe();
        let ending = told.wait_for(Option::is_some).await;
        // The sender lives as long as this.
        ending.map_or(Ending::Stop, |ending| ending.unwrap_or(Ending::Stop))
    }

    /// Ends what is still open, after a while.
    pub async fn finish(&self) {
        self.state.end.cancel();
        self.connections.close();
        let _ = tokio::time::timeout(self.limits.end_time, self.connections.wait()).await;
    }
}

async fn wait(places: &Arc<Semaphore>, cancel: &CancellationToken) -> Option<OwnedSemaphorePermit> {
    tokio::select! {
        place = Arc::clone(places).acquire_owned() => place.ok(),
        () = cancel.cancelled() => None,
    }
}

/// After a failed accept, for example when no descriptors are left.
async fn pause() {
    const PAUSE: Duration = Duration::from_millis(100);
    tokio::time::sleep(PAUSE).await;
}
