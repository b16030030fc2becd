//! What the end-to-end tests share: a machine of their own, the built program, real git.
//!
//! Tests drive the program as its users do, from outside: they know what was built and nothing of
//! its insides.

mod chaos;
mod collector;
mod containers;
mod downloads;
mod driver;
mod ends;
mod fixture;
mod http;
mod hub;
mod lock_file;
mod machine;
mod measure;
mod memory;
mod models;
mod pools;
mod port;
mod process;
mod proxy;
mod s3;
mod server;
mod shapes;
mod store;
mod storm;

use std::{
    fmt::Debug,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

pub use chaos::{kill_rounds, share};
pub use collector::{CollectedSpan, Collector, Delivery};
pub use containers::{
    CREDENTIALS, ContainerKind, Containers, DockerDaemon, IMAGE_REVISION, IMAGE_VERSION, Image,
    ImageFile, KeptBlob, PushedIndex, Registry, basic, this_architecture,
};
pub use downloads::{kill_directories, kill_downloads};
pub use driver::{fake_driver, fake_driver_of_engines_that_take};
pub use ends::{assert_ends, end_rounds};
pub use fixture::{Repository, container_pool, fixture_pool};
pub use http::{Asked, Reply};
pub use hub::{Access, HUB_TOKEN, Hub, HubRepository, HubRequest, git_blob};
pub use lock_file::LockFile;
pub use machine::{Built, KILLED_OR_DONE, Machine, RUN_LIMIT, Run, Running};
pub use measure::{Pairs, median, pace, provisioned, succeeds, timed};
pub use memory::MemoryGroup;
pub use models::{measure_fetching, measure_verified, model_of};
pub use pools::{Daemon, PoolStage};
pub use port::free_port;
pub use process::{
    Process, children_of, environment_of, own_resident_bytes, processes_below, processor_time,
    processor_time_of_children, resident_bytes, signal, signal_if_there, uid_of,
};
pub use proxy::{PROXY_USER, Proxy};
pub use s3::{S3_KEYS, S3Server};
pub use server::FileServer;
pub use shapes::{engines_with_models, repository_below, weights_below};
pub use store::{Store, noise, sha256};
pub use storm::Storm;

/// Root of the repository that the tests were built from.
///
/// # Panics
///
/// When it was moved since.
#[must_use]
pub fn repository_root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap()
}

/// Path of a recorded machine, for `--facts`.
///
/// # Panics
///
/// When there is no such record.
#[must_use]
pub fn facts(name: &str) -> String {
    let path = repository_root().join(format!("tests/fixtures/facts/{name}.json"));
    assert!(path.is_file(), "{}", path.display());
    path.to_str()
        .expect("the repository's path is UTF-8")
        .to_owned()
}

/// Waits until `probe` gives a value and says what was last seen when it does not.
///
/// # Panics
///
/// When `limit` has passed.
pub fn wait_for<T, S: Debug>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<T, S>,
) -> T {
    let start = Instant::now();
    loop {
        match probe() {
            Ok(value) => return value,
            Err(seen) if start.elapsed() > limit => {
                panic!("waited {limit:?} for {what}; last seen: {seen:?}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// One HTTP/1.1 request to an address on this machine; status and body.
pub fn http_get(url: &str) -> std::io::Result<(u16, String)> {
    http(url, "GET", "")
}

/// A POST of JSON to an address on this machine; status and body, chunks joined as they came.
pub fn http_post(url: &str, body: &str) -> std::io::Result<(u16, String)> {
    http(url, "POST", body)
}

fn http(url: &str, method: &str, body: &str) -> std::io::Result<(u16, String)> {
    use std::io::{Read, Write};

    let rest = url.strip_prefix("http://").expect("tests speak plain http");
    let (address, path) = rest.split_once('/').unwrap_or((rest, ""));
    let mut stream = std::net::TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    // In one piece: a server that reads once has all of it.
    let request = format!(
        "{method} /{path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes())?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text);
    let (head, body) = text
        .split_once("\r\n\r\n")
        .ok_or_else(|| std::io::Error::other(format!("no HTTP answer: {text}")))?;
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| std::io::Error::other(format!("no status: {head}")))?;
    Ok((status, body.to_owned()))
}
