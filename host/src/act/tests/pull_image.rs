use engine_provider_api::{ArtifactState, ContainerRuntime, Gpu, GpuPolicy, Gpus, Pool};

use super::*;
use crate::{
    container::{
        Images,
        registry::testing::{Registry, configuration, here, layer},
    },
    fault::{Exit, Fault as _},
    policy::{NetworkPolicy, Setting},
};

/// A bench whose facts know a podman with storage of its own, which is gone with the bench.
pub(super) fn podman() -> Bench {
    let mut bench = bench(&[]);
    let home = bench.home.path().to_owned();
    let storage = home.join("images");
    let conf = home.join("storage.conf");
    let text = format!(
        "[storage]\ndriver = \"vfs\"\ngraphroot = {storage:?}\nrunroot = {:?}\n",
        home.join("run")
    );
    std::fs::write(&conf, text).unwrap();
    let rules = home.join("registries.conf");
    std::fs::write(&rules, "").unwrap();
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.containers.runtimes = vec![ContainerRuntime {
        name: "podman".to_owned(),
        path: which("podman").to_string_lossy().into_owned(),
        storage: storage.to_string_lossy().into_owned(),
        ..ContainerRuntime::default()
    }];
    bench.context.environment = Arc::new(Environment::from_pairs([
        ("PATH", "/usr/bin:/bin".into()),
        ("HOME", home.clone()),
        ("XDG_RUNTIME_DIR", home.clone()),
        ("CONTAINERS_STORAGE_CONF", conf),
        ("CONTAINERS_REGISTRIES_CONF", rules),
    ]));
    bench
}

pub(super) fn pull(name: &str, digest: Option<&str>) -> Plan {
    let (repository, tag) = name.rsplit_once('/').unwrap();
    let (last, tag) = match tag.split_once(':') {
        Some((last, tag)) => (last, Some(tag)),
        None => (tag, None),
    };
    plan(json!([{"id": "image", "kind": "pull-image", "image":
        {"repository": format!("{repository}/{last}"), "tag": tag, "digest": digest}}]))
}

