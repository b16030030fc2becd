use std::{
    fs,
    sync::{Arc, Mutex},
    time::Duration,
};

use engine_provider_api::ModelShape;
use jiff::Timestamp;
use reqwest::header::{IF_MATCH, RANGE};

use super::{
    sign::{self, Key, Scope},
    testing::{KEY, SECRET, Server},
    *,
};
use crate::{
    act::PlanGate,
    fault::{Exit, Fault as _},
    model::source::{NoChoice, resolve, testing::Bench},
    narrate::chain,
    net::{
        Gate as _, NetError, Source, Transfer,
        testing::{Reply, Request, Server as Fake, net_with, open_net},
    },
    policy::Policy,
};

fn bench(written: &str, environment: Environment) -> Bench {
    let mut bench = Bench::new(written);
    bench.environment = environment;
    bench
}

async fn resolved(bench: &Bench) -> Result<Resolved, ModelError> {
    resolve(&bench.place(), &bench.reference()).await
}

fn assert_picked(bench: &Bench) {
    let told = bench.told.events().into_iter();
    let told: Vec<String> = told.map(|event| event.human).collect();
    let from = "is picked from m-Q4_0.gguf, m-Q8_0.gguf";
    let times = told.iter().filter(|text| text.ends_with(from)).count();
    assert_eq!(times, 1, "{told:?}");
}

async fn refused(bench: &Bench) -> S3Error {
    let error = resolved(bench).await.unwrap_err();
    let told = format!(
        "{error:?} {} {:?} {:?}",
        chain(&error),
        error.hints(),
        error.details()
    );
    for secret in [SECRET, "X-Amz-Signature", "Signature="] {
        assert!(!told.contains(secret), "{told}");
    }
    match error {
        ModelError::S3 { source, .. } => *source,
        other => panic!("{other:?}"),
    }
}

async fn fetched(source: &Source, digest: Option<&Digest>) -> Result<Vec<u8>, NetError> {
    let directory = tempfile::tempdir().unwrap();
    let transfer = Transfer {
        kind: "test",
        actor: crate::narrate::Actor::ModelProvisioner,
        sources: vec![source.clone()],
        digest: digest.cloned(),
        size_bytes: None,
        limit_bytes: None,
        partial: directory.path().join("partial"),
        task: "download".to_owned(),
    };
    let (narrator, _) = crate::narrate::Narrator::capture();
    let cancel = CancellationToken::new();
    let fetched = open_net().fetch(&transfer, &narrator, &cancel).await?;
    Ok(fs::read(fetched.path).unwrap())
}

#[tokio::test]
async fn an_object_is_fetched_from_a_signed_url_and_has_the_digest_that_its_server_keeps() {
    let server = Server::start();
    server.upload("a/m-Q8_0.gguf", b"the model");
    server.place("b c/\u{e9}+1.gguf", b"another");
    let bench = bench("s3://models/a/m-Q8_0.gguf", server.environment());
    let model = resolved(&bench).await.unwrap();
    assert_eq!(model.pinned, "s3://models/a/m-Q8_0.gguf");
    let file = &model.files[0];
    assert_eq!(
        (file.name.as_str(), file.size_bytes),
        ("m-Q8_0.gguf", Some(9))
    );
    assert_eq!(file.digest, Some(Digest::of(b"the model")));
    assert_eq!(file.version, model.revision);
    let content = fetched(&file.sources[0], file.digest.as_ref())
        .await
        .unwrap();
    assert_eq!(content, b"the model");
    let mut part = file.sources[0].clone();
    part.headers.insert(RANGE, "bytes=4-8".parse().unwrap());
    assert_eq!(fetched_part(&part).await, b"model");

    let odd = self::bench("s3://models/b c/\u{e9}+1.gguf", server.environment());
    let model = resolved(&odd).await.unwrap();
    let file = &model.files[0];
    assert_eq!(file.digest, None);
    assert!(file.version.is_some());
    assert_eq!(fetched(&file.sources[0], None).await.unwrap(), b"another");
}

async fn fetched_part(source: &Source) -> Vec<u8> {
    let ask = crate::net::Ask {
        url: &source.url,
        named_by: None,
        headers: &source.headers,
        trust: crate::net::Trust::Transport,
        limit_bytes: 100,
    };
    let cancel = CancellationToken::new();
    open_net().ask(&ask, &cancel).await.unwrap().body
}

