//! What can go wrong with an image, and what the runtime's own words mean.

use std::{path::PathBuf, sync::LazyLock};

use regex::Regex;

use crate::{
    act::CommandFailure,
    container::{ContainerError, ReferenceError, RegistryError, reference::DOCKER_HUB},
    fault::{Detail, Exit, Fault, Hint, hint},
    process::quote,
    store::human_bytes,
};

/// Why an image could not be obtained.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// It has no name.
    #[error(transparent)]
    Reference(ReferenceError),
    /// There is no runtime for it.
    #[error(transparent)]
    Runtime(ContainerError),
    /// It is not here, and its registry does not say what it is.
    #[error("image {image} is not here yet, and its registry could not be asked for it")]
    Absent {
        /// The image.
        image: String,
        /// Why.
        #[source]
        source: Box<RegistryError>,
    },
    /// It is another one than the pool pins.
    #[error("{image}{} is not the image that is pinned", tag.as_ref().map(|tag| format!(":{tag}")).unwrap_or_default())]
    Pinned {
        /// Its repository.
        image: String,
        /// The tag that was asked for.
        tag: Option<String>,
        /// Digest that the pool or its provider pins.
        pinned: String,
        /// Digest of this platform's image now.
        found: String,
        /// Digest of the index now.
        index: Option<String>,
    },
    /// The driver is too old for it.
    #[error("{image} needs a newer driver than this machine has")]
    Driver {
        /// The image.
        image: String,
        /// What it needs, in the words of `NVIDIA_REQUIRE_CUDA`.
        needs: String,
        /// What there is.
        has: String,
    },
    /// There is no room for it.
    #[error("there is no space for {image} in {}", place.display())]
    Space {
        /// The image.
        image: String,
        /// Where its runtime keeps images.
        place: PathBuf,
        /// Bytes that its layers take at least.
        needed_bytes: u64,
        /// Bytes that are free.
        free_bytes: u64,
    },
    /// Files are taken out of an image that has no digest.
    #[error("files are taken only out of images by digest, and {image} has none")]
    Unpinned {
        /// The image.
        image: String,
    },
    /// A program of it needs a newer C library.
    #[error("`{file}` of {image} needs glibc {needs}, and this machine has {has}")]
    Library {
        /// The image's repository.
        image: String,
        /// The program, or a library beside it.
        file: String,
        /// Version it needs.
        needs: String,
        /// Version here.
        has: String,
    },
    /// The runtime did not get it.
    #[error("{image} could not be pulled: {}", fault.words())]
    Pull {
        /// The image, by digest.
        image: String,
        /// Its registry.
        registry: String,
        /// What that means.
        fault: PullFault,
        /// The command.
        failure: Box<CommandFailure>,
    },
    /// The runtime shows something else than it was told to pull.
    #[error("{runtime} does not have {image} after pulling it: {reason}")]
    Unverified {
        /// The image, by digest.
        image: String,
        /// The runtime.
        runtime: String,
        /// What it shows instead.
        reason: String,
    },
}

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
                (
                    Tls,
                    "server gave http response to https client|x509:|tls: |certificate",
                ),
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

    fn words(self) -> &'static str {
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

    fn kind(self) -> &'static str {
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

    fn exit(self) -> Exit {
        match self {
            Self::DiskFull => Exit::Storage,
            Self::Damaged => Exit::Verification,
            Self::Rejected => Exit::Refused,
            Self::Runtime => Exit::Unavailable,
            Self::Unauthorized | Self::NotFound | Self::Tls | Self::Network => Exit::Network,
            Self::Other => Exit::Step,
        }
    }
}

impl ImageError {
    /// Whether it only says that somebody ended it.
    pub(crate) fn is_cancelled(&self) -> bool {
        matches!(self, Self::Absent { source, .. } if source.is_cancelled())
    }
}

