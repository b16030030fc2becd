//! Values of a GGUF header: what is small is kept, the rest is passed over.

use std::io::Read;

use super::{super::HeaderError, LIMIT_BYTES, input::Input};

/// Longest text that is kept. Chat templates are longer, and say nothing here.
const KEPT_TEXT: u64 = 256;
/// Longest array of numbers that is kept: one per layer.
const KEPT_NUMBERS: u64 = 4096;
/// Deepest nesting of arrays; none is known that has any.
const DEPTH: u32 = 4;

/// A value of a header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A whole number that is not negative, or a truth value.
    Number(u64),
    /// A short text.
    Text(String),
    /// A short array of such numbers.
    Numbers(Vec<u64>),
    /// Length of any other array.
    Length(u64),
}

impl Value {
    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Memory that it takes, about.
    pub(super) fn kept_bytes(&self) -> u64 {
        let extra = match self {
            Self::Text(text) => text.len(),
            Self::Numbers(numbers) => numbers.len() * size_of::<u64>(),
            Self::Number(_) | Self::Length(_) => 0,
        };
        (size_of::<Self>() + extra) as u64
    }

    /// Number of entries of an array.
    pub(in crate::model::facts) fn length(&self) -> Option<u64> {
        match self {
            Self::Numbers(numbers) => Some(numbers.len() as u64),
            Self::Length(length) => Some(*length),
            _ => None,
        }
    }
}

/// `enum gguf_type` of ggml's `gguf.h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Bytes of a number, and whether it has a sign.
    Whole(u64, bool),
    Float(u64),
    Text,
    Array,
}

impl Kind {
    fn read<R: Read>(input: &mut Input<R>) -> Result<Self, HeaderError> {
        Ok(match input.u32()? {
            // 7 is a truth value.
            0 | 7 => Self::Whole(1, false),
            1 => Self::Whole(1, true),
            2 => Self::Whole(2, false),
            3 => Self::Whole(2, true),
            4 => Self::Whole(4, false),
            5 => Self::Whole(4, true),
            6 => Self::Float(4),
            8 => Self::Text,
            9 => Self::Array,
            10 => Self::Whole(8, false),
            11 => Self::Whole(8, true),
            12 => Self::Float(8),
            kind => return Err(HeaderError::ValueType { kind }),
        })
    }

    /// Least bytes that a value takes.
    fn least(self) -> u64 {
        match self {
            Self::Whole(width, _) | Self::Float(width) => width,
            Self::Text => 8,
            Self::Array => 12,
        }
    }
}

/// Reads the value of a key, `None` where it is of no use here.
pub(super) fn read<R: Read>(input: &mut Input<R>) -> Result<Option<Value>, HeaderError> {
    Ok(match Kind::read(input)? {
        Kind::Whole(width, signed) => whole(input, width, signed)?.map(Value::Number),
        Kind::Float(width) => {
            input.pass(width)?;
            None
        }
        Kind::Text => {
            let length = input.length("a text", LIMIT_BYTES)?;
            if length > KEPT_TEXT {
                input.pass(length)?;
                None
            } else {
                let mut bytes = vec![0; usize::try_from(length).expect("it is short")];
                input.fill(&mut bytes)?;
                Some(Value::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
        }
        Kind::Array => Some(array(input, DEPTH)?),
    })
}

/// A number; `None` where it is negative.
fn whole<R: Read>(
    input: &mut Input<R>,
    width: u64,
    signed: bool,
) -> Result<Option<u64>, HeaderError> {
    let number = input.number(width)?;
    let negative = signed && number >> (width * 8 - 1) == 1;
    Ok((!negative).then_some(number))
}

fn array<R: Read>(input: &mut Input<R>, depth: u32) -> Result<Value, HeaderError> {
    if depth == 0 {
        return Err(HeaderError::Unsound("has arrays within arrays, too deep"));
    }
    let kind = Kind::read(input)?;
    let length = input.count("entries of an array", LIMIT_BYTES / kind.least())?;
    match kind {
        Kind::Whole(width, signed) if length <= KEPT_NUMBERS => {
            let mut numbers = Vec::new();
            for _ in 0..length {
                numbers.push(whole(input, width, signed)?.unwrap_or_default());
            }
            return Ok(Value::Numbers(numbers));
        }
        Kind::Whole(width, _) | Kind::Float(width) => input.pass(length * width)?,
        Kind::Text => {
            for _ in 0..length {
                input.pass_text("a text", LIMIT_BYTES)?;
            }
        }
        Kind::Array => {
            for _ in 0..length {
                array(input, depth - 1)?;
            }
        }
    }
    Ok(Value::Length(length))
}
