use std::{fs, os::unix::fs::PermissionsExt as _};

use engine_provider_api::{ModelShape, StageModel};

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    narrate::Capture,
    net::{
        self,
        testing::{Reply, Server, open_net},
    },
};

pub(super) struct Bench {
    _home: tempfile::TempDir,
    pub(super) stage: Stage,
    pub(super) told: Capture,
}

impl Bench {
    /// What one run knows is forgotten.
    fn next_run(&mut self) {
        self.stage.models = Models::default();
    }
}

pub(super) fn bench() -> Bench {
    let home = tempfile::tempdir().unwrap();
    let (narrator, told) = Narrator::capture();
    let stage = Stage {
        store: Store::at(home.path().join("store")),
        net: open_net(),
        narrator,
        cancel: CancellationToken::new(),
        base: home.path().to_owned(),
        run_as: None,
        environment: Arc::default(),
        models: Models::default(),
        unverified: None,
        verify: Verify::default(),
        versions: Arc::default(),
        refresh: false,
        revive: false,
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

pub(super) fn sha256(bytes: &[u8]) -> String {
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
        // That it is no real model is said as well.
        [
            "resolve", "ensure", "verify", "verified", "describe", "complete"
        ]
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
    assert_eq!(mode(&copy), 0o440);
    assert_eq!(mode(&path.to_string_lossy()), 0o600);
    assert_eq!(stage(&bench.stage, &step).await.unwrap(), staged);
}

#[tokio::test]
async fn a_url_with_a_checksum_is_fetched_once() {
    let bench = bench();
    let server = Server::start(|_, request| Reply::file(request, b"model"));
    let url = server.url("m.bin").to_string();
    let step = model(&url, Some(sha256(b"model")));
    let (before, outlook) = expected(&bench.stage, &step).unwrap();
    assert_eq!(outlook, Outlook::Fetch(vec![url]));
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
    // Once for its size, once for its content, and never again.
    stage(&bench.stage, &step).await.unwrap();
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn a_wrong_checksum_publishes_nothing() {
    let bench = bench();
    let server = Server::start(|_, _| Reply::ok("something else"));
    let step = model(server.url("m.bin").as_str(), Some(sha256(b"model")));
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
    let mut bench = bench();
    let server = Server::start(|number, _| Reply::ok(format!("model {number}")));
    let step = model(server.url("m.bin").as_str(), None);
    let staged = stage(&bench.stage, &step).await.unwrap();
    let warned = bench.told.events().into_iter().any(|event| {
        event.level == crate::narrate::Level::Warning && event.human.contains("checksum: sha256:")
    });
    assert!(warned);
    assert_eq!(stage(&bench.stage, &step).await.unwrap(), staged);
    assert_eq!(server.requests().len(), 2);

    // Lost, and the URL gives something else by now.
    fs::remove_file(staged.path.as_ref().unwrap()).unwrap();
    bench.next_run();
    let error = stage(&bench.stage, &step).await.unwrap_err();
    assert!(matches!(error, ModelError::Changed { .. }), "{error}");
    let command = error.hints()[0].command.clone().unwrap();
    assert!(command.contains("model add --refresh http"), "{command}");

    // Somebody says that the change is fine.
    bench.stage.refresh = true;
    let changed = stage(&bench.stage, &step).await.unwrap();
    assert_ne!(changed.digest, staged.digest);
    bench.stage.refresh = false;
    assert_eq!(stage(&bench.stage, &step).await.unwrap(), changed);
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

/// A model with a place and its mirrors.
fn mirrored(urls: &[net::Url], content: &[u8]) -> StageModel {
    StageModel {
        mirrors: urls[1..].iter().map(ToString::to_string).collect(),
        ..model(urls[0].as_str(), Some(sha256(content)))
    }
}

#[tokio::test]
async fn what_one_place_says_of_the_size_binds_no_other() {
    let parked = Server::start(|_, request| Reply::file(request, b"this name is for sale"));
    let right = Server::start(|_, request| Reply::file(request, b"model"));
    let bench = bench();
    let step = mirrored(&[parked.url("m.gguf"), right.url("m.gguf")], b"model");
    resolve(&bench.stage, &step).await.unwrap();
    assert_eq!(
        lockable(&bench.stage, &step).await.unwrap().size_bytes,
        None
    );
    let staged = stage(&bench.stage, &step).await.unwrap();
    assert_eq!(bytes_of(&staged), b"model");
    let passed = bench.told.events();
    let passed = passed.iter().find(|it| it.action == "mirror-failed");
    assert!(passed.unwrap().human.contains("is not what it should be"));
}

#[tokio::test]
async fn mirrors_without_a_digest_or_a_url_are_refused() {
    let bench = bench();
    let digest = || Some(sha256(b"model"));
    for (reference, mirror, digest, reason) in [
        ("https://a.test/m", "https://b.test/m", None, "checksum"),
        (
            "hf:o/n/m.gguf",
            "https://b.test/m",
            digest(),
            "only a file behind",
        ),
        (
            "builtin:haiku",
            "https://b.test/m",
            digest(),
            "only a file behind",
        ),
        (
            "https://a.test/m",
            "hf:o/n/m.gguf",
            digest(),
            "no https URL",
        ),
    ] {
        let step = StageModel {
            mirrors: vec![mirror.to_owned()],
            ..model(reference, digest)
        };
        let error = expected(&bench.stage, &step).unwrap_err();
        assert_eq!(error.exit(), Exit::Config);
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn a_step_without_mirrors_is_not_given_those_of_another() {
    let right = Server::start(|_, request| Reply::file(request, b"model"));
    let gone = Server::start(|_, _| Reply::status(404));
    let bench = bench();
    let with = mirrored(&[gone.url("m"), right.url("m")], b"model");
    resolve(&bench.stage, &with).await.unwrap();
    let without = mirrored(&[gone.url("m")], b"model");
    let error = resolve(&bench.stage, &without).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Network);
    // Once it is here, it is the same model.
    stage(&bench.stage, &with).await.unwrap();
    let (_, outlook) = expected(&bench.stage, &without).unwrap();
    assert_eq!(outlook, Outlook::There);
}

#[tokio::test]
async fn bytes_that_somebody_vouched_for_stay_so_when_they_come_from_elsewhere_too() {
    let haiku = BUILTINS[0].bytes;
    let server = Server::start(move |_, request| Reply::file(request, haiku));
    let mut bench = bench();
    let builtin = model("builtin:haiku", None);
    let first = add(&bench.stage, &builtin).await.unwrap();
    let elsewhere = model(server.url("m.gguf").as_str(), None);
    let second = add(&bench.stage, &elsewhere).await.unwrap();
    assert_eq!(
        (&first.id, first.provenance),
        (&second.id, second.provenance)
    );
    // Nor does policy, made stricter, refuse what is known to be right.
    bench.next_run();
    bench.stage.unverified = Some(
        crate::policy::Policy {
            allow_unverified_models: crate::policy::Setting::default_of(false),
            ..crate::policy::Policy::default()
        }
        .allow_unverified_model("x")
        .unwrap_err(),
    );
    let (_, outlook) = expected(&bench.stage, &elsewhere).unwrap();
    assert_eq!(outlook, Outlook::There);
}

#[tokio::test]
async fn a_user_s_own_directory_stands_in_for_the_same_from_elsewhere_where_it_lies() {
    let bench = bench();
    let place = bench.stage.base.join("repo");
    fs::create_dir(&place).unwrap();
    fs::write(place.join("config.json"), "{}").unwrap();
    fs::write(place.join("model.safetensors"), "weights").unwrap();
    let mut own = model("./repo", None);
    own.shape = ModelShape::Directory;
    let first = add(&bench.stage, &own).await.unwrap();
    let mut elsewhere = model("hf:o/n", Some(first.digest.clone()));
    elsewhere.shape = ModelShape::Directory;
    let (_, outlook) = expected(&bench.stage, &elsewhere).unwrap();
    assert_eq!(outlook, Outlook::There);
    let second = add(&bench.stage, &elsewhere).await.unwrap();
    assert_eq!((&second.id, &second.path), (&first.id, &place));
    assert_eq!(second.names.len(), 2);
}

#[tokio::test]
async fn a_small_file_of_the_hub_that_is_another_one_is_refused_and_does_not_stay() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let server = Server::start(|_, request| match request.path.as_str() {
        "/api/models/o/n/revision/main?blobs=true" => Reply::ok(format!(
            r#"{{"sha": "{COMMIT}", "gated": false, "siblings": [
              {{"rfilename": "m.gguf", "size": 5, "blobId": "{COMMIT}"}}]}}"#
        )),
        _ => Reply::ok("model"),
    });
    let mut bench = bench();
    let endpoint = server.url("").to_string();
    let environment = Environment::from_pairs([("HF_ENDPOINT", endpoint)]);
    bench.stage.environment = Arc::new(environment);
    let mut step = model("hf:o/n", None);
    step.include = vec!["*.gguf".to_owned()];
    let error = stage(&bench.stage, &step).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.exit()),
        ("digest-mismatch", Exit::Verification)
    );
    assert!(error.to_string().contains("/m.gguf"), "{error}");
    let again = error.hints()[0].command.clone().unwrap();
    assert_eq!(again, "{host} model add --include '*.gguf' hf:o/n");
    assert!(bench.told.actions().contains(&"verify-failed".to_owned()));
    let blobs = fs::read_dir(bench.stage.store.blobs());
    let left: Vec<_> = blobs.into_iter().flatten().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn each_refusal_of_what_was_written_says_what_to_write() {
    let bench = bench();
    let base = &bench.stage.base;
    fs::create_dir(base.join("directory")).unwrap();
    fs::write(base.join("empty.gguf"), "").unwrap();
    for (reference, formats) in [
        ("ftp://host/m.gguf", &[][..]),
        ("./m.txt", &["gguf"]),
        ("./empty.gguf", &[]),
        ("/dev/null", &[]),
        ("./directory", &[]),
    ] {
        let mut step = model(reference, None);
        step.formats = formats.iter().map(|&format| format.to_owned()).collect();
        let error = stage(&bench.stage, &step).await.unwrap_err();
        assert!(!error.hints().is_empty(), "{reference}: {error}");
    }
}

#[tokio::test]
async fn what_opens_a_url_is_no_part_of_the_model_s_id() {
    let bench = bench();
    let server = Server::start(|_, request| Reply::file(request, b"model"));
    let url = server.url("Tiny.gguf?sig=AbC/dEf").to_string();
    let url = url.replace("http://", "http://ToKeN@");
    let added = add(&bench.stage, &model(&url, Some(sha256(b"model")))).await;
    assert!(added.unwrap().id.starts_with("tiny-"));
}
