//! Fields and pools that do not go together, and the mode that settings speak of.

use engine_provider_api::Mode;

use super::*;

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
