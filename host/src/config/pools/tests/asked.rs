//! What a file asks for and a policy, a flag or a replica may change.

use engine_provider_api::{Device, GpuPolicy, Mode};

use super::*;
use crate::config::select::Overlay;

#[test]
fn devices_of_one_replica_stand_in_for_those_of_its_pool() {
    let loaded = pool("devices: [0, 1]\nreplicas: 2").unwrap();
    let mut wanted = crate::config::Wanted {
        pool: loaded.pools[0].pool.clone(),
        supervision: Supervision::default(),
        requests: Vec::new(),
        places: Places::default(),
        notices: Vec::new(),
    };
    let chosen = vec![Device::Uuid("GPU-5f3c".to_owned())];
    let overlay = Overlay {
        devices: Some(chosen.clone()),
        ..Overlay::default()
    };
    wanted.overlay(&overlay).unwrap();
    assert_eq!(wanted.pool.devices, chosen);
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
fn the_command_line_changes_the_mode_and_says_what_is_not_used() {
    let loaded = pool("provisioning: {mode: source, source: {ref: master}}").unwrap();
    let entry = loaded.pools[0].clone();
    let mut wanted = crate::config::Wanted {
        pool: entry.pool,
        supervision: entry.supervision,
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
