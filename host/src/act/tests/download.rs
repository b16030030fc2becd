use std::{fs, os::unix::fs::PermissionsExt as _};

use tar::EntryType;

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    net::testing::{Reply, Server},
    policy::Setting,
};

fn digest(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    format!("sha256:{}", crate::store::hex(&sha2::Sha256::digest(bytes)))
}

fn allowing() -> Bench {
    let mut bench = bench(&[]);
    Arc::make_mut(&mut bench.context.policy).allow_binary_downloads = Setting::default_of(true);
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_is_fetched_from_the_first_url_that_gives_it() {
    let bench = allowing();
    let server = Server::start(|_, request| match request.path.as_str() {
        "/good/engine" => Reply::ok("#!/bin/sh\n"),
        _ => Reply::status(404),
    });
    let step = step(
        json!({"id": "get", "kind": "download", "digest": digest(b"#!/bin/sh\n"), "program": true,
        "urls": [server.url("bad/engine").as_str(), server.url("good/engine").as_str()]}),
    );
    let before = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(artifact.path, before.artifact.path);
    let mode = fs::metadata(artifact.path.clone().unwrap())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o555);
    assert_eq!(
        run(&bench.context, &step, &Artifacts::new()).await.unwrap(),
        artifact
    );
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sha512_is_compared_as_a_whole_though_places_are_called_by_its_half() {
    let archive = crate::unpack::tests::archive(&[(EntryType::Regular, "top/engine", "x")]);
    let right = {
        use sha2::Digest as _;
        crate::store::hex(&sha2::Sha512::digest(&archive))
    };
    // Agrees in every digit that a place is called by.
    let last = if right.ends_with('0') { "1" } else { "0" };
    let wrong = format!("{}{last}", &right[..127]);
    let body = archive.clone();
    let server = Server::start(move |_, request| Reply::file(request, &body));
    for unpack in [json!("tar-gz"), Value::Null] {
        let bench = allowing();
        let get = |digest: &str| {
            step(
                json!({"id": "get", "kind": "download", "digest": format!("sha512:{digest}"),
                "unpack": unpack, "urls": [server.url("a.tar.gz").as_str()]}),
            )
        };
        let error = run(&bench.context, &get(&wrong), &Artifacts::new())
            .await
            .unwrap_err();
        assert_eq!(error.exit(), Exit::Verification);
        let artifact = run(&bench.context, &get(&right), &Artifacts::new())
            .await
            .unwrap();
        let path = PathBuf::from(artifact.path.clone().unwrap());
        let (path, content) = match unpack.is_null() {
            true => (path, archive.clone()),
            false => (path.join("top/engine"), b"x".to_vec()),
        };
        assert_eq!(fs::read(path).unwrap(), content);
        let asked = server.requests().len();
        let again = run(&bench.context, &get(&right), &Artifacts::new()).await;
        assert_eq!(again.unwrap(), artifact);
        assert_eq!(server.requests().len(), asked, "it was here already");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_is_unpacked_after_its_digest_was_compared() {
    let bench = allowing();
    let archive = crate::unpack::tests::archive(&[
        (EntryType::Regular, "top/bin/engine", "x"),
        (EntryType::Symlink, "top/link", "bin/engine"),
    ]);
    let body = archive.clone();
    let server = Server::start(move |_, request| Reply::file(request, &body));
    let mut step = step(
        json!({"id": "get", "kind": "download", "digest": digest(&archive),
        "unpack": "tar-gz", "urls": [server.url("a.tar.gz").as_str()]}),
    );
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    let link = Path::new(&artifact.path.unwrap()).join("top/link");
    assert_eq!(fs::read(link).unwrap(), b"x");

    let Act::Download(act) = &mut step.act else {
        unreachable!()
    };
    act.digest = digest(b"other");
    let error = run(&bench.context, &step, &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
    assert_eq!(bench.context.store.entries(Kind::Archive).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_steps_that_want_the_same_file_do_not_write_to_it_at_once() {
    let bench = allowing();
    let archive = crate::unpack::tests::archive(&[(EntryType::Regular, "top/x", "x")]);
    let body = archive.clone();
    let server = Server::start(move |_, request| Reply::file(request, &body));
    let get = |id: &str, unpack: Value| {
        json!({"id": id, "kind": "download", "digest": digest(&archive),
            "unpack": unpack, "urls": [server.url("a.tar.gz").as_str()]})
    };
    let plan = plan(json!([
        get("file", Value::Null),
        get("tree", json!("tar-gz"))
    ]));
    let artifacts = run_all(&bench.context, &plan).await.unwrap();
    let path = |step: &str| PathBuf::from(artifacts[step].path.clone().unwrap());
    assert_eq!(fs::read(path("file")).unwrap(), archive);
    assert_eq!(fs::read(path("tree").join("top/x")).unwrap(), b"x");

    let lock = bench
        .context
        .store
        .lock_path(&format!("blob-{}", &digest(b"z")["sha256:".len()..]));
    let held = crate::store::try_lock(&lock, "fetching it elsewhere").unwrap();
    let step = step(
        json!({"id": "get", "kind": "download", "digest": digest(b"z"),
        "urls": [server.url("z").as_str()]}),
    );
    let before = server.requests().len();
    let waiting = async {
        while !bench.told.actions().contains(&"wait".to_owned()) {
            tokio::task::yield_now().await;
        }
        bench.context.cancel.cancel();
    };
    let none = Artifacts::new();
    let (result, ()) = tokio::join!(run(&bench.context, &step, &none), waiting);
    assert!(result.unwrap_err().is_cancelled());
    assert_eq!(server.requests().len(), before);
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn programs_are_not_downloaded_unless_allowed() {
    let bench = bench(&[]);
    let step = step(
        json!({"id": "get", "kind": "download", "digest": digest(b"x"), "program": true,
        "urls": ["http://127.0.0.1:1/x"]}),
    );
    let outlook = expected_of(&bench.context, &step, &Artifacts::new())
        .unwrap()
        .outlook;
    assert!(
        matches!(&outlook, Outlook::Refused { why } if why.contains("--allow-binary-downloads")),
        "{outlook:?}"
    );
    let error = run(&bench.context, &step, &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert!(error.hints()[0].text.contains("--allow-binary-downloads"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_program_needs_no_leave_and_is_never_executable() {
    let bench = bench(&[]);
    let archive = crate::unpack::tests::archive(&[(EntryType::Regular, "x", "#!/bin/sh")]);
    let body = archive.clone();
    let server = Server::start(move |_, request| Reply::file(request, &body));
    for (unpack, name) in [(Value::Null, ""), (json!("tar-gz"), "x")] {
        let step = step(
            json!({"id": "get", "kind": "download", "digest": digest(&archive),
            "unpack": unpack, "urls": [server.url("a").as_str()]}),
        );
        let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
        let path = Path::new(&artifact.path.unwrap()).join(name);
        let mode = fs::metadata(path.components().collect::<PathBuf>())
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o444, "{}", path.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_archive_leaves_nothing_behind() {
    let bench = allowing();
    let archive = crate::unpack::tests::archive(&[
        (EntryType::Regular, "good", "x"),
        (EntryType::Regular, "../bad", "x"),
    ]);
    let body = archive.clone();
    let server = Server::start(move |_, request| Reply::file(request, &body));
    let step = step(
        json!({"id": "get", "kind": "download", "digest": digest(&archive), "program": true,
        "unpack": "tar-gz", "urls": [server.url("a").as_str()]}),
    );
    let error = run(&bench.context, &step, &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Verification);
    assert!(
        error.to_string().contains("`../bad` leads out of it"),
        "{error}"
    );
    let root = bench.context.store.root();
    for name in ["tmp", "partial", "archive"] {
        let left = fs::read_dir(root.join(name)).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{name}");
    }
}
