//! What can go wrong with an image.

use std::path::PathBuf;

use super::PullFault;
use crate::{
    act::CommandFailure,
    container::{ContainerError, ReferenceError, RegistryError},
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
    #[error("image {image} is not here yet and cannot be pulled")]
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
        /// Where its layers are kept, or arrive.
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
        /// The program, or a library that was taken out with it: its path in the image.
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
            } => fault.hints(registry, failure),
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
