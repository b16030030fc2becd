//! What TGI's last words mean. The patterns are what the launcher and the libraries below it print.

use engine_provider_api::Diagnosis;

/// Pattern, meaning, what helps; the particular before the general.
const TABLE: &[(&str, &str, &str)] = &[
    (
        r"error: invalid value '(?P<value>[^']*)' for '(?P<flag>--\S+)",
        "TGI does not accept `$value` for `$flag`",
        "correct it in `provisioning.flags`, or the pool field that sets it",
    ),
    (
        r"error: unexpected argument '(?P<flag>[^']+)'",
        "this TGI has no flag `$flag`",
        "remove it from `provisioning.flags`",
    ),
    (
        r"`?max_input_tokens`? must be < `?max_total_tokens`?",
        "the context has no room for an answer",
        "raise `ctx`",
    ),
    (
        r"Not enough memory to handle `?(?P<tokens>\d+)`?(?: total tokens| prefill tokens)",
        "GPU memory has no room for $tokens tokens",
        "lower `ctx`, or `--max-batch-prefill-tokens` in `provisioning.flags`, or use more `devices`",
    ),
    (
        r"CUDA out of memory|CUDA error: out of memory|torch\.OutOfMemoryError",
        "the GPU's memory is full",
        "lower `ctx`, use a smaller model or quantisation or more `devices`",
    ),
    (
        r"Shard process was signaled to shutdown with signal 9",
        "one of TGI's processes was killed, most likely because main memory was full",
        "give the machine or the container more memory, or use a smaller model",
    ),
    (
        r"ValueError: Unsupported model type (?P<kind>\S+)",
        "TGI does not know the model type $kind",
        "use `engine: vllm`, which knows newer models",
    ),
    (
        r"does not recognize this architecture",
        "the transformers library in TGI does not know the model's architecture",
        "use `engine: vllm`, which knows newer models",
    ),
    (
        r"No \.safetensors weights found|Read-only file system.*safetensors|Can't convert weights",
        "the model has no weights in the safetensors format, and its directory cannot be written",
        "use a model with `*.safetensors` files",
    ),
    (
        r"LocalEntryNotFoundError|OfflineModeIsEnabled|does not appear to have a file named (?P<file>\S+)",
        "the model directory lacks a file that TGI needs",
        "check `provisioning.model.ref`: the directory must hold `config.json`, the tokenizer and the weights",
    ),
    (
        r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is available",
        "GPU or driver do not fit the CUDA that TGI was made with",
        "update the GPU driver",
    ),
    (
        r"No CUDA GPUs are available|NVIDIA Driver was not detected",
        "TGI sees no GPU",
        "check the driver with `nvidia-smi`, and that the container runtime knows the GPU: `host doctor`",
    ),
    (
        r"No space left on device.*/dev/shm|Bus error",
        "shared memory is full",
        "raise `provisioning.container.shm_bytes`",
    ),
    (
        r"ShardCannotStart|Shard \d+ failed to start",
        "the process that holds the model ended while it started",
        "read the first error above it in the log",
    ),
];

pub(crate) fn all() -> Vec<Diagnosis> {
    let port = Diagnosis {
        pattern: r"Address already in use".to_owned(),
        meaning: "something else listens on the port".to_owned(),
        fix: "set other `provisioning.ports`, or stop what listens there".to_owned(),
        port_taken: true,
    };
    let others = TABLE.iter().map(|(pattern, meaning, fix)| Diagnosis {
        pattern: (*pattern).to_owned(),
        meaning: (*meaning).to_owned(),
        fix: (*fix).to_owned(),
        port_taken: false,
    });
    std::iter::once(port).chain(others).collect()
}