impl Fault for ImageError {
    fn exit(&self) -> Exit {
        match self {
            Self::Reference(inner) => inner.exit(),
            Self::Runtime(inner) => inner.exit(),
            Self::Absent { source, .. } => source.exit(),
            Self::Pinned { .. } | Self::Unverified { .. } => Exit::Verification,
            Self::Driver { .. } | Self::Library { .. } => Exit::Unavailable,
            Self::Unpinned { .. } => Exit::Config,
            Self::Space { .. } => Exit::Storage,
            Self::Pull { fault, .. } => fault.exit(),
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::Reference(inner) => inner.hints(),
            Self::Runtime(inner) => inner.hints(),
            Self::Absent { source, .. } => source.hints(),
            Self::Pinned { tag, found, .. } => {
                let mut all = vec![hint(
                    format!(
                        "if the publisher says so, pin what there is now: write `digest: {found}` \
                         in the pool's container settings"
                    ),
                    None,
                )];
                if tag.is_some() {
                    let text = "to keep the pinned image whatever the tag says, leave `tag` out";
                    all.push(hint(text, None));
                }
                all
            }
            Self::Driver { .. } => vec![
                hint("update the driver", Some("nvidia-smi")),
                hint(
                    "or choose a tag of the image that is made for this driver",
                    None,
                ),
            ],
            Self::Pull {
                fault,
                registry,
                failure,
                ..
            } => pull_hints(*fault, registry, failure),
            Self::Space { place, .. } => vec![hint(
                "free some space there",
                Some(&format!("df -h {}", quote(&place.to_string_lossy()))),
            )],
            Self::Unpinned { image } => vec![hint(
                "write its digest into the pool file, as `digest: sha256:…`",
                Some(&format!(
                    "podman image inspect --format '{{{{.RepoDigests}}}}' {image}"
                )),
            )],
            Self::Library { .. } => vec![hint(
                "run the image as it is, with `mode: container`, or build with `mode: source`",
                None,
            )],
            Self::Unverified { .. } => vec![hint(
                "run it again; if it stays, the runtime's storage may be damaged",
                None,
            )],
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::Reference(inner) => inner.details(),
            Self::Runtime(inner) => inner.details(),
            Self::Absent { source, .. } => source.details(),
            Self::Pinned {
                pinned,
                found,
                index,
                ..
            } => {
                let mut all = vec![
                    Detail::new("pinned", pinned.clone()),
                    Detail::new("found", found.clone()),
                ];
                let index = index.clone();
                all.extend(index.map(|index| Detail::new("index", index)));
                all
            }
            Self::Driver { needs, has, .. } => vec![
                Detail::new("needs", needs.clone()),
                Detail::new("has", has.clone()),
            ],
            Self::Pull { failure, .. } => failure.details(),
            Self::Space {
                needed_bytes,
                free_bytes,
                ..
            } => vec![
                Detail::new("free", human_bytes(*free_bytes)),
                Detail::new("needed", format!("{} at least", human_bytes(*needed_bytes))),
            ],
            Self::Unpinned { .. } | Self::Library { .. } | Self::Unverified { .. } => Vec::new(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Reference(inner) => inner.kind(),
            Self::Runtime(inner) => inner.kind(),
            Self::Absent { source, .. } => source.kind(),
            Self::Pinned { .. } => "digest-mismatch",
            Self::Driver { .. } => "driver-too-old",
            Self::Space { .. } => "disk-full",
            Self::Unpinned { .. } => "unpinned-image",
            Self::Library { .. } => "library-too-old",
            Self::Pull { fault, .. } => fault.kind(),
            Self::Unverified { .. } => "image-unverified",
        }
    }
}

fn pull_hints(fault: PullFault, registry: &str, failure: &CommandFailure) -> Vec<Hint> {
    let first = match fault {
        PullFault::Unauthorized => {
            let program = failure.command.split(' ').next().unwrap_or("podman");
            let registry = match registry {
                DOCKER_HUB => "docker.io",
                registry => registry,
            };
            hint("log in", Some(&format!("{program} login {registry}")))
        }
        PullFault::DiskFull => hint(
            "free some space where the runtime keeps its images",
            Some("df -h"),
        ),
        PullFault::Tls => hint(
            "have the registry's certificate trusted, or mark it `insecure = true` in \
             /etc/containers/registries.conf (docker: `insecure-registries` in daemon.json)",
            None,
        ),
        PullFault::Rejected => hint(
            "see what the runtime takes",
            Some("cat /etc/containers/policy.json"),
        ),
        PullFault::Runtime => hint("see what is wrong with it", Some("{host} doctor")),
        _ => return failure.hints(),
    };
    std::iter::once(first)
        .chain(failure.hints().into_iter().last())
        .collect()
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
