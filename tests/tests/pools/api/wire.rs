//! HTTP as it goes over the wire, through both doors of a daemon.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
};

use e2e::RUN_LIMIT;
use serde_json::Value;

use crate::{Daemon, Stage};

/// A connection, whichever door it came through.
pub(super) trait Connection: Read + Write + Send {}

impl<T: Read + Write + Send> Connection for T {}

/// Somebody who asks a daemon.
#[derive(Debug, Clone)]
pub(super) struct Client {
    door: Door,
    token: Option<String>,
}

#[derive(Debug, Clone)]
enum Door {
    Socket(PathBuf),
    /// Address.
    Port(String),
}

/// What was answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: String,
}

impl Answer {
    /// Its document.
    #[track_caller]
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// Asserts its status and that it is an error with this code; gives the document.
    #[track_caller]
    pub(super) fn refused(&self, status: u16, code: &str) -> Value {
        assert_eq!(self.status, status, "{self:?}");
        let document = self.json();
        assert_eq!(document["code"], code, "{self:?}");
        let message = document["message"].as_str().unwrap_or_default();
        assert!(!message.is_empty(), "{self:?}");
        let again = document["retry_after_ms"].as_u64();
        assert_eq!(document["retriable"], again.is_some(), "{self:?}");
        let header = self.header("retry-after").map(|it| it.parse().unwrap());
        let seconds = again.map(|millis| millis.div_ceil(1000).max(1));
        assert_eq!(header, seconds, "{self:?}");
        document
    }
}

impl Client {
    /// Over the Unix socket.
    pub(super) fn local(stage: &Stage) -> Self {
        Self {
            door: Door::Socket(stage.machine.home().join("state/daemon.sock")),
            token: None,
        }
    }

    /// Over TCP, without the token.
    pub(super) fn stranger(daemon: &Daemon<'_>) -> Self {
        let address = daemon.url.strip_prefix("http://").unwrap();
        Self {
            door: Door::Port(address.to_owned()),
            token: None,
        }
    }

    /// Over TCP, with the token.
    pub(super) fn trusted(stage: &Stage, daemon: &Daemon<'_>) -> Self {
        let file = stage.machine.home().join("state/api-token");
        Self {
            token: Some(fs::read_to_string(file).unwrap().trim().to_owned()),
            ..Self::stranger(daemon)
        }
    }

    /// Whether it may change something.
    pub(super) fn may_change(&self) -> bool {
        self.token.is_some() || matches!(self.door, Door::Socket(_))
    }

    /// What it calls the daemon.
    pub(super) fn host(&self) -> &str {
        match &self.door {
            Door::Socket(_) => "localhost",
            Door::Port(address) => address,
        }
    }

    pub(super) fn connect(&self) -> Box<dyn Connection> {
        match &self.door {
            Door::Socket(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(Some(RUN_LIMIT)).unwrap();
                Box::new(stream)
            }
            Door::Port(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(RUN_LIMIT)).unwrap();
                Box::new(stream)
            }
        }
    }

    /// The head of a request, with these headers besides the usual ones.
    pub(super) fn head(&self, method: &str, target: &str, headers: &[(&str, &str)]) -> String {
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.host());
        if let Some(token) = &self.token {
            text.push_str(&format!("Authorization: Bearer {token}\r\n"));
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text + "\r\n"
    }

    pub(super) fn ask(&self, method: &str, target: &str) -> Answer {
        self.send(&self.head(method, target, &[("Connection", "close")]))
    }

    /// Sends this and reads until the daemon ends the connection.
    pub(super) fn send(&self, text: &str) -> Answer {
        let mut connection = self.connect();
        // Who is refused early may find the connection closed.
        let _ = connection.write_all(text.as_bytes());
        Following::read(connection).whole()
    }

    /// Asks for a stream.
    pub(super) fn follow(&self, target: &str, headers: &[(&str, &str)]) -> Following {
        let mut connection = self.connect();
        let head = self.head("GET", target, headers);
        connection.write_all(head.as_bytes()).unwrap();
        Following::read(connection)
    }
}

/// An answer whose body is read as it comes.
pub(super) struct Following {
    pub(super) answer: Answer,
    body: BufReader<Body>,
}

impl Following {
    /// Reads the head of an answer.
    pub(super) fn read(connection: Box<dyn Connection>) -> Self {
        let mut reader = BufReader::new(connection);
        let mut answer = Answer {
            status: 0,
            headers: BTreeMap::new(),
            body: String::new(),
        };
        let mut first = String::new();
        reader.read_line(&mut first).unwrap();
        let status = first.split(' ').nth(1).and_then(|it| it.parse().ok());
        answer.status = status.unwrap_or_else(|| panic!("no HTTP answer: {first:?}"));
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            let name = name.to_ascii_lowercase();
            answer.headers.insert(name, value.to_owned());
        }
        let length = answer.header("content-length");
        let left = match length.map(|it| it.parse().unwrap()) {
            Some(length) => Left::Bytes(length),
            None if answer.header("transfer-encoding") == Some("chunked") => Left::Chunks(0),
            None => Left::Bytes(0),
        };
        Self {
            answer,
            body: BufReader::new(Body { reader, left }),
        }
    }

    /// The answer with all of its body.
    pub(super) fn whole(mut self) -> Answer {
        self.body.read_to_string(&mut self.answer.body).unwrap();
        self.answer
    }

    /// The next line; `None` at the end.
    pub(super) fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.body.read_line(&mut line).unwrap();
        (read > 0).then(|| line.trim_end().to_owned())
    }

    /// The next event: its kind, its id and its data.
    pub(super) fn event(&mut self) -> Option<(String, String, String)> {
        let mut event = (String::new(), String::new(), String::new());
        loop {
            let line = self.line()?;
            match line.split_once(": ") {
                Some(("event", kind)) => kind.clone_into(&mut event.0),
                Some(("id", id)) => id.clone_into(&mut event.1),
                Some(("data", data)) => data.clone_into(&mut event.2),
                _ if line.is_empty() && !event.0.is_empty() => return Some(event),
                _ => {}
            }
        }
    }
}

/// What of a body is to come.
enum Left {
    Bytes(usize),
    /// Bytes of the chunk that has begun, and more chunks.
    Chunks(usize),
}

struct Body {
    reader: BufReader<Box<dyn Connection>>,
    left: Left,
}

impl Read for Body {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if let Left::Chunks(0) = self.left {
            let mut size = String::new();
            self.reader.read_line(&mut size)?;
            let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            self.left = match size {
                0 => Left::Bytes(0),
                size => Left::Chunks(size),
            };
        }
        let (Left::Bytes(left) | Left::Chunks(left)) = &mut self.left;
        let most = bytes.len().min(*left);
        let read = self.reader.read(&mut bytes[..most])?;
        *left -= read;
        if let Left::Chunks(0) = self.left {
            let mut end = [0; 2];
            self.reader.read_exact(&mut end)?;
        }
        Ok(read)
    }
}
