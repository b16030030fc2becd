//! The header of a GGUF file: what the model is called and made of, and where each tensor lies.
//!
//! Source of the format: `docs/gguf.md` of ggml. A header is
//!
//! ```text
//! "GGUF"  version u32  tensors u64  pairs u64
//! pairs × { key: string  type u32  value }
//! tensors × { name: string  dimensions u32  sizes u64 …  type u32  offset u64 }
//! padding to `general.alignment` (32), then the tensors
//! ```
//!
//! with strings as `length u64` and bytes, all in one byte order, which the version tells: read in the
//! wrong one its low half is 0. Version 1 had shorter counts and is not read any more, by anybody.
//!
//! Nothing in it is believed: each count and length has a limit of its own, all of it together
//! [`LIMIT_BYTES`], and no memory is set aside for what was only announced. What is not needed, a
//! vocabulary above all, is passed over without being kept.

mod input;
mod types;
mod value;

use std::{collections::BTreeMap, io::Read};

use super::HeaderError;
use input::Input;
pub(super) use types::{TensorType, file_type_name};
pub use value::Value;

/// Longest header that is read. The largest known ones, with vocabularies of 260,000 tokens, have 20 MB.
pub const LIMIT_BYTES: u64 = 64 << 20;
/// Most pairs of a header; files have some dozens.
const LIMIT_PAIRS: u64 = 1 << 16;
/// Most tensors; the largest known models have some ten thousand.
const LIMIT_TENSORS: u64 = 1 << 20;
/// Most memory for what is kept of the pairs; files need some thousand bytes.
const LIMIT_KEPT: u64 = 4 << 20;
/// `GGML_MAX_DIMS`.
const LIMIT_DIMENSIONS: u32 = 4;
/// Longest name of a key, by the format.
const LIMIT_KEY: u64 = (1 << 16) - 1;
/// Longest name of a tensor; ggml itself keeps 64 bytes.
const LIMIT_NAME: u64 = 1 << 10;
/// `GGUF_DEFAULT_ALIGNMENT`.
const ALIGNMENT: u64 = 32;

/// What a GGUF file says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// Version of the format, 2 or 3.
    pub version: u32,
    /// Whether numbers are written with their high byte first.
    pub big_endian: bool,
    /// Small values by key; of an array of texts its length only, of long texts nothing.
    pub pairs: BTreeMap<String, Value>,
    /// Number of tensors in this file.
    pub tensors: u64,
    /// Numbers in all of them.
    pub parameters: u64,
    /// Bytes of all of them; absent where one has a type that is not known.
    pub tensor_bytes: Option<u64>,
    /// Bytes by type number, to see which is the most common. Those of unknown types count numbers.
    pub by_type: BTreeMap<u32, u64>,
    /// Where the last tensor ends, from the start of the file: it has at least this size.
    pub end: Option<u64>,
}

impl Header {
    /// Reads a header; stops where the tensors begin.
    pub fn read(from: impl Read) -> Result<Self, HeaderError> {
        let mut input = Input::new(from);
        let (version, big_endian) = start(&mut input)?;
        let tensors = input.count("tensors", LIMIT_TENSORS)?;
        let pairs = input.count("pairs", LIMIT_PAIRS)?;
        let mut header = Self {
            version,
            big_endian,
            tensors,
            tensor_bytes: Some(0),
            ..Self::default()
        };
        let mut kept = 0;
        for _ in 0..pairs {
            let key = input.text("a key", LIMIT_KEY)?;
            let Some(value) = value::read(&mut input)? else {
                continue;
            };
            kept += key.len() as u64 + value.kept_bytes();
            if kept > LIMIT_KEPT {
                return Err(HeaderError::TooMany {
                    what: "bytes of small values",
                    count: kept,
                    limit: LIMIT_KEPT,
                });
            }
            header.pairs.insert(key, value);
        }
        let mut end = Some(0);
        for _ in 0..tensors {
            let tensor = tensor(&mut input)?;
            let tensor_end = header.add(&tensor)?;
            end = end
                .zip(tensor_end)
                .map(|(one, other): (u64, u64)| one.max(other));
        }
        header.end = match (tensors, end) {
            (0, _) => Some(input.position()),
            (_, Some(end)) => header.begin(input.position())?.checked_add(end),
            (_, None) => None,
        };
        Ok(header)
    }

