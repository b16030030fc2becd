//! Obtained instead of built: packages, downloads, images, engines that run already.

use super::*;

const DIGEST: &str = "sha256:1111111111111111111111111111111111111111111111111111111111111111";

fn binary(fields: Value) -> Value {
    json!({ "provisioning": { "mode": "binary", "binary": fields } })
}

fn release() -> Value {
    let base = "https://github.com/ggml-org/llama.cpp/releases/download/b11194";
    binary(json!({
        "url": format!("{base}/llama-b11194-bin-ubuntu-x64.tar.gz"), "checksum": DIGEST,
    }))
}

fn with(mut fields: Value, more: Value) -> Value {
    merge(&mut fields, more);
    fields
}

#[test]
fn a_package_is_named_for_every_distribution_and_asked_what_it_is() {
    let fields =
        json!({ "provisioning": { "mode": "package", "package": { "version": "b11243-1" } } });
    let facts = machine!("rtx3090-cuda124");
    assert_snapshot!(show_plan(&plan(pool(fields.clone()), &facts)), @r#"
    install (install-packages) {"packages":{"apt":["llama.cpp-tools","libggml0-backend-cuda"],"aur":["llama.cpp-cuda"],"dnf":["llama-cpp"],"pacman":["llama.cpp-cuda"]},"program":"llama-server","version":"b11243-1"}
    observe-version (observe) {install.path} --version
    observe-help (observe) {install.path} --help
    observe-devices (observe) {install.path} --list-devices
    model-fetch (stage-model) builtin:haiku
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end cuda for NVIDIA GeForce RTX 3090
    note: package version b11243-1, and no other
    "#);
    let mut said = request(pool(fields), &facts, Some(&ONE_CUDA));
    let installed = Artifact {
        labels: std::collections::BTreeMap::from([("version".to_owned(), "b11243-1".to_owned())]),
        ..Artifact::default()
    };
    said.artifacts
        .insert(crate::package::INSTALL.to_owned(), installed);
    assert_snapshot!(show_engine(&LlamaCpp.prepare(&said).unwrap()), @r#"
    b11243-1
    {install.path} --host {address.host}
      --port {address.port}
      --model {model-fetch.path}
      --alias haiku
      --parallel 1
      --no-cont-batching
      --no-cache-prompt
      --metrics
      --no-webui
      --seed 42
      --sse-ping-interval 1
      --device CUDA0
      --n-gpu-layers all
      --fit off
      --cache-ram 0
      --ctx-checkpoints 0
      --log-verbosity 4
    env ["CUDA_VISIBLE_DEVICES=GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"], mask ["GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"]
    slots 1, vram Some(4294967296), evidence on Some(["CUDA0"])
    "#);
}

#[test]
fn a_package_that_sees_no_gpu_is_refused_where_one_is_required() {
    let fields = json!({ "provisioning": { "mode": "package" } });
    let request = request(pool(fields), &machine!("rtx3090-cuda124"), Some(&NO_DEVICE));
    assert_snapshot!(told(&LlamaCpp.prepare(&request).unwrap_err()), @r"
    PoolUnavailable: the installed llama-server for cuda sees 0 of the 1 GPUs of pool `default`
    cause: Available devices:
    cause: (none)
      fix: check that the user engines run as may open the GPU's device files
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
}

#[test]
fn a_package_with_another_back_end_than_expected_is_taken_at_its_word() {
    let vulkan = Said {
        devices: "Available devices:\n  Vulkan0: NVIDIA GeForce RTX 3090 (1 MiB, 1 MiB free)\n",
        ..NO_DEVICE
    };
    let fields =
        json!({ "provisioning": { "mode": "package", "package": { "name": "llama-cpp" } } });
    let engine = prepare(pool(fields), &machine!("rtx3090-cuda124"), Some(&vulkan));
    assert_eq!(engine.build_record["backend"], "vulkan");
    let flags = engine.flags.join(" ");
    assert!(flags.contains("--device Vulkan0"), "{flags}");
    assert_eq!(engine.gpu_evidence.unwrap().devices, ["Vulkan0"]);
}

#[test]
fn a_release_is_downloaded_and_asked_what_it_is() {
    let facts = machine!("debian-cpu");
    let fields = with(release(), json!({ "gpu": "forbid" }));
    assert_snapshot!(show_plan(&plan(pool(fields.clone()), &facts)), @r#"
    download (download) {"digest":"sha256:1111111111111111111111111111111111111111111111111111111111111111","program":true,"unpack":"tar-gz","urls":["https://github.com/ggml-org/llama.cpp/releases/download/b11194/llama-b11194-bin-ubuntu-x64.tar.gz"]}
    observe-version (observe) {download.path}/llama-b11194/llama-server --version
    observe-help (observe) {download.path}/llama-b11194/llama-server --help
    observe-devices (observe) {download.path}/llama-b11194/llama-server --list-devices
    model-fetch (stage-model) builtin:haiku
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end cpu; `gpu: require` asks for a GPU
    "#);
    assert_snapshot!(show_engine(&prepare(pool(fields), &facts, Some(&NO_DEVICE))), @r#"
    b11194+sha256:111111111111
    {download.path}/llama-b11194/llama-server --host {address.host}
      --port {address.port}
      --model {model-fetch.path}
      --alias haiku
      --parallel 1
      --no-cont-batching
      --no-cache-prompt
      --metrics
      --no-webui
      --seed 42
      --sse-ping-interval 1
      --threads 4
    env ["LD_LIBRARY_PATH={download.path}/llama-b11194"], mask []
    slots 1, vram Some(0), evidence on None
    "#);
}

#[test]
fn a_release_that_lacks_a_library_here_is_refused_with_the_package_that_carries_it() {
    let broken = Said {
        version: "llama-server: error while loading shared libraries: libgomp.so.1: cannot open \
                  shared object file: No such file or directory",
        help: "",
        ..NO_DEVICE
    };
    let fields = with(release(), json!({ "gpu": "forbid" }));
    let request = request(pool(fields), &machine!("debian-cpu"), Some(&broken));
    assert_snapshot!(told(&LlamaCpp.prepare(&request).unwrap_err()), @r"
    PoolUnavailable: the downloaded llama-server does not start on this machine
    cause: libgomp.so.1: cannot open shared object file: No such file or directory
      fix: install libgomp.so.1
             sudo apt-get install libgomp1
    ");
}

#[test]
fn a_cuda_build_is_taken_out_of_an_image_without_a_compiler() {
    let fields = binary(json!({
        "image": { "image": "ghcr.io/ggml-org/llama.cpp", "tag": "server-cuda-b11243", "digest": DIGEST },
    }));
    let mut facts = machine!("rtx3090-cuda-missing");
    facts.compilers.clear();
    assert_snapshot!(show_plan(&plan(pool(fields.clone()), &facts)), @r#"
    download (extract-image) {"image":{"digest":"sha256:1111111111111111111111111111111111111111111111111111111111111111","repository":"ghcr.io/ggml-org/llama.cpp","tag":"server-cuda-b11243"},"paths":["/app","/usr/local/cuda/lib64"],"program":"/app/llama-server"}
    observe-version (observe) {download.path}/app/llama-server --version
    observe-help (observe) {download.path}/app/llama-server --help
    observe-devices (observe) {download.path}/app/llama-server --list-devices
    model-fetch (stage-model) builtin:haiku
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end cuda for NVIDIA GeForce RTX 3090
    "#);
    assert_snapshot!(show_engine(&prepare(pool(fields), &facts, Some(&ONE_CUDA))), @r#"
    b11243+sha256:111111111111
    {download.path}/app/llama-server --host {address.host}
      --port {address.port}
      --model {model-fetch.path}
      --alias haiku
      --parallel 1
      --no-cont-batching
      --no-cache-prompt
      --metrics
      --no-webui
      --seed 42
      --sse-ping-interval 1
      --device CUDA0
      --n-gpu-layers all
      --fit off
      --cache-ram 0
      --ctx-checkpoints 0
      --log-verbosity 4
    env ["CUDA_VISIBLE_DEVICES=GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40", "LD_LIBRARY_PATH={download.path}/app:{download.path}/usr/local/cuda/lib64"], mask ["GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"]
    slots 1, vram Some(4294967296), evidence on Some(["CUDA0"])
    "#);
}

#[test]
fn a_single_file_is_the_program_itself() {
    let url = "https://example.org/llama-server";
    let fields = binary(json!({ "url": url, "checksum": DIGEST, "version": "mine" }));
    let fields = with(fields, json!({ "gpu": "forbid" }));
    let engine = prepare(pool(fields), &machine!("debian-cpu"), Some(&NO_DEVICE));
    let Launch::Process(launch) = &engine.launch else {
        panic!("a download is a process")
    };
    assert_eq!(launch.program.as_str(), "{download.path}");
    assert!(launch.env.is_empty());
    assert_eq!(engine.engine_version, "mine+sha256:111111111111");
}

#[test]
fn downloads_that_cannot_be_trusted_or_found_are_refused_with_the_line_to_write() {
    let facts = machine!("debian-cpu");
    let mut text = String::new();
    for fields in [
        json!({}),
        json!({ "url": "https://example.org/llama-b7000-bin-ubuntu-x64.zip" }),
        json!({ "url": "https://example.org/llama.tar.gz", "checksum": DIGEST }),
        json!({ "url": "https://example.org/x", "checksum": DIGEST, "program": "../x" }),
        json!({ "url": "https://example.org/x", "checksum": DIGEST, "install_dir": "/opt" }),
        json!({ "image": { "tag": "server" } }),
    ] {
        let fields = with(binary(fields), json!({ "gpu": "forbid" }));
        text += &told(&refusal(fields, &facts));
    }
    assert_snapshot!(text, @r"
    InvalidParams: the pool does not say where llama-server is downloaded from
    field: provisioning.binary
      fix: set `url` and `checksum` to those of an archive at https://github.com/ggml-org/llama.cpp/releases, or `image` to an image by digest
    InvalidParams: a program is only downloaded with its checksum
    field: provisioning.binary
      fix: add the digest that its publisher names: `checksum: sha256:` and 64 digits, under `provisioning.binary`
      fix: or the digest of a copy that you trust
             curl -fsSL https://example.org/llama-b7000-bin-ubuntu-x64.zip | sha256sum
    InvalidParams: where `llama-server` lies in `llama.tar.gz` is not known
    field: provisioning.binary.program
      fix: set it to the path in the archive, for example `bin/llama-server`
    InvalidParams: `../x` is no path in an archive or image
    field: provisioning.binary.program
      fix: write it like `bin/llama-server`
    InvalidParams: `install_dir` is not used: what is downloaded lies in the host's store, under a name made of its content, and is never changed
    field: provisioning.binary.install_dir
      fix: remove it; `host prepare` prints where the program is
    InvalidParams: an image that a program is taken out of needs its digest
    field: provisioning.binary.image
      fix: add `digest: sha256:…`; a pull by tag in mode `container` prints it
    ");
}

#[test]
fn the_examples_of_every_mode_are_planned() {
    for (pool, mode, kind) in [
        (
            example!("llamacpp-container.yaml"),
            Mode::Container,
            "pull-image",
        ),
        (
            example!("llamacpp-package.yaml"),
            Mode::Package,
            "install-packages",
        ),
        (example!("llamacpp-release.yaml"), Mode::Binary, "download"),
        (
            example!("llamacpp-extracted.yaml"),
            Mode::Binary,
            "extract-image",
        ),
    ] {
        assert_eq!(mode_of(&pool), mode);
        let plan = plan(pool, &machine!("rtx3090-cuda124"));
        assert_eq!(plan.steps[0].act.kind(), kind);
        assert!(plan.warnings.is_empty(), "{:?}", plan.warnings);
    }
    let external = plan(example!("llamacpp-external.yaml"), &machine!("debian-cpu"));
    assert_eq!(external.steps.len(), 0);
}

fn container(fields: Value) -> Value {
    json!({ "provisioning": { "mode": "container", "container": fields } })
}

/// A request whose image is known.
fn pulled(pool: Pool, facts: &Facts) -> PrepareRequest {
    let mut request = request(pool, facts, None);
    let image = json!({ "state": "obtained", "image": {
        "reference": format!("ghcr.io/ggml-org/llama.cpp@{DIGEST}"), "digest": DIGEST,
        "tag": "server-cuda-b11243",
        "labels": { "org.opencontainers.image.revision": "0c1e57098bba" },
    }});
    let image: Artifact = serde_json::from_value(image).unwrap();
    request.artifacts.insert("pull-image".to_owned(), image);
    request
}

#[test]
fn the_image_for_the_machine_is_pulled_and_run_by_its_digest() {
    let facts = machine!("two-gpus");
    let fields = with(
        container(json!({})),
        json!({ "ctx": 4096, "model": "org/haiku" }),
    );
    assert_snapshot!(show_plan(&plan(pool(fields.clone()), &facts)), @r#"
    pull-image (pull-image) {"image":{"repository":"ghcr.io/ggml-org/llama.cpp","tag":"server-cuda-b11243"}}
    model-fetch (stage-model) builtin:haiku
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end cuda for NVIDIA RTX A6000, NVIDIA L40S
    "#);
    let engine = LlamaCpp.prepare(&pulled(pool(fields), &facts)).unwrap();
    assert_snapshot!(show_engine(&engine), @r#"
    sha256:1111111111111111111111111111111111111111111111111111111111111111
    {"entrypoint":["/app/llama-server"],"image":"pull-image","mounts":[{"source":"{model-fetch.path}","target":"/models/org-haiku.gguf"}],"port":8080,"read_only_root":true,"shm_bytes":0,"unlimited_memlock":false,"user":"65532:65532","usual_port":0}
      --host {address.host}
      --port {address.port}
      --model /models/org-haiku.gguf
      --alias org/haiku
      --parallel 1
      --no-cont-batching
      --no-cache-prompt
      --metrics
      --no-webui
      --seed 42
      --sse-ping-interval 1
      --ctx-size 4096
      --device CUDA0,CUDA1
      --n-gpu-layers all
      --fit off
      --cache-ram 0
      --ctx-checkpoints 0
      --log-verbosity 4
    env [], mask ["GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-7777-8888-9999-aaaaaaaaaaaa"]
    slots 1, vram Some(4294967296), evidence on Some(["CUDA0", "CUDA1"])
    "#);
    assert_eq!(engine.build_record["revision"], "0c1e57098bba");
}

#[test]
fn every_kind_of_machine_has_its_image() {
    for (facts, gpu, tag) in [
        (machine!("debian-cpu"), "forbid", "server-b11243"),
        (machine!("rtx3090-cuda124"), "require", "server-cuda-b11243"),
        (machine!("amd-rocm"), "prefer", "server-b11243"),
    ] {
        let plan = plan(
            pool(with(container(json!({})), json!({ "gpu": gpu }))),
            &facts,
        );
        let text = show_plan(&plan);
        assert!(text.contains(&format!("\"tag\":\"{tag}\"")), "{text}");
    }
}

#[test]
fn a_gpu_that_no_container_can_be_given_is_refused_before_the_pull() {
    let error = refusal(container(json!({})), &machine!("amd-rocm"));
    assert_eq!(
        error.message,
        "a container can be given NVIDIA's GPUs, and this is AMD Radeon RX 7900 XTX"
    );
}

#[test]
fn an_image_that_computes_on_the_processor_is_refused_where_a_gpu_is_required() {
    let facts = machine!("rtx3090-cuda124");
    let error = refusal(container(json!({ "tag": "server" })), &facts);
    assert_snapshot!(told(&error), @r"
    PoolUnavailable: this llama-server is made for back end cpu, and NVIDIA GeForce RTX 3090 needs cuda
      fix: choose a build for cuda
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
    let fields = with(
        container(json!({ "tag": "server" })),
        json!({ "gpu": "prefer" }),
    );
    let warnings = plan(pool(fields), &facts).warnings;
    assert_snapshot!(warnings.join("\n"), @r"
    this llama-server is made for back end cpu, and NVIDIA GeForce RTX 3090 needs cuda: this pool runs on the processor
    tag `server` moves with every build: flags come and go with it; `server-b11243` does not move
    ");
    // Nobody knows which tags somebody else's image has.
    let fields = with(
        container(json!({ "image": "own.example/llama", "tag": "v1" })),
        json!({ "gpu": "prefer" }),
    );
    let warnings = plan(pool(fields), &facts).warnings.join("\n");
    assert!(!warnings.contains("moves with every build"), "{warnings}");
}

#[test]
fn an_engine_that_runs_already_is_attached_to() {
    let fields: Pool = serde_json::from_value(json!({
        "id": "default", "engine": "llamacpp", "model": "haiku",
        "provisioning": { "mode": "external", "external": { "url": "http://127.0.0.1:9931" } },
    }))
    .unwrap();
    let facts = machine!("debian-cpu");
    assert!(plan(fields.clone(), &facts).steps.is_empty());
    let engine = prepare(fields, &facts, None);
    assert_eq!(show_engine(&engine), "external\nhttp://127.0.0.1:9931");
    assert_eq!(engine.probes.readiness.path, "/health");
}

#[test]
fn what_contradicts_a_mode_is_refused_in_every_mode() {
    let facts = machine!("rtx3090-cuda124");
    for fields in [
        container(json!({})),
        release(),
        json!({ "provisioning": { "mode": "package" } }),
    ] {
        let fields = with(fields, with_flags(&["--port", "1"]));
        assert_eq!(
            refusal(fields, &facts).message,
            "`--port` is set by the provider"
        );
    }
}
