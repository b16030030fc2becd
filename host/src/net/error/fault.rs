//! How a failure to fetch ends the program, and what helps.

use super::NetError;
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    process::quote,
};

impl Fault for NetError {
    fn exit(&self) -> Exit {
        match self {
            Self::Forbidden { .. } | Self::Insecure { .. } => Exit::Refused,
            Self::BadUrl { .. } | Self::BadDigest { .. } | Self::Setting { .. } => Exit::Config,
            Self::Mismatch { .. } | Self::Size { .. } | Self::TooLarge { .. } => Exit::Verification,
            Self::Store { source, .. } => source.exit(),
            Self::NotRenewed { source, .. } => source.exit(),
            Self::Sources { failures } => exit_of(failures),
            Self::Cancelled { .. } => Exit::Interrupted,
            _ => Exit::Network,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Connection { url, .. } => vec![hint(
                "see whether the host can be reached from here",
                Some(&format!("curl -sSIL {}", quote(url))),
            )],
            Self::Mismatch { .. } => vec![hint(
                "the file changed at its source or on the way: compare with what its publisher \
                 says before changing the expected digest",
                None,
            )],
            Self::Redirect { url, .. } => vec![hint(
                "see where it leads",
                Some(&format!("curl -sSIL {}", quote(url))),
            )],
            Self::Stalled { .. } => vec![hint(
                "run the same command again: what arrived is kept, and it goes on from there",
                None,
            )],
            Self::Changed { .. } => vec![hint(
                "wait until its publisher is done and run the same command again, or refer to a version that \
                 stays",
                None,
            )],
            Self::Encoded { .. } => vec![hint(
                "give a sha256 checksum, so that what is sent can be compared as it is",
                None,
            )],
            Self::Status {
                status: 429 | 503,
                retry_after: Some(asked),
                ..
            } => vec![hint(
                format!("the server asks to come back in {} s", asked.as_secs()),
                None,
            )],
            Self::Status {
                url,
                status: 404 | 410,
                ..
            } => vec![hint(
                "see whether it has moved",
                Some(&format!("curl -sSIL {}", quote(url))),
            )],
            Self::Status {
                status: 408 | 425 | 429 | 500..=599,
                ..
            } => vec![hint(
                "the server is busy or broken: run the same command again later",
                None,
            )],
            Self::Size { .. } => vec![hint(
                "the file changed at its source, or the server is wrong about it: compare with what its \
                 publisher says",
                None,
            )],
            Self::Sources { failures } => failures.iter().fold(Vec::new(), |mut all, failure| {
                let new = failure.hints().into_iter();
                let new: Vec<Hint> = new.filter(|hint| !all.contains(hint)).collect();
                all.extend(new);
                all
            }),
            Self::Insecure { .. } => vec![hint("use https, or give a sha256 checksum", None)],
            Self::Status {
                status: 401 | 403, ..
            } => vec![hint(
                "the server wants credentials for this file, or does not give it out",
                None,
            )],
            Self::Store { source, .. } => source.hints(),
            Self::NotRenewed { source, .. } => source.hints(),
            Self::Forbidden { source, .. } => source.hints(),
            _ => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Mismatch {
                expected, actual, ..
            } => vec![
                Detail::new("expected", expected.to_string()),
                Detail::new("actual", actual.to_string()),
            ],
            Self::Sources { failures } => failures
                .iter()
                .flat_map(|failure| {
                    let tried = Detail::new("tried", crate::narrate::chain(failure));
                    std::iter::once(tried).chain(failure.details())
                })
                .collect(),
            Self::Store { source, .. } => source.details(),
            Self::NotRenewed { source, .. } => source.details(),
            Self::Forbidden { source, .. } => source.details(),
            _ => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Forbidden { .. } => "host-forbidden",
            Self::Insecure { .. } => "insecure-url",
            Self::BadUrl { .. } => "bad-url",
            Self::BadDigest { .. } => "bad-digest",
            Self::Setting { .. } => "bad-setting",
            Self::Connection { .. } => "connection",
            Self::Status { .. } => "http-status",
            Self::Stalled { .. } => "stalled",
            Self::Redirect { .. } => "redirect",
            Self::WrongPart { .. } => "wrong-part",
            Self::Changed { .. } => "changed",
            Self::Sources { failures } => failures
                .iter()
                .find(|failure| failure.exit() == exit_of(failures))
                .map_or("sources", Fault::kind),
            Self::Encoded { .. } => "content-encoding",
            Self::TooLarge { .. } => "too-large",
            Self::Size { .. } => "size-mismatch",
            Self::Mismatch { .. } => "digest-mismatch",
            Self::NotInIndex { .. } => "not-in-index",
            Self::BadPage { .. } => "bad-page",
            Self::Store { source, .. } => source.kind(),
            Self::NotRenewed { source, .. } => source.kind(),
            Self::Cancelled { .. } => "cancelled",
        }
    }
}

fn exit_of(failures: &[NetError]) -> Exit {
    let codes: Vec<Exit> = failures.iter().map(Fault::exit).collect();
    Exit::of_places(&codes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_with_a_url_is_one_word_to_a_shell() {
        let url = || "https://host.test/$(id);x".to_owned();
        let moved = NetError::Redirect {
            url: url(),
            reason: "nowhere".to_owned(),
        };
        let gone = NetError::Status {
            url: url(),
            status: 404,
            retry_after: None,
        };
        for error in [moved, gone] {
            let command = error.hints().remove(0).command.unwrap();
            assert_eq!(command, "curl -sSIL 'https://host.test/$(id);x'");
        }
    }
}