    /// A number by its key.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        self.pairs.get(key)?.number()
    }

    /// A text by its key.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        self.pairs.get(key)?.text()
    }

    /// Counts a tensor; gives its end from the beginning of all tensors.
    fn add(&mut self, tensor: &Tensor) -> Result<Option<u64>, HeaderError> {
        let overflow = || HeaderError::Unsound("has more numbers than can be counted");
        let bytes = tensor.bytes()?;
        self.parameters = self
            .parameters
            .checked_add(tensor.numbers)
            .ok_or_else(overflow)?;
        self.tensor_bytes = match (self.tensor_bytes, bytes) {
            (Some(sum), Some(bytes)) => Some(sum.checked_add(bytes).ok_or_else(overflow)?),
            _ => None,
        };
        let of_type = self.by_type.entry(tensor.type_number).or_default();
        *of_type = of_type.saturating_add(bytes.unwrap_or(tensor.numbers));
        bytes
            .map(|bytes| tensor.offset.checked_add(bytes).ok_or_else(overflow))
            .transpose()
    }

    /// Where the tensors begin, when the header ends at `position`.
    fn begin(&self, position: u64) -> Result<u64, HeaderError> {
        let alignment = self.number("general.alignment").unwrap_or(ALIGNMENT);
        if !alignment.is_power_of_two() || alignment > LIMIT_BYTES {
            return Err(HeaderError::Unsound(
                "has an alignment that is no power of two",
            ));
        }
        Ok(position.next_multiple_of(alignment))
    }
}

/// Reads the magic number and the version, and with it the byte order.
fn start<R: Read>(input: &mut Input<R>) -> Result<(u32, bool), HeaderError> {
    let first = input.first::<24>()?;
    if !first.starts_with(b"GGUF") {
        return Err(HeaderError::magic("GGUF", &first));
    }
    if first.len() < 24 {
        return Err(HeaderError::Truncated {
            bytes: first.len() as u64,
        });
    }
    let version = input.skip_magic_and_read_version();
    if version & 0xffff == 0 && version != 0 {
        input.swap();
    }
    let version = if input.big_endian() {
        version.swap_bytes()
    } else {
        version
    };
    match version {
        2 | 3 => Ok((version, input.big_endian())),
        version => Err(HeaderError::Version { version }),
    }
}

struct Tensor {
    numbers: u64,
    row: u64,
    type_number: u32,
    offset: u64,
}

impl Tensor {
    /// Its size; `None` for a type that is not known.
    fn bytes(&self) -> Result<Option<u64>, HeaderError> {
        let Some(kind) = TensorType::find(self.type_number) else {
            return Ok(None);
        };
        if !self.row.is_multiple_of(kind.block) {
            return Err(HeaderError::Unsound(
                "has a tensor whose rows are no whole blocks",
            ));
        }
        (self.numbers / kind.block)
            .checked_mul(kind.block_bytes)
            .map(Some)
            .ok_or(HeaderError::Unsound("has a tensor larger than any memory"))
    }
}

fn tensor<R: Read>(input: &mut Input<R>) -> Result<Tensor, HeaderError> {
    input.pass_text("the name of a tensor", LIMIT_NAME)?;
    let dimensions = input.u32()?;
    if dimensions > LIMIT_DIMENSIONS {
        return Err(HeaderError::TooMany {
            what: "dimensions of a tensor",
            count: dimensions.into(),
            limit: LIMIT_DIMENSIONS.into(),
        });
    }
    let (mut numbers, mut row) = (1_u64, 1);
    for index in 0..dimensions {
        let size = input.u64()?;
        if index == 0 {
            row = size;
        }
        numbers = numbers
            .checked_mul(size)
            .filter(|numbers| i64::try_from(*numbers).is_ok())
            .ok_or(HeaderError::Unsound("has a tensor larger than any memory"))?;
    }
    Ok(Tensor {
        numbers,
        row,
        type_number: input.u32()?,
        offset: input.u64()?,
    })
}

#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
