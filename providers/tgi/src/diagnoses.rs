//! What TGI's last words mean. The patterns are what the launcher and the libraries below it print.

use engine_provider_api::{Diagnosis, DiagnosisKind::Memory};
use engine_provider_kit::diagnosis::{self, GPU_FAILED, GPU_REPORTS, Row};

const TABLE: &[Row] = &[
    (
        r"error: invalid value '(?P<value>[^']*)' for '(?P<flag>--\S+)",
        "TGI does not accept `$value` for `$flag`",
        "correct it in `provisioning.flags`, or the pool field that sets it",
        None,
    ),
    (
        r"error: unexpected argument '(?P<flag>[^']+)'",
        "this TGI has no flag `$flag`",
        "remove it from `provisioning.flags`",
        None,
    ),
    (
        r"`?max_input_tokens`? must be < `?max_total_tokens`?",
        "the context has no room for an answer",
        "raise `ctx`",
        None,
    ),
    (
        r"Not enough memory to handle `?(?P<tokens>\d+)`?(?: total tokens| prefill tokens)",
        "GPU memory has no room for $tokens tokens",
        "lower `ctx`, or `--max-batch-prefill-tokens` in `provisioning.flags`, or use more `devices`",
        Some(Memory),
    ),
    (
        r"CUDA out of memory|CUDA error: out of memory|torch\.OutOfMemoryError",
        "the GPU's memory is full",
        "lower `ctx`, use a smaller model or quantisation or more `devices`",
        Some(Memory),
    ),
    (
        r"Shard process was signaled to shutdown with signal 9",
        "one of TGI's processes was killed, most likely because main memory was full",
        "give the machine or the container more memory, or use a smaller model",
        Some(Memory),
    ),
    (
        r"ValueError: Unsupported model type (?P<kind>\S+)",
        "TGI does not know the model type $kind",
        "use `engine: vllm`, which knows newer models",
        None,
    ),
    (
        r"does not recognize this architecture",
        "the transformers library in TGI does not know the model's architecture",
        "use `engine: vllm`, which knows newer models",
        None,
    ),
    (
        r"No \.safetensors weights found|Read-only file system.*safetensors|Can't convert weights",
        "the model has no weights in the safetensors format, and its directory cannot be written",
        "use a model with `*.safetensors` files",
        None,
    ),
    (
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|does not appear to have a file named (?P<file>\S+)",
        "the model directory lacks a file that TGI needs",
        "check `provisioning.model.ref`: the directory must hold `config.json`, the tokenizer and the weights",
        None,
    ),
    (
        r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is available",
        "GPU or driver do not fit the CUDA that TGI was made with",
        "update the GPU driver",
        None,
    ),
    (
        r"No CUDA GPUs are available|NVIDIA Driver was not detected",
        "TGI sees no GPU",
        "check the driver with `nvidia-smi`, and that the container runtime knows the GPU: `host doctor`",
        None,
    ),
    (
        r"No space left on device.*/dev/shm|Bus error",
        "shared memory is full",
        "raise `provisioning.container.shm_bytes`",
        None,
    ),
    GPU_FAILED,
    GPU_REPORTS,
    (
        r"ShardCannotStart|Shard \d+ failed to start",
        "the process that holds the model ended while it started",
        "read the first error above it in the log",
        None,
    ),
];

pub(crate) fn all() -> Vec<Diagnosis> {
    let port = diagnosis::port_taken(
        r"Address already in use",
        "something else listens on the port",
    );
    std::iter::once(port)
        .chain(TABLE.iter().map(diagnosis::of))
        .collect()
}
