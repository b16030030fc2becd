//! One connection: asks for a part, checks what is answered, hands it over.

use std::{
    ops::Range,
    pin::pin,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use reqwest::{
    Response,
    header::{ACCEPT_ENCODING, HeaderMap, HeaderValue, IF_MATCH, IF_RANGE, RANGE},
};
use tokio_util::bytes::Bytes;

use super::{
    super::{
        Net, NetError, Source, Trust,
        client::status_error,
        describe::{range_header, surprising_encoding},
        pace::Pace,
        range::content_range,
        redirect::without_secrets,
        shown,
    },
    FAILURES, Known, Transfer,
    access::{Access, Grant, is_refusal},
    collector::Collector,
    journal::Version,
    meter::Meter,
};
use crate::store::StoreError;

/// Bytes that are handed to whoever writes them at once.
const HANDED_AT_ONCE: usize = 512 << 10;

/// Time after which also fewer bytes are written, and the journal after them: whoever is killed while a
/// server is silent loses nothing of what came before.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// The way to a source, as it is found to be.
pub(super) struct Route<'a> {
    net: &'a Net,
    transfer: &'a Transfer,
    pub(super) source: &'a Source,
    access: Access,
    /// Whether it is worth asking for parts.
    pub(super) ranges: bool,
    /// Whether what came was wrong before, and was fetched once more.
    pub(super) again: bool,
    /// Whether parts of another version may have come: a digest has to tell.
    mixed: AtomicBool,
    /// Connections that the server puts up with.
    pub(super) connections: usize,
    failures: AtomicU32,
}

impl<'a> Route<'a> {
    pub(super) fn new(net: &'a Net, transfer: &'a Transfer, source: &'a Source) -> Self {
        Self {
            net,
            transfer,
            source,
            access: Access::new(source),
            ranges: true,
            again: false,
            mixed: AtomicBool::new(false),
            connections: net.limits().connections,
            failures: AtomicU32::new(0),
        }
    }

    /// Counts a failure; whether that is one more than is put up with, however much each try brings.
    pub(super) fn fails_too_often(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= FAILURES
    }

    /// Whether a server has once too often ended an answer early that brought next to nothing: one that gives
    /// a byte each time would otherwise hold a transfer for days.
    pub(super) fn gives_scraps(&self, bytes: u64) -> bool {
        bytes < self.net.limits().least_bytes && self.fails_too_often()
    }

    pub(super) fn is_mixed(&self) -> bool {
        self.mixed.load(Ordering::Relaxed)
    }

    /// Checks that an answer is of a version; where a digest will tell, notes only that it is not.
    pub(super) fn check_version(
        &self,
        response: &Response,
        known: &Version,
    ) -> Result<(), NetError> {
        let version = Version::of(response.headers());
        // A server that was told the version and has no mark of its own has kept to it.
        if version.if_range().is_none() || version.is(known) {
            return Ok(());
        }
        if self.transfer.is_compared() {
            self.mixed.store(true, Ordering::Relaxed);
            return Ok(());
        }
        Err(self.changed())
    }

    /// Asks for the file, or a part of it; where its server no longer gives it out, once more for
    /// what it gives it out for now.
    pub(super) async fn ask(
        &self,
        range: Option<HeaderValue>,
        version: Option<HeaderValue>,
    ) -> Result<Response, NetError> {
        loop {
            let grant = self.access.grant();
            let response = self.ask_by(&grant, &range, &version).await?;
            let status = response.status().as_u16();
            if response.status().is_success() {
                self.access.note_given(&grant);
            }
            if !is_refusal(status) || !self.access.renew(&grant, status).await? {
                return Ok(response);
            }
        }
    }

