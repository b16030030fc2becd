use std::fs;

use super::{
    pull_image::{carry_out, podman, pull},
    *,
};
use crate::{
    container::{
        ImageRecord, Images, Reference,
        registry::testing::{Pushed, Registry, configuration, here, layer},
    },
    fault::{Exit, Fault as _},
    policy::Setting,
    store::Kind,
};

fn allowing() -> Bench {
    let mut bench = podman();
    Arc::make_mut(&mut bench.context.policy).allow_binary_downloads = Setting::default_of(true);
    bench
}

async fn push(registry: &Registry, program: &[u8]) -> Pushed {
    let (blob, unpacked) = layer(&[
        ("app/bin/engine", program),
        ("app/note", b"x"),
        ("etc/x", b"y"),
    ]);
    registry
        .push_layer("a/b", "1", configuration(here()), blob, &unpacked)
        .await
}

fn extract(registry: &Registry, digest: Option<String>, paths: Value) -> Step {
    step(
        json!({"id": "get", "kind": "extract-image", "paths": paths, "program": "/app/bin/engine",
        "image": {"repository": registry.name("a/b"), "tag": "1", "digest": digest}}),
    )
}

/// The containers that podman has, by name.
fn containers(bench: &Bench) -> String {
    podman_says(bench, &["ps", "--all", "--format", "{{.Names}}"])
}

fn podman_says(bench: &Bench, args: &[&str]) -> String {
    #[expect(clippy::disallowed_methods, reason = "tests look at the real podman")]
    let output = std::process::Command::new(which("podman"))
        .args(args)
        .env_clear()
        .envs(crate::container::environment(&bench.context.environment))
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_taken_out_by_digest_and_no_container_stays() {
    let bench = allowing();
    let registry = Registry::open();
    let pushed = push(&registry, b"#!/bin/sh\n").await;
    let digest = Some(pushed.manifest.to_string());
    let step = extract(&registry, digest, json!(["/app", "/etc/x"]));
    let none = Artifacts::new();
    let before = expected_of(&bench.context, &step, &none).unwrap();
    let artifact = run(&bench.context, &step, &none).await.unwrap();
    assert_eq!(
        (&before.artifact.path, &before.artifact.digest),
        (&artifact.path, &artifact.digest)
    );
    let tree = PathBuf::from(artifact.path.clone().unwrap());
    assert_eq!(
        fs::read(tree.join("app/bin/engine")).unwrap(),
        b"#!/bin/sh\n"
    );
    assert_eq!(fs::read(tree.join("app/note")).unwrap(), b"x");
    assert_eq!(fs::read(tree.join("etc/x")).unwrap(), b"y");
    assert_eq!(artifact.image.as_ref().unwrap().version(), Some("1.2.3"));
    assert_eq!(containers(&bench), "");
    assert_eq!(podman_says(&bench, &["images", "--quiet"]), "");

    drop(registry);
    assert_eq!(run(&bench.context, &step, &none).await.unwrap(), artifact);
    let after = expected_of(&bench.context, &step, &none).unwrap();
    assert_eq!((after.outlook, after.artifact), (Outlook::Cached, artifact));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_permission_digest_or_file_nothing_is_taken_out() {
    let bench = allowing();
    let registry = Registry::open();
    let pushed = push(&registry, b"#!/bin/sh\n").await;
    let digest = Some(pushed.manifest.to_string());
    let none = Artifacts::new();
    let unpinned = extract(&registry, None, json!(["/app"]));
    let error = run(&bench.context, &unpinned, &none).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Config, "unpinned-image")
    );

    let missing = extract(&registry, digest.clone(), json!(["/nowhere"]));
    let error = run(&bench.context, &missing, &none).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Step, "{error:?}");
    assert_eq!(containers(&bench), "");
    assert!(bench.context.store.entries(Kind::Archive).is_empty());

    let careful = podman();
    let step = extract(&registry, digest, json!(["/app"]));
    let error = run(&careful.context, &step, &none).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert!(!careful.told.actions().contains(&"pull".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_for_a_newer_c_library_is_refused_before_it_is_kept() {
    let mut bench = allowing();
    let registry = Registry::open();
    let program = fs::read(fs::canonicalize(which("git")).unwrap()).unwrap();
    let pushed = push(&registry, &program).await;
    Arc::make_mut(&mut bench.context.facts).os.glibc = "2.2".to_owned();
    let step = extract(
        &registry,
        Some(pushed.manifest.to_string()),
        json!(["/app"]),
    );
    let none = Artifacts::new();
    let error = run(&bench.context, &step, &none).await.unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Unavailable, "library-too-old")
    );
    assert!(bench.context.store.entries(Kind::Archive).is_empty());
}

