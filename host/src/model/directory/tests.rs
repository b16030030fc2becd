use std::os::unix::fs::{PermissionsExt as _, symlink};

use engine_provider_api::{ModelShape, StageModel};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    narrate::{Capture, Narrator},
    net::testing::open_net,
    store::Store,
};

struct Bench {
    home: tempfile::TempDir,
    stage: Stage,
    told: Capture,
}

impl Bench {
    /// With a model in the directory `model`.
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
        symlink("../config.json", model.join("onnx/config.json")).unwrap();
        Self { home, stage, told }
    }

    fn model(&self) -> PathBuf {
        self.home.path().join("model")
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
async fn a_directory_is_used_in_place_and_not_read() {
    let bench = Bench::new();
    let path = bench.model().to_string_lossy().into_owned();
    for reference in ["model", "./model", &format!("file:{path}")] {
        let staged = bench.stage(reference, None).await.unwrap();
        assert_eq!(staged.size_bytes, Some(12));
        assert_eq!(staged.digest, None);
        let used = PathBuf::from(staged.path.clone().unwrap());
        assert_eq!(
            used.canonicalize().unwrap(),
            bench.model().canonicalize().unwrap()
        );
        assert_eq!(bench.expected(reference).unwrap(), (staged, Outlook::There));
    }
    assert!(
        !bench.stage.store.root().exists(),
        "nothing was hashed or kept"
    );
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

    fs::write(bench.model().join("onnx/model.onnx"), "Weights").unwrap();
    let error = bench.stage("model", Some(&digest)).await.unwrap_err();
    assert!(matches!(error, ModelError::Mismatch { .. }), "{error}");
    let command = error.hints()[0].command.clone().unwrap();
    assert!(command.contains("find -L . -type f"), "{command}");
}

#[tokio::test]
async fn one_that_the_engines_user_cannot_read_is_copied_once_and_not_changed() {
    let mut bench = Bench::new();
    bench.stage.run_as = Some(Identity {
        uid: 64_123,
        gid: 64_123,
    });
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
        (0o444, 0o600)
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
        ("hf:owner/name", "the Hugging Face hub"),
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
