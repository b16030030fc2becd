use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use engine_provider_api::ModelShape;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    container::{
        basic,
        registry::testing::{Registry, configuration, here},
    },
    fault::{Exit, Fault as _},
    model::source::{NoChoice, resolve, testing::Bench},
    narrate::chain,
    net::{Digest, NetError, Transfer},
};

const EMPTY: &str = "application/vnd.oci.empty.v1+json";
const RAW: &str = "application/octet-stream";

fn titled(name: &str) -> Value {
    json!({"org.opencontainers.image.title": name})
}

async fn resolved(bench: &Bench) -> Result<Resolved, ModelError> {
    resolve(&bench.place(), &bench.reference()).await
}

async fn refused(bench: &Bench) -> OciError {
    match resolved(bench).await.unwrap_err() {
        ModelError::Oci { source, .. } => *source,
        other => panic!("{other:?}"),
    }
}

async fn fetched(bench: &Bench, file: &RemoteFile) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(file, directory.path());
    let cancel = CancellationToken::new();
    let fetched = bench.net.fetch(&transfer, &bench.narrator, &cancel).await;
    fs::read(fetched.unwrap().path).unwrap()
}

fn transfer(file: &RemoteFile, directory: &Path) -> Transfer {
    Transfer {
        kind: "test",
        actor: crate::narrate::Actor::ModelProvisioner,
        sources: file.sources.clone(),
        digest: file.digest.clone(),
        size_bytes: file.size_bytes,
        limit_bytes: None,
        partial: directory.join("partial"),
        task: "download".to_owned(),
    }
}

/// An artifact as ORAS pushes it.
async fn push(registry: &Registry, repository: &str, files: &[(&str, &[u8])]) -> Digest {
    let layers: Vec<(&str, Value, &[u8])> = files
        .iter()
        .map(|(name, content)| (RAW, titled(name), *content))
        .collect();
    let config = (EMPTY, &json!({}));
    registry
        .push_artifact(repository, "1", config, &layers)
        .await
}

#[tokio::test]
async fn an_artifact_is_its_layers_pinned_to_its_manifest() {
    let registry = Registry::open();
    let files: [(&str, &[u8]); 2] = [("w/b.safetensors", b"weights"), ("config.json", b"{}")];
    let digest = push(&registry, "lm", &files).await;
    let mut bench = Bench::new(&format!("oci://{}", registry.name("lm:1")));
    bench.shape = ModelShape::Directory;
    let model = resolved(&bench).await.unwrap();
    assert_eq!(
        model.pinned,
        format!("oci://{}@{digest}", registry.name("lm"))
    );
    assert_eq!(model.revision, Some(digest.to_string()));
    assert_eq!(model.size_bytes(), Some(9));
    assert_eq!(model.files[0].name, "config.json");
    assert_eq!(model.files[1].digest, Some(Digest::of(b"weights")));
    assert_eq!(fetched(&bench, &model.files[1]).await, b"weights");
    push(&registry, "lm", &[("other", b"later")]).await;
    bench.written = model.pinned.clone();
    let again = resolved(&bench).await.unwrap();
    assert_eq!(again.pinned, model.pinned);
    assert_eq!(again.files.len(), 2);
}

#[tokio::test]
async fn a_registry_that_wants_a_login_gets_it_for_manifest_and_layers() {
    let registry = Registry::guarded("alice", "correct-horse");
    push(&registry, "lm", &[("m.gguf", b"model")]).await;
    let bench_with = |password: &str| {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("auth.json");
        let auth = basic("alice", password);
        fs::write(
            &file,
            json!({"auths": {registry.address(): {"auth": auth}}}).to_string(),
        )
        .unwrap();
        let mut bench = Bench::new(&format!("oci://{}", registry.name("lm:1")));
        bench.environment = bench.environment.clone().with("REGISTRY_AUTH_FILE", &file);
        (bench, directory)
    };
    let (bench, _directory) = bench_with("correct-horse");
    let model = resolved(&bench).await.unwrap();
    assert_eq!(fetched(&bench, &model.files[0]).await, b"model");
    let told = format!("{model:?}");
    assert!(!told.contains("correct-horse") && !told.contains(&basic("alice", "correct-horse")));

    let (bench, _directory) = bench_with("wrong-password");
    let error = resolved(&bench).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Network);
    assert_eq!(error.kind(), "registry-unauthorized");
    let told = format!(
        "{error:?} {} {:?} {:?}",
        chain(&error),
        error.hints(),
        error.details()
    );
    assert!(!told.contains("wrong-password"), "{told}");
}

