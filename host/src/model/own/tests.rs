use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

use engine_provider_api::{ModelShape, StageModel};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    narrate::{Capture, Level, Narrator},
    net::testing::open_net,
    process::Identity,
    store::{self, Store},
};

/// Somebody who may read what everybody may.
const STRANGER: Identity = Identity {
    uid: 64_123,
    gid: 64_123,
};

struct Bench {
    home: tempfile::TempDir,
    stage: Stage,
    told: Capture,
}

impl Bench {
    /// With a model in the directory `model` and one in the file `m.gguf`.
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (narrator, told) = Narrator::capture();
        let stage = Stage {
            store: Store::at(home.path().join("store")),
            net: open_net(),
            narrator,
            cancel: CancellationToken::new(),
            base: home.path().to_owned(),
            run_as: None,
            environment: std::sync::Arc::default(),
            models: super::super::Models::default(),
            unverified: None,
            verify: super::super::Verify::default(),
            versions: std::sync::Arc::default(),
            refresh: false,
            revive: false,
        };
        let model = home.path().join("model");
        fs::create_dir_all(model.join("onnx")).unwrap();
        fs::create_dir(model.join(".cache")).unwrap();
        for (name, text) in [
            ("config.json", "{}"),
            ("onnx/model.onnx", "weights"),
            // Sorted as bytes, this comes between the other two.
            ("onnx-b", "b"),
            (".gitattributes", "x"),
            (".cache/notes", "x"),
        ] {
            fs::write(model.join(name), text).unwrap();
        }
        fs::write(home.path().join("m.gguf"), "model").unwrap();
        symlink("../config.json", model.join("onnx/config.json")).unwrap();
        Self { home, stage, told }
    }

    fn model(&self) -> PathBuf {
        self.home.path().join("model")
    }

    /// Stages a file.
    async fn file(&self, reference: &str, digest: Option<&str>) -> Result<Artifact, ModelError> {
        let mut step = step(reference, digest);
        step.shape = ModelShape::File;
        super::super::stage(&self.stage, &step).await
    }

    fn entries(&self) -> Vec<Entry> {
        Catalog::of(&self.stage.store).entries().unwrap()
    }

    /// Warnings, but those about files that are no models, which those of a test are not.
    fn warnings(&self) -> Vec<String> {
        let events = self.told.events().into_iter();
        let warnings =
            events.filter(|event| event.level == Level::Warning && event.action != "describe");
        warnings.map(|event| event.human).collect()
    }

    async fn stage(&self, reference: &str, digest: Option<&str>) -> Result<Artifact, ModelError> {
        super::super::stage(&self.stage, &step(reference, digest)).await
    }

    fn expected(&self, reference: &str) -> Result<(Artifact, Outlook), ModelError> {
        super::super::expected(&self.stage, &step(reference, None))
    }
}

fn step(reference: &str, digest: Option<&str>) -> StageModel {
    StageModel {
        reference: reference.to_owned(),
        digest: digest.map(str::to_owned),
        shape: ModelShape::Directory,
        ..StageModel::default()
    }
}

#[tokio::test]
async fn a_directory_is_used_in_place_hashed_once_and_in_the_catalog() {
    let bench = Bench::new();
    let path = bench.model().to_string_lossy().into_owned();
    for reference in ["model", "./model", &format!("file:{path}")] {
        let staged = bench.stage(reference, None).await.unwrap();
        assert_eq!(staged.size_bytes, Some(12));
        assert!(staged.digest.is_some());
        let used = PathBuf::from(staged.path.clone().unwrap());
        assert_eq!(
            used.canonicalize().unwrap(),
            bench.model().canonicalize().unwrap()
        );
        assert_eq!(bench.expected(reference).unwrap(), (staged, Outlook::There));
    }
    assert!(!bench.stage.store.blobs().exists(), "nothing was copied");
    let actions = bench.told.actions();
    assert_eq!(actions.iter().filter(|it| *it == "verify").count(), 1);
    let [entry] = &bench.entries()[..] else {
        panic!("one model");
    };
    assert_eq!(entry.names.len(), 1, "one place, however it is written");
    assert_eq!(entry.files.len(), 4);
    assert_eq!(entry.provenance.trust, Trust::FirstUse);
    assert!(entry.files.iter().all(|file| file.place.is_some()));
}