    async fn ask_by(
        &self,
        grant: &Grant,
        range: &Option<HeaderValue>,
        version: &Option<HeaderValue>,
    ) -> Result<Response, NetError> {
        let source = &grant.source;
        let net = self.net.verifying(&source.identity);
        let (url, named_by) = (&source.url, source.named_by.as_deref());
        if let Some((url, headers)) = &grant.direct {
            let vouching = named_by.or(source.url.host_str());
            let headers = self.headers(headers, range, version);
            let reached = net.get(url, vouching, &headers, self.trust()).await?;
            // A signed URL may have run out.
            if !matches!(reached.response.status().as_u16(), 400..=410) {
                return Ok(reached.response);
            }
            self.access.forget_direct(url);
        }
        let headers = self.headers(&source.headers, range, version);
        let reached = net.get(url, named_by, &headers, self.trust()).await?;
        if reached.redirected && reached.response.status().is_success() {
            let headers = if reached.url.origin() == url.origin() {
                source.headers.clone()
            } else {
                without_secrets(&source.headers)
            };
            self.access.note_direct(grant, reached.url, headers);
        }
        Ok(reached.response)
    }

    fn headers(
        &self,
        own: &HeaderMap,
        range: &Option<HeaderValue>,
        version: &Option<HeaderValue>,
    ) -> HeaderMap {
        let mut headers = own.clone();
        let identity = HeaderValue::from_static("identity");
        headers.insert(ACCEPT_ENCODING, identity);
        for (name, value) in [(RANGE, range), (IF_RANGE, version)] {
            if let Some(value) = value {
                headers.insert(name, value.clone());
            }
        }
        headers
    }

    fn trust(&self) -> Trust {
        match self.transfer.digest {
            Some(_) => Trust::Digest,
            None => Trust::Transport,
        }
    }

    /// Refuses content that is packed, where no digest says that it should be.
    pub(super) fn check_encoding(&self, response: &Response) -> Result<(), NetError> {
        match surprising_encoding(response.headers()) {
            Some(encoding) if !self.transfer.is_compared() => Err(NetError::Encoded {
                url: self.shown(),
                encoding,
            }),
            _ => Ok(()),
        }
    }

    /// Compares the size of the file with what it must be.
    pub(super) fn check_size(&self, size: u64) -> Result<(), NetError> {
        match (self.transfer.size_bytes, self.transfer.limit_bytes) {
            (Some(expected), _) if size != expected => Err(NetError::Size {
                url: self.shown(),
                expected,
                actual: size,
            }),
            (_, limit) => self.check_limit(size, limit),
        }
    }

    /// Refuses more bytes than there can be.
    fn check_arrived(&self, bytes: u64) -> Result<(), NetError> {
        match self.transfer.size_bytes {
            Some(expected) if bytes > expected => self.check_size(bytes),
            _ => self.check_limit(bytes, self.transfer.limit_bytes),
        }
    }

    fn check_limit(&self, bytes: u64, limit: Option<u64>) -> Result<(), NetError> {
        match limit {
            Some(limit_bytes) if bytes > limit_bytes => Err(NetError::TooLarge {
                url: self.shown(),
                limit_bytes,
            }),
            _ => Ok(()),
        }
    }

    pub(super) fn shown(&self) -> String {
        shown(&self.source.url)
    }

    pub(super) fn wrong_part(&self) -> NetError {
        NetError::WrongPart { url: self.shown() }
    }

    pub(super) fn changed(&self) -> NetError {
        NetError::Changed { url: self.shown() }
    }

    /// What an answer says that gives nothing. A source that names the version it has (`If-Match`) is refused
    /// with 412 where there is another by now.
    pub(super) fn refused(&self, response: &Response) -> NetError {
        let is_named = self.source.headers.contains_key(IF_MATCH);
        match response.status().as_u16() {
            412 if is_named => self.changed(),
            _ => status_error(response),
        }
    }

    pub(super) fn keep(&self, source: StoreError) -> NetError {
        NetError::Store {
            url: self.shown(),
            source,
        }
    }
}

/// What all connections of a round share.
pub(super) struct Line<'a> {
    pub(super) net: &'a Net,
    pub(super) route: &'a Route<'a>,
    pub(super) known: &'a Known,
    pub(super) collector: &'a Collector,
    pub(super) meter: &'a Meter<'a>,
}