#[tokio::test]
async fn a_token_that_ends_is_fetched_anew_and_the_transfer_goes_on() {
    let given = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&given);
    let registry = Registry::with_tokens("lm", move || match count.fetch_add(1, Relaxed) {
        // Counted in whole seconds, of which a part is over: long enough for the manifest.
        0 => Duration::from_secs(3),
        _ => Duration::from_secs(600),
    });
    let files: [(&str, &[u8]); 2] = [("a.safetensors", b"first half, second"), ("b", b"b")];
    push(&registry, "lm", &files).await;
    let mut bench = Bench::new(&format!("oci://{}", registry.name("lm:1")));
    bench.shape = ModelShape::Directory;
    let model = resolved(&bench).await.unwrap();
    let file = &model.files[0];
    let start = Instant::now();
    loop {
        let mut old = file.sources[0].clone();
        old.renewal = None;
        match bench.net.describe(&old, &bench.cancel).await {
            Ok(_) => assert!(start.elapsed() < Duration::from_secs(30), "it never ends"),
            Err(NetError::Status { status: 401, .. }) => break,
            Err(other) => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(given.load(Relaxed), 1);
    let directory = tempfile::tempdir().unwrap();
    let transfer = transfer(file, directory.path());
    fs::write(&transfer.partial, "first half").unwrap();
    let got = bench.net.fetch(&transfer, &bench.narrator, &bench.cancel);
    let got = got.await.unwrap();
    assert_eq!((got.resumed_bytes, got.size_bytes), (10, 18));
    assert_eq!(fs::read(&got.path).unwrap(), b"first half, second");
    // The next layer is given out for the same.
    assert_eq!(fetched(&bench, &model.files[1]).await, b"b");
    assert_eq!(given.load(Relaxed), 2);
}

#[tokio::test]
async fn layers_trust_the_registrys_own_authority_as_the_manifest_does() {
    let (registry, certificate) = Registry::encrypted();
    push(&registry, "lm", &[("m.gguf", b"model")]).await;
    let home = tempfile::tempdir().unwrap();
    let mut bench = Bench::new(&format!("oci://{}", registry.name("lm:1")));
    let rules = home.path().join("registries.conf");
    fs::write(&rules, "").unwrap();
    bench.environment = bench
        .environment
        .clone()
        .with("HOME", home.path())
        .with("CONTAINERS_REGISTRIES_CONF", &rules);
    assert_eq!(resolved(&bench).await.unwrap_err().kind(), "connection");
    let trusted = home.path().join(".config/containers/certs.d");
    let trusted = trusted.join(registry.address());
    fs::create_dir_all(&trusted).unwrap();
    fs::copy(certificate, trusted.join("ca.crt")).unwrap();
    let model = resolved(&bench).await.unwrap();
    assert_eq!(fetched(&bench, &model.files[0]).await, b"model");

    fs::remove_file(trusted.join("ca.crt")).unwrap();
    let insecure = format!(
        "[[registry]]\nlocation = \"{}\"\ninsecure = true\n",
        registry.address()
    );
    fs::write(&rules, insecure).unwrap();
    let model = resolved(&bench).await.unwrap();
    assert_eq!(fetched(&bench, &model.files[0]).await, b"model");
}

#[tokio::test]
async fn an_index_gives_what_is_for_this_platform_else_for_none() {
    let registry = Registry::open();
    let neutral = push(&registry, "lm", &[("neutral.gguf", b"n")]).await;
    let ours = push(&registry, "lm", &[("ours.gguf", b"o")]).await;
    let other = json!({"os": "linux", "architecture": "s390x"});
    let own = json!({"os": "linux", "architecture": here()});
    let entries = [
        (other.clone(), &neutral),
        (Value::Null, &neutral),
        (own, &ours),
    ];
    registry.push_index_of("lm", "all", &entries).await;
    registry.push_index_of("lm", "some", &entries[..2]).await;
    registry.push_index_of("lm", "none", &entries[..1]).await;
    let named = async |tag: &str| {
        let bench = Bench::new(&format!("oci://{}", registry.name(&format!("lm:{tag}"))));
        resolved(&bench)
            .await
            .map(|model| model.files[0].name.clone())
    };
    assert_eq!(named("all").await.unwrap(), "ours.gguf");
    assert_eq!(named("some").await.unwrap(), "neutral.gguf");
    assert_eq!(named("none").await.unwrap_err().kind(), "other-platform");
}

#[tokio::test]
async fn the_licence_of_modelpack_is_read_from_its_configuration() {
    let registry = Registry::open();
    let config = json!({"descriptor": {"licenses": ["Apache-2.0", "MIT"]}});
    let weights = json!({"org.cncf.model.filepath": "models/m.gguf"});
    let kind = "application/vnd.cncf.model.weight.v1.raw";
    let layers = [(kind, weights, b"gguf".as_slice())];
    registry
        .push_artifact("lm", "1", (MODELPACK, &config), &layers)
        .await;
    let model = resolved(&Bench::new(&format!("oci://{}", registry.name("lm:1")))).await;
    let model = model.unwrap();
    assert_eq!(model.licence.as_deref(), Some("Apache-2.0 AND MIT"));
    assert_eq!(model.files[0].name, "m.gguf");
}

#[tokio::test]
async fn what_is_no_model_is_refused_by_its_cause() {
    let registry = Registry::open();
    registry.push("image", "1", configuration(here())).await;
    let error = refused(&Bench::new(&format!("oci://{}", registry.name("image:1")))).await;
    assert!(matches!(error, OciError::Archive { .. }), "{error:?}");
    assert_eq!(error.exit(), Exit::Verification);
    let bench = Bench::new(&format!("oci://{}", registry.name("none:1")));
    let error = refused(&bench).await;
    assert_eq!(
        (error.kind(), error.exit()),
        ("artifact-not-found", Exit::NotFound)
    );
    let files: [(&str, &[u8]); 2] = [("m-Q4_0.gguf", b"4"), ("m-Q8_0.gguf", b"8")];
    push(&registry, "lm", &files).await;
    let mut bench = Bench::new(&format!("oci://{}", registry.name("lm:1")));
    let error = refused(&bench).await;
    assert!(
        matches!(error, OciError::Choice(NoChoice::Several { .. })),
        "{error:?}"
    );
    bench.quant = Some("Q8_0".to_owned());
    let model = resolved(&bench).await.unwrap();
    assert_eq!(model.files.len(), 1);
    assert_eq!(model.picked_from, ["m-Q4_0.gguf", "m-Q8_0.gguf"]);
    let told = bench.told.events().into_iter();
    let told: Vec<String> = told.map(|event| event.human).collect();
    let from = "m-Q8_0.gguf is picked from m-Q4_0.gguf, m-Q8_0.gguf";
    assert!(told.iter().any(|text| text.ends_with(from)), "{told:?}");
}
