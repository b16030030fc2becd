//! Why a manager cannot be served.

use std::{io, net::SocketAddr, path::PathBuf};

use crate::fault::{Exit, Fault, Hint, hint};

/// Why a door could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The address is taken or not ours.
    #[error("HTTP cannot be served on {address}")]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// The socket cannot be made.
    #[error("the socket {} cannot be made", path.display())]
    Socket {
        /// Path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another daemon serves this home.
    #[error("a daemon serves {} already", path.display())]
    AlreadyServed {
        /// Its socket.
        path: PathBuf,
    },
    /// The file of the token cannot be used.
    #[error("the token in {} cannot be used", path.display())]
    TokenFile {
        /// Path.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A token that would not protect.
    #[error("a token has at least {shortest} visible characters and no blanks")]
    BadToken {
        /// Fewest characters.
        shortest: usize,
    },
}

impl Fault for ApiError {
    fn exit(&self) -> Exit {
        match self {
            Self::Listen { .. } => Exit::Unavailable,
            Self::Socket { .. } | Self::TokenFile { .. } => Exit::Storage,
            Self::AlreadyServed { .. } => Exit::Busy,
            Self::BadToken { .. } => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Listen { .. } => vec![hint(
                "serve elsewhere",
                Some("{host} serve --listen 127.0.0.1:0"),
            )],
            Self::AlreadyServed { .. } => vec![
                hint("see what it runs", Some("{host} status")),
                hint("end it", Some("{host} down --daemon")),
            ],
            Self::BadToken { .. } => vec![hint(
                "make one and put it where this one came from: HOST_API_TOKEN or the file of the token",
                Some("openssl rand -hex 32"),
            )],
            Self::TokenFile { path, .. } => vec![hint(
                "let you alone read it",
                Some(&format!("chmod 600 {}", path.display())),
            )],
            Self::Socket { .. } => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Listen { .. } => "listen-failed",
            Self::Socket { .. } => "socket-failed",
            Self::AlreadyServed { .. } => "already-served",
            Self::TokenFile { .. } => "token-file",
            Self::BadToken { .. } => "bad-token",
        }
    }
}
