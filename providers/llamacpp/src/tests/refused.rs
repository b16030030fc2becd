//! What is refused, with its reason and fix.

use engine_provider_api::ModelFacts;

use super::*;

#[test]
fn the_default_pool_on_a_machine_without_gpu_is_refused_before_any_step() {
    let facts = machine!("debian-cpu");
    let error = try_plan(LlamaCpp.info().default_pool, &facts).unwrap_err();
    assert_snapshot!(told(&error), @r"
    PoolUnavailable: pool `default` requires a GPU, and this machine has no usable GPU
    cause: nvml: libnvidia-ml.so.1 is not there
    cause: nvidia-smi: not on PATH
    cause: driver-files: no /proc/driver/nvidia, no /dev/nvidia*, no /dev/kfd
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
}

#[test]
fn a_broken_driver_and_a_missing_toolkit_are_refused_before_any_step() {
    assert_snapshot!(told(&refusal(json!({}), &machine!("driver-broken"))), @r"
    PoolUnavailable: pool `default` requires a GPU, and this machine's GPU driver does not work
    cause: nvml: Driver/library version mismatch: library 570.86, kernel module 565.77
    cause: nvidia-smi: exit 18: Failed to initialize NVML: Driver/library version mismatch
    cause: driver-files: /proc/driver/nvidia/version says 565.77; 1 PCI device of NVIDIA
      fix: reload or reinstall the GPU driver (after an upgrade, reboot), then check it
             nvidia-smi
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
    let missing = machine!("rtx3090-cuda-missing");
    assert_snapshot!(told(&refusal(json!({}), &missing)), @r"
    PoolUnavailable: this machine has a GPU but no CUDA toolkit
    cause: looked for nvcc on PATH, in /usr/local/cuda* and in /opt/cuda*
    cause: this machine has a GPU but no Vulkan toolkit
      fix: install the CUDA toolkit
             sudo pacman -S cuda
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
    let plan = plan(pool(json!({ "gpu": "prefer" })), &missing);
    assert!(
        plan.warnings[0].contains("no CUDA toolkit"),
        "{:?}",
        plan.warnings
    );
}

#[test]
fn a_build_that_does_not_see_the_gpu_is_refused_under_require_and_said_under_prefer() {
    let facts = machine!("rtx3090-cuda124");
    let request = |gpu: &str| request(pool(json!({ "gpu": gpu })), &facts, Some(&NO_DEVICE));
    let error = LlamaCpp.prepare(&request("require")).unwrap_err();
    assert_snapshot!(told(&error), @r"
    PoolUnavailable: the llama-server that was built for cuda sees 0 of the 1 GPUs of pool `default`
    cause: Available devices:
    cause: (none)
      fix: check that the user engines run as may open the GPU's device files
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");
    let engine = LlamaCpp.prepare(&request("prefer")).unwrap();
    assert_eq!(engine.engine_version, "0c1e57098bba-cpu");
    assert!(!engine.flags.iter().any(|flag| flag == "--device"));
    assert!(
        engine.warnings[0].contains("sees 0 of the 1 GPUs"),
        "{:?}",
        engine.warnings
    );
}

#[test]
fn a_program_of_another_commit_is_not_taken_for_this_one() {
    let other = Said {
        version: "version: 1 (build 0, commit deadbeefdead)\n",
        ..NO_DEVICE
    };
    let pool = pool(json!({ "gpu": "forbid" }));
    let error = LlamaCpp
        .prepare(&request(pool, &machine!("debian-cpu"), Some(&other)))
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Internal);
    assert!(error.message.contains("deadbeefdead"), "{}", error.message);
}

#[test]
fn managed_flags_are_refused_naming_the_field_to_use() {
    let facts = machine!("rtx3090-cuda124");
    let mut text = String::new();
    for given in [
        &["--host", "0.0.0.0"][..],
        &["--port=1"],
        &["-m", "x"],
        &["-hf", "a/b"],
        &["-a", "x"],
        &["-c", "1"],
        &["-dev", "none"],
        &["-ts", "1,1"],
        &["-s", "1"],
        &["-t", "1"],
        &["--api-key", "x"],
        &["-h"],
        &["--fim-qwen-3b-default"],
    ] {
        let error = refusal(with_flags(given), &facts);
        let _ = writeln!(
            text,
            "{given:?}: {}; {}",
            error.message, error.hints[0].text
        );
    }
    assert_snapshot!(text, @r#"
    ["--host", "0.0.0.0"]: `--host` is set by the provider; remove it: the host chooses the address
    ["--port=1"]: `--port` is set by the provider; set `provisioning.ports` instead
    ["-m", "x"]: `--model` is set by the provider; set `provisioning.model.ref` instead
    ["-hf", "a/b"]: `--hf-repo` is set by the provider; set `provisioning.model.ref` instead
    ["-a", "x"]: `--alias` is set by the provider; set `model` instead
    ["-c", "1"]: `--ctx-size` is set by the provider; set `ctx` instead
    ["-dev", "none"]: `--device` is set by the provider; set `devices` instead
    ["-ts", "1,1"]: `--tensor-split` is set by the provider; set `tensor_split` instead
    ["-s", "1"]: `--seed` is set by the provider; set `options.seed` instead
    ["-t", "1"]: `--threads` is set by the provider; set `options.threads` instead
    ["--api-key", "x"]: `--api-key` is set by the provider; write `LLAMA_API_KEY: "{secret.NAME}"` in `provisioning.env`
    ["-h"]: `--usage` prints something and ends; remove it
    ["--fim-qwen-3b-default"]: `--fim-qwen-3b-default` downloads a model; set `provisioning.model.ref` instead
    "#);
}

#[test]
fn nothing_leaves_gpu_memory_under_require() {
    let facts = machine!("rtx3090-cuda124");
    let refused: &[&[&str]] = &[
        &["-cmoe"],
        &["-ncmoe", "1"],
        &["--n-cpu-ffn", "1"],
        &["-nkvo"],
        &["-ot", "exps=CPU"],
        &["-ot", "a=CUDA0,b=cpu"],
        &["-ot", "a=CUDA_Host"],
        &["--spec-draft-cpu-moe"],
        &["--spec-draft-n-cpu-moe", "1"],
        &["--spec-draft-override-tensor", "a=CPU"],
        &["--spec-draft-device", "none"],
        &["--spec-draft-ngl", "0"],
        &["--no-mmproj-offload"],
        &["-mmdev", "none"],
        &["-cram", "1"],
        &["--ctx-checkpoints", "1"],
        &["-fit", "on"],
        &["--rpc", "a:1"],
        &["-ngl", "0"],
        &["-ngl", "20"],
        &["-ngl", "auto"],
        &["-lv", "0"],
        &["--lazy-mode", "on"],
    ];
    for given in refused {
        let error = refusal(with_flags(given), &facts);
        assert_eq!(error.code, ErrorCode::InvalidParams, "{given:?}");
        assert!(
            error.hints[0].text.contains("gpu: prefer"),
            "{given:?}: {error:?}"
        );
        let mut prefer = with_flags(given);
        merge(&mut prefer, json!({ "gpu": "prefer" }));
        assert!(try_plan(pool(prefer), &facts).is_ok(), "{given:?}");
    }
    for given in [
        &["-ot", "a=CUDA0"][..],
        &["-ngl", "all"],
        &["--n-gpu-layers", "99"],
    ] {
        assert!(
            try_plan(pool(with_flags(given)), &facts).is_ok(),
            "{given:?}"
        );
    }
}

#[test]
fn the_environment_cannot_go_around_pool_and_policy() {
    let facts = machine!("rtx3090-cuda124");
    for name in [
        "LLAMA_ARG_N_GPU_LAYERS",
        "CUDA_VISIBLE_DEVICES",
        "GGML_CUDA_ENABLE_UNIFIED_MEMORY",
    ] {
        let error = refusal(json!({ "provisioning": { "env": { name: "1" } } }), &facts);
        assert_eq!(error.field, Some(format!("provisioning.env.{name}")));
    }
    let key = json!({ "provisioning": { "env": { "LLAMA_API_KEY": "{secret.KEY}" } } });
    let engine = prepare(pool(key), &facts, Some(&ONE_CUDA));
    let Launch::Process(launch) = &engine.launch else {
        panic!("built engines are processes")
    };
    assert_eq!(launch.env["LLAMA_API_KEY"].as_str(), "{secret.KEY}");
}

#[test]
fn unknown_flags_are_named_at_plan_time_for_the_pinned_commit_and_after_the_build_for_others() {
    let facts = machine!("debian-cpu");
    let fields = |reference: &str| {
        json!({ "gpu": "forbid", "provisioning": {
            "flags": ["--flash-atn", "on"],
            "source": { "ref": reference },
        } })
    };
    let error = refusal(fields(PINNED), &facts);
    assert_eq!(error.message, "llama-server has no flag `--flash-atn`");
    assert!(error.hints[0].text.contains("`--flash-attn`"));

    let master = plan(pool(fields("master")), &facts);
    assert!(
        master.notes.iter().any(|note| note.contains("master")),
        "{:?}",
        master.notes
    );
    let error = LlamaCpp
        .prepare(&request(pool(fields("master")), &facts, Some(&NO_DEVICE)))
        .unwrap_err();
    assert_eq!(
        error.message,
        "the llama-server that was built has no flag `--flash-atn`"
    );
}

#[test]
fn a_model_larger_than_the_gpu_is_refused() {
    let mut request = request(pool(json!({})), &machine!("rtx3090-cuda124"), None);
    request.artifacts.get_mut(crate::MODEL).unwrap().size_bytes = Some(40 << 30);
    let error = LlamaCpp.prepare(&request).unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolUnavailable);
}

#[test]
fn unknown_options_are_refused() {
    let error = refusal(json!({ "options": { "sed": 1 } }), &machine!("h200"));
    assert!(error.message.contains("sed"), "{}", error.message);
    let properties = &options::schema()["properties"];
    assert_eq!(properties.as_object().unwrap().len(), 2, "{properties}");
}

#[test]
fn the_tables_name_flags_as_they_are_normalised() {
    let known = |refusal: &&Refusal| {
        let family = refusal.name.ends_with('*');
        family || flags::KNOWN.canonical(refusal.name) == Some(refusal.name)
    };
    for refusal in flags::MANAGED.iter().chain(flags::OFF_GPU_FLAGS) {
        assert!(known(&refusal), "{}", refusal.name);
    }
    for (name, _) in flags::OFF_GPU_VALUES {
        assert_eq!(flags::KNOWN.canonical(name), Some(*name));
    }
    let facts = machine!("rtx3090-cuda124");
    for profile in ["deterministic", "throughput"] {
        let fields = json!({ "profile": profile, "ctx": 1, "tensor_split": [1.0], "options": { "threads": 1 } });
        let engine = prepare(pool(fields), &facts, Some(&ONE_CUDA));
        assert!(engine.warnings.is_empty(), "{:?}", engine.warnings);
    }
}

/// What the header of a 70B model says, as it is read before the model is fetched.
fn seventy_billion() -> ModelFacts {
    ModelFacts {
        format: "gguf".to_owned(),
        architecture: Some("llama".to_owned()),
        parameters: Some(70_553_706_496),
        quantisation: Some("Q4_K_M".to_owned()),
        context_length: Some(131_072),
        layers: Some(80),
        embedding_length: Some(8192),
        kv_heads: vec![8],
        key_length: Some(128),
        value_length: Some(128),
        vocabulary: Some(128_256),
        weight_bytes: Some(42_511_450_112),
        ..ModelFacts::default()
    }
}

fn prepared(fields: Value, facts: &Facts) -> Result<PreparedEngine, ProviderError> {
    let mut request = request(pool(fields), facts, None);
    let model = request.artifacts.get_mut(crate::MODEL).unwrap();
    model.model = Some(seventy_billion());
    LlamaCpp.prepare(&request)
}

#[test]
fn a_model_that_cannot_fit_is_refused_with_the_numbers_and_what_would_help() {
    let card = machine!("rtx3090-cuda124");
    let error = prepared(json!({ "ctx": 32768 }), &card).unwrap_err();
    assert_snapshot!(told(&error), @r"
    PoolUnavailable: pool `default` needs at least 49.3 GiB of GPU memory (weights 39.0 + KV cache 10.0 + compute buffers 0.3), and GPU 0 has 24.0 GiB
    cause: the model says of itself: llama, 70.6 billion parameters, Q4_K_M, 80 layers
      fix: choose a smaller quantisation of the model (`quant`), or a smaller model
      fix: use more GPUs, or larger ones (`devices` in the pool)
      fix: let it run on the processor where there is no GPU (`gpu: prefer` in the pool)
             {again} --gpu prefer
    ");

    // On a card that takes the weights, a shorter context is what helps.
    let large = machine!("h200");
    let fits = prepared(json!({ "ctx": 131_072 }), &large).unwrap();
    assert_eq!(fits.resources.vram_bytes.map(|bytes| bytes >> 30), Some(79));
    let smaller = with_flags(&["--cache-type-k", "q8_0", "--cache-type-v", "q8_0"]);
    let smaller = prepared(smaller, &large).unwrap();
    assert_eq!(
        smaller.resources.vram_bytes.map(|bytes| bytes >> 30),
        Some(60)
    );

    let preferred = prepared(json!({ "ctx": 32768, "gpu": "prefer" }), &card);
    assert!(preferred.is_ok());
}
