//! What is planned and prepared for machines that were written down, and what is refused.

use std::{collections::BTreeMap, fmt::Write as _};

use engine_provider_api::{Artifact, ArtifactState, Launch, Output, Plan, ProviderError};
use engine_provider_kit::{example, machine, testing};
use insta::assert_snapshot;

use super::*;

const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

/// A pool with these fields over the least there is.
fn pool(fields: Value) -> Pool {
    let least = json!({
        "id": "default", "engine": "triton",
        "provisioning": { "model": { "ref": "./models" } },
    });
    testing::pool(least, fields)
}

fn mode(pool: &Pool) -> Mode {
    pool.provisioning.mode.unwrap_or(Mode::Container)
}

fn try_plan(pool: Pool, facts: &Facts) -> Result<Plan, ProviderError> {
    let mode = mode(&pool);
    testing::plan(&Triton, pool, mode, facts)
}

fn refusal(fields: Value, facts: &Facts) -> String {
    let error = try_plan(pool(fields), facts).expect_err("the pool is refused");
    testing::told(&error)
}

fn try_prepare(
    pool: Pool,
    facts: &Facts,
    artifacts: BTreeMap<String, Artifact>,
) -> Result<PreparedEngine, ProviderError> {
    let mode = mode(&pool);
    testing::prepare(&Triton, pool, mode, facts, artifacts)
}

fn prepare(pool: Pool, facts: &Facts) -> PreparedEngine {
    let image = json!({ "state": "obtained", "image": {
        "reference": format!("nvcr.io/nvidia/tritonserver@{DIGEST}"), "digest": DIGEST,
    }});
    let image = serde_json::from_value(image).unwrap();
    let artifacts = BTreeMap::from([(container::PULL.to_owned(), image)]);
    try_prepare(pool, facts, artifacts).expect("the pool can be prepared")
}

fn show_plan(plan: &Plan) -> String {
    let mut text = String::new();
    for step in &plan.steps {
        let mut act = serde_json::to_value(&step.act).unwrap();
        act.as_object_mut().unwrap().remove("narration");
        let _ = writeln!(text, "{} {act}", step.id);
    }
    text + &testing::advice(&plan.notes, &plan.warnings)
}

fn show(engine: &PreparedEngine) -> String {
    let (args, env) = match &engine.launch {
        Launch::Container(launch) => (&launch.args, &launch.env),
        Launch::Process(launch) => (&launch.args, &launch.env),
        Launch::External(launch) => return launch.url.clone(),
    };
    let line: Vec<&str> = args.iter().map(Template::as_str).collect();
    let mut rest = serde_json::to_value(&engine.launch).unwrap();
    let fields = rest.as_object_mut().unwrap();
    fields.retain(|name, _| name != "args" && name != "env");
    let mut text = format!("{}\n{rest}\n", engine.engine_version);
    let _ = writeln!(text, "{}", line.join(" ").replace(" --", "\n  --"));
    for (name, value) in env {
        let _ = writeln!(text, "env {name}={value}");
    }
    for file in &engine.files {
        let _ = writeln!(text, "file {}\n{}", file.path, file.text);
    }
    let probe = &engine.probes.readiness.path;
    let _ = writeln!(text, "ready {probe}, mask {:?}", engine.device_mask);
    text
}

