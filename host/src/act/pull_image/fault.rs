//! What a runtime's own words mean when it could not pull an image.

use std::sync::LazyLock;

use regex::Regex;

use crate::{
    act::CommandFailure,
    fault::{Exit, Hint, hint},
};

/// What a runtime's failure to pull means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullFault {
    /// The disk is full.
    DiskFull,
    /// The registry does not give it to us.
    Unauthorized,
    /// The registry does not have it.
    NotFound,
    /// What came is not what its digest says.
    Damaged,
    /// The runtime's own policy does not take it.
    Rejected,
    /// The runtime wants encryption that the registry does not speak, or cannot check it.
    Tls,
    /// The registry could not be reached, or broke off.
    Network,
    /// The runtime itself does not work.
    Runtime,
    /// Something else.
    Other,
}

impl PullFault {
    /// Reads it from what podman or docker printed.
    pub(super) fn of(log: &str, disk_full: bool) -> Self {
        static SIGNS: LazyLock<Vec<(PullFault, Regex)>> = LazyLock::new(|| {
            use PullFault::{
                Damaged, DiskFull, Network, NotFound, Rejected, Runtime, Tls, Unauthorized,
            };
            [
                (DiskFull, "no space left on device|disk quota exceeded"),
                (
                    Rejected,
                    "source image rejected|rejected by policy|signature was required",
                ),
                (
                    Damaged,
                    "filesystem layer verification failed|digest did not match|digest mismatch|\
                     does not match (its )?digest|invalid checksum|invalid tar header|gzip: invalid|\
                     unexpected commit digest|size mismatch|blob size|failed size validation|\
                     corrupt|content integrity|unexpected end of (stream|file)",
                ),
                // Before what places say that were asked after such a mirror.
                (Tls, "server gave http response to https client"),
                (
                    Unauthorized,
                    "unauthorized|authentication required|no basic auth credentials|\
                     access (to the resource )?is denied|requested access|403 \\(?forbidden|\
                     incorrect username or password|invalid username/password",
                ),
                (
                    NotFound,
                    "manifest unknown|manifest for .* not found|name unknown|not found: manifest|\
                     repository .* not found|404 \\(?not found|blob unknown",
                ),
                (Tls, "x509:|tls: |certificate"),
                (
                    Runtime,
                    "cannot connect to the docker daemon|is the docker daemon running|\
                     newuidmap|cannot setup namespace|permission denied .*docker.sock",
                ),
                (
                    Network,
                    "connection refused|no such host|i/o timeout|timeout exceeded|deadline exceeded|\
                     network is unreachable|no route to host|dial tcp|connection reset|\
                     unexpected eof|toomanyrequests|too many requests|: eof|bad gateway|\
                     service unavailable|internal server error",
                ),
            ]
            .into_iter()
            .map(|(fault, pattern)| {
                let pattern = Regex::new(&format!("(?i){pattern}")).expect("a constant");
                (fault, pattern)
            })
            .collect()
        });
        if disk_full {
            return Self::DiskFull;
        }
        SIGNS
            .iter()
            .find(|(_, pattern)| pattern.is_match(log))
            .map_or(Self::Other, |(fault, _)| *fault)
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::DiskFull => "the disk is full",
            Self::Unauthorized => "the registry does not give it out",
            Self::NotFound => "the registry does not have it",
            Self::Damaged => "what arrived is not what its digest says",
            Self::Rejected => "the runtime's own policy does not take it",
            Self::Tls => "the registry's encryption is not accepted",
            Self::Network => "the registry could not be reached, or broke off",
            Self::Runtime => "the runtime does not work",
            Self::Other => "the runtime failed",
        }
    }

    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::DiskFull => "disk-full",
            Self::Unauthorized => "registry-unauthorized",
            Self::NotFound => "image-not-found",
            Self::Damaged => "digest-mismatch",
            Self::Rejected => "image-rejected",
            Self::Tls => "registry-tls",
            Self::Network => "connection",
            Self::Runtime => "no-container-runtime",
            Self::Other => "pull-failed",
        }
    }

    pub(super) fn exit(self) -> Exit {
        match self {
            Self::DiskFull => Exit::Storage,
            Self::Damaged => Exit::Verification,
            Self::Rejected => Exit::Refused,
            Self::Runtime => Exit::Unavailable,
            Self::Unauthorized | Self::NotFound | Self::Tls | Self::Network => Exit::Network,
            Self::Other => Exit::Step,
        }
    }

    /// What to do about a command that failed so.
    pub(super) fn hints(self, registry: &str, failure: &CommandFailure) -> Vec<Hint> {
        let first = match self {
            Self::Unauthorized => {
                let program = failure.command.split(' ').next().unwrap_or("podman");
                hint("log in", Some(&format!("{program} login {registry}")))
            }
            Self::DiskFull => hint(
                "free some space where the runtime keeps its images",
                Some("df -h"),
            ),
            Self::Tls => hint(
                "have the registry's certificate trusted, or mark it `insecure = true` in \
                 /etc/containers/registries.conf (docker: `insecure-registries` in daemon.json)",
                None,
            ),
            Self::Rejected => hint(
                "see what the runtime takes",
                Some("cat /etc/containers/policy.json"),
            ),
            Self::Runtime => hint("see what is wrong with it", Some("{host} doctor")),
            _ => return failure.hints(),
        };
        std::iter::once(first)
            .chain(failure.hints().into_iter().last())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_podman_and_docker_print_is_understood() {
        let cases = [
            (
                "Error: initializing source docker://localhost:5000/x@sha256:a: reading manifest sha256:a in localhost:5000/x: manifest unknown: manifest unknown",
                PullFault::NotFound,
            ),
            (
                "Error response from daemon: manifest for 127.0.0.1:5000/x@sha256:a not found: manifest unknown: manifest unknown",
                PullFault::NotFound,
            ),
            (
                "Error: initializing source docker://localhost:5000/x:1: reading manifest 1 in localhost:5000/x: unauthorized: authentication required",
                PullFault::Unauthorized,
            ),
            (
                "Error response from daemon: Head \"http://127.0.0.1:5000/v2/x/manifests/1\": no basic auth credentials",
                PullFault::Unauthorized,
            ),
            (
                "Error: writing blob: adding layer with blob \"sha256:a\": Error processing tar file(exit status 1): write /x: no space left on device",
                PullFault::DiskFull,
            ),
            (
                "filesystem layer verification failed for digest sha256:a",
                PullFault::Damaged,
            ),
            (
                "Error: writing blob: storing blob to file \"/var/tmp/storage1/1\": Digest did not match, expected sha256:a, got sha256:b",
                PullFault::Damaged,
            ),
            (
                "Error: pinging container registry localhost:5000: Get \"https://localhost:5000/v2/\": dial tcp [::1]:5000: connect: connection refused",
                PullFault::Network,
            ),
            (
                "pinging container registry x: Get \"https://x/v2/\": http: server gave HTTP response to HTTPS client",
                PullFault::Tls,
            ),
            (
                "Error: Source image rejected: Running image docker://x is rejected by policy.",
                PullFault::Rejected,
            ),
            (
                "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
                PullFault::Runtime,
            ),
            ("killed", PullFault::Other),
        ];
        for (log, fault) in cases {
            assert_eq!(PullFault::of(log, false), fault, "{log}");
        }
        assert_eq!(PullFault::of("", true), PullFault::DiskFull);
    }
}
