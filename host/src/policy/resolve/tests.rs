use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

fn file(name: &str, line: usize, ceiling: bool) -> Origin {
    Origin::File {
        path: PathBuf::from(name),
        line,
        ceiling,
    }
}

fn machine<T>(value: T) -> Option<Setting<T>> {
    let origin = file("/etc/engine-host/policy.yaml", 2, true);
    Some(Setting { value, origin })
}

fn pool<T>(value: T) -> Option<Setting<T>> {
    let origin = file("pools.yaml", 5, false);
    Some(Setting { value, origin })
}

fn flag<T>(value: T, name: &str) -> Option<Setting<T>> {
    let origin = Origin::Flag(name.to_owned());
    Some(Setting { value, origin })
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

#[test]
fn without_a_ceiling_a_request_or_a_flag_suffices() {
    let request = Layer {
        gpu: pool(GpuPolicy::Prefer),
        allow_package_installs: pool(true),
        ..Layer::default()
    };
    let flags = Layer {
        gpu: flag(GpuPolicy::Forbid, "--gpu forbid"),
        ..Layer::default()
    };
    let policy = resolve(&[], &[request, flags], &Caller::test_user()).unwrap();
    assert_eq!(policy.gpu.value, GpuPolicy::Forbid);
    assert_eq!(policy.gpu.origin.to_string(), "--gpu forbid");
    assert!(policy.allow_package_installs.value);
    assert_eq!(
        policy.allow_package_installs.origin.to_string(),
        "pools.yaml:5"
    );
    assert!(!policy.allow_binary_downloads.value);
}

#[test]
fn a_ceiling_grants_nothing_by_itself() {
    let ceiling = Layer {
        allow_package_installs: machine(true),
        gpu: machine(GpuPolicy::Prefer),
        ..Layer::default()
    };
    let policy = resolve(&[ceiling], &[], &Caller::test_user()).unwrap();
    assert_eq!(policy, Policy::default());
}

#[test]
fn everything_beyond_a_ceiling_is_refused_at_once_with_the_line_to_change() {
    let ceiling = Layer {
        gpu: machine(GpuPolicy::Require),
        allow_package_installs: machine(false),
        network: machine(NetworkPolicy::Only(names(&["github.com"]))),
        tools: machine(names(&["git", "cmake"])),
        ..Layer::default()
    };
    let request = Layer {
        network: pool(NetworkPolicy::Only(names(&["github.com", "evil.example"]))),
        tools: pool(names(&["git", "curl"])),
        gpu: pool(GpuPolicy::Require),
        ..Layer::default()
    };
    let flags = Layer {
        gpu: flag(GpuPolicy::Prefer, "--gpu prefer"),
        allow_package_installs: flag(true, "--allow-package-installs"),
        ..Layer::default()
    };
    let Refusals(refusals) =
        resolve(&[ceiling], &[request, flags], &Caller::test_user()).unwrap_err();
    let told: Vec<String> = refusals
        .iter()
        .map(|refusal| format!("{refusal}\n  {}", refusal.allow))
        .collect();
    insta::assert_snapshot!(told.join("\n"), @r"
    policy does not allow `gpu: prefer`, asked for by --gpu prefer
      change line 2 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `gpu: prefer`
    policy does not allow `allow_package_installs: true`, asked for by --allow-package-installs
      change line 2 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `allow_package_installs: true`
    policy does not allow `network: [github.com, evil.example]`, asked for by pools.yaml:5
      change line 2 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `network: [github.com, evil.example]`
    policy does not allow `tools: [git, curl]`, asked for by pools.yaml:5
      change line 2 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `tools: [git, cmake, curl]`
    ");
}

#[test]
fn defaults_are_narrowed_to_the_ceilings_and_the_outer_ceiling_wins() {
    let outer = Layer {
        gpu: machine(GpuPolicy::Forbid),
        network: machine(NetworkPolicy::Only(names(&["*.example.org", "github.com"]))),
        step_environment: machine(names(&["CORP_CA", "https_proxy"])),
        ..Layer::default()
    };
    let inner = Layer {
        gpu: machine(GpuPolicy::Require),
        network: machine(NetworkPolicy::Only(names(&["a.example.org", "pypi.org"]))),
        step_environment: machine(names(&["https_proxy", "EVIL"])),
        ..Layer::default()
    };
    let policy = resolve(&[outer, inner], &[], &Caller::test_user()).unwrap();
    assert_eq!(policy.gpu.value, GpuPolicy::Forbid);
    assert_eq!(
        policy.network.value,
        NetworkPolicy::Only(names(&["a.example.org"]))
    );
    assert_eq!(policy.step_environment.value, names(&["https_proxy"]));
    assert!(policy.gpu.origin.is_ceiling());
}

#[test]
fn a_root_host_runs_engines_as_an_unprivileged_number_unless_told_otherwise() {
    let root = Caller::test_root();
    let policy = resolve(&[], &[], &root).unwrap();
    assert_eq!(
        policy.run_as.value,
        Some(Identity {
            uid: SANDBOX_ID,
            gid: SANDBOX_ID
        })
    );
    let asks = |identity| Layer {
        run_as: pool(identity),
        ..Layer::default()
    };
    let as_root = asks(Identity { uid: 0, gid: 0 });
    assert_eq!(
        resolve(&[], std::slice::from_ref(&as_root), &root)
            .unwrap()
            .run_as
            .value,
        None
    );
    let ceiling = Layer {
        run_as: machine(Identity { uid: 7, gid: 7 }),
        ..Layer::default()
    };
    let under = resolve(std::slice::from_ref(&ceiling), &[], &root).unwrap();
    assert_eq!(under.run_as.value, Some(Identity { uid: 7, gid: 7 }));
    assert!(resolve(&[ceiling], &[as_root], &root).is_err());
}

#[test]
fn without_root_nobody_else_can_be_asked_for() {
    let user = Caller::test_user();
    assert_eq!(resolve(&[], &[], &user).unwrap().run_as.value, None);
    let asks = |identity| Layer {
        run_as: pool(identity),
        ..Layer::default()
    };
    assert!(resolve(&[], &[asks(user.identity())], &user).is_ok());
    let refusals = resolve(&[], &[asks(Identity { uid: 7, gid: 7 })], &user).unwrap_err();
    insta::assert_snapshot!(
        format!("{refusals}\n{}", refusals.0[0].allow),
        @r"
    policy does not allow `run_as: 7:7`, asked for by pools.yaml:5
    only root can run engines as somebody else: start the host as root, or take `run_as` out of pools.yaml:5
    "
    );
}

#[test]
fn a_wildcard_covers_hosts_below_a_domain_only() {
    assert!(covers("*.example.org", "a.b.example.org"));
    assert!(covers("*.example.org", "*.b.example.org"));
    assert!(!covers("*.example.org", "example.org"));
    assert!(!covers("*.example.org", "badexample.org"));
    assert!(!covers("a.example.org", "*.example.org"));
}

fn gpu_policy() -> impl Strategy<Value = GpuPolicy> {
    prop_oneof![
        Just(GpuPolicy::Require),
        Just(GpuPolicy::Prefer),
        Just(GpuPolicy::Forbid)
    ]
}

fn some_names() -> impl Strategy<Value = Vec<String>> {
    proptest::sample::subsequence(names(&["a.org", "b.a.org", "*.a.org", "c.net"]), 0..=4)
}

fn network() -> impl Strategy<Value = NetworkPolicy> {
    prop_oneof![
        Just(NetworkPolicy::Offline),
        Just(NetworkPolicy::AsPlanned),
        some_names().prop_map(NetworkPolicy::Only)
    ]
}

fn identity() -> impl Strategy<Value = Identity> {
    (0u32..3).prop_map(|id| Identity { uid: id, gid: id })
}

fn layer(ceiling: bool) -> impl Strategy<Value = Layer> {
    let origin = file("f", 1, ceiling);
    let parts = (
        proptest::option::of(gpu_policy()),
        proptest::array::uniform4(proptest::option::of(any::<bool>())),
        proptest::option::of(network()),
        proptest::array::uniform3(proptest::option::of(some_names())),
        proptest::option::of(identity()),
    );
    parts.prop_map(
        move |(gpu, [packages, aur, binary, models], network, [tools, engines, steps], run_as)| {
            fn with<T>(value: Option<T>, origin: &Origin) -> Option<Setting<T>> {
                value.map(|value| Setting {
                    value,
                    origin: origin.clone(),
                })
            }
            Layer {
                label: None,
                gpu: with(gpu, &origin),
                allow_package_installs: with(packages, &origin),
                allow_aur: with(aur, &origin),
                allow_binary_downloads: with(binary, &origin),
                allow_unverified_models: with(models, &origin),
                network: with(network, &origin),
                tools: with(tools, &origin),
                run_as: with(run_as, &origin),
                engine_environment: with(engines, &origin),
                step_environment: with(steps, &origin),
            }
        },
    )
}

/// `true` where the ceiling is silent.
fn below<T: Bounded>(value: &T, ceiling: &Option<Setting<T>>) -> bool {
    ceiling
        .as_ref()
        .is_none_or(|ceiling| value.is_within(&ceiling.value))
}

proptest! {
    #[test]
    fn no_combination_exceeds_the_machines_ceiling(
        machine in layer(true),
        user in layer(true),
        requests in proptest::collection::vec(layer(false), 0..4),
    ) {
        if let Ok(policy) = resolve(&[machine.clone(), user.clone()], &requests, &Caller::test_root()) {
            prop_assert!(below(&policy.gpu.value, &machine.gpu));
            prop_assert!(below(&policy.allow_package_installs.value, &machine.allow_package_installs));
            prop_assert!(below(&policy.allow_aur.value, &machine.allow_aur));
            prop_assert!(below(&policy.allow_binary_downloads.value, &machine.allow_binary_downloads));
            prop_assert!(below(&policy.allow_unverified_models.value, &machine.allow_unverified_models));
            prop_assert!(below(&policy.network.value, &machine.network));
            prop_assert!(below(&policy.engine_environment.value, &machine.engine_environment));
            prop_assert!(below(&policy.step_environment.value, &machine.step_environment));
            for ceiling in [&machine.tools, &user.tools].into_iter().flatten() {
                let tools = policy.tools.value.clone().expect("a ceiling lists tools");
                prop_assert!(tools.is_within(&ceiling.value));
            }
            if let Some(ceiling) = &machine.run_as {
                let runs_as = policy.run_as.value.unwrap_or(Identity { uid: 0, gid: 0 });
                prop_assert_eq!(runs_as, ceiling.value);
            }
            // Permissions and lists also stay below the user's own ceiling.
            prop_assert!(below(&policy.allow_package_installs.value, &user.allow_package_installs));
            prop_assert!(below(&policy.network.value, &user.network));
            prop_assert!(below(&policy.step_environment.value, &user.step_environment));
        }
    }

    #[test]
    fn asking_for_nothing_is_never_refused(machine in layer(true), user in layer(true)) {
        prop_assert!(resolve(&[machine, user], &[], &Caller::test_root()).is_ok());
    }

    #[test]
    fn narrowing_ends_within_both(a in network(), b in network()) {
        let both = a.narrow(&b);
        prop_assert!(both.is_within(&a) && both.is_within(&b));
    }
}
