//! What host and worker say to each other: frames on a stream socket.
//!
//! A frame is its length (four bytes, little endian, counting kind and payload), one byte of kind,
//! and the payload. Documents travel as they are, so that a plan is not quoted inside JSON again.
//!
//! | direction | kind | payload |
//! |---|---|---|
//! | host | `O` open | JSON [`Terms`]; the library's descriptor comes with its first byte |
//! | worker | `S` sandboxed | JSON [`Sandbox`](super::Sandbox): what holds before any foreign code runs |
//! | host | `L` load | empty |
//! | worker | `R` ready | empty |
//! | worker | `F` failed | JSON [`LoadFailure`](crate::provider::load::LoadFailure) |
//! | host | `C` call | entry, a zero byte, document |
//! | worker | `A` answer | document |
//! | worker | `E` error | `ProviderError` document |
//! | host | `Q` quit | empty; the provider is dropped |
//! | worker | `B` bye | empty; the last frame |

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};

/// Version of this protocol; both sides are normally one binary, but the worker's path can be set.
pub(super) const PROTOCOL: u32 = 1;

/// Largest frame accepted by either side.
pub(super) const LARGEST_FRAME_BYTES: usize = 64 * 1024 * 1024;

/// Kinds of frames, as on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    Open = b'O',
    Sandboxed = b'S',
    Load = b'L',
    Ready = b'R',
    Failed = b'F',
    Call = b'C',
    Answer = b'A',
    Error = b'E',
    Quit = b'Q',
    Bye = b'B',
}

impl Kind {
    pub(super) fn of(byte: u8) -> Option<Self> {
        [
            Self::Open,
            Self::Sandboxed,
            Self::Load,
            Self::Ready,
            Self::Failed,
            Self::Call,
            Self::Answer,
            Self::Error,
            Self::Quit,
            Self::Bye,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == byte)
    }
}

/// What a worker is told before it shuts itself in.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Terms {
    /// [`PROTOCOL`] of the host.
    pub(super) protocol: u32,
    /// Whether a root worker gives its rights up.
    pub(super) drop_user: bool,
    /// Whether the descriptor is a copy in memory, which no file rule can name and none needs to.
    pub(super) in_memory: bool,
}

/// Length and kind of a frame.
pub(super) const HEADER_BYTES: usize = 5;

/// Reads a header: the kind and the payload's length; an error says what is wrong with it.
pub(super) fn read_header(header: [u8; HEADER_BYTES]) -> Result<(Kind, usize), String> {
    let [a, b, c, d, kind] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length == 0 || length > LARGEST_FRAME_BYTES {
        return Err(format!("a frame of {length} bytes"));
    }
    match Kind::of(kind) {
        Some(kind) => Ok((kind, length - 1)),
        None => Err(format!("a frame of unknown kind {kind:#04x}")),
    }
}

/// A whole frame; `None` when it would be too large.
pub(super) fn frame(kind: Kind, parts: &[&[u8]]) -> Option<Vec<u8>> {
    let length = 1 + parts.iter().map(|part| part.len()).sum::<usize>();
    if length > LARGEST_FRAME_BYTES {
        return None;
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + length);
    bytes.extend(u32::try_from(length).ok()?.to_le_bytes());
    bytes.push(kind as u8);
    for part in parts {
        bytes.extend_from_slice(part);
    }
    Some(bytes)
}

/// Splits the payload of a call into entry and document.
pub(super) fn split_call(payload: &[u8]) -> Option<(&str, &str)> {
    std::str::from_utf8(payload).ok()?.split_once('\0')
}

/// Reads one frame, waiting for it; the worker's side.
pub(super) fn receive(stream: &mut impl Read) -> io::Result<(Kind, Vec<u8>)> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header)?;
    let (kind, length) = read_header(header).map_err(io::Error::other)?;
    let mut payload = vec![0; length];
    stream.read_exact(&mut payload)?;
    Ok((kind, payload))
}

/// Writes one frame; the worker's side.
pub(super) fn send(stream: &mut impl Write, kind: Kind, payload: &[u8]) -> io::Result<()> {
    let bytes = frame(kind, &[payload])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "frame too large"))?;
    stream.write_all(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_as_it_went() {
        let bytes = frame(Kind::Call, &[b"plan", b"\0", b"{}"]).unwrap();
        let (kind, payload) = receive(&mut &bytes[..]).unwrap();
        assert_eq!(kind, Kind::Call);
        assert_eq!(split_call(&payload), Some(("plan", "{}")));
    }

    #[test]
    fn oversized_and_unknown_frames_are_refused_before_their_payload_is_read() {
        assert!(read_header([0xff, 0xff, 0xff, 0xff, b'A']).is_err());
        assert!(read_header([0, 0, 0, 0, b'A']).is_err());
        assert!(read_header([1, 0, 0, 0, b'?']).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic_the_reader(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..64)) {
            let _ = receive(&mut &bytes[..]);
        }
    }
}