/// What a host leaves that is killed while it takes files out: a container that is written down, and an
/// image that was pulled for it.
async fn leave_half_done(bench: &Bench, registry: &Registry, pushed: &Pushed) -> String {
    let by_tag = pull(&registry.name("a/b:1"), None);
    carry_out(&bench.context, &by_tag).await.unwrap();
    let images = Images::of(&bench.context.store);
    for record in images.records() {
        let name = Reference::parse(&record.asked).unwrap();
        let record = ImageRecord {
            for_files: true,
            ..record
        };
        images.keep(&record, &[name]).unwrap();
    }
    let image = registry.name(&format!("a/b@{}", pushed.manifest));
    let name = format!("engine-host-extract-{}", "0".repeat(32));
    podman_says(bench, &["create", "--name", &name, &image, "/x"]);
    let left = json!({
        "schema": 1,
        "name": name,
        "lock": "archive-x",
        "program": which("podman"),
        "env": crate::container::environment(&bench.context.environment),
    });
    let directory = bench.context.home.state().join("extractions");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(format!("{name}.json")), left.to_string()).unwrap();
    name
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_run_left_is_removed_by_whoever_looks_next() {
    let bench = allowing();
    let registry = Registry::open();
    let pushed = push(&registry, b"#!/bin/sh\n").await;
    let name = leave_half_done(&bench, &registry, &pushed).await;
    // A container of another home's, as which nobody wrote it down here.
    let image = registry.name(&format!("a/b@{}", pushed.manifest));
    podman_says(&bench, &["create", "--name", "other", &image, "/x"]);

    let lock = bench.context.store.lock_path("archive-x");
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let held = crate::store::try_lock(&lock, "x").unwrap().unwrap();
    clear_extractions(&bench.context.home).await;
    assert!(containers(&bench).contains(&name), "somebody works with it");
    drop(held);
    clear_extractions(&bench.context.home).await;
    assert_eq!(containers(&bench), "other\n");
    podman_says(&bench, &["rm", "other"]);

    let digest = Some(pushed.manifest.to_string());
    let step = extract(&registry, digest, json!(["/app"]));
    run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(containers(&bench), "");
    assert_eq!(podman_says(&bench, &["images", "--quiet"]), "");
    let left = fs::read_dir(bench.context.home.state().join("extractions")).unwrap();
    assert_eq!(left.count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_is_run_since_it_was_pulled_for_its_files_stays() {
    let bench = allowing();
    let registry = Registry::open();
    let pushed = push(&registry, b"#!/bin/sh\n").await;
    leave_half_done(&bench, &registry, &pushed).await;
    clear_extractions(&bench.context.home).await;
    let by_tag = pull(&registry.name("a/b:1"), None);
    carry_out(&bench.context, &by_tag).await.unwrap();
    let digest = Some(pushed.manifest.to_string());
    let step = extract(&registry, digest, json!(["/app"]));
    run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_ne!(podman_says(&bench, &["images", "--quiet"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_that_was_here_before_is_used_and_stays() {
    let bench = allowing();
    let registry = Registry::open();
    let pushed = push(&registry, b"#!/bin/sh\n").await;
    let step = extract(
        &registry,
        Some(pushed.manifest.to_string()),
        json!(["/app"]),
    );
    let image = registry.name(&format!("a/b@{}", pushed.manifest));
    podman_says(&bench, &["pull", "--quiet", "--tls-verify=false", &image]);
    let before = podman_says(&bench, &["images", "--quiet"]);
    drop(registry);
    run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert!(!bench.told.actions().contains(&"pull".to_owned()));
    assert_eq!(podman_says(&bench, &["images", "--quiet"]), before);
    assert_ne!(before, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_runtime_the_plan_is_refused_with_what_to_type() {
    let mut bench = allowing();
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.containers.runtimes.clear();
    facts.package_manager = Some(engine_provider_api::PackageManager {
        family: "apt".to_owned(),
        path: "/usr/bin/apt-get".to_owned(),
    });
    let registry = Registry::open();
    let step = extract(
        &registry,
        Some(format!("sha256:{}", "1".repeat(64))),
        json!(["/app"]),
    );
    let error = expected_of(&bench.context, &step, &Artifacts::new()).unwrap_err();
    assert_eq!(
        (error.exit(), error.kind()),
        (Exit::Unavailable, "no-container-runtime")
    );
    let mut commands = error.hints().into_iter().filter_map(|hint| hint.command);
    assert!(commands.any(|it| it.contains("apt-get install podman")));
}
