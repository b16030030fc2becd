//! What is planned for machines that were written down.

use super::*;

#[test]
fn with_prefer_it_is_planned_for_the_processor() {
    let facts = machine!("debian-cpu");
    assert_snapshot!(show_plan(&plan(example!("llamacpp-haiku.yaml"), &facts)), @r#"
    preflight-tools (require-tools) git cmake ninja cc cxx ccache
    git-clone (checkout) 0c1e57098bba43ac29e6e3b677cdceebdd22334f
      from [{"kind":"git","url":"https://github.com/ggml-org/llama.cpp"},{"kind":"index","project":"llama-cpp-python","version":"0.3.36","sha256":"832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e","git_directory":".git/modules/vendor/llama.cpp"}]
    build (build) native=true {"backend":"cpu"}
      attempt with the system's compiler, when=false
        link-source: -E create_symlink {git-clone.path} .source
        cmake-configure: -S .source -B . -G Ninja
            -DCMAKE_MAKE_PROGRAM={tool.ninja}
            -DCMAKE_BUILD_TYPE=Release
            -DBUILD_SHARED_LIBS=OFF
            -DGGML_CCACHE=OFF
            -DGGML_OPENMP=OFF
            -DGIT_EXE=
            -DLLAMA_BUILD_APP=OFF
            -DLLAMA_BUILD_EXAMPLES=OFF
            -DLLAMA_BUILD_NUMBER=0
            -DLLAMA_BUILD_TESTS=OFF
            -DLLAMA_BUILD_UI=OFF
            -DLLAMA_USE_PREBUILT_UI=OFF
            -DLLAMA_CURL=OFF
            -DLLAMA_OPENSSL=OFF
            -DCMAKE_C_FLAGS=-ffile-prefix-map={work}=.
            -DCMAKE_CXX_FLAGS=-ffile-prefix-map={work}=.
            -DLLAMA_BUILD_COMMIT=0c1e57098bba
            -DCMAKE_C_COMPILER={tool.cc}
            -DCMAKE_CXX_COMPILER={tool.cxx}
            -DCMAKE_C_COMPILER_LAUNCHER={tool.ccache}
            -DCMAKE_CXX_COMPILER_LAUNCHER={tool.ccache}
            CCACHE_BASEDIR={work}
            CCACHE_DIR={cache.ccache}
            CCACHE_NOHASHDIR=1
        cmake-build: --build . --target llama-server --parallel {jobs}
    observe-version (observe) {build.path}/bin/llama-server --version
    observe-help (observe) {build.path}/bin/llama-server --help
    observe-devices (observe) {build.path}/bin/llama-server --list-devices
    model-fetch (stage-model) builtin:haiku
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end cpu; `gpu: require` asks for a GPU
    warning: this machine has no usable GPU: this pool runs on the processor
    "#);
}

#[test]
fn the_example_for_a_3090_is_planned_with_cuda_off_path_and_the_compiler_nvcc_accepts() {
    let facts = machine!("rtx3090-cuda124");
    let plan = plan(example!("llamacpp-3090-source.yaml"), &facts);
    assert_snapshot!(show_plan(&plan), @r#"
    preflight-tools (require-tools) git cmake ninja cc cxx ccache
    git-clone (checkout) 0c1e57098bba43ac29e6e3b677cdceebdd22334f
      from [{"kind":"git","url":"https://github.com/ggml-org/llama.cpp"},{"kind":"index","project":"llama-cpp-python","version":"0.3.36","sha256":"832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e","git_directory":".git/modules/vendor/llama.cpp"}]
    build (build) native=true {"architectures":"86-real","backend":"cuda","toolkit":"12.4"}
      attempt with gcc 12.4.0 for CUDA, when=false
        link-source: -E create_symlink {git-clone.path} .source
        cmake-configure: -S .source -B . -G Ninja
            -DCMAKE_MAKE_PROGRAM={tool.ninja}
            -DCMAKE_BUILD_TYPE=Release
            -DBUILD_SHARED_LIBS=OFF
            -DGGML_CCACHE=OFF
            -DGGML_OPENMP=OFF
            -DGIT_EXE=
            -DLLAMA_BUILD_APP=OFF
            -DLLAMA_BUILD_EXAMPLES=OFF
            -DLLAMA_BUILD_NUMBER=0
            -DLLAMA_BUILD_TESTS=OFF
            -DLLAMA_BUILD_UI=OFF
            -DLLAMA_USE_PREBUILT_UI=OFF
            -DLLAMA_CURL=OFF
            -DLLAMA_OPENSSL=OFF
            -DCMAKE_C_FLAGS=-ffile-prefix-map={work}=.
            -DCMAKE_CXX_FLAGS=-ffile-prefix-map={work}=.
            -DLLAMA_BUILD_COMMIT=0c1e57098bba
            -DCMAKE_C_COMPILER={tool.cc}
            -DCMAKE_CXX_COMPILER={tool.cxx}
            -DGGML_CUDA=ON
            -DCUDAToolkit_ROOT=/opt/cuda
            -DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc
            -DCMAKE_CUDA_FLAGS=-Xcompiler=-ffile-prefix-map={work}=.
            -DCMAKE_BUILD_RPATH=/opt/cuda/lib64
            -DGGML_CUDA_NCCL=OFF
            -DCMAKE_CUDA_HOST_COMPILER=/usr/bin/g++-12
            -DCMAKE_C_COMPILER_LAUNCHER={tool.ccache}
            -DCMAKE_CXX_COMPILER_LAUNCHER={tool.ccache}
            -DCMAKE_CUDA_COMPILER_LAUNCHER={tool.ccache}
            -DCMAKE_CUDA_ARCHITECTURES=86
            CCACHE_BASEDIR={work}
            CCACHE_DIR={cache.ccache}
            CCACHE_NOHASHDIR=1
        cmake-build: --build . --target llama-server --parallel {jobs}
    observe-version (observe) {build.path}/bin/llama-server --version
    observe-help (observe) {build.path}/bin/llama-server --help
    observe-devices (observe) {build.path}/bin/llama-server --list-devices
    model-fetch (stage-model) hf:bartowski/Qwen2.5-7B-Instruct-GGUF/Qwen2.5-7B-Instruct-Q4_K_M.gguf
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end cuda 12.4 from /opt/cuda with gcc 12.4.0 for NVIDIA GeForce RTX 3090; `GGML_*` in `cmake_flags` chooses another
    "#);
}

#[test]
fn every_attempt_keeps_the_cuda_hints_and_only_the_first_is_unconditional() {
    let facts = machine!("two-gpus");
    let plan = plan(pool(json!({})), &facts);
    assert_eq!(plan.requires, ["build.attempts"]);
    let Some(Act::Build(build)) = plan
        .steps
        .iter()
        .map(|step| &step.act)
        .find(|act| act.kind() == "build")
    else {
        panic!("no build step")
    };
    let titles: Vec<&str> = build
        .attempts
        .iter()
        .map(|attempt| attempt.title.as_str())
        .collect();
    assert_eq!(
        titles,
        ["with gcc 12.2.0 for CUDA", "with gcc 11.3.0 for CUDA"]
    );
    for (number, attempt) in build.attempts.iter().enumerate() {
        let line = join(&attempt.commands[1].args);
        for hint in [
            "-DGGML_CUDA=ON",
            "-DCUDAToolkit_ROOT=/usr/local/cuda-12.8",
            "-DCMAKE_CUDA_COMPILER=/usr/local/cuda-12.8/bin/nvcc",
            "-DCMAKE_CUDA_ARCHITECTURES=86-real;89-real",
        ] {
            assert!(
                line.contains(hint),
                "{hint} is not in attempt {number}: {line}"
            );
        }
        assert_eq!(attempt.when.is_some(), number > 0);
    }
    let when = build.attempts[1]
        .when
        .as_ref()
        .unwrap()
        .log
        .clone()
        .unwrap();
    let when = regex::Regex::new(&when).unwrap();
    // As nvcc says them, and as cmake folds what nvcc says.
    for another_compiler_helps in [
        "#error -- unsupported GNU version! gcc versions later than 13 are not supported!",
        "  error: #error -- unsupported\n  GNU version! gcc versions later than 15 are not",
        "nvcc fatal   : Failed to preprocess host compiler properties.",
    ] {
        assert!(
            when.is_match(another_compiler_helps),
            "{another_compiler_helps}"
        );
    }
    for it_does_not in [
        "fatal error: error writing to /tmp/cc.s: No space left on device",
        "CMake Error at ggml/src/ggml-cuda/CMakeLists.txt:270 (message):\n  CUDA Toolkit not found",
        "CMake Error: No CMAKE_CUDA_COMPILER could be found.",
        "  Failed to find nvcc.\n\n  Compiler requires the CUDA toolkit.",
        "nvcc fatal   : Unsupported gpu architecture 'compute_35'",
    ] {
        assert!(!when.is_match(it_does_not), "{it_does_not}");
    }
}

#[test]
fn an_amd_gpu_is_served_by_hip() {
    let facts = machine!("amd-rocm");
    assert_snapshot!(show_plan(&plan(pool(json!({})), &facts)), @r#"
    preflight-tools (require-tools) git cmake ninja cc cxx ccache
    git-clone (checkout) 0c1e57098bba43ac29e6e3b677cdceebdd22334f
      from [{"kind":"git","url":"https://github.com/ggml-org/llama.cpp"},{"kind":"index","project":"llama-cpp-python","version":"0.3.36","sha256":"832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e","git_directory":".git/modules/vendor/llama.cpp"}]
    build (build) native=true {"backend":"hip","toolkit":"6.3.0"}
      attempt with the system's compiler, when=false
        link-source: -E create_symlink {git-clone.path} .source
        cmake-configure: -S .source -B . -G Ninja
            -DCMAKE_MAKE_PROGRAM={tool.ninja}
            -DCMAKE_BUILD_TYPE=Release
            -DBUILD_SHARED_LIBS=OFF
            -DGGML_CCACHE=OFF
            -DGGML_OPENMP=OFF
            -DGIT_EXE=
            -DLLAMA_BUILD_APP=OFF
            -DLLAMA_BUILD_EXAMPLES=OFF
            -DLLAMA_BUILD_NUMBER=0
            -DLLAMA_BUILD_TESTS=OFF
            -DLLAMA_BUILD_UI=OFF
            -DLLAMA_USE_PREBUILT_UI=OFF
            -DLLAMA_CURL=OFF
            -DLLAMA_OPENSSL=OFF
            -DCMAKE_C_FLAGS=-ffile-prefix-map={work}=.
            -DCMAKE_CXX_FLAGS=-ffile-prefix-map={work}=.
            -DLLAMA_BUILD_COMMIT=0c1e57098bba
            -DCMAKE_C_COMPILER={tool.cc}
            -DCMAKE_CXX_COMPILER={tool.cxx}
            -DGGML_HIP=ON
            -DCMAKE_PREFIX_PATH=/opt/rocm
            -DCMAKE_BUILD_RPATH=/opt/rocm/lib
            -DCMAKE_C_COMPILER_LAUNCHER={tool.ccache}
            -DCMAKE_CXX_COMPILER_LAUNCHER={tool.ccache}
            -DCMAKE_HIP_COMPILER_LAUNCHER={tool.ccache}
            CCACHE_BASEDIR={work}
            CCACHE_DIR={cache.ccache}
            CCACHE_NOHASHDIR=1
            HIPCXX=/opt/rocm/llvm/bin/clang++
            HIP_PATH=/opt/rocm
            ROCM_PATH=/opt/rocm
        cmake-build: --build . --target llama-server --parallel {jobs}
    observe-version (observe) {build.path}/bin/llama-server --version
    observe-help (observe) {build.path}/bin/llama-server --help
    observe-devices (observe) {build.path}/bin/llama-server --list-devices
    model-fetch (stage-model) builtin:haiku
    note: profile deterministic: one request at a time, equal requests with equal seeds give equal texts; `profile: throughput` serves 4 at once
    note: back end hip from /opt/rocm for AMD Radeon RX 7900 XTX; `GGML_*` in `cmake_flags` chooses another
    "#);
    let rocm = Said {
        devices: "Available devices:\n  ROCm0: AMD Radeon RX 7900 XTX (24560 MiB, 24000 MiB free)\n",
        ..NO_DEVICE
    };
    let engine = prepare(pool(json!({})), &facts, Some(&rocm));
    assert_eq!(engine.engine_version, "0c1e57098bba-hip");
    assert!(
        engine
            .flags
            .windows(2)
            .any(|pair| pair == ["--device", "ROCm0"])
    );
}

#[test]
fn an_h200_is_built_for_its_own_architecture() {
    let text = show_plan(&plan(pool(json!({})), &machine!("h200")));
    assert!(
        text.contains("-DCMAKE_CUDA_ARCHITECTURES=90-real"),
        "{text}"
    );
    assert!(
        text.contains("-DCMAKE_CUDA_HOST_COMPILER=/usr/bin/g++-13"),
        "{text}"
    );
}

#[test]
fn vulkan_serves_where_cuda_is_not_installed_or_is_switched_off() {
    let mut facts = machine!("rtx3090-cuda-missing");
    facts.vulkan =
        Some(serde_json::from_value(json!({ "root": "/usr", "version": "1.4" })).unwrap());
    let text = show_plan(&plan(pool(json!({})), &facts));
    assert!(text.contains("-DGGML_VULKAN=ON"), "{text}");
    let mut facts = machine!("rtx3090-cuda124");
    let error = refusal(with_cmake(&["-DGGML_CUDA=OFF"]), &facts);
    assert!(
        error.message.contains("no Vulkan toolkit"),
        "{}",
        error.message
    );
    facts.vulkan = Some(serde_json::from_value(json!({ "root": "/usr" })).unwrap());
    let text = show_plan(&plan(pool(with_cmake(&["-DGGML_VULKAN=ON"])), &facts));
    assert!(
        text.contains("-DGGML_VULKAN=ON") && !text.contains("GGML_CUDA=ON"),
        "{text}"
    );
}

#[test]
fn a_former_name_of_a_switch_is_read_as_todays() {
    let facts = machine!("rtx3090-cuda124");
    let plan = plan(pool(with_cmake(&["-DLLAMA_CUBLAS=1"])), &facts);
    let text = show_plan(&plan);
    assert!(
        !text.contains("-DLLAMA_CUBLAS") && text.contains("-DGGML_CUDA=ON"),
        "{text}"
    );
    let note = "`LLAMA_CUBLAS` is called `GGML_CUDA` now and was read as that";
    assert!(
        plan.notes.iter().any(|other| other == note),
        "{:?}",
        plan.notes
    );

    let mut forbid = with_cmake(&["-DLLAMA_CUBLAS=ON"]);
    merge(&mut forbid, json!({ "gpu": "forbid" }));
    let error = refusal(forbid, &facts);
    assert_eq!(error.message, "`LLAMA_CUBLAS` contradicts `gpu: forbid`");
}

#[test]
fn what_an_operator_sets_is_built() {
    let fields = json!({ "gpu": "forbid", "provisioning": { "source": {
        "repo": "https://example.org/fork.git", "ref": "v1", "submodules": true,
        "build": { "cmake_flags": ["-DGGML_NATIVE=OFF"], "generator": "Unix Makefiles", "cache_dir": "/c" },
    } } });
    let text = show_plan(&plan(pool(fields), &machine!("debian-cpu")));
    for part in [
        "native=false",
        "-G Unix Makefiles",
        "CCACHE_DIR=/c",
        "(checkout) v1\n  from [{\"kind\":\"git\",\"url\":\"https://example.org/fork.git\"}]",
        "-DGGML_NATIVE=OFF",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("LLAMA_BUILD_COMMIT"), "{text}");
    let error = refusal(with_cmake(&["-DBUILD_SHARED_LIBS=ON"]), &machine!("h200"));
    assert_eq!(error.message, "`BUILD_SHARED_LIBS` is set by the provider");
}

/// A host fills in nothing else, and `after` and placeholders together must order the steps.
#[test]
fn every_placeholder_names_an_earlier_step_or_a_required_tool() {
    for facts in [
        machine!("debian-cpu"),
        machine!("two-gpus"),
        machine!("amd-rocm"),
    ] {
        let plan = plan(pool(json!({ "gpu": "prefer" })), &facts);
        let mut known: Vec<String> = ["work", "jobs", "cache.ccache"].map(str::to_owned).to_vec();
        for step in &plan.steps {
            assert!(
                step.after
                    .iter()
                    .all(|id| known.contains(&format!("{id}.path")))
            );
            let templates: Vec<&Template> = match &step.act {
                Act::RequireTools(act) => {
                    let tools = act.tools.iter().map(|tool| format!("tool.{}", tool.name));
                    known.extend(tools);
                    Vec::new()
                }
                Act::Build(act) => {
                    let attempts = act.attempts.iter().flat_map(|attempt| &attempt.commands);
                    attempts.flat_map(templates_of).collect()
                }
                Act::Observe(act) => act.args.iter().chain([&act.program]).collect(),
                _ => Vec::new(),
            };
            for template in templates {
                for name in template.placeholders().expect("a template can be read") {
                    assert!(
                        known.iter().any(|other| other == name),
                        "{name} in {template}"
                    );
                }
            }
            known.push(format!("{}.path", step.id));
        }
    }
}

fn templates_of(command: &Command) -> impl Iterator<Item = &Template> {
    let env = command.env.values();
    command.args.iter().chain(env).chain([&command.program])
}
