//! A round: one question, whose answer decides how the rest is fetched.
//!
//! A server that answers with a part, of a file that is large enough, is asked for the other parts over
//! more connections at once. They are handed out in the file's order. A connection that fails hands
//! its part back; one that brings nothing is not opened again, so that a server that wants fewer gets
//! fewer. When the last one has failed, the round has.

use std::{collections::VecDeque, ops::Range, sync::Mutex};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use reqwest::{Response, header::HeaderValue};

use super::{
    super::{
        NetError,
        describe::{content_length, range_header},
        limits::Limits,
        range::{content_range, unsatisfied_total},
    },
    Job, Known,
    journal::Version,
    line::{Line, Route},
    partial::Header,
};

/// A file is divided into so many parts, unless they would be too small or too large.
const PARTS: u64 = 128;

/// Longest part, in multiples of the shortest.
const LONGEST_PART: u64 = 4;

/// Parts at most, whatever size a server names: they are listed before the disk is asked for room.
const MOST_PARTS: u64 = 1 << 16;

/// What a round asks for.
enum Question {
    /// All of it.
    Whole,
    /// These bytes of it.
    Part(Range<u64>),
    /// Everything from here on: nobody knows how much that is.
    From(u64),
}

/// How a round ended that did not fail.
enum Outcome {
    /// Everything is there: so many bytes.
    Whole(u64),
    /// There is more to ask for.
    More,
}