#[test]
fn the_example_s_repository_is_mounted_and_served_on_three_ports() {
    let facts = machine!("rtx3090-cuda124");
    assert_snapshot!(show_plan(&try_plan(example!("triton-repository.yaml"), &facts).unwrap()), @r#"
    pull-image {"image":{"repository":"nvcr.io/nvidia/tritonserver","tag":"26.07-py3"},"kind":"pull-image"}
    model-fetch {"formats":["pbtxt","onnx","plan","pb","xml","graphdef","py"],"kind":"stage-model","layout":["echo/config.pbtxt","echo/#/"],"reference":"./model_repository","shape":"directory"}
    note: the model repository must hold model `echo`
    "#);
    let engine = prepare(example!("triton-repository.yaml"), &facts);
    assert_snapshot!(show(&engine), @r#"
    sha256:1111111111111111111111111111111111111111111111111111111111111111
    {"entrypoint":[],"image":"pull-image","kind":"container","more_ports":[{"name":"grpc","usual_port":8001},{"name":"metrics","usual_port":8002}],"mounts":[{"source":"{model-fetch.path}","target":"/models"}],"port":8000,"read_only_root":true,"shm_bytes":1073741824,"unlimited_memlock":true,"user":"1000:1000","usual_port":0}
    tritonserver
      --http-address {address.host}
      --http-port {address.port}
      --grpc-address {address.host}
      --grpc-port {port.grpc}
      --metrics-address {address.host}
      --metrics-port {port.metrics}
      --model-repository /models
      --strict-readiness true
      --exit-on-error true
      --exit-timeout-secs 4
      --model-load-thread-count 4
    ready /v2/models/echo/ready, mask ["GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"]
    "#);
    let evidence = engine.gpu_evidence.unwrap();
    assert!(evidence.driver_memory);
}

#[test]
fn the_example_for_vllm_has_a_repository_made_around_its_model() {
    let mut facts = machine!("two-gpus");
    facts.gpus.driver = Some("610.43.02".to_owned());
    let vllm = || example!("triton-vllm.yaml");
    assert_snapshot!(show_plan(&try_plan(vllm(), &facts).unwrap()), @r#"
    pull-image {"image":{"repository":"nvcr.io/nvidia/tritonserver","tag":"26.07-vllm-python-py3"},"kind":"pull-image"}
    model-fetch {"formats":["safetensors","bin","pt","pth"],"kind":"stage-model","reference":"hf:Qwen/Qwen2.5-7B-Instruct","shape":"directory"}
    note: a repository is made with model `qwen2.5-7b-instruct` for vllm
    "#);
    assert_snapshot!(show(&prepare(vllm(), &facts)), @r#"
    sha256:1111111111111111111111111111111111111111111111111111111111111111
    {"entrypoint":[],"image":"pull-image","kind":"container","more_ports":[{"name":"grpc","usual_port":8001},{"name":"metrics","usual_port":8002}],"mounts":[{"source":"{files}/repository","target":"/models"},{"source":"{model-fetch.path}","target":"/weights/qwen2.5-7b-instruct"}],"port":8000,"read_only_root":false,"shm_bytes":2147483648,"unlimited_memlock":true,"user":"1000:1000","usual_port":0}
    tritonserver
      --http-address {address.host}
      --http-port {address.port}
      --grpc-address {address.host}
      --grpc-port {port.grpc}
      --metrics-address {address.host}
      --metrics-port {port.metrics}
      --model-repository /models
      --strict-readiness true
      --exit-on-error true
      --exit-timeout-secs 4
    env HF_HUB_OFFLINE=1
    env VLLM_NO_USAGE_STATS=1
    file repository/qwen2.5-7b-instruct/config.pbtxt
    name: "qwen2.5-7b-instruct"
    backend: "vllm"
    instance_group [ {{ count: 1 kind: KIND_MODEL }} ]

    file repository/qwen2.5-7b-instruct/1/model.json
    {{
      "disable_log_stats": true,
      "gpu_memory_utilization": 0.9,
      "max_model_len": 8192,
      "model": "/weights/qwen2.5-7b-instruct",
      "seed": 42,
      "tensor_parallel_size": 2
    }}

    ready /v2/models/qwen2.5-7b-instruct/ready, mask ["GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"]
    "#);
}

#[test]
fn engines_of_tensorrt_llm_have_their_inputs_named() {
    let mut facts = machine!("h200");
    facts.gpus.driver = Some("590.44.01".to_owned());
    let fields = json!({ "model": "llama", "options": { "backend": "tensorrt-llm" } });
    assert_snapshot!(show(&prepare(pool(fields), &facts)), @r#"
    sha256:1111111111111111111111111111111111111111111111111111111111111111
    {"entrypoint":[],"image":"pull-image","kind":"container","more_ports":[{"name":"grpc","usual_port":8001},{"name":"metrics","usual_port":8002}],"mounts":[{"source":"{files}/repository","target":"/models"},{"source":"{model-fetch.path}","target":"/weights/llama"}],"port":8000,"read_only_root":false,"shm_bytes":2147483648,"unlimited_memlock":true,"user":"1000:1000","usual_port":0}
    tritonserver
      --http-address {address.host}
      --http-port {address.port}
      --grpc-address {address.host}
      --grpc-port {port.grpc}
      --metrics-address {address.host}
      --metrics-port {port.metrics}
      --model-repository /models
      --strict-readiness true
      --exit-on-error true
      --exit-timeout-secs 4
    file repository/llama/config.pbtxt
    name: "llama"
    backend: "tensorrtllm"
    max_batch_size: 64
    model_transaction_policy {{ decoupled: true }}
    input [
      {{ name: "input_ids" data_type: TYPE_INT32 dims: [ -1 ] allow_ragged_batch: true }},
      {{ name: "input_lengths" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} }},
      {{ name: "request_output_len" data_type: TYPE_INT32 dims: [ 1 ] }},
      {{ name: "end_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
      {{ name: "pad_id" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
      {{ name: "random_seed" data_type: TYPE_UINT64 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
      {{ name: "runtime_top_k" data_type: TYPE_INT32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
      {{ name: "runtime_top_p" data_type: TYPE_FP32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
      {{ name: "temperature" data_type: TYPE_FP32 dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }},
      {{ name: "streaming" data_type: TYPE_BOOL dims: [ 1 ] reshape: {{ shape: [ ] }} optional: true }}
    ]
    output [
      {{ name: "output_ids" data_type: TYPE_INT32 dims: [ -1, -1 ] }},
      {{ name: "sequence_length" data_type: TYPE_INT32 dims: [ -1 ] }}
    ]
    instance_group [ {{ count: 1 kind: KIND_CPU }} ]
    parameters {{ key: "gpt_model_type" value: {{ string_value: "inflight_fused_batching" }} }}
    parameters {{ key: "gpt_model_path" value: {{ string_value: "/weights/llama" }} }}

    file repository/llama/1/.keep

    ready /v2/models/llama/ready, mask ["GPU-9f8e7d6c-5b4a-4392-8170-6f5e4d3c2b1a"]
    "#);
}

#[test]
fn one_file_is_mounted_beside_its_configuration() {
    let fields = json!({
        "model": "resnet", "gpu": "forbid",
        "options": { "backend": "onnxruntime", "max_batch_size": 8 },
        "provisioning": { "model": { "ref": "./resnet.onnx" }, "flags": ["--log-verbose", "1"] },
    });
    let facts = machine!("debian-cpu");
    assert_snapshot!(show_plan(&try_plan(pool(fields.clone()), &facts).unwrap()), @r#"
    pull-image {"image":{"repository":"nvcr.io/nvidia/tritonserver","tag":"26.07-py3"},"kind":"pull-image"}
    model-fetch {"formats":["onnx"],"kind":"stage-model","reference":"./resnet.onnx","shape":"file"}
    note: a repository is made with model `resnet` for onnxruntime
    "#);
    assert_snapshot!(show(&prepare(pool(fields), &facts)), @r#"
    sha256:1111111111111111111111111111111111111111111111111111111111111111
    {"entrypoint":[],"image":"pull-image","kind":"container","more_ports":[{"name":"grpc","usual_port":8001},{"name":"metrics","usual_port":8002}],"mounts":[{"source":"{files}/repository/resnet/config.pbtxt","target":"/models/resnet/config.pbtxt"},{"source":"{model-fetch.path}","target":"/models/resnet/1/model.onnx"}],"port":8000,"read_only_root":true,"shm_bytes":1073741824,"unlimited_memlock":true,"user":"1000:1000","usual_port":0}
    tritonserver
      --http-address {address.host}
      --http-port {address.port}
      --grpc-address {address.host}
      --grpc-port {port.grpc}
      --metrics-address {address.host}
      --metrics-port {port.metrics}
      --model-repository /models
      --strict-readiness true
      --exit-on-error true
      --exit-timeout-secs 4
      --allow-gpu-metrics false
      --log-verbose 1
    file repository/resnet/config.pbtxt
    name: "resnet"
    backend: "onnxruntime"
    max_batch_size: 8
    instance_group [ {{ kind: KIND_CPU }} ]

    ready /v2/models/resnet/ready, mask []
    "#);
}

#[test]
fn a_driver_that_is_too_old_is_refused_before_the_pull_with_both_numbers() {
    let facts = machine!("h200");
    let mut text = String::new();
    for backend in ["vllm", "tensorrt-llm"] {
        text += &refusal(json!({ "options": { "backend": backend } }), &facts);
    }
    assert_snapshot!(text, @r"
    PoolUnavailable: 26.07-vllm-python-py3 of Triton needs driver 610.43.02 or newer, and this machine has 580.65.06
      fix: update the GPU driver to 610.43.02 or newer
      fix: or set `provisioning.container.tag` to an older release
    PoolUnavailable: 26.07-trtllm-python-py3 of Triton needs driver 590.44.01 or newer, and this machine has 580.65.06
      fix: update the GPU driver to 590.44.01 or newer
      fix: or set `provisioning.container.tag` to an older release
    ");
    // What another release needs, its image says.
    let older = json!({
        "options": { "backend": "vllm" },
        "provisioning": { "container": { "tag": "25.01-vllm-python-py3" } },
    });
    assert!(try_plan(pool(older), &facts).is_ok());
}

#[test]
fn what_cannot_work_or_have_an_effect_is_refused() {
    let cpu = machine!("debian-cpu");
    let mut text = String::new();
    for fields in [
        json!({}),
        json!({ "gpu": "prefer", "options": { "backend": "vllm" } }),
        json!({ "gpu": "forbid", "ctx": 4096 }),
        json!({ "gpu": "forbid", "quant": "Q4_K_M" }),
        json!({ "gpu": "forbid", "model": "a/b" }),
        json!({ "gpu": "forbid", "options": { "engine": { "x": 1 } } }),
        json!({ "gpu": "forbid", "options": { "backend": "pytorch" } }),
        json!({ "gpu": "forbid", "provisioning": { "flags": ["--grpc-port=1"] } }),
        json!({ "gpu": "forbid", "provisioning": { "env": { "CUDA_VISIBLE_DEVICES": "0" } } }),
        json!({ "gpu": "forbid", "provisioning": { "mode": "source" } }),
        json!({ "gpu": "forbid", "options": { "backend": "onnxruntime" }, "provisioning": { "mode": "package" } }),
        json!({ "gpu": "forbid", "provisioning": { "mode": "package", "package": { "version": "0.6.0" } } }),
    ] {
        text += &refusal(fields, &cpu);
    }
    text += &refusal(json!({}), &machine!("amd-rocm"));
    assert_snapshot!(text, @r"
    PoolUnavailable: pool `default` requires a GPU, and this machine has no usable GPU
    cause: nvml: libnvidia-ml.so.1 is not there
    cause: nvidia-smi: not on PATH
    cause: driver-files: no /proc/driver/nvidia, no /dev/nvidia*, no /dev/kfd
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    PoolUnavailable: back end vllm of Triton runs on GPUs only
    cause: this machine has no usable GPU: this pool runs on the processor
    InvalidParams: `ctx` has no effect: it is the model's own business but for `backend: vllm`
    field: ctx
      fix: remove `ctx`
    InvalidParams: `quant` has no effect: Triton's models are not chosen by quantisation
    field: quant
      fix: remove `quant`
    InvalidParams: `a/b` cannot be the name of a model in a repository
    field: model
      fix: set `model` to a name of letters, digits, `.`, `_` and `-`
    InvalidParams: `options.engine` has an effect with backend: vllm only
    field: options.engine
      fix: remove `options.engine`
    InvalidParams: unknown variant `pytorch`, expected one of `onnxruntime`, `tensorrt`, `python`, `vllm`, `tensorrt-llm`
    field: options
    InvalidParams: `--grpc-port` is set by the provider
    field: provisioning.flags[0]
      fix: remove it: the host chooses the addresses
    InvalidParams: `CUDA_VISIBLE_DEVICES` is set by the provider
    field: provisioning.env.CUDA_VISIBLE_DEVICES
      fix: set `devices` instead
    UnsupportedMode: this Triton provider does not offer mode `source`
      fix: set `provisioning.mode: container`, or leave it out
    InvalidParams: `options.backend` has no effect: in mode `package` the model is a whole repository
    field: options.backend
      fix: remove `options.backend`
    InvalidParams: `provisioning.package.version` has no effect: this provider knows version 0.7.0 by its hashes
    field: provisioning.package.version
      fix: remove `provisioning.package.version`
    PoolUnavailable: Triton runs on NVIDIA's GPUs, and this is AMD Radeon RX 7900 XTX
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
}

fn package() -> Pool {
    pool(json!({ "model": "echo", "gpu": "forbid", "provisioning": { "mode": "package" } }))
}

fn with_python(version: &str) -> Facts {
    let mut facts = machine!("debian-cpu");
    let tool = json!({ "path": "/usr/bin/python3", "version": version });
    let tool = serde_json::from_value(tool).unwrap();
    facts.tools.insert("python".to_owned(), tool);
    facts
}

#[test]
fn the_package_is_installed_by_hash_and_run_with_its_own_libraries() {
    let facts = with_python("3.11.2");
    let example = example!("triton-package.yaml");
    assert_eq!(mode(&example), Mode::Package);
    assert_eq!(try_plan(example, &facts).unwrap().steps.len(), 5);
    assert_snapshot!(show_plan(&try_plan(package(), &facts).unwrap()), @r#"
    preflight-tools {"kind":"require-tools","tools":[{"minimum_version":"3.9","name":"python","optional":false,"packages":{"apt":["python3","python3-venv","libpython3-dev"],"dnf":["python3","python3-libs"],"pacman":["python"]},"purpose":"to run Python models"}]}
    venv {"attempts":[{"commands":[{"args":["-m","venv","{work}/python"],"id":"venv-create","narration":{"start":"venv-create"},"program":"{tool.python}"},{"args":["-m","pip","install","--no-deps","--require-hashes","--only-binary",":all:","--no-input","--no-cache-dir","--disable-pip-version-check","--progress-bar","off","--index-url","https://pypi.org/simple","--requirement","{work}/requirements.txt"],"id":"pip-install","narration":{"start":"pip-install"},"program":"{work}/python/bin/python"}],"title":""}],"fixed_path":true,"inputs":{"requirements.txt":"nvidia-pytriton==0.7.0 --hash=sha256:21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df\nnumpy==1.26.4 --hash=sha256:f870204a840a60da0b12273ef34f7051e98c3b5961b61b0c2c1be6dfd64fbcd3 --hash=sha256:ffa75af20b44f8dba823498024771d5ac50620e6915abac414251bd971b4529f --hash=sha256:666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5 --hash=sha256:675d61ffbfa78604709862923189bad94014bef562cc35cf61d3a07bba02a7ed\n"},"kind":"build","labels":{"package":"nvidia-pytriton==0.7.0"},"native":false,"network":["pypi.org","files.pythonhosted.org"],"outputs":["python"]}
    backends {"attempts":[{"commands":[{"args":["{work}/place.py","{venv.path}/python/lib/python3.11/site-packages/pytriton/tritonserver/backends/python","{venv.path}/python/lib/python3.11/site-packages/pytriton/tritonserver/python_backend_stubs/3.11/triton_python_backend_stub","{work}/backends/python"],"id":"place-backends","narration":{},"program":"{venv.path}/python/bin/python"}],"title":""}],"fixed_path":false,"inputs":{"place.py":"import os, shutil, sys\nsource, stub, target = sys.argv[1:]\nshutil.copytree(source, target)\nstub = shutil.copy(stub, target)\nos.chmod(stub, 0o755)\n"},"kind":"build","native":false,"outputs":["backends"]}
    observe-stub {"args":[],"asks_devices":false,"env":{"LD_LIBRARY_PATH":"{venv.path}/python/lib/python3.11/site-packages/nvidia_pytriton.libs","PATH":"{venv.path}/python/bin:/usr/bin:/bin"},"kind":"observe","program":"{backends.path}/backends/python/triton_python_backend_stub","timeout_ms":20000}
    model-fetch {"formats":["pbtxt","onnx","plan","pb","xml","graphdef","py"],"kind":"stage-model","layout":["echo/config.pbtxt","echo/#/"],"reference":"./models","shape":"directory"}
    note: the model repository must hold model `echo`
    note: the package has the Python back end and no other
    "#);
    let engine = try_prepare(package(), &facts, BTreeMap::new()).unwrap();
    assert_snapshot!(show(&engine), @r#"
    0.7.0
    {"kind":"process","more_ports":[{"name":"grpc","usual_port":8001},{"name":"metrics","usual_port":8002}],"program":"{venv.path}/python/lib/python3.11/site-packages/pytriton/tritonserver/bin/tritonserver","usual_port":8000}
    --http-address {address.host}
      --http-port {address.port}
      --grpc-address {address.host}
      --grpc-port {port.grpc}
      --metrics-address {address.host}
      --metrics-port {port.metrics}
      --model-repository {model-fetch.path}
      --strict-readiness true
      --exit-on-error true
      --exit-timeout-secs 4
      --allow-gpu-metrics false
      --backend-directory {backends.path}/backends
    env LD_LIBRARY_PATH={venv.path}/python/lib/python3.11/site-packages/nvidia_pytriton.libs
    env PATH={venv.path}/python/bin:/usr/bin:/bin
    ready /v2/models/echo/ready, mask []
    "#);
}

#[test]
fn a_python_that_has_no_helper_or_library_is_named() {
    let error = try_plan(package(), &with_python("3.13.1")).unwrap_err();
    assert_eq!(
        error.message,
        "Triton's package runs models with Python 3.9 to 3.12, and /usr/bin/python3 is 3.13.1"
    );
    let stderr = "triton_python_backend_stub: error while loading shared libraries: \
                  libpython3.11.so.1.0: cannot open shared object file: No such file or directory";
    let stub = Artifact {
        state: ArtifactState::Obtained,
        output: Some(Output {
            exit: Some(127),
            stderr: stderr.to_owned(),
            ..Output::default()
        }),
        ..Artifact::default()
    };
    let artifacts = BTreeMap::from([(package::STUB.to_owned(), stub)]);
    let error = try_prepare(package(), &with_python("3.11.2"), artifacts).unwrap_err();
    assert_eq!(
        error.message,
        "the program that runs Python models does not start on this machine"
    );
    let command = error.hints[0].command.as_deref();
    assert_eq!(command, Some("sudo apt-get install libpython3.11"));
}

#[test]
fn an_engine_that_runs_already_is_attached_to() {
    let fields: Pool = serde_json::from_value(json!({
        "id": "default", "engine": "triton", "model": "echo",
        "provisioning": { "mode": "external", "external": { "url": "http://127.0.0.1:8000" } },
    }))
    .unwrap();
    let engine = prepare(fields, &machine!("debian-cpu"));
    assert_eq!(show(&engine), "http://127.0.0.1:8000");
    assert_eq!(engine.probes.readiness.path, "/v2/health/ready");
    assert_eq!(engine.probes.metrics, None);
}

#[test]
fn the_requirements_are_exact() {
    let lock = include_str!("requirements.txt");
    let lock = engine_provider_kit::python::Lock::read(lock, "requirements").unwrap();
    assert_eq!(lock.version("nvidia-pytriton"), Some(package::VERSION));
}

/// Last words of the real program, and the diagnosis that must be the first to match.
#[test]
fn the_last_words_of_the_engine_are_understood() {
    let all = diagnoses::all();
    let mut text = String::new();
    for line in [
        r#"E1121 03:50:02.988245 21146 main.cc:257] "failed to start HTTP service: Unavailable - Socket '127.0.0.1:18000' already in use ""#,
        r#"E1121 03:50:06.247500 21315 main.cc:245] "failed to start GRPC service: Unavailable - Socket '127.0.0.1:18001' already in use ""#,
        "/opt/tritonserver/bin/tritonserver: unrecognized option '--bogus'",
        r#"E1121 03:49:42.005537 20795 model_lifecycle.cc:642] "failed to load 'echo' version 1: Invalid argument: unable to find backend library for backend 'nosuch', try specifying runtime on the model configuration.""#,
        r#"E1121 03:33:35.291985 27214 model_lifecycle.cc:642] "failed to load 'echo' version 1: Not found: triton_python_backend_stub is not found. Searched paths: /x and /y""#,
        r#"E1121 03:50:07.292027 21391 model_lifecycle.cc:642] "failed to load 'echo' version 1: Invalid argument: instance group echo_0 of model echo has kind KIND_GPU but no GPUs are available""#,
        r#"E1121 03:49:45.149742 20845 model_lifecycle.cc:642] "failed to load 'echo' version 1: Internal: ModuleNotFoundError: No module named 'nosuchmodule'\n\nAt:\n  /models/echo/1/model.py(1): <module>\n""#,
        r#"E1121 03:49:44.060129 20828 model_repository_manager.cc:1460] "Poll failed for model directory 'echo': failed to read text proto from /models/echo/config.pbtxt""#,
        r#"E1121 03:49:46.176921 20867 model_repository_manager.cc:1460] "Poll failed for model directory 'echo': unexpected directory name 'echo' for model 'other', directory name must equal model name""#,
        r#"E1121 03:49:43.034238 20812 model_repository_manager.cc:724] "failed to load model 'echo': at least one version must be available under the version policy of model 'echo'""#,
        "error: creating server: Internal - failed to stat file /models",
        // Said by every Triton without a GPU.
        r#"W1121 03:33:35.287528 27214 pinned_memory_manager.cc:273] "Unable to allocate pinned system memory, pinned memory pool will not be available: CUDA driver version is insufficient for CUDA runtime version""#,
        r#"E1121 03:49:45.149742 20845 model_lifecycle.cc:642] "failed to load 'echo' version 1: Internal: ValueError: wrong\n\nAt:\n  /models/echo/1/model.py(1): <module>\n""#,
    ] {
        let found = all.iter().find_map(|diagnosis| {
            let captures = regex::Regex::new(&diagnosis.pattern)
                .unwrap()
                .captures(line)?;
            let mut meaning = String::new();
            captures.expand(&diagnosis.meaning, &mut meaning);
            Some((meaning, diagnosis.port_taken))
        });
        let _ = writeln!(text, "{found:?}");
    }
    assert_snapshot!(text, @r#"
    Some(("something else listens on 127.0.0.1:18000, which Triton needs for HTTP", true))
    Some(("something else listens on 127.0.0.1:18001, which Triton needs for GRPC", true))
    Some(("this tritonserver has no flag `--bogus`", false))
    Some(("this Triton has no back end `nosuch`", false))
    Some(("the Python back end's helper program is missing", false))
    Some(("the model asks for a GPU, and Triton sees none", false))
    Some(("a Python model needs the module `nosuchmodule`, which is not installed beside Triton", false))
    Some(("/models/echo/config.pbtxt cannot be read as a model configuration", false))
    Some(("the directory `echo` holds a model that calls itself `other`", false))
    Some(("model `echo` has no version", false))
    Some(("the model repository /models is not there, or may not be read", false))
    None
    Some(("model `echo` could not be loaded: Internal: ValueError: wrong", false))
    "#);
}