#[tokio::test]
async fn the_server_refuses_urls_that_expired_or_were_changed() {
    let server = Server::start();
    server.place("m.gguf", b"the model");
    let environment = server.environment();
    let settings = Settings::new(&environment, &Profile::read(&environment).unwrap()).unwrap();
    let url = settings.url("models", "m.gguf").unwrap();
    let key = Key {
        id: KEY.to_owned(),
        secret: SECRET.to_owned(),
        token: None,
    };
    let at = |at| Scope {
        service: "s3",
        region: "us-east-1",
        at,
    };
    let now = Timestamp::now();
    let minute = Duration::from_secs(60);
    let good = sign::presign(&key, at(now), &url, minute);
    assert_eq!(
        fetched(&good.clone().into(), None).await.unwrap(),
        b"the model"
    );
    let expired = sign::presign(&key, at(now - 5 * minute), &url, minute);
    let mut changed = good.clone();
    changed.set_path("/models/n.gguf");
    for bad in [expired, changed, url] {
        let refused = fetched(&bad.into(), None).await;
        assert!(
            matches!(refused, Err(NetError::Status { status: 403, .. })),
            "{refused:?}"
        );
    }
}

/// The source with a signature that ended some minutes ago.
fn outdated(source: &Source) -> Source {
    let mut url = source.url.clone();
    url.set_query(None);
    let scope = Scope {
        service: "s3",
        region: "us-east-1",
        at: Timestamp::now() - Duration::from_secs(300),
    };
    let key = Key {
        id: KEY.to_owned(),
        secret: SECRET.to_owned(),
        token: None,
    };
    Source {
        url: sign::presign(&key, scope, &url, Duration::from_secs(60)),
        ..source.clone()
    }
}

#[tokio::test]
async fn a_url_that_ended_is_signed_anew_with_the_keys_of_now() {
    let server = Server::start();
    let file = server.place("m.gguf", b"the model");
    let home = tempfile::tempdir().unwrap();
    let credentials = home.path().join("credentials");
    let write = |secret: &str| {
        let text =
            format!("[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {secret}\n");
        fs::write(&credentials, text).unwrap();
    };
    write(SECRET);
    let environment = server
        .open_environment()
        .with("AWS_SHARED_CREDENTIALS_FILE", &credentials);
    let model = resolved(&bench("s3://models/m.gguf", environment)).await;
    let model = model.unwrap();
    let old = outdated(&model.files[0].sources[0]);
    assert_eq!(fetched(&old, None).await.unwrap(), b"the model");

    write("another-secret-by-now");
    let error = fetched(&old, None).await.unwrap_err();
    assert_eq!(error.kind(), "bad-signature");
    let told = format!("{error:?} {} {:?}", chain(&error), error.hints());
    assert!(told.contains("access to it was not renewed"), "{told}");
    assert!(
        !told.contains("another-secret") && !told.contains("X-Amz"),
        "{told}"
    );

    write(SECRET);
    fs::write(file, "another model").unwrap();
    let error = fetched(&old, None).await.unwrap_err();
    assert_eq!((error.kind(), error.exit()), ("changed", Exit::Network));
}

#[tokio::test]
async fn an_engine_that_reads_a_directory_is_given_all_below_the_prefix() {
    let server = Server::start();
    for name in ["config.json", "b/w.safetensors", "a.txt", "notes.md"] {
        server.place(&format!("lm/{name}"), name.as_bytes());
    }
    server.place("lm2/other", b"");
    for written in ["s3://models/lm/", "s3://models/lm"] {
        let mut bench = bench(written, server.environment());
        bench.shape = ModelShape::Directory;
        bench.exclude = vec!["*.md".to_owned()];
        let model = resolved(&bench).await.unwrap();
        let names: Vec<&str> = model.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["a.txt", "b/w.safetensors", "config.json"]);
        let content = fetched(&model.files[1].sources[0], None).await.unwrap();
        assert_eq!(content, b"b/w.safetensors");
        assert!(model.revision.unwrap().starts_with("sha256:"));
    }
}

