//! Podman and docker: which one is used, what it is told, what it left behind.
//!
//! Everything here is driven through their command lines: sockets are off by default, and podman
//! ignores requests for GPUs made through docker's. This room builds commands and reads answers; it
//! starts no container and fetches no layer itself.
//!
//! | file | job |
//! |---|---|
//! | `reference` | names of images |
//! | `registries_conf` | mirrors and other rules for registries |
//! | `credentials` | who we are to a registry |
//! | `registry` | what a registry says of an image |
//! | `images` | what is known of images that were pulled |
//! | `runtime` | which runtime is used, and what its programs see of the environment |
//! | `assemble` | from a launch as its provider wrote it to a container |
//! | `run` | the one command that starts an engine, hardened the same way for all of them |
//! | `check` | what may stand in it |
//! | `gpus` | from GPUs by their driver's ids to what a runtime is told |
//! | `exit` | why a container ended, and how it is removed |

mod assemble;
mod check;
mod credentials;
mod error;
mod exit;
mod gpus;
pub(crate) mod images;
pub(crate) mod reference;
pub(crate) mod registries_conf;
pub(crate) mod registry;
mod run;
mod runtime;

pub use assemble::{Surroundings, assemble, inside, is_secret};
pub use check::is_the_runtimes;
pub use credentials::{Credential, CredentialsError, Found, find as find_credentials};
pub(crate) use credentials::{basic, registry_key};
pub use error::ContainerError;
pub use exit::{ExitReason, HALF_REMOVED, ask_for_part, exit_reason, removal};
pub use gpus::{device_name, gpu_arguments, gpu_fixes, gpus_of, usual_gpus};
pub use images::{ImageRecord, Images};
pub use reference::{Reference, ReferenceError};
pub use registries_conf::{Endpoint, Registries, RegistriesError};
pub(crate) use registry::{Descriptor, RemoteArtifact};
pub use registry::{Inquirer, PlaceFailure, Platform, RegistryError, RemoteImage};
pub use run::{BindMount, Published, Run, run_arguments, run_warnings, shown_arguments};
pub use runtime::{Runtime, choose, choose_for, environment, fixes};