impl Job<'_> {
    /// Collects what is missing; gives the size of the file.
    pub(super) async fn collect(&mut self, route: &mut Route<'_>) -> Result<u64, NetError> {
        loop {
            if let Outcome::Whole(size) = self.round(route).await? {
                return Ok(size);
            }
        }
    }

    async fn round(&mut self, route: &mut Route<'_>) -> Result<Outcome, NetError> {
        self.drop_what_cannot_be_added_to(route).await?;
        let handed = self.collector().handed();
        let size = self.known.size_bytes.or(self.transfer.size_bytes);
        if size.is_some_and(|size| !handed.is_empty() && handed.missing(size, size).is_empty()) {
            return Ok(Outcome::Whole(size.unwrap_or_default()));
        }
        let limits = self.net.limits();
        let question = match (handed.is_empty(), size) {
            (true, Some(size)) if size < limits.parallel_bytes => Question::Whole,
            (true, _) if !route.ranges => Question::Whole,
            (true, _) => Question::Part(0..limits.parallel_bytes.min(size.unwrap_or(u64::MAX))),
            (false, None) => Question::From(handed.front()),
            (false, Some(size)) => {
                let missing = handed.missing(size, part_bytes(size, limits));
                Question::Part(missing.first().expect("not all is there").clone())
            }
        };
        self.put(route, question).await
    }

    /// Throws away what came from elsewhere, or before ranges turned out not to work.
    async fn drop_what_cannot_be_added_to(&mut self, route: &Route<'_>) -> Result<(), NetError> {
        let handed = self.open().await?.handed();
        let is_too_long = self
            .transfer
            .size_bytes
            .is_some_and(|size| handed.end() > size);
        let is_strange = !self.transfer.is_compared()
            && (self.known.url != route.shown() || self.known.version.if_range().is_none());
        if !handed.is_empty() && (!route.ranges || is_too_long || is_strange) {
            self.restart().await?;
        }
        Ok(())
    }

    async fn put(
        &mut self,
        route: &mut Route<'_>,
        question: Question,
    ) -> Result<Outcome, NetError> {
        let range = match &question {
            Question::Whole => None,
            Question::Part(part) => Some(range_header(part)),
            Question::From(start) => HeaderValue::try_from(format!("bytes={start}-")).ok(),
        };
        let version = match self.transfer.is_compared() {
            true => None,
            false => self.known.version.if_range(),
        };
        let response = route.ask(range, version).await?;
        match (response.status().as_u16(), question) {
            (206, Question::Part(part)) => self.take_part(route, response, part).await,
            (206, Question::From(start)) => self.take_rest(route, response, start).await,
            (200, _) => self.take_whole(route, response).await,
            (416, question @ (Question::Part(_) | Question::From(_))) => {
                let there = self.collector().handed().front();
                match (unsatisfied_total(&response), question) {
                    (Some(0), Question::Part(part)) if part.start == 0 => Ok(Outcome::Whole(0)),
                    (Some(total), Question::From(_)) if total == there => Ok(Outcome::Whole(total)),
                    _ => Err(route.wrong_part()),
                }
            }
            _ => Err(route.refused(&response)),
        }
    }

    /// The answer is all of it, whatever was asked for.
    async fn take_whole(
        &mut self,
        route: &Route<'_>,
        response: Response,
    ) -> Result<Outcome, NetError> {
        route.check_encoding(&response)?;
        let size = content_length(&response);
        if let Some(size) = size {
            route.check_size(size)?;
        }
        if !self.collector().handed().is_empty() {
            self.restart().await?;
        }
        self.note(route, &response, size).await?;
        let (at, result) = self.line(route).drain(response, 0, size).await;
        result.map(|()| Outcome::Whole(at))
    }

    /// The answer is the rest of it, of a size that nobody knew.
    async fn take_rest(
        &mut self,
        route: &Route<'_>,
        response: Response,
        start: u64,
    ) -> Result<Outcome, NetError> {
        let range = content_range(&response).filter(|range| range.bytes.start == start);
        let range = range.ok_or_else(|| route.wrong_part())?;
        self.accept(route, &response, range.total).await?;
        let end = Some(range.bytes.end);
        let (at, result) = self.line(route).drain(response, start, end).await;
        result?;
        match range.total {
            _ if at == start => Err(route.wrong_part()),
            Some(total) if at >= total => Ok(Outcome::Whole(at)),
            None if at >= range.bytes.end => Ok(Outcome::Whole(at)),
            _ if route.gives_scraps(at - start) => Err(route.wrong_part()),
            _ => Ok(Outcome::More),
        }
    }

    /// The answer is the part that was asked for, or the beginning of it.
    async fn take_part(
        &mut self,
        route: &mut Route<'_>,
        response: Response,
        asked: Range<u64>,
    ) -> Result<Outcome, NetError> {
        let range = content_range(&response).ok_or_else(|| route.wrong_part())?;
        let part = range.bytes;
        let Some(size) = range.total else {
            return Err(route.wrong_part());
        };
        if part.start != asked.start || part.end > asked.end {
            return Err(route.wrong_part());
        }
        let is_alone = part == (0..size);
        let has_mark = Version::of(response.headers()).if_range().is_some()
            || self.known.version.if_range().is_some();
        if !is_alone && !self.transfer.is_compared() && !has_mark {
            // Nothing would tell whether parts belong together.
            return Err(route.wrong_part());
        }
        if part.end < asked.end.min(size) && route.gives_scraps(part.end - part.start) {
            return Err(route.wrong_part());
        }
        self.accept(route, &response, Some(size)).await?;
        let limits = self.net.limits();
        let mut there = self.collector().handed();
        there.insert(part.clone());
        let parts = there.missing(size, part_bytes(size, limits));
        let crew = Crew {
            line: self.line(route),
            parts: Mutex::new(parts.into()),
        };
        let connections = match size < limits.parallel_bytes {
            true => 1,
            false => route.connections,
        };
        let worked = crew.work(response, part, connections).await;
        if let Err(NetError::Status { .. }) = worked {
            route.connections = (route.connections / 2).max(1);
        }
        worked.map(|()| Outcome::More)
    }

    /// Checks that an answer is of the version that is known, or learns which version it is.
    async fn accept(
        &mut self,
        route: &Route<'_>,
        response: &Response,
        size: Option<u64>,
    ) -> Result<(), NetError> {
        route.check_encoding(response)?;
        if let Some(size) = size {
            route.check_size(size)?;
        }
        if self.known.url.is_empty() || self.collector().handed().is_empty() {
            return self.note(route, response, size).await;
        }
        route.check_version(response, &self.known.version)?;
        match self.known.size_bytes {
            None if size.is_some() => self.note(route, response, size).await,
            known if known == size => Ok(()),
            _ => Err(route.changed()),
        }
    }

    /// Learns which version comes from where.
    async fn note(
        &mut self,
        route: &Route<'_>,
        response: &Response,
        size_bytes: Option<u64>,
    ) -> Result<(), NetError> {
        self.known = Known {
            url: route.shown(),
            version: Version::of(response.headers()),
            size_bytes,
        };
        if let Some(size) = size_bytes {
            self.meter.set_total(size);
        }
        let header = Header {
            url: self.known.url.clone(),
            version: self.known.version.clone(),
            size_bytes,
        };
        let begun = self.collector().begin(header).await;
        begun.map_err(|error| route.keep(error))
    }

    fn line<'b>(&'b self, route: &'b Route<'b>) -> Line<'b> {
        Line {
            net: self.net,
            route,
            known: &self.known,
            collector: self.collector(),
            meter: &self.meter,
        }
    }
}