#[tokio::test]
async fn a_file_that_changed_is_taken_as_it_is_now_and_that_is_said() {
    let bench = Bench::new();
    let before = bench.file("./m.gguf", None).await.unwrap();
    assert_eq!(bench.file("m.gguf", None).await.unwrap(), before);
    assert_eq!(bench.warnings(), Vec::<String>::new());
    fs::write(bench.home.path().join("m.gguf"), "another").unwrap();
    let now = bench.file("m.gguf", None).await.unwrap();
    let (was, is) = (before.digest.unwrap(), now.digest.clone().unwrap());
    assert_ne!(was, is);
    let [said] = &bench.warnings()[..] else {
        panic!("{:?}", bench.warnings());
    };
    assert!(said.contains("m.gguf changed since 20"), "{said}");
    assert!(
        said.contains(&format!("it was {was} and is {is} now")),
        "{said}"
    );
    // What it was is nowhere any more.
    let digests: Vec<String> = bench.entries().into_iter().map(|it| it.digest).collect();
    assert_eq!(digests, [is]);
    assert_eq!(bench.file("m.gguf", None).await.unwrap(), now);
    assert_eq!(bench.warnings().len(), 1, "said once");
}

#[tokio::test]
async fn a_file_that_is_no_longer_its_checksum_is_refused_with_the_time_when_it_was() {
    let bench = Bench::new();
    let first = bench.file("m.gguf", None).await.unwrap().digest.unwrap();
    let _ = bench.file("m.gguf", Some(&first)).await.unwrap();
    assert_eq!(bench.entries()[0].provenance.trust, Trust::Checksum);
    fs::write(bench.home.path().join("m.gguf"), "another").unwrap();
    let error = bench.file("m.gguf", Some(&first)).await.unwrap_err();
    assert!(matches!(error, ModelError::OwnChanged { .. }), "{error}");
    assert!(error.to_string().contains("changed since 20"), "{error}");
    assert_eq!(error.exit(), Exit::Verification);
    assert_eq!(bench.entries()[0].digest, first, "it is not taken");
    let never = format!("sha256:{}", "0".repeat(64));
    let error = bench.file("m.gguf", Some(&never)).await.unwrap_err();
    assert!(matches!(error, ModelError::Mismatch { .. }), "{error}");
}

#[tokio::test]
async fn a_copy_follows_its_source() {
    let mut bench = Bench::new();
    bench.stage.run_as = Some(STRANGER);
    let path = bench.home.path().join("m.gguf");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let first = bench.file("m.gguf", None).await.unwrap();
    fs::write(&path, "another").unwrap();
    let now = bench.file("m.gguf", None).await.unwrap();
    assert_ne!(now.path, first.path);
    assert_eq!(fs::read(now.path.unwrap()).unwrap(), b"another");
    assert_eq!(
        fs::read(first.path.unwrap()).unwrap(),
        b"model",
        "who reads it goes on"
    );
    assert!(bench.warnings()[0].contains("changed since"));
}

#[tokio::test]
async fn the_same_content_at_two_places_is_two_models() {
    let bench = Bench::new();
    for directory in ["a", "b", "c"] {
        fs::create_dir(bench.home.path().join(directory)).unwrap();
        let name = format!("{directory}/m.gguf");
        fs::write(bench.home.path().join(&name), "model").unwrap();
        let staged = bench.file(&name, None).await.unwrap();
        assert!(staged.path.unwrap().ends_with(&name));
    }
    let entries = bench.entries();
    let mut paths: Vec<&PathBuf> = entries.iter().map(|entry| &entry.path).collect();
    paths.dedup();
    assert_eq!(paths.len(), 3);
}

