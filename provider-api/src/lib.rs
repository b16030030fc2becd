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
//! /// Attaches to an engine that runs already.
//! #[derive(Default)]
//! struct Toy;
//!
//! impl EngineProvisioner for Toy {
//!     fn info(&self) -> ProviderInfo {
//!         ProviderInfo {
//!             requires: Vec::new(),
//!             name: "toy".to_owned(),
//!             version: env!("CARGO_PKG_VERSION").to_owned(),
//!             modes: vec![Mode::External],
//!             tools: Vec::new(),
//!             options_schema: serde_json::Value::Null,
//!             default_pool: Pool::new("default", "toy"),
//!             homepage: None,
//!         }
//!     }
//!
//!     fn plan(&self, _: &PlanRequest) -> Result<Plan, ProviderError> {
//!         // Nothing has to be fetched, built or installed.
//!         Ok(Plan::default())
//!     }
//!
//!     fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, ProviderError> {
//!         let pool = &request.pool;
//!         let external = pool.provisioning.external.clone().unwrap_or_default();
//!         let url = external.url.ok_or_else(|| {
//!             ProviderError::invalid("provisioning.external.url", "where the engine answers")
//!         })?;
//!         Ok(PreparedEngine {
//!             requires: Vec::new(),
//!             engine: "toy".to_owned(),
//!             engine_version: "(as it runs)".to_owned(),
//!             provisioning_mode: request.mode,
//!             launch: Launch::External(ExternalLaunch { url }),
//!             files: Vec::new(),
//!             probes: Probes {
//!                 readiness: ReadinessProbe {
//!                     path: "/health".to_owned(),
//!                     ok: vec![200],
//!                     loading: vec![503],
//!                 },
//!                 version: None,
//!                 metrics: None,
//!                 metrics_port: None,
//!             },
//!             stop: Stop::default(),
//!             resources: Resources::default(),
//!             model: Model {
//!                 id: pool.model.clone().unwrap_or_else(|| "toy".to_owned()),
//!                 path: None,
//!                 digest: None,
//!             },
//!             flags: Vec::new(),
//!             slots_total: 1,
//!             workloads: vec!["completion".to_owned()],
//!             profile: Profile::default(),
//!             diagnoses: Vec::new(),
//!             gpu_evidence: None,
//!             dialect: "openai".to_owned(),
//!             device_mask: Vec::new(),
//!             build_record: Default::default(),
//!             warnings: Vec::new(),
//!         })
//!     }
//! }
//!
//! export_provider!(Toy, manifest = {
//!     name: "toy",
//!     description: "Attaches to a toy engine that runs already.",
//!     modes: ["external"],
//! });
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let engine = Toy.prepare(&PrepareRequest {
//! #     requires: Vec::new(),
//! #     pool: serde_json::from_str(r#"{
//! #         "id": "chat", "engine": "toy",
//! #         "provisioning": {"mode": "external", "external": {"url": "http://127.0.0.1:8080"}}
//! #     }"#)?,
//! #     mode: Mode::External,
//! #     facts: Facts::default(),
//! #     artifacts: Default::default(),
//! # })?;
//! # assert_eq!(engine.model.id, "toy");
//! # Ok(())
//! # }
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
mod model;
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
pub use model::ModelFacts;
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
    ContainerLaunch, Diagnosis, DiagnosisKind, DrainProbe, ExternalLaunch, ExtraPort, GpuEvidence,
    Launch, Model, Mount, PlacedFile, PreparedEngine, Probes, ProcessLaunch, ReadinessProbe,
    Resources, Stop, VersionProbe,
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
