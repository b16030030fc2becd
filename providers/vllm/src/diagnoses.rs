//! What vLLM's last words mean. The patterns are what vLLM 0.30 to 0.32 and what is below it print.

use engine_provider_api::{Diagnosis, DiagnosisKind::Memory};
use engine_provider_kit::diagnosis::{self, GPU_FAILED, GPU_REPORTS, Row};

const TABLE: &[Row] = &[
    (
        r"unrecognized arguments: (?P<flags>.+)",
        "this vLLM does not know `$flags`",
        "remove it from `provisioning.flags`, or use the vLLM that it was written for",
        None,
    ),
    (
        r"error: argument (?P<flag>\S+): (?P<reason>.+)",
        "the value of `$flag` is not accepted: $reason",
        "correct it in `provisioning.flags`",
        None,
    ),
    (
        r"model's max seq len \((?P<len>\d+)\), \((?P<needed>[0-9.]+) GiB KV cache is needed, which is larger than the available KV cache memory \((?P<room>[0-9.]+) GiB\)",
        "a context of $len tokens takes $needed GiB, and there is room for $room GiB",
        "lower `ctx`, use more `devices`, or give vLLM more memory: `--gpu-memory-utilization` in `provisioning.flags` on GPUs, `VLLM_CPU_KVCACHE_SPACE` in `provisioning.env` on the processor",
        None,
    ),
    (
        r"No available memory for the cache blocks",
        "the model leaves no memory for the context",
        "use a smaller model or quantisation or more `devices`, or raise `--gpu-memory-utilization` in `provisioning.flags`",
        None,
    ),
    (
        r"Free memory on device (?P<device>\S+) \((?P<free>[0-9.]+)/(?P<total>[0-9.]+) GiB\) on startup is less than desired GPU memory utilization \((?P<share>[0-9.]+), (?P<wanted>[0-9.]+) GiB\)",
        "vLLM wants $wanted of the $total GiB of $device, and $free GiB are free",
        "stop what uses the GPU, or lower `--gpu-memory-utilization` in `provisioning.flags`",
        Some(Memory),
    ),
    (
        r"Available memory on node (?P<node>\S+) .* is less than requested memory for kv",
        "main memory has no room for the context",
        "lower `VLLM_CPU_KVCACHE_SPACE` in `provisioning.env`, or stop what uses the memory",
        Some(Memory),
    ),
    (
        r"User-specified max_model_len \((?P<len>\d+)\) is greater than the derived",
        "the model was not made for a context of $len tokens",
        "lower `ctx`",
        None,
    ),
    (
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<gpus>\d+)\)",
        "the model's $heads attention heads cannot be divided among $gpus GPUs",
        "name a number of `devices` that divides $heads, or divide the layers: `--pipeline-parallel-size` in `provisioning.flags`",
        None,
    ),
    (
        r"Model architectures (?P<names>\[[^\]]*\]) (?:are not supported for now|failed to be inspected)",
        "this vLLM does not know the model architecture $names",
        "use a newer vLLM, or another model",
        None,
    ),
    (
        r"does not recognize this architecture|model type `(?P<kind>[^`]+)` but Transformers does not",
        "the transformers library in this vLLM does not know the model's architecture",
        "use a newer vLLM, or another model",
        None,
    ),
    (
        r"Cannot find any model weights with `(?P<path>[^`]+)`",
        "the model directory $path has no weights",
        "check `provisioning.model.ref`: vLLM reads directories with `*.safetensors` files",
        None,
    ),
    (
        r"Invalid repository ID or local directory specified|does not appear to have a file named (?P<file>\S+)|No such file or directory: '(?P<path>/[^']+)'",
        "the model directory lacks a file that vLLM needs",
        "check `provisioning.model.ref`: the directory must hold `config.json`, the tokenizer and the weights",
        None,
    ),
    (
        r"Error while deserializing header|incomplete metadata, file not fully covered",
        "a file of the model's weights is damaged or incomplete",
        "fetch it again",
        None,
    ),
    (
        r"CUDA driver version is insufficient|driver on your system is too old|no kernel image is available|unsupported toolchain|forward compatibility was attempted on non supported",
        "GPU or driver do not fit the CUDA that this vLLM was made with",
        "update the GPU driver, or set `provisioning.container.tag` to a `-cu129` tag",
        None,
    ),
    (
        r"No CUDA GPUs are available|Failed to infer device type|NVML Shared Library Not Found",
        "vLLM sees no GPU",
        "check the driver with `nvidia-smi`, and that the container runtime knows the GPU: `host doctor`",
        None,
    ),
    (
        r"Bfloat16 is only supported on GPUs with compute capability of at least (?P<least>[0-9.]+)",
        "the GPU is too old for bfloat16",
        "add `--dtype half` to `provisioning.flags`",
        None,
    ),
    (
        r"CUDA out of memory|CUDA error: out of memory|torch\.OutOfMemoryError|cudaErrorMemoryAllocation",
        "the GPU's memory is full",
        "lower `ctx` or `options.slots`, use a smaller model or quantisation or more `devices`",
        Some(Memory),
    ),
    (
        r"No space left on device.*/dev/shm|bus error|Bus error",
        "shared memory is full",
        "raise `provisioning.container.shm_bytes`",
        None,
    ),
    (
        r"InvalidCxxCompiler|Failed to find C compiler|No working C\+\+ compiler",
        "vLLM found no compiler for the kernels that it makes while it starts",
        "install a C and C++ compiler, or add `--enforce-eager` to `provisioning.flags`",
        None,
    ),
    (
        r"CppCompileError: C\+\+ compile error|cannot execute .cc1plus.|fatal error: Python\.h",
        "the compiler failed on kernels that vLLM makes while it starts",
        "install a whole C++ compiler and Python's headers, or add `--enforce-eager` to `provisioning.flags`",
        None,
    ),
    GPU_FAILED,
    GPU_REPORTS,
    (
        r"Engine core initialization failed",
        "vLLM's computing process ended while it started",
        "read the first error above it in the log",
        None,
    ),
];

pub(crate) fn all() -> Vec<Diagnosis> {
    let port = diagnosis::port_taken(
        r"\[Errno 98\].*address already in use|\[Errno 98\] Address already in use",
        "something else listens on the port",
    );
    std::iter::once(port)
        .chain(TABLE.iter().map(diagnosis::of))
        .collect()
}