#[tokio::test]
async fn a_retired_file_is_refused_until_it_is_another_one() {
    let bench = Bench::new();
    let _ = bench.file("m.gguf", None).await.unwrap();
    let catalog = Catalog::of(&bench.stage.store);
    let id = &bench.entries()[0].id;
    let cancel = CancellationToken::new();
    catalog
        .set_state(id, State::Retired, &cancel)
        .await
        .unwrap();
    let error = bench.file("m.gguf", None).await.unwrap_err();
    assert!(matches!(error, ModelError::Retired { .. }), "{error}");
    let place = bench.home.path().join("m.gguf").display().to_string();
    let back = error.hints()[0].command.clone().unwrap();
    assert_eq!(back, format!("{{host}} model add {place}"));
    fs::write(bench.home.path().join("m.gguf"), "another").unwrap();
    let _ = bench.file("m.gguf", None).await.unwrap();
    assert_eq!(bench.entries()[0].state, State::Active);
}

#[tokio::test]
async fn its_digest_is_what_coreutils_print_and_is_remembered() {
    let bench = Bench::new();
    #[expect(clippy::disallowed_methods, reason = "the documented command is tried")]
    let output = std::process::Command::new("sh")
        .args(["-ec", "find -L . -type f -not -path '*/.*' -printf '%P\\0' | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum"])
        .current_dir(bench.model())
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let digest = format!("sha256:{}", printed.split(' ').next().unwrap());
    let staged = bench.stage("model", Some(&digest)).await.unwrap();
    assert_eq!(staged.digest.as_deref(), Some(&*digest));
    assert_eq!(
        bench.told.actions(),
        ["resolve", "ensure", "verify", "verified", "complete"]
    );
    // The notes alone decide while a file looks the same: a wrong one would be believed.
    let notes = bench.stage.store.root().join("witness");
    let note = |path: &Path| fs::read_to_string(path).unwrap().contains("model.onnx");
    let mut all = fs::read_dir(notes)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let of_weights = all.find(|path| note(path)).unwrap();
    let text = fs::read_to_string(&of_weights).unwrap();
    let sha256 = store::digest_file(&bench.model().join("onnx/model.onnx")).unwrap();
    fs::write(&of_weights, text.replace(&sha256, &"0".repeat(64))).unwrap();
    let error = bench.stage("model", Some(&digest)).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);

    let never = format!("sha256:{}", "0".repeat(64));
    let error = bench.stage("model", Some(&never)).await.unwrap_err();
    let command = error.hints()[0].command.clone().unwrap();
    assert!(command.contains("find -L . -type f"), "{command}");
    fs::write(bench.model().join("onnx/model.onnx"), "Weights").unwrap();
    let error = bench.stage("model", Some(&digest)).await.unwrap_err();
    assert!(matches!(error, ModelError::OwnChanged { .. }), "{error}");
}

#[tokio::test]
async fn one_that_the_engines_user_cannot_read_is_copied_once_and_not_changed() {
    let mut bench = Bench::new();
    bench.stage.run_as = Some(STRANGER);
    let secret = bench.model().join("onnx/model.onnx");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(bench.expected("model").unwrap().1, Outlook::Copy);
    let staged = bench.stage("model", None).await.unwrap();
    let copy = PathBuf::from(staged.path.clone().unwrap());
    assert!(
        copy.starts_with(bench.stage.store.root()),
        "{}",
        copy.display()
    );
    assert_eq!(fs::read(copy.join("onnx/model.onnx")).unwrap(), b"weights");
    assert_eq!(fs::read(copy.join("onnx/config.json")).unwrap(), b"{}");
    assert!(!copy.join(".cache").exists());
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        (mode(&copy.join("onnx/model.onnx")), mode(&secret)),
        (0o440, 0o600)
    );
    let copied = fs::metadata(copy.join("onnx/model.onnx")).unwrap();
    assert_eq!(
        copied.gid(),
        STRANGER.gid,
        "only the engine's user can read it"
    );
    assert_eq!(bench.stage("model", None).await.unwrap(), staged);
    let copies = bench.told.actions();
    assert_eq!(copies.iter().filter(|action| *action == "copy").count(), 1);
}