#[tokio::test]
async fn an_engine_that_reads_a_file_is_given_the_one_that_is_meant() {
    let server = Server::start();
    for name in ["m-Q4_0.gguf", "m-Q8_0.gguf", "mmproj.gguf", "README.md"] {
        server.place(&format!("lm/{name}"), b"x");
    }
    let mut bench = bench("s3://models/lm/", server.environment());
    bench.formats = vec!["gguf".to_owned()];
    let several = refused(&bench).await;
    assert!(
        matches!(&several, S3Error::Choice(NoChoice::Several { names, .. }) if names.len() == 2),
        "{several:?}"
    );
    bench.quant = Some("q4_0".to_owned());
    let model = resolved(&bench).await.unwrap();
    assert_eq!(model.files[0].name, "m-Q4_0.gguf");
    assert_eq!(model.pinned, "s3://models/lm/m-Q4_0.gguf");
    assert_eq!(model.picked_from, ["m-Q4_0.gguf", "m-Q8_0.gguf"]);
    assert_picked(&bench);
}

#[tokio::test]
async fn whoever_names_a_part_is_given_all_or_told_which_is_missing() {
    let server = Server::start();
    let parts = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    for part in parts {
        server.place(&format!("lm/{part}"), part.as_bytes());
        server.place("lone/m-00001-of-00002.gguf", b"1");
    }
    for part in parts {
        let bench = bench(&format!("s3://models/lm/{part}"), server.environment());
        let model = resolved(&bench).await.unwrap();
        let names: Vec<&str> = model.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, parts);
        let content = fetched(&model.files[1].sources[0], None).await.unwrap();
        assert_eq!(content, parts[1].as_bytes());
        assert!(model.revision.unwrap().starts_with("sha256:"));
    }
    let lone = "s3://models/lone/m-00001-of-00002.gguf";
    let error = refused(&bench(lone, server.environment())).await;
    assert!(
        matches!(&error, S3Error::Choice(NoChoice::Incomplete { missing, .. }) if missing == &parts[1..]),
        "{error:?}"
    );
    let version = format!("{lone}?versionId=1");
    let error = refused(&bench(&version, server.environment())).await;
    assert!(
        matches!(&error, S3Error::Choice(NoChoice::Version { .. })),
        "{error:?}"
    );
}

#[tokio::test]
async fn every_refusal_of_the_real_server_is_told_by_its_cause() {
    let server = Server::start();
    server.place("m.gguf", b"the model");
    let wrong = server
        .environment()
        .with("AWS_SECRET_ACCESS_KEY", "another-secret-1");
    let error = refused(&bench("s3://models/m.gguf", wrong)).await;
    assert!(matches!(error, S3Error::Signature { .. }), "{error:?}");
    let unknown = server.environment().with("AWS_ACCESS_KEY_ID", "AKOTHER");
    let error = refused(&bench("s3://models/m.gguf", unknown)).await;
    assert_eq!(error.exit(), Exit::Network, "{error:?}");
    let error = refused(&bench("s3://models/m.gguf", server.open_environment())).await;
    assert!(
        matches!(error, S3Error::Denied { keys: None, .. }),
        "{error:?}"
    );
    let error = refused(&bench("s3://models/none.gguf", server.environment())).await;
    assert_eq!(error.to_string(), "there is no s3://models/none.gguf");
    assert_eq!(error.exit(), Exit::NotFound);
    let error = refused(&bench("s3://none/below/", server.environment())).await;
    assert!(matches!(error, S3Error::NoBucket { .. }), "{error:?}");
    let error = refused(&bench("s3://models/below/", server.environment())).await;
    assert!(matches!(error, S3Error::NoObject { .. }), "{error:?}");
}

