//! What the web servers of the tests share: requests, answers, and the faults that answers can have.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{RUN_LIMIT, wait_for};

/// No request of a client's is longer.
const REQUEST_LIMIT_BYTES: u64 = 64 << 10;

/// Bytes of content that are sent at once.
const BLOCK: usize = 256 << 10;

/// What was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Requests before it, since the server's faults last changed.
    pub number: usize,
    /// Path and query.
    pub target: String,
    pub(crate) head: bool,
    headers: BTreeMap<String, String>,
}

impl Asked {
    /// A header, by its name in small letters.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }

    /// First and last byte of the part that is asked for.
    #[must_use]
    pub fn range(&self) -> Option<(usize, Option<usize>)> {
        let (first, last) = self
            .header("range")?
            .strip_prefix("bytes=")?
            .split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()))
    }

    /// The first byte that is asked for.
    #[must_use]
    pub fn start(&self) -> usize {
        self.range().map_or(0, |(first, _)| first)
    }

    fn read(stream: &TcpStream) -> Option<Self> {
        let mut lines = BufReader::new(stream.take(REQUEST_LIMIT_BYTES)).lines();
        let first = lines.next()?.ok()?;
        let mut words = first.split(' ');
        let head = words.next()? == "HEAD";
        let target = words.next()?.to_owned();
        let mut headers = BTreeMap::new();
        for line in lines {
            match line.ok()?.split_once(": ") {
                Some((name, value)) => headers.insert(name.to_ascii_lowercase(), value.to_owned()),
                None => break,
            };
        }
        Some(Self {
            number: 0,
            target,
            head,
            headers,
        })
    }
}

/// What becomes of an answer when all of its content was sent that is to be sent.
#[derive(Debug, Clone, Copy)]
enum End {
    /// The connection is closed.
    Close,
    /// Nothing comes any more, until the other side goes away.
    Silence,
    /// The rest comes byte by byte, with so much time between two.
    Drip(Duration),
}

/// What is answered.
#[derive(Debug, Clone)]
pub struct Reply {
    status: u16,
    headers: Vec<(&'static str, String)>,
    content: Arc<[u8]>,
    /// The part of the content that follows.
    part: Range<usize>,
    /// What `Content-Length` says; `None`: there is none.
    told: Option<usize>,
    /// How much of the part is sent as usual.
    sent: usize,
    end: End,
    pause: Duration,
}

impl Reply {
    /// This content.
    #[must_use]
    pub fn of(status: u16, content: impl Into<Arc<[u8]>>) -> Self {
        let content = content.into();
        let length = content.len();
        Self {
            status,
            headers: Vec::new(),
            part: 0..length,
            content,
            told: Some(length),
            sent: length,
            end: End::Close,
            pause: Duration::ZERO,
        }
    }

    /// No content.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self::of(status, [])
    }

    /// The way to another place.
    #[must_use]
    pub fn redirect(to: &str) -> Self {
        Self::status(302).with("Location", to)
    }

    /// The file, or the part of it that was asked for.
    #[must_use]
    pub fn file(content: &Arc<[u8]>, asked: &Asked) -> Self {
        let total = content.len();
        let whole = Self::of(200, Arc::clone(content)).with("Accept-Ranges", "bytes");
        match asked.range() {
            None => whole,
            Some((start, _)) if start >= total => {
                Self::status(416).with("Content-Range", &format!("bytes */{total}"))
            }
            Some((start, last)) => {
                let end = last.map_or(total, |last| total.min(last + 1));
                let range = format!("bytes {start}-{}/{total}", end - 1);
                Self {
                    status: 206,
                    part: start..end,
                    told: Some(end - start),
                    sent: end - start,
                    ..whole
                }
                .with("Content-Range", &range)
            }
        }
    }

