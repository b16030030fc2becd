//! A small HTTP server for tests: answers what it is told, counts, cuts off. And ports for others' servers.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    path::Path,
    process::Child,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use url::Url;

use super::{Net, SharedGate};
use crate::config::environment::Environment;

/// Longest time that a server in a process of its own may take to listen.
const START_LIMIT: Duration = Duration::from_secs(30);

/// What was asked.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

impl Request {
    /// First and last byte of the part that is asked for.
    pub(crate) fn range(&self) -> Option<(usize, Option<usize>)> {
        let range = self.headers.get("range")?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }
}

/// What is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body that are sent before the connection is cut.
    pub(crate) cut: Option<usize>,
    /// Bytes after which the rest comes one by one, and the time between two.
    pub(crate) drip: Option<(usize, Duration)>,
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
        let total = body.len();
        match request.range() {
            None => Self::ok(body),
            Some((start, _)) if start >= total => Self {
                headers: vec![("Content-Range", format!("bytes */{total}"))],
                ..Self::status(416)
            },
            Some((start, last)) => {
                let end = last.map_or(total, |last| total.min(last + 1));
                Self {
                    headers: vec![(
                        "Content-Range",
                        format!("bytes {start}-{}/{total}", end - 1),
                    )],
                    body: body[start..end].to_vec(),
                    ..Self::status(206)
                }
            }
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.push((name, value.to_owned()));
        self
    }

    pub(crate) fn dripping(mut self, after: usize, interval: Duration) -> Self {
        self.drip = Some((after, interval));
        self
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
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let number = seen.lock().unwrap().len();
                if let Some(request) = read(&stream) {
                    seen.lock().unwrap().push(request.clone());
                    let answer = Arc::clone(&answer);
                    std::thread::spawn(move || {
                        // Who goes away in the middle is the client's own business.
                        let _ = write(stream, &answer(number, &request));
                    });
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
    let mut reader = BufReader::new(stream);
    let mut lines = reader.by_ref().lines();
    let path = lines.next()?.ok()?.split(' ').nth(1)?.to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        match line.ok()?.split_once(": ") {
            Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
            None => break,
        };
    }
    let length = headers
        .get("content-length")
        .map_or(Some(0), |it| it.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Request {
        path,
        headers,
        body,
    })
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
    let body = &reply.body[..reply.cut.unwrap_or(reply.body.len())];
    let Some((after, interval)) = reply.drip else {
        return stream.write_all(body);
    };
    stream.write_all(&body[..after])?;
    for byte in &body[after..] {
        std::thread::sleep(interval);
        stream.write_all(&[*byte])?;
    }
    Ok(())
}

/// A port that is given to nobody who asks for a free one, as long as this lives: a socket is bound to it
/// that does not listen. Whoever sets `SO_REUSEADDR`, as servers do, may listen there all the same.
pub(crate) struct FreePort {
    address: SocketAddr,
    _socket: OwnedFd,
}

impl FreePort {
    /// One of this address.
    pub(crate) fn at(ip: impl Into<IpAddr>) -> Self {
        use rustix::net::{
            AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
        };
        let any = SocketAddr::new(ip.into(), 0);
        let family = match any {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &any).unwrap();
        Self {
            address: getsockname(&socket).unwrap().try_into().unwrap(),
            _socket: socket,
        }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn listen(&self) -> TcpListener {
        TcpListener::bind(self.address).unwrap()
    }

    /// Waits until a server that was started listens there. What it has said, by its log, where it does not.
    pub(crate) fn wait_for(&self, server: &mut Child, log: &Path) {
        let start = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = server.try_wait().unwrap();
            let said = std::fs::read_to_string(log);
            assert!(ended.is_none(), "it has ended ({ended:?}): {said:?}");
            assert!(start.elapsed() < START_LIMIT, "no answer: {said:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends that anybody listens by this socket, at once: a process that another test is just starting may have a
/// copy of it until its program runs.
pub(crate) fn close(listener: TcpListener) {
    rustix::net::shutdown(&listener, rustix::net::Shutdown::Both).unwrap();
    drop(listener);
}

/// A transfer engine that may reach everything and has no proxy.
pub(crate) fn open_net() -> Net {
    net_with(Arc::new(|_: &str, _: Option<&str>| Ok(())))
}

pub(crate) fn net_with(gate: SharedGate) -> Net {
    Net::new(&Environment::default(), gate)
}
