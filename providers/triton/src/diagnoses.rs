//! What `tritonserver`'s last words mean. The patterns are what release 2.51 prints; those about
//! TensorRT are from its source.

use engine_provider_api::{Diagnosis, DiagnosisKind::Memory};
use engine_provider_kit::diagnosis::{self, GPU_FAILED, GPU_REPORTS, Row};

const MODEL: &str = "failed to load '(?P<model>[^']+)' version \\d+: ";

const TABLE: &[Row] = &[
    (
        r"unrecognized option '(?P<flag>[^']+)'",
        "this tritonserver has no flag `$flag`",
        "remove it from `provisioning.flags`",
        None,
    ),
    (
        r"unable to find backend library for backend '(?P<backend>[^']+)'",
        "this Triton has no back end `$backend`",
        "set `provisioning.container.tag` to an image that has it, or correct `backend` in `config.pbtxt`",
        None,
    ),
    (
        r"triton_python_backend_stub is not found",
        "the Python back end's helper program is missing",
        "use an image whose name ends in `py3`",
        None,
    ),
    (
        r"has kind KIND_GPU but no GPUs are available",
        "the model asks for a GPU, and Triton sees none",
        "set `gpu: require`, or `KIND_CPU` in the model's `config.pbtxt`",
        None,
    ),
    (
        r"not compatible with this version of TensorRT|engine plan file is not compatible|TensorRT version.*(?:mismatch|expected)|serialized engine.*version",
        "the TensorRT engine was built with another version of TensorRT than this Triton has",
        "build the engine again with the release that serves it, or choose the release it was built with",
        None,
    ),
    (
        r"generated on an incompatible device|expecting compute (?P<need>\S+) got compute (?P<have>\S+)",
        "the TensorRT engine was built for another kind of GPU",
        "build the engine again on this kind of GPU",
        None,
    ),
    (
        // As an error: without a GPU it is a warning in every log.
        r"^E\d{4} .*CUDA driver version is insufficient|forward compatibility was attempted on non supported HW",
        "the GPU driver is older than this Triton needs",
        "update the GPU driver, or choose an older release in `provisioning.container.tag`",
        None,
    ),
    (
        r"(?:CUDA error|cudaMalloc failed|torch\.\w*OutOfMemoryError|CUDA)[^\n]*out of memory",
        "the GPU's memory is full",
        "use a smaller model or more `devices`",
        Some(Memory),
    ),
    GPU_FAILED,
    GPU_REPORTS,
    (
        r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
        "a Python model needs the module `$module`, which is not installed beside Triton",
        "use an image that has it, or pack it into the model's `EXECUTION_ENV_PATH`",
        None,
    ),
    (
        r"failed to read text proto from (?P<path>[^\x22]+)",
        "$path cannot be read as a model configuration",
        "correct its syntax: it is protobuf text, not JSON",
        None,
    ),
    (
        r"unexpected directory name '(?P<directory>[^']+)' for model '(?P<name>[^']+)'",
        "the directory `$directory` holds a model that calls itself `$name`",
        "give both the same name",
        None,
    ),
    (
        r"model '(?P<model>[^']+)': at least one version must be available",
        "model `$model` has no version",
        "put its files into a directory named `1`",
        None,
    ),
    (
        r"failed to stat file (?P<path>\S+)",
        "the model repository $path is not there, or may not be read",
        "check `provisioning.model.ref`",
        None,
    ),
];

pub(crate) fn all() -> Vec<Diagnosis> {
    let port = diagnosis::port_taken(
        r"failed to start (?P<service>\w+) service: .*Socket '(?P<address>[^']+)' already in use",
        "something else listens on $address, which Triton needs for $service",
    );
    let last = Diagnosis {
        // To the first escaped line break: what follows is a Python stack.
        pattern: format!(r"{MODEL}(?P<reason>(?:[^\\\x22]|\\[^n])+)"),
        meaning: "model `$model` could not be loaded: $reason".to_owned(),
        fix: "read the lines above it in the log".to_owned(),
        ..Diagnosis::default()
    };
    std::iter::once(port)
        .chain(TABLE.iter().map(diagnosis::of))
        .chain([last])
        .collect()
}
