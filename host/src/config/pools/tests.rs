use engine_provider_api::{GpuPolicy, Mode};

use super::*;
use crate::{config::select::Overlay, fault::Fault as _};

fn base() -> Base {
    Base {
        directory: "/srv".into(),
        home: Some("/home/ada".into()),
    }
}

fn try_text(text: &str) -> Result<Loaded, ConfigError> {
    read(
        &Source::new("pools.yaml", text),
        &base(),
        &Caller::test_root(),
    )
}

/// A file with one pool; the lines given are those of the pool.
fn pool(lines: &str) -> Result<Loaded, ConfigError> {
    let mut text = "pools:\n  - id: chat\n    engine: llamacpp\n".to_owned();
    for line in lines.lines() {
        text.push_str("    ");
        text.push_str(line);
        text.push('\n');
    }
    try_text(&text)
}

fn told(result: Result<Loaded, ConfigError>) -> String {
    let error = result.expect_err("refused");
    assert_eq!(error.exit(), crate::fault::Exit::Config);
    let details: Vec<String> = error
        .details()
        .into_iter()
        .map(|detail| detail.text)
        .collect();
    details.join("\n")
}

fn notices(loaded: &Loaded) -> Vec<String> {
    loaded
        .notices
        .iter()
        .map(|notice| format!("{}: {}", notice.field, notice.message))
        .collect()
}

#[test]
fn the_smallest_file_has_every_default() {
    let loaded = pool("").unwrap();
    let pool = &loaded.pools[0].pool;
    assert_eq!(
        (pool.id.as_str(), pool.engine.as_str()),
        ("chat", "llamacpp")
    );
    assert_eq!(pool.readiness.stall_timeout_ms, 120_000);
    assert_eq!(pool.stop.grace_ms, 5_000);
    assert_eq!(pool.replicas, 1);
    assert!(pool.preload);
    assert_eq!(pool.gpu, GpuPolicy::Require);
    assert_eq!(pool.provisioning.mode, None);
    assert_eq!(notices(&loaded), [""; 0]);
}

