//! A small HTTP server for tests: answers what it is told, counts, cuts off.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use url::Url;

use super::{Net, SharedGate};
use crate::config::environment::Environment;

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// What is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is cut.
    pub(crate) cut: Option<usize>,
}

impl Reply {
    pub(crate) fn ok(body: impl Into<Vec<u8>>) -> Self {
        Self {
            status: 200,
            body: body.into(),
            ..Self::default()
        }
    }

    pub(crate) fn status(status: u16) -> Self {
        Self {
            status,
            ..Self::default()
        }
    }

    pub(crate) fn redirect(to: &str) -> Self {
        Self {
            status: 302,
            headers: vec![("Location", to.to_owned())],
            ..Self::default()
        }
    }

    /// The file, or the part that was asked for.
    pub(crate) fn file(request: &Request, body: &[u8]) -> Self {
        let start = request.headers.get("range").and_then(|range| {
            range
                .strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse()
                .ok()
        });
        match start {
            None => Self::ok(body),
            Some(start) if start >= body.len() => Self {
                headers: vec![("Content-Range", format!("bytes */{}", body.len()))],
                ..Self::status(416)
            },
            Some(start) => Self {
                headers: vec![(
                    "Content-Range",
                    format!("bytes {start}-{}/{}", body.len() - 1, body.len()),
                )],
                body: body[start..].to_vec(),
                ..Self::status(206)
            },
        }
    }

    pub(crate) fn cut_after(mut self, bytes: usize) -> Self {
        self.cut = Some(bytes);
        self
    }
}

/// A server on a loopback port of its own; lives as long as the test process.
pub(crate) struct Server {
    port: u16,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers each request, given its number (from 0), with what `answer` says.
    pub(crate) fn start(answer: impl Fn(usize, &Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = seen.lock().unwrap().len();
                if let Some(request) = read(&stream) {
                    seen.lock().unwrap().push(request.clone());
                    let _ = write(stream, &answer(number, &request));
                }
            }
        });
        Self { port, requests }
    }

    pub(crate) fn url(&self, path: &str) -> Url {
        Url::parse(&format!("http://127.0.0.1:{}/{path}", self.port)).unwrap()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        match line.ok()?.split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    Some(Request { path, headers })
}

fn write(mut stream: TcpStream, reply: &Reply) -> std::io::Result<()> {
    write!(
        stream,
        "HTTP/1.1 {} x\r\nContent-Length: {}\r\nConnection: close\r\n",
        reply.status,
        reply.body.len()
    )?;
    for (name, value) in &reply.headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    stream.write_all(&reply.body[..reply.cut.unwrap_or(reply.body.len())])
}

/// A transfer engine that may reach everything and has no proxy.
pub(crate) fn open_net() -> Net {
    net_with(Arc::new(|_: &str, _: Option<&str>| Ok(())))
}

pub(crate) fn net_with(gate: SharedGate) -> Net {
    Net::new(&Environment::default(), gate)
}
