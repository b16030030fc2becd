//! Fields and values that are refused each for itself, with what is right.

use super::*;

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
          |     ^^^^^^^^^^^ what can stand here: `ctx`, `devices`, `engine`, `gpu`, `id`, `model`, `options`, `preload`, `profile`, `provisioning`, `quant`, `readiness`, `replicas`, `stop`, `supervision`, `tensor_split`
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
          | ^ it begins with `pools:`
    ");
    insta::assert_snapshot!(told(try_text("- id: a\n")), @r"
    pools.yaml:1:1: the file must be a map, not a list
          |
        1 | - id: a
          | ^ it begins with `pools:`
    ");
}

#[test]
fn single_values_are_checked_for_what_they_mean() {
    insta::assert_snapshot!(
        told(pool("devices: [gpu0]\nreadiness: {stall_timeout: 1ms, timeout: 169h}\nstop: {grace: 2h}\nprovisioning:\n  source: {repo: 'https://u:p@h/x', ref: --upload-pack=x, build: {cmake_flags: [GGML_CUDA=ON]}}\n  model: {ref: 'hff:a/b', checksum: abc}\n  env: {'A B': x, C: '{HOME}'}\n  flags: ['--ctx-size 4096', '-x{secret.K}']")),
        @r"
    pools.yaml:4:15: `gpu0` is no device
          |
        4 |     devices: [gpu0]
          |               ^^^^ write a driver index, or an id such as `GPU-…` or `MIG-…`
    pools.yaml:5:32: `stall_timeout` is out of range
          |
        5 |     readiness: {stall_timeout: 1ms, timeout: 169h}
          |                                ^^^ it is 1s to 24h
    pools.yaml:5:46: `timeout` is out of range
          |
        5 |     readiness: {stall_timeout: 1ms, timeout: 169h}
          |                                              ^^^^ it is 1s to 168h
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

#[test]
fn mirrors_of_a_model_need_a_url_and_a_checksum() {
    let model = |settings: &str| pool(&format!("provisioning:\n  model: {{{settings}}}"));
    let text = told(model(
        "ref: 'https://a/m', mirrors: ['https://b/m', 'ftp://c/m', 'https://b/m', 'https://me:pw@d/m']",
    ));
    for problem in [
        "`mirrors` need a `checksum` beside them",
        "`ftp://c/m` is no place that a file is fetched from",
        "this place is there twice",
        "the URL carries a password",
    ] {
        assert!(text.contains(problem), "{problem}: {text}");
    }
    let text = told(model("ref: hf:o/n/m.gguf, mirrors: ['https://b/m']"));
    let problem = "`mirrors` are for a file behind a URL, and this reference names none";
    assert!(text.contains(problem), "{text}");
    let checksum = format!("checksum: 'sha256:{}'", "0".repeat(64));
    let good = model(&format!(
        "ref: 'https://a/m', mirrors: ['http://b/m'], {checksum}"
    ));
    let source = good.unwrap().pools[0].pool.provisioning.model.clone();
    assert_eq!(source.unwrap().mirrors, ["http://b/m"]);
}

#[test]
fn what_stands_at_the_wrong_place_is_told_where_it_belongs() {
    insta::assert_snapshot!(
        told(pool("port: 8080\nmode: source\nrun_as: me\nprovisioning: {model: builtin:haiku}")),
        @r"
    pools.yaml:4:5: there is no `port` in `pools[0]`
          |
        4 |     port: 8080
          |     ^^^^ write it as `provisioning.ports`
    pools.yaml:5:5: there is no `mode` in `pools[0]`
          |
        5 |     mode: source
          |     ^^^^ write it as `provisioning.mode`
    pools.yaml:6:5: there is no `run_as` in `pools[0]`
          |
        6 |     run_as: me
          |     ^^^^^^ write it as `policy.run_as`, beside `pools`
    pools.yaml:7:27: `model` must be a map, not the text `builtin:haiku`
          |
        7 |     provisioning: {model: builtin:haiku}
          |                           ^^^^^^^^^^^^^ write `model: {ref: builtin:haiku}`
    "
    );
}

#[test]
fn settings_of_an_engine_that_runs_already_are_to_be_removed() {
    insta::assert_snapshot!(
        told(pool("ctx: 8\nprovisioning: {external: {url: \"http://127.0.0.1:1\"}}")),
        @r"
    pools.yaml:4:10: `ctx` has no meaning for an engine that already runs
          |
        4 |     ctx: 8
          |          ^ remove it: the engine runs already
    "
    );
}
