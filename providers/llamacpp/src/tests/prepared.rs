//! What is run, and how its words are understood.

use super::*;

#[test]
fn with_prefer_it_is_prepared_for_the_processor() {
    let facts = machine!("debian-cpu");
    let haiku = || example!("llamacpp-haiku.yaml");
    assert_snapshot!(show_engine(&prepare(haiku(), &facts, Some(&NO_DEVICE))), @r"
    0c1e57098bba-cpu
    {build.path}/bin/llama-server --host {address.host}
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
    env [], mask []
    slots 1, vram Some(0), evidence on None
    warning: this machine has no usable GPU: this pool runs on the processor
    ");
    let expected = prepare(haiku(), &facts, None);
    assert_eq!(expected.engine_version, "(known after build)");
}

#[test]
fn the_example_for_a_3090_is_prepared_for_gpu_memory_alone() {
    let facts = machine!("rtx3090-cuda124");
    let engine = prepare(
        example!("llamacpp-3090-source.yaml"),
        &facts,
        Some(&ONE_CUDA),
    );
    assert_snapshot!(show_engine(&engine), @r#"
    0c1e57098bba-cuda
    {build.path}/bin/llama-server --host {address.host}
      --port {address.port}
      --model {model-fetch.path}
      --alias qwen2.5-7b-instruct
      --parallel 1
      --no-cont-batching
      --no-cache-prompt
      --metrics
      --no-webui
      --seed 42
      --sse-ping-interval 1
      --ctx-size 8192
      --device CUDA0
      --fit off
      --cache-ram 0
      --ctx-checkpoints 0
      --log-verbosity 4
      --n-gpu-layers 99
    env ["CUDA_VISIBLE_DEVICES=GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"], mask ["GPU-3d4f7a0e-6a0f-4f6c-9a7b-5f0c1d2e3f40"]
    slots 1, vram Some(4294967296), evidence on Some(["CUDA0"])
    "#);
}

#[test]
fn two_gpus_are_masked_by_id_and_share_by_split() {
    let facts = machine!("two-gpus");
    let fields = json!({ "devices": [1, 0], "tensor_split": [1.0, 3.5], "ctx": 4096 });
    let two = Said {
        devices: "Available devices:\n  CUDA0: A (1 MiB, 1 MiB free)\n  CUDA1: B (1 MiB, 1 MiB free)\n",
        ..NO_DEVICE
    };
    assert_snapshot!(show_engine(&prepare(pool(fields), &facts, Some(&two))), @r#"
    0c1e57098bba-cuda
    {build.path}/bin/llama-server --host {address.host}
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
      --ctx-size 4096
      --device CUDA0,CUDA1
      --tensor-split 1,3.5
      --n-gpu-layers all
      --fit off
      --cache-ram 0
      --ctx-checkpoints 0
      --log-verbosity 4
    env ["CUDA_VISIBLE_DEVICES=GPU-66666666-7777-8888-9999-aaaaaaaaaaaa,GPU-11111111-2222-3333-4444-555555555555"], mask ["GPU-66666666-7777-8888-9999-aaaaaaaaaaaa", "GPU-11111111-2222-3333-4444-555555555555"]
    slots 1, vram Some(4294967296), evidence on Some(["CUDA0", "CUDA1"])
    "#);
}

#[test]
fn every_name_of_the_same_flag_becomes_one() {
    let facts = machine!("rtx3090-cuda124");
    for name in ["--ngl", "-ngl", "--gpu-layers", "--n-gpu-layers"] {
        for given in [
            vec![name.to_owned(), "99".to_owned()],
            vec![format!("{name}=99")],
        ] {
            let given: Vec<&str> = given.iter().map(String::as_str).collect();
            let engine = prepare(pool(with_flags(&given)), &facts, Some(&ONE_CUDA));
            let layers: Vec<_> = engine
                .flags
                .windows(2)
                .filter(|pair| pair[0] == "--n-gpu-layers")
                .collect();
            assert_eq!(layers, [["--n-gpu-layers", "99"]], "{given:?}");
        }
    }
}

#[test]
fn an_older_build_is_not_given_flags_that_it_lacks() {
    let older = Said {
        help: "-np, --parallel N   slots\n--metrics   endpoint\n--seed SEED   x\n-t, --threads N   x\n",
        ..NO_DEVICE
    };
    let engine = prepare(
        pool(json!({ "gpu": "forbid" })),
        &machine!("debian-cpu"),
        Some(&older),
    );
    assert_eq!(
        engine.flags,
        [
            "--parallel",
            "1",
            "--metrics",
            "--seed",
            "42",
            "--threads",
            "4"
        ]
    );
    assert!(
        engine
            .warnings
            .iter()
            .any(|warning| warning.contains("--sse-ping-interval"))
    );
}

#[test]
fn the_throughput_profile_serves_several_at_once_and_flags_override_a_profile() {
    let facts = machine!("debian-cpu");
    let fields = json!({ "gpu": "forbid", "profile": "throughput" });
    let engine = prepare(pool(fields), &facts, Some(&NO_DEVICE));
    assert_eq!(engine.slots_total, 4);
    assert!(engine.flags.iter().any(|flag| flag == "--cont-batching"));

    let mut fields = with_flags(&["-np", "3", "--cont-batching", "--reranking"]);
    merge(&mut fields, json!({ "gpu": "forbid" }));
    let engine = prepare(pool(fields), &facts, Some(&NO_DEVICE));
    assert_eq!(engine.slots_total, 3);
    assert_eq!(engine.workloads, ["rerank"]);
    assert!(!engine.flags.iter().any(|flag| flag == "--no-cont-batching"));
    assert!(
        engine.warnings[0].starts_with("3 slots"),
        "{:?}",
        engine.warnings
    );
}

#[test]
fn the_log_of_the_engine_proves_where_it_sits() {
    let engine = prepare(
        pool(json!({})),
        &machine!("rtx3090-cuda124"),
        Some(&ONE_CUDA),
    );
    let evidence = engine.gpu_evidence.expect("required under `gpu: require`");
    let log = "\
0.00.053.385 I load_tensors:   CPU_Mapped model buffer size =   292.36 MiB
0.00.053.385 I load_tensors:        CUDA0 model buffer size =  4168.09 MiB
0.00.053.385 I load_tensors:  CUDA1_Split model buffer size =     1.50 MiB
0.00.053.521 I llama_kv_cache:      CUDA0 KV buffer size =   448.00 MiB
0.00.053.522 I llama_memory_recurrent:      CUDA0 RS buffer size =     2.00 MiB
0.00.054.281 I sched_reserve:  CUDA_Host compute buffer size =     0.63 MiB
";
    let mut found = Vec::new();
    for pattern in &evidence.buffers {
        for captures in regex::Regex::new(pattern).unwrap().captures_iter(log) {
            found.push(format!("{} {}", &captures["device"], &captures["mib"]));
        }
    }
    assert_eq!(
        found,
        [
            "CPU_Mapped 292.36",
            "CUDA0 4168.09",
            "CUDA1 1.50",
            "CUDA0 448.00",
            "CUDA0 2.00"
        ]
    );
    let disproof = regex::Regex::new(&evidence.disproofs[0]).unwrap();
    assert!(!disproof.is_match(log));
    assert!(disproof.is_match("I llama_kv_cache:        CPU KV buffer size =     0.12 MiB"));
}

/// Last words of the real program, and the diagnosis that must be the first to match.
#[test]
fn the_last_words_of_the_engine_are_understood() {
    let all = diagnoses::all();
    let mut text = String::new();
    for line in [
        "0.00.008.182 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 39211",
        "error: invalid argument: --bogus-flag",
        "error while handling argument \"--device\": invalid device: CUDA0",
        "error while handling argument \"--ctx-size\": stoi",
        "0.00.011.209 E llama_model_load: error loading model: unknown model architecture: 'zlama'",
        "0.00.020.845 E gguf_init_from_reader: invalid magic characters: 'junk', expected 'GGUF'",
        "0.00.016.021 E gguf_init_from_file: failed to open GGUF file '/none.gguf' (No such file or directory)",
        "0.00.008.955 E gguf_init_from_reader: failed to read key-value pairs",
        "0.00.193.546 E llama_model_load: error loading model: check_tensor_dims: tensor 'token_embd.weight' not found",
        "E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4168.09 MiB on device 0: cudaMalloc failed: out of memory",
        "0.03.437.463 E llama_init_from_model: failed to initialize the context: failed to allocate buffer for kv cache",
        "0.00.016.203 E cmn  common_init_: failed to load model '/none.gguf'",
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
    Some(("something else listens on 127.0.0.1:39211", true))
    Some(("this llama-server has no flag `--bogus-flag`", false))
    Some(("llama-server does not see the device CUDA0", false))
    Some(("the value of `--ctx-size` is not accepted: stoi", false))
    Some(("this commit of llama.cpp does not know the model architecture `zlama`", false))
    Some(("the model file is no GGUF file", false))
    Some(("the model file /none.gguf cannot be opened: No such file or directory", false))
    Some(("the model file is damaged or incomplete", false))
    Some(("the model file is damaged or incomplete", false))
    Some(("GPU 0 has no room for another 4168.09 MiB", false))
    Some(("there is not enough memory for the model and its context", false))
    Some(("the model /none.gguf could not be loaded", false))
    "#);
}