#[test]
fn every_field_arrives_where_it_belongs() {
    let loaded = pool(
        r#"model: haiku
quant: Q4_K_M
ctx: 8192
devices: [0, GPU-5f3c]
tensor_split: [1, 2.5]
preload: false
profile: throughput
options: {threads: 4}
gpu: prefer
replicas: 2
readiness: {stall_timeout: 1m30s}
stop: {grace: 500ms}
provisioning:
  mode: source
  allow_package_installs: true
  allow_binary_downloads: false
  source:
    repo: https://github.com/ggml-org/llama.cpp
    ref: 0123456
    submodules: true
    build: {cmake_flags: [-DGGML_CUDA=ON], generator: Ninja, cache_dir: ~/ccache}
  model: {ref: "hf:org/repo", cache_dir: ./models}
  ports: [8080, 8081]
  env: {HF_TOKEN: "{secret.HF_TOKEN}", NUMBER: 1}
  flags: [--parallel, 1]"#,
    )
    .unwrap();
    let entry = &loaded.pools[0];
    insta::assert_json_snapshot!(entry.pool, @r#"
    {
      "id": "chat",
      "engine": "llamacpp",
      "model": "haiku",
      "quant": "Q4_K_M",
      "ctx": 8192,
      "devices": [
        0,
        "GPU-5f3c"
      ],
      "tensor_split": [
        1.0,
        2.5
      ],
      "preload": false,
      "profile": "throughput",
      "options": {
        "threads": 4
      },
      "gpu": "prefer",
      "replicas": 2,
      "readiness": {
        "stall_timeout_ms": 90000
      },
      "stop": {
        "grace_ms": 500
      },
      "provisioning": {
        "mode": "source",
        "source": {
          "repo": "https://github.com/ggml-org/llama.cpp",
          "ref": "0123456",
          "submodules": true,
          "build": {
            "cmake_flags": [
              "-DGGML_CUDA=ON"
            ],
            "generator": "Ninja",
            "cache_dir": "/home/ada/ccache"
          }
        },
        "model": {
          "ref": "hf:org/repo",
          "cache_dir": "/srv/models"
        },
        "ports": [
          8080,
          8081
        ],
        "env": {
          "HF_TOKEN": "{secret.HF_TOKEN}",
          "NUMBER": "1"
        },
        "flags": [
          "--parallel",
          "1"
        ]
      }
    }
    "#);
    let own = &entry.requests[1];
    assert_eq!(
        own.gpu.as_ref().unwrap().origin.to_string(),
        "pools.yaml:12"
    );
    assert!(own.allow_package_installs.as_ref().unwrap().value);
    assert!(!own.allow_binary_downloads.as_ref().unwrap().value);
}

#[test]
fn files_of_the_original_schema_load_with_one_notice() {
    let text = r#"
catalog: {trust_policy: {mode: strict}}
pools:
  - id: default
    engine: llamacpp
    model: "local:/models/x.gguf"
    ctx: 8192
    devices: [0]
    preload: true
    require_same_engine_version: true
    sampler_profile_version: "v1"
    queue: {capacity: 64, full_policy: reject}
    admission: {priorities: [{name: interactive, queue_capacity: 8}]}
    timeouts: {wall_ms: 60000, idle_ms: 5000}
  - id: second
    engine: vllm
    model: meta/llama
    devices: [1]
    queue: {}
"#;
    let loaded = try_text(text).unwrap();
    insta::assert_snapshot!(notices(&loaded).join("\n"), @r"
    catalog: not used here, they belong to an orchestrator: `catalog`, `require_same_engine_version`, `sampler_profile_version`, `queue`, `admission`, `timeouts`
    pools[0].model: taken for the model's reference; `provisioning.model.ref` is the place for it
    ");
    let first = &loaded.pools[0].pool;
    assert_eq!(
        first.provisioning.model.as_ref().unwrap().reference,
        "file:/models/x.gguf"
    );
    assert_eq!(loaded.pools[1].pool.provisioning.model, None);
}

#[test]
fn json_is_read_like_yaml() {
    let text =
        "{\n\t\"pools\": [\n\t\t{\"id\": \"a\", \"engine\": \"llamacpp\", \"ctx\": \"x\"}\n\t]\n}";
    let source = Source::new("pools.json", text);
    let error = read(&source, &base(), &Caller::default()).unwrap_err();
    insta::assert_snapshot!(error.details()[0].text.replace('\t', "→"), @r#"
    pools.json:3:44: `ctx` must be a whole number, not the text `x`
          |
        3 | →→{"id": "a", "engine": "llamacpp", "ctx": "x"}
          | →→                                         ^^^
    "#);
}

#[test]
fn unknown_fields_are_refused_with_the_nearest_name() {
    insta::assert_snapshot!(
        told(pool("enginee: x\nprovisioning:\n  flgas: [-x]\n  source: {reff: master}\n  docker: {}\nfoo_bar_baz: 1")),
        @r"
    pools.yaml:4:5: there is no `enginee` in `pools[0]`
          |
        4 |     enginee: x
          |     ^^^^^^^ did you mean `engine`?
    pools.yaml:6:7: there is no `flgas` in `pools[0].provisioning`
          |
        6 |       flgas: [-x]
          |       ^^^^^ did you mean `flags`?
    pools.yaml:7:16: there is no `reff` in `pools[0].provisioning.source`
          |
        7 |       source: {reff: master}
          |                ^^^^ did you mean `ref`?
    pools.yaml:8:7: there is no `docker` in `pools[0].provisioning`
          |
        8 |       docker: {}
          |       ^^^^^^ what can stand here: `allow_binary_downloads`, `allow_package_installs`, `binary`, `container`, `env`, `external`, `flags`, `mode`, `model`, `package`, `ports`, `source`
    pools.yaml:9:5: there is no `foo_bar_baz` in `pools[0]`
          |
        9 |     foo_bar_baz: 1
          |     ^^^^^^^^^^^ what can stand here: `admission`, `catalog`, `ctx`, `devices`, `engine`, `gpu`, `id`, `model`, `options`, `preload`, `profile`, `provisioning`, `quant`, `queue`, `readiness`, `replicas`, `require_same_engine_version`, `sampler_profile_version`, `stop`, `tensor_split`, `timeouts`
    "
    );
}

#[test]
fn wrong_types_and_words_are_refused_with_what_is_right() {
    insta::assert_snapshot!(
        told(pool("ctx: 8k\ngpu: required\nreplicas: 0\ndevices: 0\npreload: yes\nreadiness: {stall_timeout: 120}\nprovisioning: {mode: sorce, ports: [0, 70000], flags: --parallel 1}")),
        @r"
    pools.yaml:4:10: `ctx` must be a whole number, not the text `8k`
          |
        4 |     ctx: 8k
          |          ^^
    pools.yaml:5:10: `gpu` cannot be `required`
          |
        5 |     gpu: required
          |          ^^^^^^^^ did you mean `require`?
    pools.yaml:6:15: `replicas` cannot be 0
          |
        6 |     replicas: 0
          |               ^ it is 1 to 1000
    pools.yaml:7:14: `devices` must be a list, not `0`
          |
        7 |     devices: 0
          |              ^
    pools.yaml:8:14: `preload` must be true or false, not the text `yes`
          |
        8 |     preload: yes
          |              ^^^
    pools.yaml:9:32: `stall_timeout` cannot be `120`
          |
        9 |     readiness: {stall_timeout: 120}
          |                                ^^^ write a duration with its unit, for example `500ms`, `120s`, `1m30s` or `2h`
    pools.yaml:10:26: `mode` cannot be `sorce`
          |
       10 |     provisioning: {mode: sorce, ports: [0, 70000], flags: --parallel 1}
          |                          ^^^^^ did you mean `source`?
    pools.yaml:10:41: `ports[0]` cannot be 0
          |
       10 |     provisioning: {mode: sorce, ports: [0, 70000], flags: --parallel 1}
          |                                         ^ it is 1 to 65535
    pools.yaml:10:44: `ports[1]` cannot be 70000
          |
       10 |     provisioning: {mode: sorce, ports: [0, 70000], flags: --parallel 1}
          |                                            ^^^^^ it is 1 to 65535
    pools.yaml:10:59: `flags` must be a list, not the text `--parallel 1`
          |
       10 |     provisioning: {mode: sorce, ports: [0, 70000], flags: --parallel 1}
          |                                                           ^^^^^^^^^^^^
    "
    );
}

#[test]
fn missing_and_malformed_names_are_told() {
    insta::assert_snapshot!(told(try_text("pools:\n  - engine: llama.cpp\n  - id: My Pool\n")), @r"
    pools.yaml:2:5: `id` is missing in `pools[0]`
          |
        2 |   - engine: llama.cpp
          |     ^
    pools.yaml:2:13: `engine` cannot be `llama.cpp`
          |
        2 |   - engine: llama.cpp
          |             ^^^^^^^^^ use the name of a provider, for example `llamacpp`
    pools.yaml:3:5: `engine` is missing in `pools[1]`
          |
        3 |   - id: My Pool
          |     ^
    pools.yaml:3:9: `id` cannot be `My Pool`
          |
        3 |   - id: My Pool
          |         ^^^^^^^ use 1 to 63 lower-case letters, digits and `-`
    ");
    insta::assert_snapshot!(told(try_text("pools: []\n")), @r"
    pools.yaml:1:8: `pools` needs at least 1
          |
        1 | pools: []
          |        ^
    ");
    insta::assert_snapshot!(told(try_text("")), @r"
    pools.yaml:1:1: the file must be a map, not nothing
          |
        1 | 
          | ^
    ");
    insta::assert_snapshot!(told(try_text("- id: a\n")), @r"
    pools.yaml:1:1: the file must be a map, not a list
          |
        1 | - id: a
          | ^
    ");
}

#[test]
fn fields_that_contradict_each_other_are_both_shown() {
    insta::assert_snapshot!(
        told(pool("quant: Q4_K_M\ndevices: [0, 1, 0]\ntensor_split: [1, 1]\ngpu: forbid\nprovisioning:\n  model: {ref: ./m.gguf}\n  ports: [8080, 8080]")),
        @r"
    pools.yaml:4:12: `quant` picks one of several files, and this reference names exactly one
          |
        4 |     quant: Q4_K_M
          |            ^^^^^^ leave `quant` out, or refer to a repository with `hf:`
          |
        9 |       model: {ref: ./m.gguf}
          |                    -------- `provisioning.model.ref` is here
    pools.yaml:5:5: `devices` speaks of GPUs, and `gpu: forbid` uses none
          |
        5 |     devices: [0, 1, 0]
          |     ^^^^^^^ leave one of the two out
          |
        7 |     gpu: forbid
          |          ------ `gpu` is here
    pools.yaml:5:21: this device is there twice
          |
        5 |     devices: [0, 1, 0]
          |                     ^ name it once
          |
        5 |     devices: [0, 1, 0]
          |               - `devices[0]` is here
    pools.yaml:6:5: `tensor_split` has 2 shares for 3 `devices`
          |
        6 |     tensor_split: [1, 1]
          |     ^^^^^^^^^^^^ give one share per device
          |
        5 |     devices: [0, 1, 0]
          |     ------- `devices` is here
    pools.yaml:6:5: `tensor_split` speaks of GPUs, and `gpu: forbid` uses none
          |
        6 |     tensor_split: [1, 1]
          |     ^^^^^^^^^^^^ leave one of the two out
          |
        7 |     gpu: forbid
          |          ------ `gpu` is here
    pools.yaml:10:21: port 8080 is there twice
          |
       10 |       ports: [8080, 8080]
          |                     ^^^^ name it once
          |
       10 |       ports: [8080, 8080]
          |               ---- `provisioning.ports[0]` is here
    "
    );
}

#[test]
fn settings_of_another_mode_are_refused_with_the_reason() {
    insta::assert_snapshot!(
        told(pool("provisioning:\n  mode: source\n  container: {image: x/y, tag: 24.10}\n  binary:\n    url: https://h/x.tar.gz\n    checksum: md5:0")),
        @r"
    pools.yaml:6:26: `container.image` has no meaning under mode `source`
          |
        6 |       container: {image: x/y, tag: 24.10}
          |                          ^^^ leave one of the two out
          |
        5 |       mode: source
          |             ------ the mode is set here
    pools.yaml:9:19: digests of algorithm `md5` are not accepted here
          |
        9 |         checksum: md5:0
          |                   ^^^^^ write `sha256:` and 64 hexadecimal digits, or `sha512:` and 128 hexadecimal digits
    pools.yaml:9:19: `binary.checksum` has no meaning under mode `source`
          |
        9 |         checksum: md5:0
          |                   ^^^^^ leave one of the two out
          |
        5 |       mode: source
          |             ------ the mode is set here
    "
    );
    insta::assert_snapshot!(
        told(pool("provisioning:\n  mode: binary\n  source: {build: {cmake_flags: [-DX=1]}}")),
        @r"
    pools.yaml:6:16: `source.build` has no meaning under mode `binary`
          |
        6 |       source: {build: {cmake_flags: [-DX=1]}}
          |                ^^^^^ leave one of the two out
          |
        5 |       mode: binary
          |             ------ the mode is set here
    "
    );
    insta::assert_snapshot!(
        told(pool("ctx: 4096\nprovisioning:\n  mode: external\n  flags: [-x]")),
        @r"
    pools.yaml:4:10: `ctx` has no meaning for an engine that already runs
          |
        4 |     ctx: 4096
          |          ^^^^ leave one of the two out
          |
        6 |       mode: external
          |             -------- the mode is set here
    pools.yaml:6:13: mode `external` needs the URL of the running engine
          |
        6 |       mode: external
          |             ^^^^^^^^ add `external: {url: http://127.0.0.1:8080}` beside it
    pools.yaml:7:7: `provisioning.flags` has no meaning for an engine that already runs
          |
        7 |       flags: [-x]
          |       ^^^^^ leave one of the two out
          |
        6 |       mode: external
          |             -------- the mode is set here
    "
    );
    insta::assert_snapshot!(
        told(pool("provisioning:\n  source: {ref: master}\n  container: {image: x/y}")),
        @r"
    pools.yaml:6:7: `source` and `container` are two ways to the engine, and no `mode` picks one
          |
        6 |       container: {image: x/y}
          |       ^^^^^^^^^ add `mode: source`, and leave the other settings out
          |
        5 |       source: {ref: master}
          |       ------ `provisioning.source` is here
    "
    );
}

#[test]
fn the_only_settings_that_stand_there_say_the_mode() {
    let loaded = pool("provisioning: {container: {tag: 24.10}, source: {}}").unwrap();
    let provisioning = &loaded.pools[0].pool.provisioning;
    assert_eq!(provisioning.mode, Some(Mode::Container));
    assert_eq!(
        provisioning.container.as_ref().unwrap().tag.as_deref(),
        Some("24.10")
    );
}

#[test]
fn single_values_are_checked_for_what_they_mean() {
    insta::assert_snapshot!(
        told(pool("devices: [gpu0]\nreadiness: {stall_timeout: 1ms}\nstop: {grace: 2h}\nprovisioning:\n  source: {repo: 'https://u:p@h/x', ref: --upload-pack=x, build: {cmake_flags: [GGML_CUDA=ON]}}\n  model: {ref: 'hff:a/b', checksum: abc}\n  env: {'A B': x, C: '{HOME}'}\n  flags: ['--ctx-size 4096', '-x{secret.K}']")),
        @r"
    pools.yaml:4:15: `gpu0` is no device
          |
        4 |     devices: [gpu0]
          |               ^^^^ write a driver index, or an id such as `GPU-…` or `MIG-…`
    pools.yaml:5:32: `stall_timeout` is out of range
          |
        5 |     readiness: {stall_timeout: 1ms}
          |                                ^^^ it is 1s to 24h
    pools.yaml:6:19: `grace` is out of range
          |
        6 |     stop: {grace: 2h}
          |                   ^^ it is at most 1h
    pools.yaml:8:22: the URL carries a password
          |
        8 |       source: {repo: 'https://***@h/x', ref: --upload-pack=x, build: {cmake_flags: [GGML_CUDA=ON]}}
          | take it out: secrets never stand in URLs
    pools.yaml:8:46: `--upload-pack=x` cannot be a commit, tag or branch
          |
        8 |       source: {repo: 'https://***@h/x', ref: --upload-pack=x, build: {cmake_flags: [GGML_CUDA=ON]}}
          | write a full commit, a tag or a branch
    pools.yaml:8:85: `GGML_CUDA=ON` is no flag of cmake
          |
        8 |       source: {repo: 'https://***@h/x', ref: --upload-pack=x, build: {cmake_flags: [GGML_CUDA=ON]}}
          | write for example `-DGGML_CUDA=ON`
    pools.yaml:9:20: `hff:` is not a kind of model reference
          |
        9 |       model: {ref: 'hff:a/b', checksum: abc}
          |                    ^^^^^^^^^ did you mean `hf:`?
    pools.yaml:9:41: `abc` is no digest
          |
        9 |       model: {ref: 'hff:a/b', checksum: abc}
          |                                         ^^^ write `sha256:` and 64 hexadecimal digits
    pools.yaml:10:20: `A B` cannot name an environment variable
          |
       10 |       env: {'A B': x, C: '{HOME}'}
          |                    ^ use letters, digits and `_`
    pools.yaml:10:26: `{HOME}` cannot be filled in here
          |
       10 |       env: {'A B': x, C: '{HOME}'}
          |                          ^^^^^^^^ `{secret.NAME}` is the only placeholder; write `{{` and `}}` for braces
    pools.yaml:11:15: `--ctx-size 4096` would be one single argument
          |
       11 |       flags: ['--ctx-size 4096', '-x{secret.K}']
          |               ^^^^^^^^^^^^^^^^^ write two: `--ctx-size`, `4096`
    pools.yaml:11:34: secrets are filled into `provisioning.env` only
          |
       11 |       flags: ['--ctx-size 4096', '-x{secret.K}']
          |                                  ^^^^^^^^^^^^^^ arguments and URLs end in process lists and logs
    "
    );
    insta::assert_snapshot!(
        told(pool("provisioning:\n  container: {image: 'x/y:1', digest: 'sha256:0'}")),
        @r"
    pools.yaml:5:26: `image` carries a tag or digest
          |
        5 |       container: {image: 'x/y:1', digest: 'sha256:0'}
          |                          ^^^^^^^ write it under `tag` or `digest`
    pools.yaml:5:43: a sha256 digest has 64 hexadecimal digits, not 1 characters
          |
        5 |       container: {image: 'x/y:1', digest: 'sha256:0'}
          |                                           ^^^^^^^^^^
    "
    );
    insta::assert_snapshot!(
        told(pool("provisioning:\n  package: {name: vllm==1, version: '>=0.4'}")),
        @r"
    pools.yaml:5:23: `vllm==1` is no package name
          |
        5 |       package: {name: vllm==1, version: '>=0.4'}
          |                       ^^^^^^^ write only its name; the version stands under `version`
    pools.yaml:5:41: `>=0.4` is not an exact version
          |
        5 |       package: {name: vllm==1, version: '>=0.4'}
          |                                         ^^^^^^^ write one exact version: a range would install something else tomorrow
    "
    );
    insta::assert_snapshot!(told(pool("provisioning: {model: {ref: 'http://h/x.gguf'}}")), @r"
    pools.yaml:4:33: a model over plain `http` needs a `checksum`
          |
        4 |     provisioning: {model: {ref: 'http://h/x.gguf'}}
          |                                 ^^^^^^^^^^^^^^^^^ write `https://…`, or add `checksum: sha256:…` beside it
    ");
    assert!(pool("provisioning: {model: {ref: 'http://127.0.0.1:9/x.gguf'}}").is_ok());
    insta::assert_snapshot!(told(pool("provisioning:\n  binary: {url: 'https://h/x'}")), @r"
    pools.yaml:5:21: `url` needs a `checksum` beside it
          |
        5 |       binary: {url: 'https://h/x'}
          |                     ^^^^^^^^^^^^^ add `checksum: sha256:…`: nothing is run before its digest is compared
    ");
    insta::assert_snapshot!(told(pool("provisioning:\n  mode: external")), @r"
    pools.yaml:5:13: mode `external` needs the URL of the running engine
          |
        5 |       mode: external
          |             ^^^^^^^^ add `external: {url: http://127.0.0.1:8080}` beside it
    ");
}

#[test]
fn pools_of_one_file_do_not_collide() {
    insta::assert_snapshot!(
        told(try_text("pools:\n  - {id: a, engine: x, provisioning: {ports: [8080]}}\n  - {id: b, engine: x, provisioning: {ports: [8081, 8080]}}\n  - {id: a, engine: y}\n")),
        @r"
    pools.yaml:3:53: pools `a` and `b` both want port 8080
          |
        3 |   - {id: b, engine: x, provisioning: {ports: [8081, 8080]}}
          |                                                     ^^^^ give each pool its own ports
          |
        2 |   - {id: a, engine: x, provisioning: {ports: [8080]}}
          |                                               ---- `a` wants it here
    pools.yaml:4:10: there are two pools `a`
          |
        4 |   - {id: a, engine: y}
          |          ^ give each pool its own id
          |
        2 |   - {id: a, engine: x, provisioning: {ports: [8080]}}
          |          - the other one is here
    "
    );
}

#[test]
fn the_policy_a_file_asks_for_is_a_request() {
    let loaded = try_text("policy: {gpu: prefer, network: offline, run_as: '5'}\npools:\n  - {id: a, engine: x}\n  - {id: b, engine: x, gpu: forbid}\n").unwrap();
    let [a, b] = [&loaded.pools[0], &loaded.pools[1]];
    assert_eq!(a.pool.gpu, GpuPolicy::Prefer);
    assert_eq!(b.pool.gpu, GpuPolicy::Forbid);
    let caller = Caller::test_root();
    let policy = crate::policy::resolve(&[], &b.requests, &caller).unwrap();
    assert_eq!(policy.gpu.origin.to_string(), "pools.yaml:4");
    assert_eq!(policy.network.origin.to_string(), "pools.yaml:1");
    insta::assert_snapshot!(
        told(try_text("policy: {allow_packages: true, run_as: nobody-here}\npools: [{id: a, engine: x}]\n")),
        @r"
    pools.yaml:1:10: there is no `allow_packages` in `policy`
          |
        1 | policy: {allow_packages: true, run_as: nobody-here}
          |          ^^^^^^^^^^^^^^ did you mean `allow_package_installs`?
    "
    );
}

#[test]
fn a_secret_that_stands_in_the_file_is_noticed_and_not_shown() {
    let loaded = pool("provisioning: {env: {HF_TOKEN: hf_abcdefghijklmnop}}").unwrap();
    let shown = loaded.notices[0].render(&loaded.source);
    assert!(shown.contains("{secret.HF_TOKEN}"), "{shown}");
    assert!(!shown.contains("hf_abcdef"), "{shown}");
}

#[test]
fn the_command_line_changes_the_mode_and_says_what_is_not_used() {
    let loaded = pool("provisioning: {mode: source, source: {ref: master}}").unwrap();
    let entry = loaded.pools[0].clone();
    let mut wanted = crate::config::Wanted {
        pool: entry.pool,
        requests: entry.requests,
        places: entry.places,
        notices: Vec::new(),
    };
    wanted
        .overlay(&Overlay {
            mode: Some(Mode::Container),
            gpu: Some(GpuPolicy::Prefer),
            model: Some("./other.gguf".to_owned()),
            base: base(),
            ..Overlay::default()
        })
        .unwrap();
    let model = wanted.pool.provisioning.model.clone().unwrap();
    assert_eq!(model.reference, "file:/srv/other.gguf");
    assert_eq!(wanted.pool.provisioning.mode, Some(Mode::Container));
    insta::assert_snapshot!(wanted.notices.join("\n"), @r"
    pools.yaml:4:48: `source.ref` has no meaning under mode `container`
          |
        4 |     provisioning: {mode: source, source: {ref: master}}
          |                                                ^^^^^^ not used: `--mode container` was given
          |
        4 |     provisioning: {mode: source, source: {ref: master}}
          |                          ------ the mode is set here
    ");
    let policy = crate::policy::resolve(&[], &wanted.requests, &Caller::default()).unwrap();
    wanted.apply(&policy);
    assert_eq!(wanted.pool.gpu, GpuPolicy::Prefer);
}

#[test]
fn the_schema_names_every_field_and_closes_every_map() {
    let schema = schema();
    let pool = &schema["$defs"]["Pool"];
    assert_eq!(pool["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Source"]["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Duration"]["pattern"], duration::PATTERN);
    assert!(pool["properties"]["ctx"]["description"].is_string());
}

#[test]
fn the_schema_in_the_manual_is_the_one_that_is_checked() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema/PoolFile.json");
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let written: Value = serde_json::from_str(&written).unwrap_or_default();
    assert!(
        written == schema(),
        "stale: write it anew with `host config schema > docs/schema/PoolFile.json`"
    );
}

#[test]
fn every_example_is_right() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let paths = std::fs::read_dir(directory).unwrap();
    let pool_files = paths.map(|entry| entry.unwrap().path()).filter(|path| {
        path.extension()
            .is_some_and(|it| it == "yaml" || it == "json")
    });
    let mut seen = 0;
    for path in pool_files {
        if let Err(error) = load(&path, &Surroundings::default()) {
            panic!("{}", told(Err(error)));
        }
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn every_pool_file_in_the_manual_is_right() {
    let manual = include_str!("../../../../docs/pool-file.md");
    let mut blocks = manual
        .split("```yaml\n")
        .skip(1)
        .filter_map(|it| it.split("```").next());
    let pools = blocks.by_ref().filter(|it| it.contains("pools:"));
    let mut seen = 0;
    for text in pools {
        if let Err(error) = try_text(text) {
            panic!("{text}\n{}", told(Err(error)));
        }
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}

proptest::proptest! {
    #[test]
    fn no_file_panics(lines in proptest::collection::vec("(id|engine|ctx|devices|gpu|provisioning|model|quant|flags|ports): ?[a-z0-9{}\\[\\], :.\"-]{0,16}", 0..6)) {
        let _ = pool(&lines.join("\n"));
    }
}

#[test]
fn settings_of_containers_and_programs_are_checked() {
    insta::assert_snapshot!(
        told(pool("provisioning:\n  container: {runtime: lxc, cpus: 8-1, numa_nodes: all, shm_bytes: 0}")),
        @r"
    pools.yaml:5:28: `lxc` is no container runtime that is known here
          |
        5 |       container: {runtime: lxc, cpus: 8-1, numa_nodes: all, shm_bytes: 0}
          |                            ^^^ write `podman` or `docker`
    pools.yaml:5:39: `8-1` is no list of numbers
          |
        5 |       container: {runtime: lxc, cpus: 8-1, numa_nodes: all, shm_bytes: 0}
          |                                       ^^^ write for example `0-7,16-23`
    pools.yaml:5:56: `all` is no list of numbers
          |
        5 |       container: {runtime: lxc, cpus: 8-1, numa_nodes: all, shm_bytes: 0}
          |                                                        ^^^ write for example `0-7,16-23`
    pools.yaml:5:72: an engine without shared memory does not start
          |
        5 |       container: {runtime: lxc, cpus: 8-1, numa_nodes: all, shm_bytes: 0}
          |                                                                        ^ write a number of bytes, for example `1073741824` for 1 GiB
    "
    );
    insta::assert_snapshot!(
        told(pool("provisioning:\n  binary:\n    url: 'https://h/x.tar.gz'\n    checksum: 'sha256:0000000000000000000000000000000000000000000000000000000000000000'\n    program: ../sh\n    mirrors: [ftp://h/x]\n    image: {image: x/y, cpus: '0'}")),
        @r"
    pools.yaml:6:14: `url` and `image` are two ways to the same program
          |
        6 |         url: 'https://h/x.tar.gz'
          |              ^^^^^^^^^^^^^^^^^^^^ leave one of them out
    pools.yaml:8:18: `../sh` is no path of a program in an archive or image
          |
        8 |         program: ../sh
          |                  ^^^^^ write for example `build/bin/llama-server`
    pools.yaml:10:9: a program is taken out of an image only by the image's digest
          |
       10 |         image: {image: x/y, cpus: '0'}
          |         ^^^^^ add `digest: sha256:…` beside its name
    "
    );
    let good = "provisioning:\n  container: {image: docker.io/x/y, tag: 1, runtime: docker, cpus: '0-7,16', numa_nodes: 0, shm_bytes: 1073741824}";
    let pool = pool(good).unwrap().pools[0].pool.clone();
    let container = pool.provisioning.container.unwrap();
    assert_eq!(container.runtime.as_deref(), Some("docker"));
    assert_eq!(container.numa_nodes.as_deref(), Some("0"));
    assert_eq!(container.shm_bytes, Some(1 << 30));
}
