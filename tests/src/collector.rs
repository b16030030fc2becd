//! A collector of OpenTelemetry: takes traces over OTLP/HTTP and shows what it got.

use std::{
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{KeyValue, any_value::Value},
    trace::v1::Span,
};
use prost::Message as _;

/// What is answered once something is kept.
const TAKEN: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";

/// A collector that keeps what it was sent, until the test's process ends.
pub struct Collector {
    address: SocketAddr,
    got: Arc<Mutex<Vec<Delivery>>>,
}

/// One request.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Request line and headers.
    pub head: String,
    /// As it came.
    pub body: Vec<u8>,
}

/// A span, as tests look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedSpan {
    /// Its name, for example `step build`.
    pub name: String,
    /// Trace, 32 hexadecimal digits.
    pub trace: String,
    /// Its own name in the trace, 16 digits.
    pub id: String,
    /// What it is part of; empty: nothing.
    pub parent: String,
    /// Attributes as text.
    pub attributes: BTreeMap<String, String>,
    /// Names of its events, in order.
    pub events: Vec<String>,
    /// Message of its failure, if it failed.
    pub failure: Option<String>,
    /// Nanoseconds since the epoch: begin and end.
    pub time: (u64, u64),
}

impl Collector {
    /// Begins to listen.
    ///
    /// # Panics
    ///
    /// When no port is left.
    #[must_use]
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let got = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&got);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if let Ok(delivery) = take(&stream) {
                    kept.lock().unwrap().push(delivery);
                    // Whoever has the answer may look for it.
                    let _ = (&stream).write_all(TAKEN);
                }
            }
        });
        Self { address, got }
    }

    /// What `OTEL_EXPORTER_OTLP_ENDPOINT` has to be.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Every request so far.
    ///
    /// # Panics
    ///
    /// When the collector has.
    #[must_use]
    pub fn deliveries(&self) -> Vec<Delivery> {
        self.got.lock().unwrap().clone()
    }

    /// Every span so far, by when it began.
    ///
    /// # Panics
    ///
    /// When what came is no request of the protocol.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        let mut spans = Vec::new();
        for delivery in self.deliveries() {
            let request = ExportTraceServiceRequest::decode(delivery.body.as_slice()).unwrap();
            let scopes = request
                .resource_spans
                .into_iter()
                .flat_map(|it| it.scope_spans);
            spans.extend(scopes.flat_map(|it| it.spans).map(read));
        }
        spans.sort_by_key(|span| span.time.0);
        spans
    }

    /// Attributes of whoever sent the first request.
    ///
    /// # Panics
    ///
    /// When nothing came.
    #[must_use]
    pub fn resource(&self) -> BTreeMap<String, String> {
        let first = self
            .deliveries()
            .first()
            .expect("something was sent")
            .clone();
        let mut request = ExportTraceServiceRequest::decode(first.body.as_slice()).unwrap();
        attributes(
            request
                .resource_spans
                .remove(0)
                .resource
                .unwrap()
                .attributes,
        )
    }
}

fn read(span: Span) -> CollectedSpan {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    CollectedSpan {
        trace: hex(&span.trace_id),
        id: hex(&span.span_id),
        parent: hex(&span.parent_span_id),
        attributes: attributes(span.attributes),
        events: span.events.into_iter().map(|event| event.name).collect(),
        // 2 is STATUS_CODE_ERROR.
        failure: span.status.filter(|it| it.code == 2).map(|it| it.message),
        time: (span.start_time_unix_nano, span.end_time_unix_nano),
        name: span.name,
    }
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: KeyValue| match value.value.and_then(|it| it.value) {
        Some(Value::StringValue(text)) => (value.key, text),
        other => (value.key, format!("{other:?}")),
    };
    all.into_iter().map(text).collect()
}

fn take(mut stream: &TcpStream) -> std::io::Result<Delivery> {
    let mut request = Vec::new();
    let mut block = [0; 4096];
    let end_of_head = |request: &[u8]| request.windows(4).position(|end| end == b"\r\n\r\n");
    let (head, length) = loop {
        if let Some(end) = end_of_head(&request) {
            let head = String::from_utf8_lossy(&request[..end]).to_lowercase();
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: "));
            break (end + 4, length.map_or(0, |length| length.parse().unwrap()));
        }
        let read = stream.read(&mut block)?;
        if read == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        request.extend_from_slice(&block[..read]);
    };
    let mut body = vec![0; head + length - request.len().min(head + length)];
    stream.read_exact(&mut body)?;
    request.extend(body);
    let body = request.split_off(head);
    Ok(Delivery {
        head: String::from_utf8_lossy(&request).into_owned(),
        body,
    })
}
