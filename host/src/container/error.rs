//! What can go wrong before a container runtime is even started.

use crate::fault::{Detail, Exit, Fault, Hint, hint};

/// Why no container can be run here, or not this one.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// No runtime can be used.
    #[error("no container runtime can be used here")]
    NoRuntime {
        /// Each with the reason why it was passed over.
        passed_over: Vec<String>,
        /// What makes one usable.
        fixes: Vec<Hint>,
    },
    /// The image has a name that may mean something else tomorrow.
    #[error("`{image}` does not say by digest which image is run")]
    FloatingImage {
        /// The image as it was given.
        image: String,
    },
    /// A text that the runtime's command line cannot carry as it is meant.
    #[error("{what} cannot be given to a container: {why}")]
    Unspeakable {
        /// What it is, with its name or a printable form of it.
        what: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The runtime cannot give containers any GPU.
    #[error("{runtime} cannot give a GPU to a container here")]
    NoGpus {
        /// The runtime with its version.
        runtime: String,
        /// What it lacks, one line.
        reason: String,
        /// What helps.
        fixes: Vec<Hint>,
    },
    /// No device of the Container Device Interface stands for a GPU.
    #[error("no container device stands for GPU `{gpu}`")]
    NoSuchDevice {
        /// The GPU as it was asked for.
        gpu: String,
        /// The devices that there are.
        devices: Vec<String>,
    },
}

impl Fault for ContainerError {
    fn exit(&self) -> Exit {
        match self {
            Self::NoRuntime { .. } | Self::NoGpus { .. } | Self::NoSuchDevice { .. } => {
                Exit::Unavailable
            }
            Self::FloatingImage { .. } | Self::Unspeakable { .. } => Exit::Config,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::NoRuntime { .. } => "no-container-runtime",
            Self::FloatingImage { .. } => "image-floating",
            Self::Unspeakable { .. } => "container-value",
            Self::NoGpus { .. } => "no-container-gpus",
            Self::NoSuchDevice { .. } => "no-container-device",
        }
    }

    fn hints(&self) -> Vec<Hint> {
        match self {
            Self::NoRuntime { fixes, .. } => {
                let mut hints = fixes.clone();
                hints.push(hint(
                    "see what is there and what is missing",
                    Some("{host} doctor"),
                ));
                hints
            }
            Self::NoGpus { fixes, .. } => {
                fixes.iter().cloned().chain([on_the_processor()]).collect()
            }
            Self::NoSuchDevice { .. } => vec![generate_devices(), on_the_processor()],
            Self::FloatingImage { .. } | Self::Unspeakable { .. } => Vec::new(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        match self {
            Self::NoRuntime { passed_over, .. } => passed_over
                .iter()
                .map(|reason| Detail::new("passed over", reason))
                .collect(),
            Self::NoGpus { reason, .. } => vec![Detail::new("cause", reason)],
            Self::NoSuchDevice { devices, .. } if devices.is_empty() => {
                vec![Detail::new(
                    "note",
                    "no container devices are described here",
                )]
            }
            Self::NoSuchDevice { devices, .. } => {
                vec![Detail::new("there are", devices.join(", "))]
            }
            Self::FloatingImage { .. } | Self::Unspeakable { .. } => Vec::new(),
        }
    }
}

fn on_the_processor() -> Hint {
    hint(
        "or let it run on the processor",
        Some("{again} --gpu forbid"),
    )
}

/// How descriptions of NVIDIA's devices are made, or made anew after a driver or MIG layout changed.
pub(super) fn generate_devices() -> Hint {
    hint(
        "describe the GPUs to container runtimes (NVIDIA Container Toolkit), again after every change of driver or MIG layout",
        Some("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    )
}
