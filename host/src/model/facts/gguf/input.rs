//! Bounded reading of numbers and texts in either byte order.

use std::io::{ErrorKind, Read};

use super::{super::HeaderError, LIMIT_BYTES};

/// Bytes that are passed over at a time.
const PIECE: usize = 512;

/// A reader that counts, and reads no further than [`LIMIT_BYTES`].
pub(super) struct Input<R> {
    from: R,
    position: u64,
    big_endian: bool,
    /// The first bytes, looked at before they are taken.
    ahead: Vec<u8>,
}

impl<R: Read> Input<R> {
    pub(super) fn new(from: R) -> Self {
        Self {
            from,
            position: 0,
            big_endian: false,
            ahead: Vec::new(),
        }
    }

    /// Bytes taken so far.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    pub(super) fn big_endian(&self) -> bool {
        self.big_endian
    }

    /// From here on the high byte comes first.
    pub(super) fn swap(&mut self) {
        self.big_endian = true;
    }

    /// The first bytes, fewer where the file is shorter; they are still to be taken.
    pub(super) fn first<const N: usize>(&mut self) -> Result<Vec<u8>, HeaderError> {
        let mut from = self.from.by_ref().take(N as u64);
        from.read_to_end(&mut self.ahead)
            .map_err(|source| HeaderError::Io(source.kind()))?;
        Ok(self.ahead.clone())
    }

    /// Takes the first eight bytes: magic number and version, the latter in little endian. They have
    /// been looked at with [`Self::first`].
    pub(super) fn skip_magic_and_read_version(&mut self) -> u32 {
        let taken: Vec<u8> = self.ahead.drain(..8).collect();
        self.position += 8;
        u32::from_le_bytes([taken[4], taken[5], taken[6], taken[7]])
    }

    pub(super) fn fill(&mut self, bytes: &mut [u8]) -> Result<(), HeaderError> {
        let end = self.position + bytes.len() as u64;
        if end > LIMIT_BYTES {
            return Err(HeaderError::TooLong { limit: LIMIT_BYTES });
        }
        let kept = self.ahead.len().min(bytes.len());
        for (byte, ahead) in bytes.iter_mut().zip(self.ahead.drain(..kept)) {
            *byte = ahead;
        }
        self.from
            .read_exact(&mut bytes[kept..])
            .map_err(|source| match source.kind() {
                ErrorKind::UnexpectedEof => HeaderError::Truncated {
                    bytes: self.position,
                },
                kind => HeaderError::Io(kind),
            })?;
        self.position = end;
        Ok(())
    }

    /// Passes over bytes. A length that leads past the limit is refused before anything is read.
    pub(super) fn pass(&mut self, mut bytes: u64) -> Result<(), HeaderError> {
        if bytes > LIMIT_BYTES - self.position {
            return Err(HeaderError::TooLong { limit: LIMIT_BYTES });
        }
        let mut piece = [0; PIECE];
        while bytes > 0 {
            let now = bytes.min(PIECE as u64);
            self.fill(&mut piece[..usize::try_from(now).expect("a piece is small")])?;
            bytes -= now;
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], HeaderError> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        if self.big_endian {
            bytes.reverse();
        }
        Ok(bytes)
    }

    /// A number of one, two, four or eight bytes, without sign.
    pub(super) fn number(&mut self, width: u64) -> Result<u64, HeaderError> {
        Ok(match width {
            1 => self.array::<1>()?[0].into(),
            2 => u16::from_le_bytes(self.array()?).into(),
            4 => self.u32()?.into(),
            _ => self.u64()?,
        })
    }

    pub(super) fn u32(&mut self) -> Result<u32, HeaderError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, HeaderError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    /// A count that may not be larger than `limit`.
    pub(super) fn count(&mut self, what: &'static str, limit: u64) -> Result<u64, HeaderError> {
        match self.u64()? {
            count if count <= limit => Ok(count),
            count => Err(HeaderError::TooMany { what, count, limit }),
        }
    }

    /// A text of at most `limit` bytes, a small number; what is no UTF-8 in it is replaced.
    pub(super) fn text(&mut self, what: &'static str, limit: u64) -> Result<String, HeaderError> {
        let length = self.length(what, limit)?;
        let mut bytes = vec![0; usize::try_from(length).expect("limits of texts are small")];
        self.fill(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn pass_text(&mut self, what: &'static str, limit: u64) -> Result<(), HeaderError> {
        let length = self.length(what, limit)?;
        self.pass(length)
    }

    /// The length of a text.
    pub(super) fn length(&mut self, what: &'static str, limit: u64) -> Result<u64, HeaderError> {
        match self.u64()? {
            bytes if bytes <= limit => Ok(bytes),
            bytes => Err(HeaderError::TooMany {
                what: match what {
                    "a key" => "bytes in a key",
                    "the name of a tensor" => "bytes in the name of a tensor",
                    _ => "bytes in a text",
                },
                count: bytes,
                limit,
            }),
        }
    }
}
