//! The contract between an engine host and its providers.
//!
//! A provider is a shared library that knows one engine family. It is pure: [`EngineProvisioner::plan`]
//! says what has to be done, [`EngineProvisioner::prepare`] says what exactly is run once that is
//! done. It opens no file and no socket and starts no process: the host does, for every provider in
//! the same way.
//!
//! ```
//! use engine_provider_api::*;
//!
//! #[derive(Default)]
//! struct Toy;
//!
//! impl EngineProvisioner for Toy {
//!     fn info(&self) -> ProviderInfo {
//!         unimplemented!("see docs/providers.md for a whole one")
//!     }
//!     fn plan(&self, _: &PlanRequest) -> Result<Plan, ProviderError> {
//!         Ok(Plan::default())
//!     }
//!     fn prepare(&self, _: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
//!         Err(ProviderError::unavailable("a toy runs nothing"))
//!     }
//! }
//!
//! export_provider!(Toy, manifest = {
//!     name: "toy",
//!     description: "Shows the shape of a provider.",
//!     modes: ["binary"],
//! });
//! # fn main() {}
//! ```
//!
//! What crosses the boundary are JSON documents, the types of this crate. They may grow; the rules
//! are in [`version`].

pub mod abi;
mod artifact;
mod document;
mod error;
mod facts;
mod info;
mod manifest;
mod plan;
mod pool;
mod prepared;
mod template;
pub mod version;

pub use artifact::{Artifact, ArtifactState, Image, Output, PrepareRequest};
pub use document::{Document, DocumentError, schemas};
pub use error::{ErrorCode, Hint, ProviderError};
pub use facts::{
    Compiler, ContainerRuntime, Containers, Cpu, CudaToolkit, Evidence, Facts, Gpu, GpuStatus,
    Gpus, Memory, Os, PackageManager, Tool, Toolkit,
};
pub use info::{ProviderInfo, ToolProbe};
pub use manifest::{Manifest, NOTE_NAME, NOTE_SECTION, NOTE_TYPE};
pub use plan::{
    Act, Attempt, Build as BuildStep, Checkout, Command, Download, ExtractImage, ImageName,
    InstallPackages, Mirror, ModelShape, Narration, Observe, Plan, PlanRequest, Progress,
    PullImage, RequireTools, StageModel, Step, ToolRequirement, Unpack, When,
};
pub use pool::{
    Binary, Build, Container, Device, External, GpuPolicy, Mode, ModelSource, Package, Pool,
    Profile, Provisioning, Readiness, Source, StopSettings,
};
pub use prepared::{
    ContainerLaunch, Diagnosis, DrainProbe, ExternalLaunch, ExtraPort, GpuEvidence, Launch, Model,
    Mount, PlacedFile, PreparedEngine, Probes, ProcessLaunch, ReadinessProbe, Resources, Stop,
    VersionProbe,
};
pub use template::{Piece, Template, TemplateError};
pub use version::CONTRACT_VERSION;

/// Knows one engine family. Pure: performs no effect.
pub trait EngineProvisioner: Send + Sync {
    /// Describes the provider. Called once after opening.
    fn info(&self) -> ProviderInfo;

    /// Says what has to be done before the engine can run.
    fn plan(&self, request: &PlanRequest) -> Result<Plan, ProviderError>;

    /// Says what exactly is run, given what was obtained or is expected to be.
    fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError>;

    /// Answers an operation that later contract versions or vendors add; its names stand in the
    /// manifest's `ops`.
    fn extension(&self, op: &str, document: &str) -> Result<String, ProviderError> {
        let _ = document;
        Err(ProviderError::new(
            ErrorCode::InvalidParams,
            format!("no operation `{op}`"),
        ))
    }
}
