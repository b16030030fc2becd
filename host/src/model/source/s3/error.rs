//! What can go wrong with objects. No key, token or signature is in any of it.

use std::{io, path::PathBuf};

use super::super::NoChoice;
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    net::NetError,
    process::quote,
};

/// A failure to find out what an object is.
#[derive(Debug, thiserror::Error)]
pub enum S3Error {
    /// A file of settings or credentials cannot be read.
    #[error("cannot read {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file of settings or credentials cannot be understood.
    #[error("{} cannot be understood, line {line}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
    },
    /// The profile that the environment names is nowhere.
    #[error("there is no AWS profile `{profile}`")]
    NoProfile {
        /// Its name.
        profile: String,
        /// Files that were looked at.
        files: [PathBuf; 2],
    },
    /// A profile gets its keys in a way that is not served.
    #[error("AWS profile `{profile}` gets its keys by `{setting}`, which is not followed here")]
    Indirect {
        /// Its name.
        profile: String,
        /// The setting that says so.
        setting: &'static str,
    },
    /// A setting is not what it should be.
    #[error("{setting} {reason}")]
    Setting {
        /// The variable or the setting of a profile.
        setting: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A service that gives out keys did not.
    #[error("{from} gave no keys: {reason}")]
    NoKeys {
        /// The service.
        from: String,
        /// Why not.
        reason: String,
    },
    /// A service that gives out keys could not be asked.
    #[error("{from} could not be asked for keys")]
    Service {
        /// The service.
        from: String,
        /// Why not.
        #[source]
        source: Box<NetError>,
    },
    /// There is no such bucket.
    #[error("there is no bucket `{bucket}` at {endpoint}")]
    NoBucket {
        /// Its name.
        bucket: String,
        /// Host that was asked.
        endpoint: String,
    },
    /// There is no such object, version or prefix.
    #[error("there is no {what}")]
    NoObject {
        /// What was asked for.
        what: String,
        /// What shows what there is.
        list: String,
    },
    /// Another object lies there than when it was asked for first.
    #[error("{what} is another object by now")]
    Changed {
        /// What was asked for.
        what: String,
    },
    /// The server does not give it to us.
    #[error("access to {what} is denied")]
    Denied {
        /// What was asked for.
        what: String,
        /// Where the keys are from that were used; `None`: there were none.
        keys: Option<String>,
    },
    /// The secret key does not belong to the key that it is used with.
    #[error("{endpoint} refuses the signature: the secret key is wrong")]
    Signature {
        /// Host that was asked.
        endpoint: String,
        /// Where the keys are from.
        keys: Option<String>,
    },
    /// The server knows no such key.
    #[error("{endpoint} does not know the access key")]
    UnknownKey {
        /// Host that was asked.
        endpoint: String,
        /// Where it is from.
        keys: Option<String>,
    },
    /// Temporary keys, no longer valid.
    #[error("the temporary keys have expired")]
    Expired {
        /// Where they are from.
        keys: Option<String>,
    },
    /// The clocks differ by more than is accepted.
    #[error("{endpoint} refuses the signature: its clock shows {there}, the one here {here}")]
    Clock {
        /// Host that was asked.
        endpoint: String,
        /// Its time.
        there: String,
        /// Ours.
        here: String,
    },
    /// The bucket is elsewhere.
    #[error("bucket `{bucket}` is not in region `{region}`")]
    Region {
        /// The bucket.
        bucket: String,
        /// The region that was asked.
        region: String,
    },
    /// The object has to be brought back before it can be read.
    #[error("{what} is archived ({class}) and cannot be read")]
    Archived {
        /// The object.
        what: String,
        /// Its storage class.
        class: String,
        /// Bucket and key.
        object: (String, String),
    },
    /// Any other refusal.
    #[error("asked for {what}, {endpoint} answered {status} {code}")]
    Answer {
        /// What was asked for.
        what: String,
        /// Host that was asked.
        endpoint: String,
        /// Status.
        status: u16,
        /// The server's code for it.
        code: String,
        /// The server's words.
        message: String,
    },
    /// An answer that cannot be understood.
    #[error("asked for {what}, {endpoint} answered what cannot be understood: {reason}")]
    Garbled {
        /// What was asked for.
        what: String,
        /// Host that was asked.
        endpoint: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A name that cannot be a file's.
    #[error("the key `{key}` cannot be the name of a file")]
    Name {
        /// The key.
        key: String,
    },
    /// A prefix with more objects than a model has files.
    #[error("{what} has more than {limit} objects, which is no model")]
    TooMany {
        /// The prefix.
        what: String,
        /// The limit.
        limit: usize,
    },
    /// Several models, or none that the engine reads.
    #[error(transparent)]
    Choice(#[from] NoChoice),
    /// It could not be reached.
    #[error("{endpoint} could not be asked for {what}")]
    Net {
        /// What was asked for.
        what: String,
        /// Host that was asked.
        endpoint: String,
        /// Why.
        #[source]
        source: Box<NetError>,
    },
}

impl S3Error {
    /// Whether it only says that somebody ended it.
    pub(in crate::model) fn is_cancelled(&self) -> bool {
        let net = match self {
            Self::Net { source, .. } | Self::Service { source, .. } => source,
            _ => return false,
        };
        matches!(**net, NetError::Cancelled { .. })
    }
}

impl Fault for S3Error {
    fn exit(&self) -> Exit {
        match self {
            Self::Net { source, .. } | Self::Service { source, .. } => source.exit(),
            Self::Choice(inner) => inner.exit(),
            Self::NoBucket { .. } | Self::NoObject { .. } => Exit::NotFound,
            Self::Denied { .. }
            | Self::Signature { .. }
            | Self::UnknownKey { .. }
            | Self::Expired { .. }
            | Self::Clock { .. }
            | Self::Region { .. }
            | Self::Archived { .. }
            | Self::Answer { .. }
            | Self::Garbled { .. }
            | Self::Changed { .. }
            | Self::NoKeys { .. } => Exit::Network,
            _ => Exit::Config,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        let one = |text: &str, command: Option<&str>| vec![hint(text, command)];
        match self {
            Self::Unreadable { path, .. } => one(
                "let this user read it",
                Some(&format!("ls -l {}", quote(&path.to_string_lossy()))),
            ),
            Self::NoProfile { .. } => one(
                "set AWS_PROFILE to one that there is",
                Some("aws configure list-profiles"),
            ),
            Self::Indirect { profile, setting } => {
                let profile = quote(profile);
                let login = format!("aws sso login --profile {profile}");
                let export = format!(
                    "eval \"$(aws configure export-credentials --profile {profile} --format env)\"; \
                     unset AWS_PROFILE"
                );
                let mut hints = Vec::new();
                if setting.starts_with("sso") {
                    hints.push(hint("log in, unless you are", Some(&login)));
                }
                let text = "put the keys that it gives into the environment";
                hints.push(hint(text, Some(&export)));
                hints
            }
            Self::NoKeys { .. } => one(
                "see what AWS's own tool makes of it",
                Some("aws sts get-caller-identity"),
            ),
            Self::NoBucket { .. } => one(
                "check the bucket's name and, where it is not at AWS, AWS_ENDPOINT_URL_S3",
                None,
            ),
            Self::NoObject { list, .. } => one("see what there is", Some(list)),
            Self::Changed { .. } => one("run the same command again, to have the new one", None),
            Self::Denied { keys: None, .. } => one(
                "it is not public, and no keys were found: set AWS_ACCESS_KEY_ID and \
                 AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
                None,
            ),
            Self::Denied { .. } => one(
                "have its owner grant s3:GetObject (and s3:ListBucket, for a prefix) to these keys, or \
                 use others; who they are is told by",
                Some("aws sts get-caller-identity"),
            ),
            Self::Signature { .. } => one("set AWS_SECRET_ACCESS_KEY, or the file's, anew", None),
            Self::UnknownKey { .. } => one(
                "use a key of this server, or set AWS_ENDPOINT_URL_S3 to the server that it is for",
                None,
            ),
            Self::Expired { .. } => one("get new ones, for example with", Some("aws sso login")),
            Self::Clock { .. } => one("set this machine's clock", Some("timedatectl set-ntp true")),
            Self::Region { .. } => one("set AWS_REGION to the bucket's region", None),
            Self::Archived {
                object: (bucket, key),
                ..
            } => one(
                "have it brought back, which takes hours, then try again",
                Some(&format!(
                    "aws s3api restore-object --bucket {} --key {} --restore-request Days=2",
                    quote(bucket),
                    quote(key)
                )),
            ),
            Self::TooMany { .. } => one("name the model's own prefix", None),
            Self::Choice(inner) => inner.hints(),
            Self::Net { source, .. } | Self::Service { source, .. } => source.hints(),
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NoProfile { files, .. } => files
                .iter()
                .map(|file| Detail::new("looked in", file.display().to_string()))
                .collect(),
            Self::Denied { keys, .. }
            | Self::Signature { keys, .. }
            | Self::UnknownKey { keys, .. }
            | Self::Expired { keys } => {
                let from = keys.clone().unwrap_or_else(|| "none".to_owned());
                vec![Detail::new("keys", from)]
            }
            Self::Answer { message, .. } if !message.is_empty() => {
                vec![Detail::new("answer", message.clone())]
            }
            Self::Choice(inner) => inner.details(),
            Self::Net { source, .. } | Self::Service { source, .. } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } | Self::Malformed { .. } => "bad-aws-file",
            Self::NoProfile { .. } | Self::Indirect { .. } => "bad-aws-profile",
            Self::Setting { .. } => "bad-setting",
            Self::NoKeys { .. } => "no-aws-keys",
            Self::NoBucket { .. } => "no-such-bucket",
            Self::NoObject { .. } => "no-such-object",
            Self::Changed { .. } => "changed",
            Self::Denied { .. } => "access-denied",
            Self::Signature { .. } => "bad-signature",
            Self::UnknownKey { .. } => "unknown-access-key",
            Self::Expired { .. } => "expired-keys",
            Self::Clock { .. } => "clock-skew",
            Self::Region { .. } => "wrong-region",
            Self::Archived { .. } => "object-archived",
            Self::Answer { .. } => "http-status",
            Self::Garbled { .. } => "bad-s3-answer",
            Self::Name { .. } => "bad-object-name",
            Self::TooMany { .. } => "model-ambiguous",
            Self::Choice(inner) => inner.kind(),
            Self::Net { source, .. } | Self::Service { source, .. } => source.kind(),
        }
    }
}
