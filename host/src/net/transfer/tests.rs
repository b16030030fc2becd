//! Every way in which a server can fail: what comes of it, what is said, and what is left.

mod answers;
mod cut;
mod renewed;
mod several;
mod sources;
mod versions;

use std::{
    fs,
    path::Path,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::{super::limits::Limits, *};
use crate::{
    fault::{Exit, Fault as _},
    net::{
        Renew,
        testing::{Reply, Request, Server, open_net},
    },
};

const SIZE: usize = 200_000;

const CONNECTIONS: usize = 4;

fn body() -> &'static [u8] {
    static BODY: LazyLock<Vec<u8>> = LazyLock::new(|| repeating(251));
    &BODY
}

fn other_body() -> &'static [u8] {
    static BODY: LazyLock<Vec<u8>> = LazyLock::new(|| repeating(241));
    &BODY
}

fn repeating(length: usize) -> Vec<u8> {
    (0..SIZE).map(|number| (number % length) as u8).collect()
}

/// Parts of 16 KiB, from 64 KiB on; no long pauses. No thread of a busy machine is kept waiting for so long
/// that a server here is taken for silent, and asked once more than is counted on.
fn net() -> Net {
    silent_after(Duration::from_secs(20))
}

/// The same with another silence.
fn silent_after(silence: Duration) -> Net {
    open_net().limited(Limits {
        silence,
        least_bytes: 1000,
        first_pause: Duration::from_millis(1),
        longest_pause: Duration::from_millis(5),
        longest_retry_after: Duration::from_secs(2),
        parallel_bytes: 64 << 10,
        part_bytes: 16 << 10,
        connections: CONNECTIONS,
    })
}

/// Waits until something holds.
async fn until(holds: impl Fn() -> bool) {
    let holds = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_secs(20);
    tokio::time::timeout(limit, holds).await.expect("in time");
}

/// A directory and what is fetched into it.
struct Bench {
    directory: tempfile::TempDir,
    transfer: Transfer,
    net: Net,
}

impl Bench {
    fn of(urls: impl IntoIterator<Item = Url>, digest: Option<Digest>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let transfer = Transfer {
            actor: crate::narrate::Actor::ModelProvisioner,
            kind: "test",
            sources: urls.into_iter().map(Source::from).collect(),
            digest,
            size_bytes: None,
            limit_bytes: None,
            partial: directory.path().join("x.partial"),
            task: "test".to_owned(),
        };
        Self {
            directory,
            transfer,
            net: net(),
        }
    }

    fn compared(server: &Server) -> Self {
        Self::of([server.url("m")], Some(Digest::of(body())))
    }

    fn uncompared(server: &Server) -> Self {
        Self::of([server.url("m")], None)
    }

    async fn fetch(&self) -> Result<Fetched, NetError> {
        let cancel = CancellationToken::new();
        self.net
            .fetch(&self.transfer, &Narrator::silent(), &cancel)
            .await
    }

    /// Fetches, and checks that nothing but the file is left, and that it is this.
    async fn gets(&self, content: &[u8]) -> Fetched {
        let fetched = self.fetch().await.unwrap();
        assert_eq!(fs::read(&fetched.path).unwrap(), content);
        assert_eq!(Digest::Sha256(fetched.sha256.clone()), Digest::of(content));
        assert_eq!(self.left(), ["x.partial"]);
        fetched
    }

    /// Fetches, and checks how that fails.
    async fn fails(&self, exit: Exit, kind: &str) -> NetError {
        let error = self.fetch().await.unwrap_err();
        assert_eq!((error.exit(), error.kind()), (exit, kind), "{error}");
        error
    }

    fn left(&self) -> Vec<String> {
        names(self.directory.path())
    }
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = names
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn tagged(request: &Request, body: &[u8], tag: &str) -> Reply {
    let wants_other = request
        .headers
        .get("if-range")
        .is_some_and(|known| known != tag);
    let reply = match wants_other {
        true => Reply::ok(body),
        false => Reply::file(request, body),
    };
    reply.with("ETag", tag)
}

fn asked(server: &Server) -> Vec<String> {
    let requests = server.requests();
    let ranges = requests.iter().map(|request| {
        let range = request.headers.get("range");
        range.map_or_else(String::new, |range| range.replace("bytes=", ""))
    });
    ranges.collect()
}
