//! Why it cannot be said what a model is.

use std::{io::ErrorKind, path::PathBuf};

use crate::{
    fault::{Exit, Fault, Hint, hint},
    net::NetError,
};

/// Why bytes are no header of a model. Says nothing of where they came from.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Another kind of file.
    #[error("begins with {begin}, not with `{magic}`: {guess}")]
    Magic {
        /// First bytes, printable.
        begin: String,
        /// What it should begin with.
        magic: &'static str,
        /// What it looks like.
        guess: &'static str,
    },
    /// It ends too early.
    #[error("ends within its own header, after {bytes} bytes")]
    Truncated {
        /// Bytes that could be read.
        bytes: u64,
    },
    /// The header alone is longer than any.
    #[error("has a header of more than {} MiB, which no model has", limit >> 20)]
    TooLong {
        /// The limit in bytes.
        limit: u64,
    },
    /// A version that is not read.
    #[error("is GGUF of version {version}; versions 2 and 3 are read")]
    Version {
        /// The version.
        version: u32,
    },
    /// A count beyond reason.
    #[error("claims {count} {what}, and at most {limit} make sense")]
    TooMany {
        /// What was counted.
        what: &'static str,
        /// The count.
        count: u64,
        /// The limit.
        limit: u64,
    },
    /// A type of value that the format does not have.
    #[error("has a value of type {kind}, which GGUF does not have")]
    ValueType {
        /// Its number.
        kind: u32,
    },
    /// Something else that cannot be.
    #[error("{0}")]
    Unsound(&'static str),
    /// No JSON, or not of the shape that it must have.
    #[error("cannot be read as {what}: {reason}")]
    Json {
        /// What it should be.
        what: &'static str,
        /// The parser's words.
        reason: String,
    },
    /// It could not be read.
    #[error("cannot be read: {0}")]
    Io(ErrorKind),
}

impl HeaderError {
    /// The error for a file that does not begin as it should, with a guess what it is.
    pub(super) fn magic(magic: &'static str, first: &[u8]) -> Self {
        let shown = &first[..first.len().min(16)];
        let begin = match shown {
            [] => "nothing".to_owned(),
            shown => format!("`{}`", shown.escape_ascii()),
        };
        Self::Magic {
            begin,
            magic,
            guess: guess(first),
        }
    }
}

/// What a file that is no model looks like.
fn guess(first: &[u8]) -> &'static str {
    let trimmed = first.trim_ascii_start();
    let lower = trimmed.to_ascii_lowercase();
    let is = |start: &[u8]| lower.starts_with(start);
    match () {
        () if first.is_empty() => "it is empty",
        () if is(b"<!doctype") || is(b"<html") || is(b"<?xml") => {
            "it looks like a web page, such as a server's error or a login"
        }
        () if is(b"version https://git") => {
            "it looks like a Git LFS pointer; the file itself is elsewhere (`git lfs pull`)"
        }
        () if is(b"{") || is(b"[") => "it looks like JSON, such as a server's error",
        () if first.starts_with(b"PK\x03\x04") => "it looks like a ZIP archive or a PyTorch file",
        () if first.starts_with(&[0x1f, 0x8b]) => "it looks like a gzip archive",
        () if first.starts_with(b"ggjt")
            || first.starts_with(b"tjgg")
            || first.starts_with(b"lmgg") =>
        {
            "it looks like GGML, the format before GGUF; convert the model anew"
        }
        () if first.get(8..).is_some_and(|rest| rest.starts_with(b"{\"")) => {
            "it looks like safetensors"
        }
        () if first.iter().all(|byte| *byte == 0) => {
            "zeros, as of a download that was never finished"
        }
        () => "it is another kind of file",
    }
}

/// Why it cannot be said what a model is.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// A file is not what it should be.
    #[error("{file} {reason}")]
    Header {
        /// Path or URL.
        file: String,
        /// Why.
        reason: HeaderError,
    },
    /// A file is shorter than its header says.
    #[error("{file} is cut off: its header tells of {needs} bytes, and it has {has}")]
    CutOff {
        /// Path or URL.
        file: String,
        /// Bytes that it must have.
        needs: u64,
        /// Bytes that it has.
        has: u64,
    },
    /// Parts are missing, or are not of one model.
    #[error("{file} is part {part} of {of}: {reason}")]
    Parts {
        /// Path or URL of a part.
        file: String,
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        of: u64,
        /// What is wrong.
        reason: String,
    },
    /// A file or directory cannot be read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A server did not give the first bytes.
    #[error("could not look at the first bytes of {file}")]
    Net {
        /// The URL, without what is secret.
        file: String,
        /// Why.
        source: Box<NetError>,
    },
}

impl FactsError {
    /// Whether this only says that it was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Self::Net { source, .. } if matches!(**source, NetError::Cancelled { .. }))
    }
}

impl Fault for FactsError {
    fn exit(&self) -> Exit {
        match self {
            Self::Header { .. } | Self::CutOff { .. } | Self::Parts { .. } => Exit::Verification,
            Self::Io { .. } => Exit::Storage,
            Self::Net { source, .. } => source.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::CutOff { .. } => vec![hint(
                "fetch it again: the download or copy was not finished",
                None,
            )],
            Self::Parts { .. } => vec![hint("fetch all parts into one directory", None)],
            Self::Net { source, .. } => source.hints(),
            Self::Header { .. } | Self::Io { .. } => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Header { .. } => "model-unreadable",
            Self::CutOff { .. } => "model-cut-off",
            Self::Parts { .. } => "model-parts",
            Self::Io { .. } => "io",
            Self::Net { source, .. } => source.kind(),
        }
    }
}