fn part_bytes(size: u64, limits: &Limits) -> u64 {
    if size < limits.parallel_bytes {
        return size.max(1);
    }
    let usual = (size / PARTS).clamp(limits.part_bytes, limits.part_bytes * LONGEST_PART);
    usual.max(size.div_ceil(MOST_PARTS))
}

/// The connections of a round.
struct Crew<'a> {
    line: Line<'a>,
    /// What nobody has asked for yet, in order.
    parts: Mutex<VecDeque<Range<u64>>>,
}

impl Crew<'_> {
    /// Fetches all parts, the first one being answered already.
    async fn work(
        &self,
        response: Response,
        part: Range<u64>,
        connections: usize,
    ) -> Result<(), NetError> {
        let more = self.left().min(connections.saturating_sub(1));
        let first = std::iter::once(Some((response, part)));
        let mut members: FuturesUnordered<_> = first
            .chain((0..more).map(|_| None))
            .map(|first| self.member(first))
            .collect();
        let mut failure = None;
        while let Some(result) = members.next().await {
            match result {
                Ok(()) => {}
                Err(error) if error.is_worth_retrying() => failure = Some(error),
                Err(error) => return Err(error),
            }
        }
        match failure {
            Some(error) if self.left() > 0 => Err(error),
            _ => Ok(()),
        }
    }

    /// One connection after the other, for one part after the other.
    async fn member(&self, mut first: Option<(Response, Range<u64>)>) -> Result<(), NetError> {
        loop {
            let (response, part) = match first.take() {
                Some(answered) => answered,
                None => match self.next_part() {
                    Some(part) => self.ask(part).await?,
                    None => return Ok(()),
                },
            };
            let (start, end) = (part.start, part.end);
            let (at, result) = self.line.drain(response, start, Some(end)).await;
            self.hand_back(at..end);
            match result {
                Ok(()) if at > start => {}
                Ok(()) => return Err(self.line.route.wrong_part()),
                Err(error @ NetError::Connection { .. })
                    if at > start && !self.line.route.gives_scraps(at - start) =>
                {
                    let pause = self.line.net.limits().pause(1, &error);
                    tokio::time::sleep(pause).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn ask(&self, part: Range<u64>) -> Result<(Response, Range<u64>), NetError> {
        match self.line.ask(&part).await {
            Ok((_, given))
                if given.end < part.end
                    && self.line.route.gives_scraps(given.end - given.start) =>
            {
                self.hand_back(part);
                Err(self.line.route.wrong_part())
            }
            Ok((response, given)) => {
                self.hand_back(given.end..part.end);
                Ok((response, given))
            }
            Err(error) => {
                self.hand_back(part);
                Err(error)
            }
        }
    }

    fn next_part(&self) -> Option<Range<u64>> {
        self.parts.lock().expect("no holder panics").pop_front()
    }

    fn hand_back(&self, part: Range<u64>) {
        if !part.is_empty() {
            let mut parts = self.parts.lock().expect("no holder panics");
            parts.push_front(part);
        }
    }

    fn left(&self) -> usize {
        self.parts.lock().expect("no holder panics").len()
    }
}