/// What is set for a server that answers as it is told.
fn environment_of(fake: &Fake) -> Environment {
    Environment::from_pairs([
        ("AWS_ENDPOINT_URL", fake.url("").to_string()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
    ])
}

fn is_head(request: &Request) -> bool {
    request.headers.contains_key("x-amz-checksum-mode")
}

fn refusal(status: u16, code: &str, more: &str) -> Reply {
    let body = format!("<Error><Code>{code}</Code><Message>no</Message>{more}</Error>");
    Reply {
        status,
        ..Reply::ok(body)
    }
}

#[tokio::test]
async fn a_version_pins_the_object_and_is_what_is_fetched() {
    let fake = Fake::start(|_, _| Reply {
        headers: vec![
            ("ETag", "\"e1\"".to_owned()),
            ("x-amz-version-id", "v.1_a".to_owned()),
        ],
        ..Reply::ok("model")
    });
    let first = resolved(&bench("s3://b/k.gguf", environment_of(&fake)))
        .await
        .unwrap();
    assert_eq!(first.pinned, "s3://b/k.gguf?versionId=v.1_a");
    assert_eq!(first.revision.as_deref(), Some("v.1_a"));
    let again = resolved(&bench(&first.pinned, environment_of(&fake)))
        .await
        .unwrap();
    assert_eq!(again.pinned, first.pinned);
    assert_eq!(fake.requests()[1].path, "/b/k.gguf?versionId=v.1_a");
    let source = &again.files[0].sources[0];
    assert!(source.url.query().unwrap().contains("versionId=v.1_a"));
    assert_eq!(source.headers[IF_MATCH], "\"e1\"");
}

#[tokio::test]
async fn a_bucket_elsewhere_is_asked_in_its_own_region() {
    let fake = Fake::start(|_, request| {
        match request.headers["authorization"].contains("/eu-west-3/s3/") {
            true => Reply::ok("model"),
            false => Reply {
                headers: vec![("x-amz-bucket-region", "eu-west-3".to_owned())],
                ..Reply::status(301)
            },
        }
    });
    let model = resolved(&bench("s3://b/k", environment_of(&fake)))
        .await
        .unwrap();
    let url = &model.files[0].sources[0].url;
    assert!(url.query().unwrap().contains("eu-west-3"), "{url}");
    let lost = Fake::start(|_, _| refusal(301, "PermanentRedirect", ""));
    let error = refused(&bench("s3://b/k", environment_of(&lost))).await;
    assert!(matches!(error, S3Error::Region { .. }), "{error:?}");
}

#[tokio::test]
async fn the_host_that_is_planned_vouches_for_that_of_the_bucket_s_region() {
    const PLANNED: &str = "models.s3.us-east-1.amazonaws.com";
    const OTHER: &str = "models.s3.eu-west-3.amazonaws.com";
    let environment = Environment::from_pairs([
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ]);
    assert_eq!(hosts(&environment, "models"), [PLANNED]);
    let policy = Arc::new(Policy::default());
    let planned = PlanGate::new(
        Arc::clone(&policy),
        hosts(&environment, "models").into_iter().collect(),
    );
    let asked = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&asked);
    // What it allows is noted, and nobody is asked.
    let net = net_with(Arc::new(move |host: &str, from: Option<&str>| {
        let is_allowed = planned.check(host, from).is_ok();
        told.lock().unwrap().push((host.to_owned(), is_allowed));
        policy.allow_host(host, &[])
    }));
    let account = Account {
        net: &net,
        environment: &environment,
        secrets: &Secrets::default(),
        cancel: &CancellationToken::new(),
    };
    let mut bucket = Bucket::open(account, "models").await.unwrap();
    bucket.describe("k", None).await.unwrap_err();
    bucket.be_in("eu-west-3");
    bucket.describe("k", None).await.unwrap_err();
    let allowed = |host: &str| (host.to_owned(), true);
    assert_eq!(*asked.lock().unwrap(), [allowed(PLANNED), allowed(OTHER)]);
    let object = Object {
        key: "k".to_owned(),
        size_bytes: 5,
        etag: None,
        version: None,
        digest: None,
    };
    let source = bucket.source(&object).unwrap();
    assert_eq!(source.url.host_str(), Some(OTHER));
    assert_eq!(source.named_by.as_deref(), Some(PLANNED));
}