impl Line<'_> {
    /// Asks for a part of the version that is known; gives the answer and which part it has.
    pub(super) async fn ask(&self, part: &Range<u64>) -> Result<(Response, Range<u64>), NetError> {
        let version = match self.route.transfer.is_compared() {
            true => None,
            false => self.known.version.if_range(),
        };
        let response = self.route.ask(Some(range_header(part)), version).await?;
        match response.status().as_u16() {
            206 => {}
            200 => {
                self.route.check_version(&response, &self.known.version)?;
                return Err(self.route.wrong_part());
            }
            416 => return Err(self.route.wrong_part()),
            _ => return Err(self.route.refused(&response)),
        }
        self.route.check_encoding(&response)?;
        let range = content_range(&response).ok_or_else(|| self.route.wrong_part())?;
        if range.bytes.start != part.start || range.bytes.end > part.end {
            return Err(self.route.wrong_part());
        }
        if range.total != self.known.size_bytes {
            return Err(self.route.changed());
        }
        self.route.check_version(&response, &self.known.version)?;
        Ok((response, range.bytes))
    }

    /// Takes what comes, from `start` on: to the end of the answer, or to `end`, beyond which nothing
    /// may come. Gives how far it got.
    pub(super) async fn drain(
        &self,
        mut response: Response,
        start: u64,
        end: Option<u64>,
    ) -> (u64, Result<(), NetError>) {
        let mut hand = Hand {
            line: self,
            at: start,
            chunks: Vec::new(),
            length: 0,
            given: Instant::now(),
        };
        let mut pace = Pace::default();
        let result = loop {
            let chunk = match self.wait(&mut response, &mut pace, &mut hand).await {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            };
            let until = hand.at + (hand.length + chunk.len()) as u64;
            if end.is_some_and(|end| until > end) {
                break Err(self.route.wrong_part());
            }
            let taken = match self.route.check_arrived(until) {
                Ok(()) => hand.take(chunk).await,
                Err(error) => Err(error),
            };
            if let Err(error) = taken {
                break Err(error);
            }
        };
        // Also what came before a failure counts.
        let given = hand.give().await;
        (hand.at, result.and(given))
    }

    /// Waits for what comes next. What is in hand is not held back when that takes long.
    async fn wait(
        &self,
        response: &mut Response,
        pace: &mut Pace,
        hand: &mut Hand<'_>,
    ) -> Result<Option<Bytes>, NetError> {
        let mut chunk = pin!(self.next_chunk(response, pace));
        match tokio::time::timeout(WRITTEN_EVERY, &mut chunk).await {
            Ok(chunk) => chunk,
            Err(_) => {
                hand.give().await?;
                let settled = self.collector.settle().await;
                settled.map_err(|error| self.route.keep(error))?;
                chunk.await
            }
        }
    }

    async fn next_chunk(
        &self,
        response: &mut Response,
        pace: &mut Pace,
    ) -> Result<Option<Bytes>, NetError> {
        let url = &self.route.source.url;
        let chunk = self.net.next_chunk(url, response, pace).await?;
        if let Some(chunk) = &chunk {
            self.meter.add(chunk.len() as u64);
        }
        Ok(chunk)
    }
}

/// What came and was not handed over yet.
struct Hand<'a> {
    line: &'a Line<'a>,
    at: u64,
    chunks: Vec<Bytes>,
    length: usize,
    given: Instant,
}

impl Hand<'_> {
    async fn take(&mut self, chunk: Bytes) -> Result<(), NetError> {
        self.length += chunk.len();
        self.chunks.push(chunk);
        if self.length >= HANDED_AT_ONCE || self.given.elapsed() >= WRITTEN_EVERY {
            self.give().await?;
        }
        Ok(())
    }

    async fn give(&mut self) -> Result<(), NetError> {
        self.given = Instant::now();
        if self.length == 0 {
            return Ok(());
        }
        let chunks = std::mem::take(&mut self.chunks);
        let given = self.line.collector.write(self.at, chunks).await;
        given.map_err(|error| self.line.route.keep(error))?;
        self.at += std::mem::take(&mut self.length) as u64;
        Ok(())
    }
}