#[tokio::test]
async fn what_is_no_model_directory_is_named_before_anything_else() {
    let bench = Bench::new();
    let file = "model/config.json";
    let error = bench.expected(file).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("config.json is a file, not a model directory"),
        "{error}"
    );
    let mut other_way = step("model", None);
    other_way.shape = ModelShape::File;
    let error = super::super::expected(&bench.stage, &other_way).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("model is a directory, not a model file"),
        "{error}"
    );
    let error = bench.expected("nowhere").unwrap_err();
    assert!(
        error.to_string().starts_with("there is no model directory"),
        "{error}"
    );
    fs::create_dir_all(bench.home.path().join("empty/.git")).unwrap();
    let error = bench.expected("empty").unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("is empty, not a model directory"),
        "{error}"
    );
    for (target, reason) in [
        ("../../outside", "is a link out of the directory"),
        ("/etc/passwd", "is a link out of the directory"),
        ("nothing", "is a link to nothing"),
        ("../onnx", "is a link to a directory"),
    ] {
        fs::write(bench.home.path().join("outside"), "x").unwrap();
        let link = bench.model().join("onnx/link");
        symlink(target, &link).unwrap();
        let error = bench.expected("model").unwrap_err();
        assert!(error.to_string().contains(reason), "{target}: {error}");
        assert_eq!(error.exit(), Exit::Config);
        fs::remove_file(link).unwrap();
    }
    for (reference, what) in [
        ("builtin:haiku", "a built-in model as a directory"),
        ("https://host/model", "a directory behind a URL"),
    ] {
        let outlook = bench.expected(reference).unwrap().1;
        assert!(
            matches!(&outlook, Outlook::Unsupported(why) if why.contains(what)),
            "{outlook:?}"
        );
        let error = bench.stage(reference, None).await.unwrap_err();
        assert!(
            error.hints()[0].text.contains("directory"),
            "{:?}",
            error.hints()
        );
    }
}

/// Two parts of a model, beside what is in the bench.
fn split(bench: &Bench) -> [PathBuf; 2] {
    [1, 2].map(|number| {
        let place = bench.home.path();
        let path = place.join(format!("s-0000{number}-of-00002.gguf"));
        fs::write(&path, format!("part {number}")).unwrap();
        path
    })
}

#[tokio::test]
async fn a_part_brings_the_others_with_it_and_one_that_is_missing_is_named() {
    let bench = Bench::new();
    let [first, second] = split(&bench);
    for named in ["s-00001-of-00002.gguf", "s-00002-of-00002.gguf"] {
        let staged = bench.file(named, None).await.unwrap();
        assert_eq!(staged.size_bytes, Some(12));
        assert_eq!(staged.path.as_deref(), first.to_str());
    }
    assert_eq!(bench.entries().len(), 1);
    assert_eq!(bench.entries()[0].files.len(), 2);

    let listed = bench.entries()[0].digest.clone();
    let _ = bench
        .file("s-00001-of-00002.gguf", Some(&listed))
        .await
        .unwrap();
    fs::write(&second, "other").unwrap();
    let error = bench.file("s-00001-of-00002.gguf", Some(&listed)).await;
    let error = error.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);

    fs::remove_file(&second).unwrap();
    for digest in [None, Some(&*listed)] {
        let error = bench.file("s-00001-of-00002.gguf", digest).await;
        let error = error.unwrap_err();
        assert_eq!(error.kind(), "model-incomplete");
        let details = format!("{:?}", error.details());
        assert!(details.contains("s-00002-of-00002.gguf"), "{details}");
    }
}

