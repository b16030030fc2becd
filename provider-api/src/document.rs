//! How documents are read and written: JSON, preamble first.

use schemars::{JsonSchema, Schema};
use serde::{Serialize, de::DeserializeOwned};

use crate::version::{Preamble, VersionError};

/// A document of the contract: crosses the boundary as JSON.
pub trait Document: Serialize + DeserializeOwned + JsonSchema {
    /// Name used in messages and as the file name of its schema, for example `Plan`.
    const NAME: &'static str;

    /// Reads a document, refusing one that requires a feature this side lacks.
    ///
    /// `requires` is looked at before anything else, so that a newer document fails with one line
    /// that names the feature instead of a puzzling shape error.
    fn read(json: &str) -> Result<Self, DocumentError> {
        let shape = |source| DocumentError::Shape {
            document: Self::NAME,
            source,
        };
        let preamble: Preamble = serde_json::from_str(json).map_err(shape)?;
        preamble.check(Self::NAME)?;
        serde_json::from_str(json).map_err(shape)
    }

    /// Writes the document as one line of JSON.
    fn write(&self) -> String {
        serde_json::to_string(self).expect("documents have string keys and no fallible parts")
    }

    /// JSON Schema (2020-12) of the document.
    fn schema() -> Schema {
        schemars::schema_for!(Self)
    }
}

/// Why a document could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// The two sides do not agree on the contract.
    #[error(transparent)]
    Version(#[from] VersionError),
    /// Not JSON, or not of this document's shape.
    #[error("not a {document} document")]
    Shape {
        /// Kind of document.
        document: &'static str,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
}

macro_rules! documents {
    ($($name:ident),* $(,)?) => {
        $(impl Document for crate::$name { const NAME: &'static str = stringify!($name); })*

        /// Schemas of all documents by name, as kept under `docs/schema/`.
        #[must_use]
        pub fn schemas() -> Vec<(&'static str, Schema)> {
            vec![$((stringify!($name), <crate::$name as Document>::schema())),*]
        }
    };
}

documents!(
    Manifest,
    ProviderInfo,
    Facts,
    Pool,
    PlanRequest,
    Plan,
    Artifact,
    PrepareRequest,
    PreparedEngine,
    ProviderError,
);