#[tokio::test]
async fn refusals_without_words_are_asked_for_them() {
    type IsTold = fn(&S3Error) -> bool;
    let cases: [(u16, &str, IsTold); 7] = [
        (
            404,
            "NoSuchBucket",
            |error| matches!(error, S3Error::NoBucket { bucket, .. } if bucket == "b"),
        ),
        (
            403,
            "RequestTimeTooSkewed",
            |error| matches!(error, S3Error::Clock { there, .. } if there == "2026-01-02T03:04:05Z"),
        ),
        (400, "ExpiredToken", |error| {
            matches!(error, S3Error::Expired { .. })
        }),
        (403, "InvalidAccessKeyId", |error| {
            matches!(error, S3Error::UnknownKey { .. })
        }),
        (404, "NoSuchVersion", |error| {
            matches!(error, S3Error::NoObject { .. })
        }),
        (403, "", |error| {
            matches!(error, S3Error::Denied { keys: Some(_), .. })
        }),
        (418, "Teapot", |error| {
            matches!(error, S3Error::Answer { status: 418, .. })
        }),
    ];
    for (status, code, is_told) in cases {
        let fake = Fake::start(move |_, request| match is_head(request) {
            true => Reply::status(status),
            false => {
                let time = "<ServerTime>2026-01-02T03:04:05Z</ServerTime>";
                refusal(status, code, time)
            }
        });
        let error = refused(&bench("s3://b/k", environment_of(&fake))).await;
        assert!(is_told(&error), "{code}: {error:?}");
    }
}

#[tokio::test]
async fn an_archived_object_is_said_before_it_is_fetched() {
    let fake = Fake::start(|_, _| Reply {
        headers: vec![("x-amz-storage-class", "GLACIER".to_owned())],
        ..Reply::ok("model")
    });
    let error = refused(&bench("s3://b/k", environment_of(&fake))).await;
    assert_eq!(
        error.to_string(),
        "s3://b/k is archived (GLACIER) and cannot be read"
    );
    assert!(
        error.hints()[0]
            .command
            .as_ref()
            .unwrap()
            .contains("restore-object")
    );
}

#[tokio::test]
async fn a_long_list_is_read_page_by_page_and_bad_names_are_refused() {
    let page = |keys: &[&str], next: Option<&str>| {
        let objects: String = keys
            .iter()
            .map(|key| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"))
            .collect();
        let next = next.map_or(String::new(), |next| {
            format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{next}</NextContinuationToken>")
        });
        Reply::ok(format!(
            "<ListBucketResult>{objects}{next}</ListBucketResult>"
        ))
    };
    let fake = Fake::start(move |_, request| match &request.path {
        _ if is_head(request) => Reply::ok("x"),
        path if path.contains("continuation-token=t%2F1%3D") => page(&["p/b", "p/"], None),
        _ => page(&["p/z/y", "p/a"], Some("t/1=")),
    });
    let mut all = bench("s3://b/p/", environment_of(&fake));
    all.shape = ModelShape::Directory;
    let model = resolved(&all).await.unwrap();
    let names: Vec<&str> = model.files.iter().map(|file| file.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "z/y"]);
    for bad in ["p/../x", "p//x", "p/a\\b"] {
        let fake = Fake::start(move |_, _| page(&[bad], None));
        let mut all = bench("s3://b/p/", environment_of(&fake));
        all.shape = ModelShape::Directory;
        let error = refused(&all).await;
        assert!(matches!(error, S3Error::Name { .. }), "{error:?}");
    }
}

#[tokio::test]
async fn a_list_that_never_ends_is_given_up() {
    let fake = Fake::start(|number, _| {
        Reply::ok(format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>{number}</NextContinuationToken></ListBucketResult>"
        ))
    });
    let environment = Environment::from_pairs([
        ("AWS_ENDPOINT_URL_S3", fake.url("").to_string()),
        ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
    ]);
    let error = refused(&bench("s3://bucket/models/", environment)).await;
    assert!(matches!(error, S3Error::TooMany { .. }), "{error}");
}

