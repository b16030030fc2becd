use std::fs;

use serde_json::{Value, json};
use tar::EntryType;

use super::*;
use crate::{
    container::registry::testing::Registry,
    fault::{Exit, Fault as _},
    model::{
        Models,
        catalog::Catalog,
        lockable, resolve, stage,
        tests::{Bench, bench, sha256},
    },
    unpack::tests::{archive, plain},
};

const WEIGHTS: &str = "application/vnd.cncf.model.weight.v1.tar";
const PACKED: &str = "application/vnd.cncf.model.weight.v1.tar+gzip";
const RAW: &str = "application/vnd.cncf.model.weight.config.v1.raw";
const FILE: EntryType = EntryType::Regular;

fn path(name: &str) -> Value {
    json!({"org.cncf.model.filepath": name})
}

async fn push(registry: &Registry, layers: &[(&str, Value, &[u8])]) -> StageModel {
    let config = ("application/vnd.cncf.model.config.v1+json", &json!({}));
    registry.push_artifact("lm", "1", config, layers).await;
    StageModel {
        reference: format!("oci://{}", registry.name("lm:1")),
        shape: ModelShape::Directory,
        ..StageModel::default()
    }
}

/// What lies in the store that is no note and no lock.
fn left(bench: &Bench) -> Vec<String> {
    let mut left = Vec::new();
    for directory in ["blobs/sha256", "partial", "tmp", "models/trees"] {
        let listed = fs::read_dir(bench.stage.store.root().join(directory));
        for found in listed.into_iter().flatten().flatten() {
            left.push(format!(
                "{directory}/{}",
                found.file_name().to_string_lossy()
            ));
        }
    }
    left
}

