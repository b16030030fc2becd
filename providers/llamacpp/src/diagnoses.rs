//! What `llama-server`'s last words mean. The patterns are what the pinned commit prints.

use engine_provider_api::{Diagnosis, DiagnosisKind::Memory};
use engine_provider_kit::diagnosis::{self, GPU_FAILED, GPU_REPORTS, Row};

const TABLE: &[Row] = &[
    (
        r"invalid argument: (?P<flag>\S+)",
        "this llama-server has no flag `$flag`",
        "remove it from `provisioning.flags`, or choose a build that has it; `llama-server --help` lists \
         the flags of this build",
        None,
    ),
    (
        r"invalid device: (?P<device>\S+)",
        "llama-server does not see the device $device",
        "check the GPU driver with `nvidia-smi`, or set `gpu: prefer`",
        None,
    ),
    (
        r#"error while handling argument "(?P<flag>[^"]+)": (?P<reason>.+)"#,
        "the value of `$flag` is not accepted: $reason",
        "correct it in `provisioning.flags`",
        None,
    ),
    (
        r"unknown model architecture: '(?P<architecture>[^']+)'",
        "this commit of llama.cpp does not know the model architecture `$architecture`",
        "set `provisioning.source.ref` to a newer commit, or use another model",
        None,
    ),
    (
        r"unknown pre-tokenizer type: '(?P<kind>[^']+)'",
        "this commit of llama.cpp does not know the model's tokenizer `$kind`",
        "set `provisioning.source.ref` to a newer commit, or use another model",
        None,
    ),
    (
        r"invalid magic characters: .*expected 'GGUF'",
        "the model file is no GGUF file",
        "check `provisioning.model.ref`: llama.cpp reads GGUF files only",
        None,
    ),
    (
        r"failed to open GGUF file '(?P<path>[^']+)' \((?P<reason>[^)]+)\)",
        "the model file $path cannot be opened: $reason",
        "check that the file is there and readable for the user the engine runs as",
        None,
    ),
    (
        r"gguf_init_from_\w+: failed to read|is not within the file bounds|tensor '[^']+' not found|missing tensor '|wrong number of tensors",
        "the model file is damaged or incomplete",
        "fetch it again, and set `provisioning.model.checksum` so that this is seen earlier",
        None,
    ),
    (
        r"allocating (?P<mib>[0-9.]+) MiB on device (?P<device>\d+): cudaMalloc failed: out of memory",
        "GPU $device has no room for another $mib MiB",
        "lower `ctx`, use a smaller quantisation or more `devices`, or set `gpu: prefer`",
        Some(Memory),
    ),
    (
        r"(?:CUDA|ROCm) error: out of memory|ErrorOutOfDeviceMemory|Device memory allocation of size",
        "the GPU's memory is full",
        "lower `ctx`, use a smaller quantisation or more `devices`, or set `gpu: prefer`",
        Some(Memory),
    ),
    (
        r"insufficient memory \(attempted to allocate +(?P<mb>[0-9.]+) MB\)",
        "main memory has no room for another $mb MB",
        "lower `ctx`, or use a smaller model or quantisation",
        Some(Memory),
    ),
    (
        r"failed to allocate (?:buffer for (?:kv|rs) cache|compute \w+ buffers|\S+ buffer of size)|std::bad_alloc",
        "there is not enough memory for the model and its context",
        "lower `ctx`, or use a smaller model or quantisation",
        Some(Memory),
    ),
    (
        r"CUDA driver version is insufficient",
        "the GPU driver is older than the CUDA toolkit that llama.cpp was built with",
        "update the GPU driver",
        None,
    ),
    GPU_FAILED,
    GPU_REPORTS,
    (
        r"failed to load model[,:]? '(?P<path>[^']+)'",
        "the model $path could not be loaded",
        "read the lines above it in the log",
        None,
    ),
];

pub(crate) fn all() -> Vec<Diagnosis> {
    let port = diagnosis::port_taken(
        r"couldn't bind HTTP server socket, hostname: (?P<host>[^,]+), port: (?P<port>\d+)",
        "something else listens on $host:$port",
    );
    std::iter::once(port)
        .chain(TABLE.iter().map(diagnosis::of))
        .collect()
}