/// A bucket that keeps versions: each key's number is its newest, and every older one is there as well.
fn versioned(newest: &'static [(&'static str, u32)]) -> Fake {
    Fake::start(move |_, request| {
        if !is_head(request) {
            let keys = newest
                .iter()
                .map(|(key, _)| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>"));
            let keys: String = keys.collect();
            return Reply::ok(format!("<ListBucketResult>{keys}</ListBucketResult>"));
        }
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let known = newest.iter().find(|(key, _)| path == format!("/b/{key}"));
        let named = query.strip_prefix("versionId=v");
        let number = named.map(|number| number.parse().unwrap());
        match known.map(|(_, newest)| (*newest, number.unwrap_or(*newest))) {
            Some((newest, number)) if number <= newest => Reply {
                headers: vec![
                    ("ETag", format!("\"e{number}\"")),
                    ("x-amz-version-id", format!("v{number}")),
                ],
                ..Reply::ok("x")
            },
            _ => refusal(404, "NoSuchVersion", ""),
        }
    })
}

fn kept_as(model: &Resolved) -> Vec<(&str, Option<&str>)> {
    let files = model.files.iter();
    let files = files.map(|file| (file.name.as_str(), file.kept_as.as_deref()));
    files.collect()
}

#[tokio::test]
async fn what_is_locked_below_a_prefix_is_had_again_whatever_lies_there_since() {
    let before = versioned(&[("p/.notes", 7), ("p/a", 1), ("p/b", 2)]);
    let mut all = bench("s3://b/p/", environment_of(&before));
    all.shape = ModelShape::Directory;
    let locked = resolved(&all).await.unwrap();
    assert_eq!(kept_as(&locked), [("a", Some("v1")), ("b", Some("v2"))]);
    // One is replaced, one is deleted in the list alone, one and some notes are new.
    let now = versioned(&[("p/.notes", 8), ("p/a", 3), ("p/b", 2), ("p/c", 1)]);
    let mut again = bench("s3://b/p/", environment_of(&now));
    again.shape = ModelShape::Directory;
    let newest = resolved(&again).await.unwrap();
    assert_eq!(newest.files.len(), 3);
    assert_ne!(newest.revision, locked.revision);
    let asked = now.requests().len();
    let versions = locked.versions().into_iter();
    again.versions = versions.map(|(name, it)| (name, Some(it))).collect();
    let model = resolved(&again).await.unwrap();
    assert_eq!(kept_as(&model), kept_as(&locked));
    assert_eq!(model.revision, locked.revision);
    let url = &model.files[0].sources[0].url;
    assert!(url.query().unwrap().contains("versionId=v1"), "{url}");
    assert!(
        now.requests()[asked..].iter().all(is_head),
        "nothing is listed"
    );

    again.versions.insert("b".to_owned(), Some("v9".to_owned()));
    let error = refused(&again).await;
    assert_eq!(error.to_string(), "there is no s3://b/p/b?versionId=v9");
    again.versions = [("../b".to_owned(), None)].into();
    let error = refused(&again).await;
    assert!(matches!(error, S3Error::Name { .. }), "{error:?}");
}

#[tokio::test]
async fn the_parts_of_a_split_model_are_had_in_their_locked_versions() {
    const PARTS: [&str; 2] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let fake = versioned(&[
        ("p/m-00001-of-00002.gguf", 4),
        ("p/m-00002-of-00002.gguf", 5),
    ]);
    for written in ["s3://b/p/m-00001-of-00002.gguf", "s3://b/p/"] {
        let mut split = bench(written, environment_of(&fake));
        let newest = resolved(&split).await.unwrap();
        assert_eq!(
            kept_as(&newest),
            [(PARTS[0], Some("v4")), (PARTS[1], Some("v5"))]
        );
        split.versions = PARTS
            .map(|name| (name.to_owned(), Some("v2".to_owned())))
            .into();
        let model = resolved(&split).await.unwrap();
        assert_eq!(
            kept_as(&model),
            PARTS.map(|name| (name, Some("v2"))),
            "{written}"
        );
    }
}

#[tokio::test]
async fn an_endpoint_in_a_hint_is_one_word_to_a_shell() {
    let environment = Environment::from_pairs([
        ("AWS_ENDPOINT_URL", "https://s3.test/$(id)"),
        ("AWS_ACCESS_KEY_ID", KEY),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ]);
    let account = Account {
        net: &open_net(),
        environment: &environment,
        secrets: &Secrets::default(),
        cancel: &CancellationToken::new(),
    };
    let bucket = Bucket::open(account, "b").await.unwrap();
    let command = bucket.nothing(bucket.what("p/k")).hints().remove(0).command;
    assert_eq!(
        command.unwrap(),
        "aws s3 ls s3://b/p/ --endpoint-url 'https://s3.test/$(id)'"
    );
}
