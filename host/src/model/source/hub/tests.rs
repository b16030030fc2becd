//! Against a small server; that the hub answers so is shown with its own client in the end-to-end tests.

use sha2::{Digest as _, Sha256};

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    model::source::{resolve, testing::Bench},
    net::testing::{Reply, Request, Server},
};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const TOKEN: &str = "hf_abcdefghijklmnop";

fn info(gated: &str) -> String {
    let sha256 = crate::store::hex(&Sha256::digest("model"));
    format!(
        r#"{{"sha": "{COMMIT}", "gated": {gated}, "cardData": {{"license": "mit"}}, "siblings": [
          {{"rfilename": "a-Q4_0.gguf", "size": 5, "blobId": "{COMMIT}",
            "lfs": {{"sha256": "{sha256}", "size": 5, "pointerSize": 100}}}},
          {{"rfilename": "a-Q8_0.gguf", "size": 5, "blobId": "{COMMIT}",
            "lfs": {{"sha256": "{sha256}", "size": 5, "pointerSize": 100}}}},
          {{"rfilename": "config.json", "size": 2, "blobId": "{COMMIT}"}}]}}"#
    )
}

fn refused(status: u16, code: &str) -> Reply {
    Reply {
        headers: vec![("X-Error-Code", code.to_owned())],
        ..Reply::status(status)
    }
}

fn answer(request: &Request) -> Reply {
    let signed = request.headers.get("authorization").map(String::as_str);
    let signed = signed == Some(&format!("Bearer {TOKEN}"));
    match request.path.as_str() {
        "/api/models/o/n/revision/main?blobs=true" => Reply::ok(info("false")),
        "/api/models/o/n/revision/refs%2Fpr%2F1?blobs=true" => Reply::ok(info("false")),
        "/api/models/o/n/revision/gone?blobs=true" => refused(404, "RevisionNotFound"),
        "/api/models/o/gated/revision/main?blobs=true" => Reply::ok(info("\"auto\"")),
        "/api/models/o/gated/auth-check" if signed => Reply::ok("{}"),
        "/api/models/o/gated/auth-check" => refused(401, "GatedRepo"),
        _ if signed => refused(404, "RepoNotFound"),
        _ => refused(401, "RepoNotFound"),
    }
}

fn bench(written: &str) -> (Bench, Server) {
    let server = Server::start(|_, request| answer(request));
    let mut bench = Bench::new(written);
    bench.formats = vec!["gguf".to_owned()];
    bench.environment = Environment::from_pairs([("HF_ENDPOINT", server.url("").as_str())]);
    (bench, server)
}

fn told(bench: &Bench) -> String {
    let events = bench.told.events();
    let texts: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
    texts.join("\n")
}