#[tokio::test]
async fn the_checksum_of_parts_is_what_the_command_prints_that_is_told() {
    let bench = Bench::new();
    let _ = split(&bench);
    let never = format!("sha256:{}", "0".repeat(64));
    let error = bench.file("s-00001-of-00002.gguf", Some(&never)).await;
    let command = error.unwrap_err().hints()[0].command.clone().unwrap();
    #[expect(clippy::disallowed_methods, reason = "the documented command is tried")]
    let output = std::process::Command::new("sh")
        .args(["-ec", &command])
        .output()
        .unwrap();
    let printed = String::from_utf8(output.stdout).unwrap();
    let digest = format!("sha256:{}", printed.split(' ').next().unwrap());
    let _ = bench
        .file("s-00001-of-00002.gguf", Some(&digest))
        .await
        .unwrap();
}

#[tokio::test]
async fn all_parts_are_copied_where_the_engines_user_cannot_read_one() {
    let mut bench = Bench::new();
    bench.stage.run_as = Some(STRANGER);
    let [_, second] = split(&bench);
    fs::set_permissions(&second, fs::Permissions::from_mode(0o600)).unwrap();
    let staged = bench.file("s-00001-of-00002.gguf", None).await.unwrap();
    let copy = PathBuf::from(staged.path.clone().unwrap());
    assert!(copy.starts_with(bench.stage.store.root()), "{copy:?}");
    assert!(copy.ends_with("s-00001-of-00002.gguf"), "{copy:?}");
    assert_eq!(fs::read(&copy).unwrap(), b"part 1");
    let beside = copy.with_file_name("s-00002-of-00002.gguf");
    assert_eq!(fs::read(beside).unwrap(), b"part 2");
    let again = bench.file("s-00001-of-00002.gguf", None).await.unwrap();
    assert_eq!(again, staged);
}

#[tokio::test]
async fn a_directory_without_anything_that_its_engine_reads_is_refused_by_its_names() {
    let bench = Bench::new();
    let mut step = step("model", None);
    step.formats = vec!["onnx".to_owned()];
    let _ = super::super::expected(&bench.stage, &step).unwrap();
    step.formats = vec!["safetensors".to_owned(), "bin".to_owned()];
    let error = super::super::expected(&bench.stage, &step).unwrap_err();
    assert_eq!((error.kind(), error.exit()), ("model-format", Exit::Config));
    let details = format!("{:?}", error.details());
    assert!(details.contains("safetensors, bin"), "{details}");
    assert!(details.contains("onnx/model.onnx"), "{details}");

    // Nothing that reads a directory reads GGUF.
    let gguf = bench.home.path().join("gguf");
    fs::create_dir(&gguf).unwrap();
    fs::write(gguf.join("m.gguf"), "model").unwrap();
    let error = bench.expected("gguf").unwrap_err();
    assert!(
        error.hints()[0].text.contains("llama.cpp"),
        "{:?}",
        error.hints()
    );
}

#[tokio::test]
async fn options_that_pick_are_refused_where_there_is_nothing_to_pick() {
    let bench = Bench::new();
    let words = || vec!["*".to_owned()];
    let of = |reference: &str| step(reference, None);
    let quant = StageModel {
        quant: Some("Q4_0".to_owned()),
        ..of("model")
    };
    let include = StageModel {
        include: words(),
        ..of("https://host.test/m.gguf")
    };
    let exclude = StageModel {
        exclude: words(),
        shape: ModelShape::File,
        ..of("s3://bucket/m.gguf")
    };
    for (step, option) in [
        (quant, "--quant"),
        (include, "--include"),
        (exclude, "--exclude"),
    ] {
        let error = super::super::add(&bench.stage, &step).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.exit()),
            ("nothing-to-pick", Exit::Config)
        );
        assert!(error.to_string().contains(option), "{error}");
    }
}
