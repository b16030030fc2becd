use std::fs;

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    net::testing::{Reply, Server},
    policy::{NetworkPolicy, Setting},
    process::Identity,
};

fn checkout(url: &str, commit: &str) -> Step {
    step(json!({"id": "source", "kind": "checkout", "commit": commit,
        "mirrors": [{"kind": "git", "url": url}]}))
}

fn file(artifact: &Artifact) -> String {
    let path = Path::new(artifact.path.as_ref().unwrap()).join("src/file");
    fs::read_to_string(path).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_that_no_branch_points_at_is_checked_out_without_git_in_it() {
    let bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    let (first, _) = repository(&origin);
    let step = checkout(&origin.to_string_lossy(), &first);
    let before = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(artifact.path, before.artifact.path);
    assert_eq!(artifact.commit.as_deref(), Some(first.as_str()));
    assert_eq!(file(&artifact), "one");
    assert!(
        !Path::new(artifact.path.as_ref().unwrap())
            .join(".git")
            .exists()
    );
    assert_eq!(bench.told.actions(), ["git-clone", "git-checkout"]);

    // Once it is there, the origin is not needed.
    fs::remove_dir_all(&origin).unwrap();
    let again = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(again, artifact);
    let after = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
    assert_eq!(after.outlook, Outlook::Cached);
    assert_eq!(
        fs::read_dir(bench.context.store.root().join("tmp"))
            .unwrap()
            .count(),
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unprivileged_user_checks_out_what_root_made() {
    needs_root();
    let mut bench = bench(&["git"]);
    Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(Identity {
        uid: 64_123,
        gid: 64_123,
    }));
    let origin = bench.home.path().join("origin");
    let (first, _) = repository(&origin);
    let step = checkout(&format!("file://{}", origin.display()), &first);
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(file(&artifact), "one");
    let path = Path::new(artifact.path.as_ref().unwrap()).join("src/file");
    let metadata = fs::metadata(path).unwrap();
    use std::os::unix::fs::MetadataExt as _;
    assert_eq!((metadata.uid(), metadata.mode() & 0o777), (0, 0o444));
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_are_tried_in_order_and_all_failures_are_listed() {
    let bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    let (first, _) = repository(&origin);
    let mut step = checkout("/nowhere/x.git", &first);
    let Act::Checkout(act) = &mut step.act else {
        unreachable!()
    };
    act.mirrors.push(engine_provider_api::Mirror::Git {
        url: origin.to_string_lossy().into_owned(),
    });
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(file(&artifact), "one");
    let told = bench.told.events();
    let failed = told.iter().find(|event| event.action == "mirror-failed");
    let human = &failed.unwrap().human;
    assert!(human.starts_with("/nowhere/x.git did not give"), "{human}");
    assert!(
        human.contains("does not appear to be a git repository"),
        "{human}"
    );

    let Act::Checkout(act) = &mut step.act else {
        unreachable!()
    };
    act.commit = "0".repeat(40);
    act.mirrors.push(engine_provider_api::Mirror::Git {
        url: "ext::sh -c 'touch pwned'".to_owned(),
    });
    let error = run(&bench.context, &step, &Artifacts::new())
        .await
        .unwrap_err();
    let ActError::Mirrors { failures, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!(failures.len(), 3);
    let told: Vec<String> = failures
        .iter()
        .map(|failure| failure.error.to_string())
        .collect();
    assert!(told[1].contains("has no commit 0000"), "{told:?}");
    assert!(
        told[2].contains("is no git URL that is accepted"),
        "{told:?}"
    );
    assert_eq!(
        error
            .details()
            .iter()
            .filter(|detail| detail.label == "tried")
            .count(),
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn filters_that_a_repository_asks_for_are_not_run() {
    let bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    repository(&origin);
    fs::write(origin.join(".gitattributes"), "* filter=evil\n").unwrap();
    git(&origin, &["add", "."]);
    git(&origin, &["commit", "--quiet", "-m", "evil"]);
    let commit = git(&origin, &["rev-parse", "HEAD"]);
    let step = checkout(&origin.to_string_lossy(), &commit);
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(file(&artifact), "two");
}

#[tokio::test(flavor = "multi_thread")]
async fn submodules_come_along_when_asked_for() {
    let bench = bench(&["git"]);
    let library = bench.home.path().join("library");
    repository(&library);
    let origin = bench.home.path().join("origin");
    repository(&origin);
    let url = library.to_string_lossy().into_owned();
    git(
        &origin,
        &[
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "add",
            &url,
            "lib",
        ],
    );
    git(&origin, &["commit", "--quiet", "-m", "with library"]);
    let commit = git(&origin, &["rev-parse", "HEAD"]);
    let mut step = checkout(&origin.to_string_lossy(), &commit);
    let Act::Checkout(act) = &mut step.act else {
        unreachable!()
    };
    act.submodules = true;
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    let root = PathBuf::from(artifact.path.unwrap());
    assert_eq!(
        fs::read_to_string(root.join("lib/src/file")).unwrap(),
        "two"
    );
    assert!(!root.join("lib/.git").exists());
}

/// A source distribution whose git directory also holds what must not be obeyed.
fn sdist(origin: &Path) -> Vec<u8> {
    let objects = origin.join(".git");
    fs::write(objects.join("objects/info/alternates"), "/etc\n").unwrap();
    fs::write(
        objects.join("config"),
        "[core]\n\thooksPath = /tmp/evil\n[include]\n\tpath = /dev/zero\n",
    )
    .unwrap();
    let gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    let mut builder = tar::Builder::new(gzip);
    builder
        .append_dir_all("toy-1.0/.git/modules/vendor/toy", objects)
        .unwrap();
    builder.into_inner().unwrap().finish().unwrap()
}

fn index_step(server_digest: &str, commit: &str) -> Step {
    step(
        json!({"id": "source", "kind": "checkout", "commit": commit, "mirrors": [
        {"kind": "index", "project": "toy", "version": "1.0", "sha256": server_digest,
         "git_directory": ".git/modules/vendor/toy"}]}),
    )
}

fn index(archive: Vec<u8>) -> Server {
    Server::start(move |_, request| match request.path.as_str() {
        "/simple/toy/" => Reply {
            headers: vec![("Content-Type", "text/html".to_owned())],
            ..Reply::ok("<a href='/f/toy-1.0.tar.gz'>toy-1.0.tar.gz</a>")
        },
        _ => Reply::file(request, &archive),
    })
}

fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    crate::store::hex(&sha2::Sha256::digest(bytes))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_is_taken_out_of_a_source_distribution_and_nothing_else_of_it() {
    let mut bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    let (first, _) = repository(&origin);
    let archive = sdist(&origin);
    let step = index_step(&sha256(&archive), &first);
    let server = index(archive);
    bench.context.package_index = Some(server.url("simple"));
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(file(&artifact), "one");
    assert_eq!(
        fs::read_dir(bench.context.store.root().join("partial"))
            .unwrap()
            .count(),
        0,
        "the archive is not kept"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_unprivileged_user_reads_the_objects_and_cannot_change_where_they_go() {
    needs_root();
    let mut bench = bench(&["git"]);
    Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(Identity {
        uid: 64_123,
        gid: 64_123,
    }));
    let origin = bench.home.path().join("origin");
    let (first, _) = repository(&origin);
    let archive = sdist(&origin);
    let step = index_step(&sha256(&archive), &first);
    // While the archive is on its way, the builder may write to one directory, which is not where
    // its objects will be.
    let tmp = bench.context.store.root().join("tmp");
    let owned = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&owned);
    let server = Server::start(move |_, request| match request.path.as_str() {
        "/simple/toy/" => Reply {
            headers: vec![("Content-Type", "text/html".to_owned())],
            ..Reply::ok("<a href='/f/toy-1.0.tar.gz'>toy-1.0.tar.gz</a>")
        },
        _ => {
            use std::os::unix::fs::MetadataExt as _;
            let runs = fs::read_dir(&tmp).unwrap().flatten();
            let places = runs.flat_map(|run| fs::read_dir(run.path()).unwrap().flatten());
            let theirs = places.filter(|place| place.metadata().unwrap().uid() != 0);
            seen.lock()
                .unwrap()
                .extend(theirs.map(|place| place.file_name()));
            Reply::file(request, &archive)
        }
    });
    bench.context.package_index = Some(server.url("simple"));
    let artifact = run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    assert_eq!(file(&artifact), "one");
    assert_eq!(*owned.lock().unwrap(), ["work"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_distribution_with_another_digest_is_not_unpacked() {
    let mut bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    let (first, _) = repository(&origin);
    let server = index(sdist(&origin));
    bench.context.package_index = Some(server.url("simple"));
    let step = index_step(&"0".repeat(64), &first);
    let error = run(&bench.context, &step, &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Verification, "{error}");
    assert_eq!(error.kind(), "digest-mismatch");
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_hosts_are_skipped_with_their_reason() {
    let mut bench = bench(&["git"]);
    let policy = Policy {
        network: Setting::default_of(NetworkPolicy::Offline),
        ..Policy::default()
    };
    let gate = PlanGate::new(Arc::new(policy), ["git.test".to_owned()].into());
    bench.context.net = crate::net::testing::net_with(Arc::new(gate));
    let step = checkout("https://git.test/x.git", &"0".repeat(40));
    let error = run(&bench.context, &step, &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert!(!error.hints().is_empty());
}