async fn failure(written: &str, variables: &[(&str, &str)]) -> HubError {
    let (mut bench, _server) = bench(written);
    for (name, value) in variables {
        bench.environment = bench.environment.with(name, *value);
    }
    match resolve(&bench.place(), &bench.reference()).await {
        Err(ModelError::Hub { source, .. }) => *source,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_file_is_pinned_by_commit_and_known_by_its_digest() {
    let (mut bench, server) = bench("hf:o/n@refs/pr/1");
    bench.quant = Some("Q4_0".to_owned());
    let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
    assert_eq!(resolved.pinned, format!("hf:o/n@{COMMIT}/a-Q4_0.gguf"));
    assert_eq!(resolved.revision.as_deref(), Some(COMMIT));
    assert_eq!(resolved.licence.as_deref(), Some("mit"));
    assert_eq!(resolved.picked_from, ["a-Q4_0.gguf", "a-Q8_0.gguf"]);
    let [file] = &resolved.files[..] else {
        panic!("one file");
    };
    assert_eq!(file.digest, Some(Digest::of(b"model")));
    let path = format!("o/n/resolve/{COMMIT}/a-Q4_0.gguf");
    assert_eq!(file.sources[0].url, server.url(&path));
    assert_eq!(server.requests().len(), 1);
    let told = told(&bench);
    assert!(
        told.contains("picked from a-Q4_0.gguf, a-Q8_0.gguf"),
        "{told}"
    );
}

#[tokio::test]
async fn a_repository_is_all_its_files_and_small_ones_have_gits_name() {
    let (mut bench, _server) = bench("hf:o/n");
    bench.shape = ModelShape::Directory;
    let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
    assert_eq!(resolved.pinned, format!("hf:o/n@{COMMIT}"));
    let config = resolved.files.last().unwrap();
    assert_eq!(config.name, "config.json");
    assert_eq!(config.git_blob.as_deref(), Some(COMMIT));
    assert_eq!(config.version.as_deref(), Some(COMMIT));
}

#[tokio::test]
async fn the_token_goes_to_the_hub_and_into_no_text() {
    let (mut bench, server) = bench("hf:o/gated/a-Q4_0.gguf");
    bench.environment = bench.environment.with("HF_TOKEN", TOKEN);
    let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
    let sent = server.requests();
    assert!(
        sent.iter()
            .all(|request| request.headers["authorization"].contains(TOKEN))
    );
    assert!(!format!("{resolved:?}").contains(TOKEN));
    assert!(!told(&bench).contains(TOKEN));
}

#[tokio::test]
async fn each_refusal_says_what_to_do() {
    let signed = [("HF_TOKEN", TOKEN)];
    let other = [("HF_TOKEN", "hf_other")];
    let offline = [("HF_HUB_OFFLINE", "1")];
    let cases = [
        (
            failure("hf:o/gated/a-Q4_0.gguf", &[]).await,
            "export HF_TOKEN",
            Exit::Network,
        ),
        (
            failure("hf:o/gated/a-Q4_0.gguf", &other).await,
            "token of HF_TOKEN",
            Exit::Network,
        ),
        (
            failure("hf:o/x", &[]).await,
            "export HF_TOKEN",
            Exit::NotFound,
        ),
        (
            failure("hf:o/x", &signed).await,
            "compare the spelling",
            Exit::NotFound,
        ),
        (
            failure("hf:o/n@gone", &[]).await,
            "/o/n/tree/main",
            Exit::NotFound,
        ),
        (
            failure("hf:o/n/a-Q4_1.gguf", &[]).await,
            "a-Q4_0.gguf",
            Exit::NotFound,
        ),
        (failure("hf:o/n", &[]).await, "quant: Q4_0", Exit::Config),
        (
            failure("hf:o/n", &offline).await,
            "unset HF_HUB_OFFLINE",
            Exit::Refused,
        ),
    ];
    for (error, advice, exit) in cases {
        let hints = error.hints();
        let texts: Vec<String> = hints
            .iter()
            .map(|hint| format!("{} {}", hint.text, hint.command.clone().unwrap_or_default()))
            .collect();
        assert!(texts.join("\n").contains(advice), "{error}: {texts:?}");
        assert_eq!(error.exit(), exit, "{error}");
    }
}

#[tokio::test]
async fn a_file_of_the_hubs_own_cache_is_offered() {
    let cache = tempfile::tempdir().unwrap();
    let blobs = cache.path().join("models--o--n/blobs");
    std::fs::create_dir_all(&blobs).unwrap();
    let blob = blobs.join(Digest::of(b"model").hex());
    std::fs::write(&blob, "model").unwrap();
    let (mut bench, _server) = bench("hf:o/n:Q8_0");
    bench.environment = bench.environment.with("HF_HUB_CACHE", cache.path());
    let resolved = resolve(&bench.place(), &bench.reference()).await.unwrap();
    assert_eq!(resolved.files[0].local.as_ref(), Some(&blob));
}

#[tokio::test]
async fn a_hub_by_plain_http_elsewhere_is_refused_with_the_fix_that_helps() {
    let error = failure("hf:o/n", &[("HF_ENDPOINT", "http://mirror.test/hf")]).await;
    assert_eq!(error.exit(), Exit::Refused);
    let [hint] = &error.hints()[..] else {
        panic!("one hint: {:?}", error.hints());
    };
    assert!(!hint.text.contains("checksum"), "{hint:?}");
    let command = hint.command.as_deref();
    assert_eq!(command, Some("export HF_ENDPOINT=https://mirror.test/hf"));
}
