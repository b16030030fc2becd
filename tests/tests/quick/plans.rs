//! Plans for machines that are written down: GPUs without having one.

use e2e::{Machine, Run, facts, repository_root};
use serde_json::Value;

const RTX3090: &str = "examples/llamacpp-3090-source.yaml";

fn plan(machine: &Machine, example: &str, on: &str, more: &[&str]) -> Run {
    let example = repository_root().join(example);
    let facts = facts(on);
    let mut arguments = vec![
        "plan",
        "--config",
        example.to_str().unwrap(),
        "--facts",
        &facts,
    ];
    arguments.extend(more);
    machine.run(&arguments)
}

fn ids(plan: &Value) -> Vec<&str> {
    plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| step["id"].as_str().unwrap())
        .collect()
}

fn words<'a>(plan: &'a Value, step: &str) -> Vec<&'a str> {
    plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|candidate| candidate["id"] == step)
        .unwrap_or_else(|| panic!("no step {step}"))["command"]
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect()
}

#[test]
fn the_3090_example_is_planned_with_cuda_86_and_every_layer_on_the_card() {
    let machine = Machine::new();
    let plan = plan(&machine, RTX3090, "rtx3090-cuda124", &["--json"])
        .code(0)
        .json();
    insta::assert_json_snapshot!(ids(&plan), @r#"
    [
      "preflight-tools",
      "git-clone",
      "link-source",
      "cmake-configure",
      "cmake-build",
      "observe-version",
      "observe-help",
      "observe-devices",
      "model-fetch",
      "run"
    ]
    "#);
    let configure = words(&plan, "cmake-configure");
    for flag in [
        "-DGGML_CUDA=ON",
        "-DCMAKE_CUDA_ARCHITECTURES=86",
        // gcc 15 is the machine's usual compiler and no host compiler of CUDA 12.4.
        "-DCMAKE_CUDA_HOST_COMPILER=/usr/bin/g++-12",
        // CUDA is off PATH on this machine.
        "-DCUDAToolkit_ROOT=/opt/cuda",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_USE_PREBUILT_UI=OFF",
    ] {
        assert!(configure.contains(&flag), "{flag} not in {configure:#?}");
    }
    assert!(words(&plan, "cmake-build").contains(&"llama-server"));
    let arguments = plan["run"]["command"]["args"].as_array().unwrap();
    let layers = arguments
        .iter()
        .position(|word| word == "--n-gpu-layers")
        .expect("layers are said");
    assert_eq!(arguments[layers + 1], "99");
    for flag in ["--fit", "--cache-ram", "--host", "--port", "--ctx-size"] {
        assert!(arguments.iter().any(|word| word == flag), "{flag}");
    }
    assert_eq!(plan["run"]["command"]["ports"][0], 8080);
    let mask = plan["run"]["device_mask"][0].as_str().unwrap();
    assert!(mask.starts_with("GPU-"), "by UUID: {mask}");
    machine.assert_untouched();
}

#[test]
fn the_3090_example_is_planned_though_its_hub_is_out_of_reach() {
    let mut machine = Machine::new();
    // Nobody listens there, wherever the tests run.
    machine.lend("HF_ENDPOINT", "http://127.0.0.1:9");
    let plan = plan(&machine, RTX3090, "rtx3090-cuda124", &["--json"])
        .code(0)
        .json();
    let model = plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["id"] == "model-fetch")
        .unwrap();
    assert_eq!(model["state"], "fetch");
    let warnings = plan["warnings"].as_array().unwrap();
    assert!(
        warnings.iter().any(|warning| warning
            .as_str()
            .unwrap()
            .contains("Qwen2.5-7B-Instruct-GGUF")),
        "{warnings:#?}"
    );
}

#[test]
fn a_plan_for_people_fits_on_one_screen_and_shows_the_command() {
    let machine = Machine::new();
    let haiku = "examples/llamacpp-haiku.yaml";
    let run = plan(&machine, haiku, "debian-cpu", &[]).code(0);
    assert_eq!(run.stderr, "");
    let lines = run.stdout.lines().count();
    assert!(lines <= 50, "{lines} lines:\n{}", run.stdout);
    for text in [
        "pool default: llamacpp from source, gpu prefer",
        "would run:",
        "/bin/llama-server",
        "--parallel 1",
        "may reach       github.com, pypi.org",
        "runs on the processor",
    ] {
        assert!(run.stdout.contains(text), "{text}:\n{}", run.stdout);
    }
    machine.assert_untouched();
}

#[test]
fn without_a_gpu_the_default_is_refused_before_any_clone_with_the_flag_that_would_allow_it() {
    let machine = Machine::new();
    let run = plan(&machine, RTX3090, "debian-cpu", &[]).code(5);
    run.says("requires a GPU, and this machine has no usable GPU");
    run.says(" --gpu prefer");
    // The same for the machine itself: no clone, no build, nothing fetched.
    let provision = ["provision", "--provider", "llamacpp", "--offline"];
    let run = machine.run(&provision).code(5);
    run.says("requires a GPU");
    run.says("provision --provider llamacpp --offline --gpu prefer");
    machine.assert_untouched();
}

#[test]
fn a_broken_driver_is_not_called_a_machine_without_gpu() {
    let machine = Machine::new();
    let run = plan(&machine, RTX3090, "driver-broken", &[]).code(5);
    run.says("GPU driver does not work");
    run.says("Driver/library version mismatch");
    run.says("nvidia-smi");
    assert!(!run.stderr.contains("has no usable GPU"), "{}", run.stderr);
    machine.assert_untouched();
}

#[test]
fn a_gpu_without_its_toolkit_is_refused_with_what_to_install() {
    let machine = Machine::new();
    let run = plan(&machine, RTX3090, "rtx3090-cuda-missing", &[]).code(5);
    run.says("CUDA");
    run.says("fix:");
    machine.assert_untouched();
}