/// Resolves and carries out, as the journey does.
pub(super) async fn carry_out(context: &Context, plan: &Plan) -> Result<Artifact, ActError> {
    let (plan, _) = crate::resolve::plan(context, plan).await?;
    run(context, &plan.steps[0], &Artifacts::new()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_once_by_digest_and_needs_no_registry_afterwards() {
    let bench = podman();
    let registry = Registry::open();
    let pushed = registry.push("a/b", "1", configuration(here())).await;
    let index = registry
        .push_index("a/b", "all", &[(here(), &pushed)])
        .await;
    let by_tag = pull(&registry.name("a/b:all"), None);
    let (resolved, _) = crate::resolve::plan(&bench.context, &by_tag).await.unwrap();
    assert!(resolved.warnings[0].contains(&format!("`digest: {}`", pushed.manifest)));
    let before = expected_of(&bench.context, &resolved.steps[0], &Artifacts::new()).unwrap();
    let fetch = Outlook::Fetch {
        from: vec![registry.name(&format!("a/b@{}", pushed.manifest))],
        size_bytes: Some(pushed.size as u64),
        refused: None,
    };
    assert_eq!(before.outlook, fetch);

    let artifact = carry_out(&bench.context, &by_tag).await.unwrap();
    let image = artifact.image.clone().unwrap();
    assert_eq!(artifact.state, ArtifactState::Obtained);
    assert_eq!(before.artifact.image.as_ref(), Some(&image));
    assert_eq!(
        image.reference,
        registry.name(&format!("a/b@{}", pushed.manifest))
    );
    assert_eq!(image.version(), Some("1.2.3"));
    assert_eq!(
        (image.user.as_str(), image.tag.as_deref()),
        ("2000:0", Some("all"))
    );

    let name = registry.name("a/b");
    drop(registry);
    for digest in [None, Some(&pushed.manifest), Some(&index)] {
        let tag = digest.map_or(":all", |_| "");
        let text = digest.map(ToString::to_string);
        let again = pull(&format!("{name}{tag}"), text.as_deref());
        let artifact = carry_out(&bench.context, &again).await.unwrap();
        assert_eq!(artifact.image.unwrap().digest, image.digest);
    }
    assert_eq!(
        bench
            .told
            .actions()
            .iter()
            .filter(|it| *it == "pull")
            .count(),
        1
    );

    Images::of(&bench.context.store)
        .forget(&image.reference)
        .unwrap();
    // What is not written down is asked of the runtime.
    let artifact = carry_out(&bench.context, &by_tag).await.unwrap();
    assert_eq!(artifact.image.unwrap().digest, image.digest);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_image_than_the_pinned_one_is_refused_with_both_digests() {
    let bench = podman();
    let registry = Registry::open();
    let pushed = registry.push("a/b", "1", configuration(here())).await;
    let wrong = format!("sha256:{}", "1".repeat(64));
    let pinned = pull(&registry.name("a/b:1"), Some(&wrong));
    let error = carry_out(&bench.context, &pinned).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
    let shown: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
    assert_eq!(shown, [wrong, pushed.manifest.to_string()]);
    assert!(!bench.context.store.root().join("images").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_layer_is_no_image_and_the_next_pull_succeeds() {
    let bench = podman();
    let registry = Registry::open();
    let content = vec![7_u8; 300_000];
    let (blob, unpacked) = layer(&[("big", &content)]);
    let pushed = registry
        .push_layer("a/b", "1", configuration(here()), blob, &unpacked)
        .await;
    let path = registry.blob_path(&pushed.layer);
    let whole = std::fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 0xff;
    std::fs::write(&path, damaged).unwrap();
    let plan = pull(&registry.name("a/b:1"), None);
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification, "{error:?}");
    assert!(!bench.context.store.root().join("images").exists());
    std::fs::write(&path, whole).unwrap();
    carry_out(&bench.context, &plan).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_of_docker_are_lent_to_podman_and_taken_back() {
    let bench = podman();
    let registry = Registry::guarded("ada", "correct horse");
    registry.push("a/b", "1", configuration(here())).await;
    let plan = pull(&registry.name("a/b:1"), None);
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Network, "registry-unauthorized")
    );

    let docker = bench.home.path().join(".docker");
    std::fs::create_dir(&docker).unwrap();
    let text = json!({"auths": {registry.address(): {"auth": "YWRhOmNvcnJlY3QgaG9yc2U="}}});
    std::fs::write(docker.join("config.json"), text.to_string()).unwrap();
    carry_out(&bench.context, &plan).await.unwrap();
    let left = std::fs::read_dir(bench.context.store.root().join("tmp")).unwrap();
    assert_eq!(left.count(), 0);
    let told = format!("{:?}", bench.told.events());
    assert!(!told.contains("correct horse"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_driver_is_refused_before_a_layer_is_fetched() {
    let mut bench = podman();
    let registry = Registry::open();
    registry.push("a/b", "1", configuration(here())).await;
    let plan = pull(&registry.name("a/b:1"), None);
    Arc::make_mut(&mut bench.context.facts).gpus = Gpus {
        devices: [("GPU-1", "nvidia"), ("GPU-2", "amd")]
            .map(|(uuid, vendor)| Gpu {
                uuid: uuid.to_owned(),
                vendor: vendor.to_owned(),
                ..Gpu::default()
            })
            .into(),
        cuda: Some("12.4".to_owned()),
        driver: Some("550.54.14".to_owned()),
        ..Gpus::default()
    };
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Unavailable, "no-container-gpus")
    );
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.containers.runtimes[0].cdi = true;
    facts.containers.cdi_devices = vec!["nvidia.com/gpu=GPU-1".to_owned()];
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unavailable);
    let shown: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
    assert_eq!(shown, ["cuda>=12.9", "CUDA 12.4, driver 550.54.14"]);
    assert!(!bench.told.actions().contains(&"pull".to_owned()));

    bench.context.pool = Arc::new(Pool {
        gpu: GpuPolicy::Forbid,
        ..Pool::new("chat", "toy")
    });
    carry_out(&bench.context, &plan).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn offline_there_is_no_image_but_those_that_are_here() {
    let mut bench = podman();
    let policy = Arc::make_mut(&mut bench.context.policy);
    policy.network = Setting::default_of(NetworkPolicy::Offline);
    let gate = PlanGate::new(Arc::clone(&bench.context.policy), Default::default());
    bench.context.net = crate::net::testing::net_with(Arc::new(gate));
    let plan = pull("127.0.0.1:1/a/b:1", None);
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    let told = crate::narrate::chain(&error);
    assert!(told.contains("127.0.0.1:1/a/b:1 is not here yet"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_runtime_the_plan_says_so() {
    let bench = bench(&[]);
    let plan = pull("example.test/a/b:1", None);
    let expected = expected_of(&bench.context, &plan.steps[0], &Artifacts::new()).unwrap();
    assert!(matches!(expected.outlook, Outlook::Unsupported { .. }));
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(error.kind(), "no-container-runtime");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mirror_without_encryption_is_believed_where_the_settings_say_so_if_there_are_other_places()
 {
    let bench = podman();
    let (mirror, registry) = (Registry::open(), Registry::open());
    mirror.push("a/b", "1", configuration(here())).await;
    let (first, second) = (mirror.name(""), registry.name(""));
    let [first, second] = [&first, &second].map(|name| name.trim_end_matches('/'));
    let plan = pull("own.example/a/b:1", None);
    let write = |more: &str| {
        let rules = format!(
            "[[registry]]\nprefix = \"own.example\"\nlocation = \"{second}\"\n\
             [[registry.mirror]]\nlocation = \"{first}\"\n{more}"
        );
        std::fs::write(bench.home.path().join("registries.conf"), rules).unwrap();
    };
    write("");
    let error = carry_out(&bench.context, &plan).await.unwrap_err();
    assert_eq!(error.kind(), "registry-tls", "{error:?}");
    assert!(error.hints()[0].text.contains("`insecure = true`"));
    write("insecure = true\n");
    carry_out(&bench.context, &plan).await.unwrap();
}

/// A podman that leaves a layer where it arrived, as one does that is killed. `told`: what its settings
/// name for that.
fn littering_podman(bench: &mut Bench, told: &str) {
    let program = bench.home.path().join("podman");
    let text = format!(
        "case \"$1\" in\n\
         info) echo \"${{TMPDIR-{told}}}\";;\n\
         pull) echo \"${{TMPDIR-none}}\" > \"$0.staged\"; mkdir \"$TMPDIR/storage1\"; exit 1;;\n\
         *) exit 1;;\n\
         esac"
    );
    script(&program, &text);
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.containers.runtimes[0].path = program.to_string_lossy().into_owned();
    let place = bench.home.path().to_string_lossy().into_owned();
    let pairs = [("PATH", "/usr/bin:/bin"), ("TMPDIR", &place)];
    bench.context.environment = Arc::new(Environment::from_pairs(pairs));
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_arrive_where_this_run_takes_them_away_or_where_an_operator_wants_them() {
    let registry = Registry::open();
    registry.push("a/b", "1", configuration(here())).await;
    let plan = pull(&registry.name("a/b:1"), None);
    for (told, own) in [("/var/tmp", true), ("/scratch", false)] {
        let mut bench = podman();
        littering_podman(&mut bench, told);
        let error = carry_out(&bench.context, &plan).await.unwrap_err();
        assert_eq!(error.kind(), "pull-failed", "{error:?}");
        let staged = std::fs::read_to_string(bench.home.path().join("podman.staged")).unwrap();
        let tmp = bench.context.store.root().join("tmp");
        match own {
            true => assert!(staged.starts_with(&*tmp.to_string_lossy()), "{staged}"),
            false => assert_eq!(staged.trim(), "none"),
        }
        let left = std::fs::read_dir(&tmp).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{told}");
        assert!(!bench.home.path().join("storage1").exists());
    }
}

/// A docker that gives nothing from one registry, and from the others whatever it is asked for.
fn docker_without(bench: &mut Bench, broken: &str, configuration: &str) {
    let program = bench.home.path().join("docker");
    let text = format!(
        "case \"$1\" in\n\
         pull) case \"$2\" in {broken}/*) echo 'unexpected end of stream' >&2; exit 1;; esac\n\
         : > \"$0.pulled\";;\n\
         image) [ -e \"$0.pulled\" ] || exit 1; echo '[{{\"Id\": \"{configuration}\", \"RepoDigests\": [\"'$3'\"]}}]';;\n\
         esac"
    );
    script(&program, &text);
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.containers.runtimes = vec![ContainerRuntime {
        name: "docker".to_owned(),
        path: program.to_string_lossy().into_owned(),
        ..ContainerRuntime::default()
    }];
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_is_told_the_next_place_where_a_mirror_does_not_give_the_layers() {
    let mut bench = podman();
    let (mirror, registry) = (Registry::open(), Registry::open());
    let pushed = mirror.push("a/b", "1", configuration(here())).await;
    registry.push("a/b", "1", configuration(here())).await;
    let (first, second) = (mirror.name(""), registry.name(""));
    let [first, second] = [&first, &second].map(|name| name.trim_end_matches('/'));
    let rules = format!(
        "[[registry]]\nprefix = \"own.example\"\nlocation = \"{second}\"\n\
         [[registry.mirror]]\nlocation = \"{first}\"\n"
    );
    std::fs::write(bench.home.path().join("registries.conf"), rules).unwrap();
    docker_without(&mut bench, first, &pushed.configuration.to_string());
    let artifact = carry_out(&bench.context, &pull("own.example/a/b:1", None))
        .await
        .unwrap();
    let image = artifact.image.unwrap();
    assert_eq!(image.reference, format!("{second}/a/b@{}", pushed.manifest));
    assert!(bench.told.actions().contains(&"mirror-failed".to_owned()));

    // Where no place gives it, the last one's words are told.
    let mut bench = podman();
    std::fs::write(
        bench.home.path().join("registries.conf"),
        format!("[[registry]]\nprefix = \"own.example\"\nlocation = \"{first}\"\n"),
    )
    .unwrap();
    docker_without(&mut bench, first, &pushed.configuration.to_string());
    let error = carry_out(&bench.context, &pull("own.example/a/b:1", None))
        .await
        .unwrap_err();
    assert!(!bench.told.actions().contains(&"mirror-failed".to_owned()));
    assert_eq!(error.exit(), Exit::Verification);
}
