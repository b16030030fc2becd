use std::{fs, os::unix::fs::PermissionsExt as _};

use engine_provider_api::StageModel;

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    narrate::Capture,
    net::testing::{Reply, Server, open_net},
};

struct Bench {
    _home: tempfile::TempDir,
    stage: Stage,
    told: Capture,
}

fn bench() -> Bench {
    let home = tempfile::tempdir().unwrap();
    let (narrator, told) = Narrator::capture();
    let stage = Stage {
        store: Store::at(home.path().join("store")),
        net: open_net(),
        narrator,
        cancel: CancellationToken::new(),
        base: home.path().to_owned(),
        run_as: None,
    };
    Bench {
        _home: home,
        stage,
        told,
    }
}

fn model(reference: &str, digest: Option<String>) -> StageModel {
    StageModel {
        reference: reference.to_owned(),
        digest,
        ..StageModel::default()
    }
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    format!("sha256:{}", crate::store::hex(&sha2::Sha256::digest(bytes)))
}

fn bytes_of(artifact: &Artifact) -> Vec<u8> {
    fs::read(artifact.path.as_ref().unwrap()).unwrap()
}

#[tokio::test]
async fn a_builtin_lies_where_the_plan_said() {
    let bench = bench();
    let step = model("builtin:haiku", None);
    let (before, outlook) = expected(&bench.stage, &step).unwrap();
    assert_eq!(
        (before.state, outlook),
        (ArtifactState::Expected, Outlook::Unpack)
    );
    let staged = stage(&bench.stage, &step).await.unwrap();
    assert_eq!(staged.path, before.path);
    assert_eq!(bytes_of(&staged), BUILTINS[0].bytes);
    let (after, outlook) = expected(&bench.stage, &step).unwrap();
    assert_eq!((after, outlook), (staged, Outlook::There));
    let error = stage(&bench.stage, &model("builtin:sonnet", None))
        .await
        .unwrap_err();
    assert!(error.to_string().contains("only haiku"), "{error}");
}

#[tokio::test]
async fn a_users_file_is_used_in_place_and_verified_when_asked() {
    let bench = bench();
    let path = bench.stage.base.join("m.gguf");
    fs::write(&path, "model").unwrap();
    let step = model("./m.gguf", Some(sha256(b"model")));
    let staged = stage(&bench.stage, &step).await.unwrap();
    assert_eq!(bytes_of(&staged), b"model");
    assert!(staged.path.unwrap().ends_with("m.gguf"));
    assert_eq!(
        bench.told.actions(),
        ["resolve", "ensure", "verify", "verified", "complete"]
    );
    let error = stage(&bench.stage, &model("m.gguf", Some(sha256(b"other"))))
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
    assert!(bench.told.actions().contains(&"verify-failed".to_owned()));
    let error = stage(&bench.stage, &model("file:/nowhere/m.gguf", None))
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::NotFound);
}

#[tokio::test]
async fn a_file_that_the_engines_user_cannot_read_is_copied_and_not_changed() {
    let mut bench = bench();
    let path = bench.stage.base.join("m.gguf");
    fs::write(&path, "model").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::set_permissions(&bench.stage.base, fs::Permissions::from_mode(0o755)).unwrap();
    bench.stage.run_as = Some(Identity {
        uid: 64_123,
        gid: 64_123,
    });
    let step = model("m.gguf", None);
    assert_eq!(expected(&bench.stage, &step).unwrap().1, Outlook::Copy);
    let staged = stage(&bench.stage, &step).await.unwrap();
    let copy = staged.path.clone().unwrap();
    assert_ne!(copy, path.to_string_lossy());
    let mode = |path: &str| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&copy), 0o444);
    assert_eq!(mode(&path.to_string_lossy()), 0o600);
    assert_eq!(stage(&bench.stage, &step).await.unwrap(), staged);
}

#[tokio::test]
async fn a_url_with_a_checksum_is_fetched_once() {
    let bench = bench();
    let server = Server::start(|_, request| Reply::file(request, b"model"));
    let url = server.url("m.gguf").to_string();
    let step = model(&url, Some(sha256(b"model")));
    let (before, outlook) = expected(&bench.stage, &step).unwrap();
    assert_eq!(outlook, Outlook::Fetch(url));
    let staged = stage(&bench.stage, &step).await.unwrap();
    assert_eq!(staged.path, before.path);
    assert_eq!(
        bench.told.actions(),
        [
            "resolve",
            "ensure",
            "download",
            "downloaded",
            "verify",
            "verified",
            "complete"
        ]
    );
    stage(&bench.stage, &step).await.unwrap();
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_wrong_checksum_publishes_nothing() {
    let bench = bench();
    let server = Server::start(|_, _| Reply::ok("something else"));
    let step = model(server.url("m.gguf").as_str(), Some(sha256(b"model")));
    let error = stage(&bench.stage, &step).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
    assert!(!bench.stage.store.blobs().exists());
    assert!(bench.told.actions().contains(&"verify-failed".to_owned()));
    let failed = stage(&bench.stage, &model("http://127.0.0.1:1/m", None)).await;
    assert_eq!(failed.unwrap_err().exit(), Exit::Network);
    assert!(bench.told.actions().contains(&"download-failed".to_owned()));
}

#[tokio::test]
async fn without_a_checksum_the_first_use_is_said_aloud_and_must_stay() {
    let bench = bench();
    let server = Server::start(|number, _| Reply::ok(format!("model {number}")));
    let step = model(server.url("m.gguf").as_str(), None);
    let staged = stage(&bench.stage, &step).await.unwrap();
    let warned = bench.told.events().into_iter().any(|event| {
        event.level == crate::narrate::Level::Warning && event.human.contains("checksum: sha256:")
    });
    assert!(warned);
    assert_eq!(stage(&bench.stage, &step).await.unwrap(), staged);
    assert_eq!(server.requests().len(), 1);

    // Lost, and the URL gives something else by now.
    fs::remove_file(staged.path.unwrap()).unwrap();
    let error = stage(&bench.stage, &step).await.unwrap_err();
    assert!(matches!(error, ModelError::Changed { .. }), "{error}");
    assert!(
        error.hints()[0]
            .command
            .as_ref()
            .unwrap()
            .starts_with("rm ")
    );
}

#[tokio::test]
async fn another_algorithm_is_an_error_and_not_a_pass() {
    let bench = bench();
    let step = model("builtin:haiku", Some("md5:0123".to_owned()));
    let error = stage(&bench.stage, &step).await.unwrap_err();
    assert_eq!(error.kind(), "bad-digest");
}

#[tokio::test]
async fn the_cache_directory_is_honoured() {
    let bench = bench();
    let mut step = model("builtin:haiku", None);
    step.cache_dir = Some("models".to_owned());
    let staged = stage(&bench.stage, &step).await.unwrap();
    let directory = bench.stage.base.join("models");
    assert!(std::path::Path::new(&staged.path.unwrap()).starts_with(directory));
}

#[tokio::test]
async fn hubs_and_registries_are_refused_in_one_line() {
    let bench = bench();
    for reference in ["hf:a/b/c.gguf", "s3://a/b.gguf", "oci://a/b"] {
        let error = stage(&bench.stage, &model(reference, None))
            .await
            .unwrap_err();
        assert!(matches!(error, ModelError::Unsupported { .. }), "{error}");
        assert!(error.to_string().contains("not supported by this version"));
    }
}