#[test]
fn flags_that_the_pinned_build_does_not_know_are_refused_with_the_nearest_name() {
    let machine = Machine::new();
    machine.write(
        "pools.yaml",
        "pools:\n  - id: a\n    engine: llamacpp\n    gpu: forbid\n    provisioning:\n      model: {ref: \"builtin:haiku\"}\n      flags: [\"--paralel\", \"2\"]\n",
    );
    let run = machine.run(&["plan", "--facts", &facts("debian-cpu")]);
    let run = run.code(3);
    run.says("--paralel");
    run.says("--parallel");
    run.says("pools.yaml:7:");
    machine.assert_untouched();
}

#[test]
fn facts_of_another_machine_are_for_planning_only() {
    let machine = Machine::new();
    let example = repository_root().join("examples/llamacpp-haiku.yaml");
    let run = machine
        .run(&[
            "prepare",
            "--config",
            example.to_str().unwrap(),
            "--facts",
            &facts("debian-cpu"),
        ])
        .code(2);
    run.says("`--facts` is for planning");
    machine.assert_clean();
}

#[test]
fn planning_here_leaves_an_existing_home_as_it_is_but_for_remembered_versions() {
    let machine = Machine::new();
    let arguments = ["plan", "--provider", "llamacpp", "--gpu", "forbid"];
    let _ = machine.run(&arguments).code(0);
    machine.assert_untouched();
    std::fs::create_dir(machine.home()).unwrap();
    let _ = machine.run(&arguments).code(0);
    let found = machine.files_below(&machine.home());
    assert_eq!(found, ["state/facts/tools.json"]);
}

#[test]
fn offline_plans_say_so_and_refuse_what_would_be_fetched() {
    let machine = Machine::new();
    let of_cpu = ["--provider", "llamacpp", "--gpu", "forbid", "--offline"];
    let shown = machine.run(&[&["plan"], &of_cpu[..]].concat()).code(0);
    let clone = shown.stdout.lines().find(|line| line.contains("git-clone"));
    let clone = clone.expect("the source is shown");
    assert!(clone.contains(" refused "), "{clone}");
    assert!(
        clone.contains("does not allow reaching `github.com`"),
        "{clone}"
    );
    assert!(clone.ends_with("leave `--offline` out"), "{clone}");
    assert!(!shown.stdout.contains("may reach"), "{}", shown.stdout);
    let run = machine.run(&[&["prepare"], &of_cpu[..]].concat()).code(4);
    run.says("policy does not allow reaching");
    run.says("leave `--offline` out");
    machine.assert_clean();
}

#[test]
fn a_plan_names_the_hosts_that_the_list_of_the_pool_file_lets_it_reach() {
    let machine = Machine::new();
    machine.write(
        "pools.yaml",
        "policy: {network: [pypi.org]}\npools:\n  - id: a\n    engine: llamacpp\n    gpu: forbid\n    provisioning:\n      model: {ref: \"hf:o/n\"}\n",
    );
    let run = machine.run(&["plan", "--facts", &facts("debian-cpu"), "--json"]);
    let plan = run.code(0).json();
    assert_eq!(plan["hosts"], serde_json::json!(["pypi.org"]));
    let steps = plan["steps"].as_array().unwrap();
    let state = |id: &str| &steps.iter().find(|step| step["id"] == id).unwrap()["state"];
    assert_eq!(state("git-clone"), "fetch", "the package index has it too");
    assert_eq!(state("model-fetch"), "refused");
}

#[test]
fn the_json_of_a_plan_has_the_documented_shape() {
    let machine = Machine::new();
    let haiku = "examples/llamacpp-haiku.yaml";
    let plan = plan(&machine, haiku, "debian-cpu", &["--json"])
        .code(0)
        .json();
    let keys = |value: &Value| {
        let mut keys: Vec<String> = value.as_object().unwrap().keys().cloned().collect();
        keys.sort();
        keys.join(" ")
    };
    insta::assert_snapshot!(keys(&plan), @"engine gpu hosts mode notes pool_id provider run schema steps warnings");
    insta::assert_snapshot!(keys(&plan["run"]), @"command device_mask engine_version model profile slots_total");
    insta::assert_snapshot!(keys(&plan["run"]["command"]), @"args bin env ports workdir");
    let last = plan["steps"].as_array().unwrap().last().unwrap();
    assert_eq!(last["id"], "run");
    machine.assert_untouched();
}

#[test]
fn a_home_that_nobody_can_enter_or_write_is_no_ready_machine() {
    let machine = Machine::new();
    let mut command = machine.command(&["doctor", "--provider", "llamacpp", "--gpu", "prefer"]);
    // Root may write to it, but its engines' user may not pass; anybody else may not write.
    let closed = machine.root().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o500);
    std::fs::set_permissions(&closed, mode).unwrap();
    command.env("HOST_HOME", closed.join("home"));
    let run = machine.start(command).finish(e2e::RUN_LIMIT).code(5);
    assert!(run.stdout.contains("closed"), "{}", run.stdout);
    machine.assert_untouched();
}

#[test]
fn the_machine_that_a_file_describes_is_shown_in_place_of_this_one() {
    let machine = Machine::new();
    let described = facts("podman-one-gpu");
    let shown = machine.run(&["facts", "--facts", &described]).code(0);
    assert!(shown.stdout.contains("NVIDIA GeForce RTX 3090"));
    let again = machine.run(&["facts", "--json", "--facts", &described]);
    let read: Value = serde_json::from_slice(&std::fs::read(&described).unwrap()).unwrap();
    assert_eq!(again.code(0).json()["gpus"], read["gpus"]);
    machine.assert_untouched();
}