#[tokio::test]
async fn archives_of_a_model_become_its_files_and_are_fetched_once() {
    let registry = Registry::open();
    let weights = plain(&[(FILE, "w/model.safetensors", "weights")]);
    let texts = archive(&[
        (FILE, "docs/README.md", "read"),
        (FILE, ".cache/notes", "x"),
        (FILE, "docs/train.py", "code"),
    ]);
    let layers = [
        (WEIGHTS, path("w/model.safetensors"), weights.as_slice()),
        (PACKED, json!({}), &texts),
        (RAW, path("config.json"), b"{}"),
    ];
    let mut step = push(&registry, &layers).await;
    step.exclude = vec!["*.py".to_owned()];
    let mut bench = bench();
    resolve(&bench.stage, &step).await.unwrap();
    let before = lockable(&bench.stage, &step).await.unwrap();
    assert!(before.pinned.is_some() && before.files.is_empty() && before.digest.is_none());

    let staged = stage(&bench.stage, &step).await.unwrap();
    let tree = std::path::PathBuf::from(staged.path.clone().unwrap());
    let content = |name: &str| fs::read_to_string(tree.join(name)).unwrap();
    assert_eq!(content("w/model.safetensors"), "weights");
    assert_eq!(content("docs/README.md"), "read");
    assert_eq!(content("config.json"), "{}");
    assert!(!tree.join(".cache").exists() && !tree.join("docs/train.py").exists());
    let [entry] = &Catalog::of(&bench.stage.store).entries().unwrap()[..] else {
        panic!("one model");
    };
    assert_eq!(entry.files.len(), 3);
    assert!(
        left(&bench)
            .iter()
            .all(|it| !it.starts_with("partial") && !it.starts_with("tmp"))
    );
    let mut as_it_is = step.clone();
    as_it_is.digest = staged.digest.clone();

    // By another reference the same archives are not fetched again; by its digest nor the manifest.
    let downloads = |bench: &Bench| {
        let actions = bench.told.actions();
        actions
            .iter()
            .filter(|action| *action == "download")
            .count()
    };
    let fetched = downloads(&bench);
    assert_eq!(fetched, 3);
    bench.stage.models = Models::default();
    step.exclude = Vec::new();
    step.include = vec!["*".to_owned()];
    stage(&bench.stage, &step).await.unwrap();
    assert_eq!(downloads(&bench), fetched);
    assert_eq!(
        stage(&bench.stage, &as_it_is).await.unwrap().digest,
        staged.digest
    );

    // What is damaged is had again.
    let blob = bench.stage.store.blob_path(&sha256(b"weights")[7..]);
    fs::set_permissions(&blob, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    fs::write(&blob, "WEIGHTS").unwrap();
    bench.stage.models = Models::default();
    stage(&bench.stage, &step).await.unwrap();
    assert_eq!(downloads(&bench), fetched + 1);
    assert_eq!(fs::read_to_string(&blob).unwrap(), "weights");
}

#[tokio::test]
async fn an_engine_that_reads_a_file_is_given_the_one_of_an_archive() {
    let registry = Registry::open();
    let packed = zstd::encode_all(&plain(&[(FILE, "m.gguf", "model")])[..], 1).unwrap();
    let mut step = push(&registry, &[(WEIGHTS, path("m.gguf"), &packed)]).await;
    step.shape = ModelShape::File;
    step.digest = Some(sha256(b"another"));
    let mut bench = bench();
    let error = stage(&bench.stage, &step).await.unwrap_err();
    assert!(matches!(error, ModelError::Mismatch { .. }), "{error}");
    bench.stage.models = Models::default();
    step.digest = Some(sha256(b"model"));
    let staged = stage(&bench.stage, &step).await.unwrap();
    assert_eq!(fs::read(staged.path.unwrap()).unwrap(), b"model");
    assert_eq!(staged.digest, step.digest);
}

#[tokio::test]
async fn archives_that_are_no_data_are_refused_with_nothing_left_of_them() {
    let registry = Registry::open();
    let two = [(FILE, "a.gguf", "a"), (FILE, "b.gguf", "b")];
    let cases: [(&str, ModelShape, Vec<u8>); 6] = [
        (
            "leads out",
            ModelShape::Directory,
            plain(&[(FILE, "../x", "x")]),
        ),
        (
            "is a link",
            ModelShape::Directory,
            plain(&[(FILE, "a", "a"), (EntryType::Symlink, "b", "a")]),
        ),
        (
            "is a link",
            ModelShape::Directory,
            plain(&[(FILE, "a", "a"), (EntryType::Link, "b", "a")]),
        ),
        ("damaged", ModelShape::Directory, vec![7; 4096]),
        ("2 files", ModelShape::File, plain(&two)),
        (
            "not what its name says",
            ModelShape::File,
            plain(&[(FILE, "m.sh", "x")]),
        ),
    ];
    for (said, shape, layer) in cases {
        let mut step = push(&registry, &[(WEIGHTS, path("m.gguf"), &layer)]).await;
        step.shape = shape;
        let bench = bench();
        let error = stage(&bench.stage, &step).await.unwrap_err();
        assert!(error.to_string().contains(said), "{said}: {error}");
        assert_eq!(
            (error.exit(), error.kind()),
            (Exit::Verification, "model-bad-archive")
        );
        assert!(
            Catalog::of(&bench.stage.store)
                .entries()
                .unwrap()
                .is_empty()
        );
        let left = left(&bench);
        assert!(
            shape == ModelShape::File || left.is_empty(),
            "{said}: {left:?}"
        );
    }
}

#[tokio::test]
async fn archives_that_have_the_same_file_are_no_model() {
    let registry = Registry::open();
    let one = plain(&[(FILE, "w/a", "1")]);
    let other = plain(&[(FILE, "w", "2")]);
    let layers = [
        (WEIGHTS, path("one"), one.as_slice()),
        (WEIGHTS, path("other"), &other),
    ];
    let step = push(&registry, &layers).await;
    let error = stage(&bench().stage, &step).await.unwrap_err();
    assert!(matches!(error, ModelError::BadName { .. }), "{error}");
}
