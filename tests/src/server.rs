//! A web server with one file, which gives it as it should, or with the faults that it is told.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    Reply,
    http::{Asked, Traffic, serve},
};

/// Serves the same bytes under every path until they are replaced, and until the test's process ends.
pub struct FileServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    traffic: Arc<Traffic>,
}

struct Shared {
    state: Mutex<State>,
}

struct State {
    /// Each content that was served so far. Its number is its `ETag`.
    versions: Vec<Arc<[u8]>>,
    /// The one that is served.
    version: usize,
    asked: Vec<Asked>,
    /// Requests when the faults last changed.
    before: usize,
    fault: Arc<Fault>,
}

/// Makes of a right answer what is sent in its place.
type Fault = dyn Fn(&Asked, Reply) -> Reply + Send + Sync;

impl FileServer {
    /// Begins to serve: parts and sizes, as fast as it goes.
    ///
    /// # Panics
    ///
    /// When no port is left.
    #[must_use]
    pub fn start(content: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                versions: vec![content.into()],
                version: 0,
                asked: Vec::new(),
                before: 0,
                fault: Arc::new(|_, reply| reply),
            }),
        });
        let answering = Arc::clone(&shared);
        Self {
            address,
            traffic: serve(listener, move |asked| answering.answer(asked)),
            shared,
        }
    }

    /// One that pauses after each 256 KiB of a connection.
    #[must_use]
    pub fn slow(content: Vec<u8>, pause: Duration) -> Self {
        let server = Self::start(content);
        server.spoil(move |_, reply| reply.pausing(pause));
        server
    }

    /// Serves these bytes from now on, with an `ETag` of their own.
    ///
    /// # Panics
    ///
    /// When the server has.
    pub fn replace(&self, content: &[u8]) {
        let mut state = self.shared.state.lock().unwrap();
        let known = state.versions.iter().position(|it| **it == *content);
        state.version = known.unwrap_or_else(|| {
            state.versions.push(content.into());
            state.versions.len() - 1
        });
    }

    /// Sends what this makes of right answers from now on.
    ///
    /// # Panics
    ///
    /// When the server has.
    pub fn spoil(&self, fault: impl Fn(&Asked, Reply) -> Reply + Send + Sync + 'static) {
        let mut state = self.shared.state.lock().unwrap();
        state.fault = Arc::new(fault);
        state.before = state.asked.len();
    }

    /// Sends right answers from now on.
    pub fn mend(&self) {
        self.spoil(|_, reply| reply);
    }

    /// URL of a file.
    #[must_use]
    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}", self.address)
    }

    /// Requests so far.
    ///
    /// # Panics
    ///
    /// When the server has.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.state.lock().unwrap().asked.clone()
    }

    /// How many requests so far.
    #[must_use]
    pub fn requests(&self) -> usize {
        self.asked().len()
    }

    /// Bytes of the file sent to clients that are gone by now: waits until it has noticed that they are.
    #[must_use]
    pub fn sent_in_all(&self) -> u64 {
        self.traffic.sent_in_all()
    }

    /// Bytes of the file sent so far, over all connections.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.traffic.sent()
    }
}

impl Shared {
    fn answer(&self, mut asked: Asked) -> Reply {
        let (reply, fault) = {
            let mut state = self.state.lock().unwrap();
            asked.number = state.asked.len() - state.before;
            state.asked.push(asked.clone());
            let tag = format!("\"{}\"", state.version);
            let reply = Reply::file(&state.versions[state.version], &asked).with("ETag", &tag);
            let reply = match asked.header("if-range") {
                Some(other) if other != tag => reply.whole().with("ETag", &tag),
                _ => reply,
            };
            (reply, Arc::clone(&state.fault))
        };
        fault(&asked, reply)
    }
}
