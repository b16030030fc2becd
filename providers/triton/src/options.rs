//! `options{}` of a Triton pool.

use engine_provider_api::{Pool, ProviderError};
use engine_provider_kit::model::WEIGHTS;
use schemars::JsonSchema;
use serde::Deserialize;

/// Settings that only Triton has.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Options {
    /// What serves the model. Absent: the model is a whole model repository.
    pub backend: Option<Backend>,
    /// Largest batch of a model of one file. Default: no batches.
    pub max_batch_size: u32,
    /// Settings of vLLM, as in its `model.json`, for example `gpu_memory_utilization`.
    pub engine: serde_json::Map<String, serde_json::Value>,
}

/// A back end for which a model repository can be made around a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Backend {
    /// A file for ONNX Runtime.
    Onnxruntime,
    /// A TensorRT plan, built for exactly these GPUs and this release.
    Tensorrt,
    /// A Python file with a `TritonPythonModel`.
    Python,
    /// A directory as on the Hugging Face hub.
    Vllm,
    /// A directory of TensorRT-LLM engines, built for exactly these GPUs and this release.
    TensorrtLlm,
}

impl Backend {
    /// Its name in `config.pbtxt`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Onnxruntime => "onnxruntime",
            Self::Tensorrt => "tensorrt",
            Self::Python => "python",
            Self::Vllm => "vllm",
            Self::TensorrtLlm => "tensorrtllm",
        }
    }

    /// What the file of a model of one file is called; `None`: its models are directories.
    pub(crate) fn file(self) -> Option<&'static str> {
        match self {
            Self::Onnxruntime => Some("model.onnx"),
            Self::Tensorrt => Some("model.plan"),
            Self::Python => Some("model.py"),
            Self::Vllm | Self::TensorrtLlm => None,
        }
    }

    /// Formats of a model's files, by name suffix: its directory holds one of them.
    pub(crate) fn formats(self) -> &'static [&'static str] {
        match self {
            Self::Onnxruntime => &["onnx"],
            Self::Tensorrt => &["plan"],
            Self::Python => &["py"],
            Self::Vllm => &WEIGHTS,
            Self::TensorrtLlm => &["engine"],
        }
    }

    /// Whether it does nothing without a GPU.
    pub(crate) fn needs_gpu(self) -> bool {
        matches!(self, Self::Tensorrt | Self::Vllm | Self::TensorrtLlm)
    }
}

impl Options {
    pub(crate) fn read(pool: &Pool) -> Result<Self, ProviderError> {
        let options = serde_json::Value::Object(pool.options.clone());
        let options: Self = serde_json::from_value(options)
            .map_err(|error| ProviderError::invalid("options", error.to_string()))?;
        let vllm = options.backend == Some(Backend::Vllm);
        let one_file = options
            .backend
            .is_some_and(|backend| backend.file().is_some());
        let idle = [
            (
                "options.engine",
                !options.engine.is_empty() && !vllm,
                "backend: vllm",
            ),
            (
                "options.max_batch_size",
                options.max_batch_size > 0 && !one_file,
                "one file",
            ),
        ];
        match idle.iter().find(|(_, idle, _)| *idle) {
            Some((field, _, only)) => {
                let message = format!("`{field}` has an effect with {only} only");
                Err(ProviderError::invalid(*field, message).hint(format!("remove `{field}`")))
            }
            None => Ok(options),
        }
    }
}

pub(crate) fn schema() -> serde_json::Value {
    schemars::schema_for!(Options).to_value()
}
