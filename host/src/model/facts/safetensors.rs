//! The header of a safetensors file: eight bytes of length, low byte first, then JSON.
//!
//! Source of the format: `README.md` of huggingface/safetensors. The JSON names every tensor with its
//! type, shape and place. It is read tensor by tensor and only sums are kept.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, Visitor},
};

use super::HeaderError;

/// Longest header that is read; the format itself allows 100 MB.
const LIMIT_BYTES: u64 = 64 << 20;

/// What a safetensors file says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Header {
    /// Numbers in all tensors.
    pub numbers: u64,
    /// Bytes of all tensors.
    pub tensor_bytes: u64,
    /// Bytes by type: `BF16`, `F8_E4M3`.
    pub by_type: BTreeMap<String, u64>,
    /// Where the last tensor ends, from the start of the file.
    pub end: u64,
}

impl Header {
    /// Reads a header from the first bytes of a file; [`HeaderError::Truncated`] where more are needed.
    pub fn read(bytes: &[u8]) -> Result<Self, HeaderError> {
        let truncated = HeaderError::Truncated {
            bytes: bytes.len() as u64,
        };
        let Some((length, rest)) = bytes.split_first_chunk() else {
            return Err(truncated);
        };
        let length = u64::from_le_bytes(*length);
        if rest.first().is_some_and(|first| *first != b'{') || length > u64::from(u32::MAX) {
            return Err(HeaderError::magic(
                "length and {",
                &bytes[..bytes.len().min(24)],
            ));
        }
        if length > LIMIT_BYTES {
            return Err(HeaderError::TooLong { limit: LIMIT_BYTES });
        }
        let json = usize::try_from(length)
            .ok()
            .and_then(|length| rest.get(..length));
        let Some(json) = json else {
            return Err(truncated);
        };
        let mut header: Self = serde_json::from_slice(json).map_err(|error| HeaderError::Json {
            what: "the header of a safetensors file",
            reason: error.to_string(),
        })?;
        header.end += length + 8;
        Ok(header)
    }

    /// The type that takes the most bytes.
    pub(super) fn usual_type(&self) -> Option<&str> {
        let most = self.by_type.iter().max_by_key(|(_, bytes)| **bytes);
        most.map(|(name, _)| name.as_str())
    }
}

#[derive(Deserialize)]
struct Tensor {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// Most types that are told apart; the format has some twenty.
const LIMIT_TYPES: usize = 64;

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Sums;
        impl<'de> Visitor<'de> for Sums {
            type Value = Header;

            fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
                to.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let tensor = map.next_value::<Tensor>()?;
                    let wrong = || serde::de::Error::custom(format!("tensor `{name}` cannot be"));
                    header.add(tensor).ok_or_else(wrong)?;
                }
                Ok(header)
            }
        }
        from.deserialize_map(Sums)
    }
}

impl Header {
    /// Counts a tensor; `None` where its numbers make no sense.
    fn add(&mut self, tensor: Tensor) -> Option<()> {
        let (start, end) = tensor.data_offsets;
        let bytes = end.checked_sub(start)?;
        let mut sizes = tensor.shape.iter();
        let numbers = sizes.try_fold(1_u64, |product, size| product.checked_mul(*size))?;
        self.numbers = self.numbers.checked_add(numbers)?;
        self.tensor_bytes = self.tensor_bytes.checked_add(bytes)?;
        // Room for the header's own length is left.
        self.end = self.end.max(end).min(i64::MAX.unsigned_abs());
        let known = self.by_type.len() < LIMIT_TYPES || self.by_type.contains_key(&tensor.dtype);
        if known {
            let sum = self.by_type.entry(tensor.dtype).or_default();
            *sum = sum.saturating_add(bytes);
        }
        Some(())
    }
}

/// Bytes of a number of a type, as `config.json` or a header calls it.
pub(super) fn width(dtype: &str) -> Option<u64> {
    match dtype.to_ascii_lowercase().as_str() {
        "f64" | "float64" => Some(8),
        "f32" | "float32" => Some(4),
        "f16" | "bf16" | "float16" | "bfloat16" => Some(2),
        _ => None,
    }
}