    /// With this header, in place of one of this name.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: &str) -> Self {
        self.headers.retain(|(other, _)| *other != name);
        self.headers.push((name, value.to_owned()));
        self
    }

    /// All of the content, whatever part was asked for.
    #[must_use]
    pub fn whole(self) -> Self {
        Self::of(200, self.content)
    }

    /// The connection is closed after so many bytes of content.
    #[must_use]
    pub fn cut_after(mut self, bytes: usize) -> Self {
        self.sent = self.sent.min(bytes);
        self
    }

    /// Nothing comes after so many bytes of content, and the connection stays.
    #[must_use]
    pub fn silent_after(self, bytes: usize) -> Self {
        Self {
            end: End::Silence,
            ..self.cut_after(bytes)
        }
    }

    /// One byte at a time comes after so many of them.
    #[must_use]
    pub fn dripping_after(self, bytes: usize, interval: Duration) -> Self {
        Self {
            end: End::Drip(interval),
            ..self.cut_after(bytes)
        }
    }

    /// With a pause after each 256 KiB.
    #[must_use]
    pub fn pausing(mut self, pause: Duration) -> Self {
        self.pause = pause;
        self
    }

    /// `Content-Length` says this, or is not there.
    #[must_use]
    pub fn telling(mut self, length: Option<usize>) -> Self {
        self.told = length;
        self
    }

    /// Other bytes than it says: those that lie so much further on, from the start again at the end.
    #[must_use]
    pub fn shifted(mut self, bytes: usize) -> Self {
        let mut content = self.content.to_vec();
        content.rotate_left(bytes);
        self.content = content.into();
        self
    }

    /// Sends it, and tells of each block of content that went.
    fn write(&self, mut stream: TcpStream, head: bool, sent: impl Fn(u64)) -> std::io::Result<()> {
        let mut text = format!("HTTP/1.1 {} -\r\nConnection: close\r\n", self.status);
        if let Some(length) = self.told {
            text.push_str(&format!("Content-Length: {length}\r\n"));
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all(text.as_bytes())?;
        stream.write_all(b"\r\n")?;
        if head {
            return Ok(());
        }
        let (usual, rest) = self.content[self.part.clone()].split_at(self.sent);
        for block in usual.chunks(BLOCK) {
            stream.write_all(block)?;
            sent(block.len() as u64);
            std::thread::sleep(self.pause);
        }
        match self.end {
            End::Close => {}
            // Until the other side goes away.
            End::Silence => drop(stream.read(&mut [0])),
            End::Drip(interval) => {
                for byte in rest.chunks(1) {
                    std::thread::sleep(interval);
                    stream.write_all(byte)?;
                    sent(1);
                }
            }
        }
        Ok(())
    }
}

/// What a server has sent so far, and to how many clients it still may.
pub(crate) struct Traffic {
    address: SocketAddr,
    /// Bytes of content.
    sent: AtomicU64,
    /// Connections that were accepted and are not closed.
    open: AtomicUsize,
}

impl Traffic {
    /// Bytes of content that were sent so far, over all connections.
    pub(crate) fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Bytes of content sent to clients that are gone by now: waits until it was noticed of each that it is.
    pub(crate) fn sent_in_all(&self) -> u64 {
        self.wait_accepted();
        wait_for("the last connection to end", RUN_LIMIT, || {
            match self.open.load(Ordering::SeqCst) {
                0 => Ok(()),
                open => Err(open),
            }
        });
        self.sent()
    }

    /// Waits until everybody was accepted who has connected by now: connections are taken in their order, and
    /// one more that asks for nothing is closed as soon as it was.
    fn wait_accepted(&self) {
        let mut last = TcpStream::connect(self.address).expect("it listens");
        last.shutdown(Shutdown::Write).expect("it is connected");
        let said = last.read(&mut [0]).expect("it is closed in order");
        assert_eq!(said, 0, "nothing was asked");
    }
}

/// A connection that counts as open.
struct Open(Arc<Traffic>);

impl Open {
    fn count(traffic: &Arc<Traffic>) -> Self {
        traffic.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(traffic))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Answers every connection in a thread of its own, until the test's process ends.
///
/// # Panics
///
/// When the listener has no address.
pub(crate) fn serve(
    listener: TcpListener,
    answer: impl Fn(Asked) -> Reply + Send + Sync + 'static,
) -> Arc<Traffic> {
    let traffic = Arc::new(Traffic {
        address: listener.local_addr().unwrap(),
        sent: AtomicU64::new(0),
        open: AtomicUsize::new(0),
    });
    let (answer, counting) = (Arc::new(answer), Arc::clone(&traffic));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (answer, open) = (Arc::clone(&answer), Open::count(&counting));
            std::thread::spawn(move || {
                if let Some(asked) = Asked::read(&stream) {
                    let head = asked.head;
                    let reply = answer(asked);
                    let sent = |bytes| {
                        open.0.sent.fetch_add(bytes, Ordering::SeqCst);
                    };
                    // Who goes away in the middle is the client's own business.
                    let _ = reply.write(stream, head, sent);
                }
            });
        }
    });
    traffic
}
