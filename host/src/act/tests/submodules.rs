//! Submodules: a tree names places that no plan has named.

use std::fs;

use super::*;
use crate::net::testing::{Reply, Server};

fn checkout(url: &str, commit: &str) -> Step {
    step(
        json!({"id": "source", "kind": "checkout", "commit": commit, "submodules": true,
        "mirrors": [{"kind": "git", "url": url}]}),
    )
}

async fn go(bench: &Bench, url: &str, commit: &str) -> Result<Artifact, ActError> {
    run(&bench.context, &checkout(url, commit), &Artifacts::new()).await
}

/// Commits a submodule of this name and URL, as hostile as its text; gives the commit.
fn add_submodule(repository: &Path, name: &str, url: &str) -> String {
    let text = format!("[submodule \"{name}\"]\n\tpath = lib\n\turl = {url}\n");
    fs::write(repository.join(".gitmodules"), text).unwrap();
    let link = format!("160000,{},lib", "1".repeat(40));
    git(repository, &["add", ".gitmodules"]);
    git(repository, &["update-index", "--add", "--cacheinfo", &link]);
    git(repository, &["commit", "--quiet", "-m", "with a submodule"]);
    git(repository, &["rev-parse", "HEAD"])
}

/// Serves a repository the way any web server does.
fn serve(repository: &Path) -> Server {
    git(repository, &["update-server-info"]);
    let root = repository.join(".git");
    Server::start(move |_, request| {
        let path = request.path.split('?').next().unwrap_or_default();
        let file = path
            .strip_prefix("/origin.git/")
            .map(|path| root.join(path));
        match file.and_then(|file| fs::read(file).ok()) {
            Some(body) => Reply::ok(body),
            None => Reply::status(404),
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_looks_like_a_relative_url_does_not_hide_the_real_one() {
    let bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    repository(&origin);
    let commit = add_submodule(&origin, "x ./y", "ext::sh -c true");
    let error = go(&bench, &origin.to_string_lossy(), &commit).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is no git URL that is accepted"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relative_url_that_climbs_to_another_host_is_seen_for_what_it_is() {
    let bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    repository(&origin);
    let commit = add_submodule(&origin, "x", "../../evil.test/x");
    let server = serve(&origin);
    let url = server.url("origin.git");
    let error = go(&bench, url.as_str(), &commit).await.unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("`http://evil.test/x` is no git URL"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_came_over_the_network_names_no_files_of_this_machine() {
    let bench = bench(&["git"]);
    let private = bench.home.path().join("private");
    repository(&private);
    let origin = bench.home.path().join("origin");
    repository(&origin);
    let commit = add_submodule(&origin, "x", &private.to_string_lossy());
    let server = serve(&origin);
    let url = server.url("origin.git");
    let error = go(&bench, url.as_str(), &commit).await.unwrap_err();
    let error = error.to_string();
    assert!(error.contains("a file of this machine"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nested_submodules_are_checked_like_the_first() {
    let bench = bench(&["git"]);
    let inner = bench.home.path().join("inner");
    repository(&inner);
    let middle = bench.home.path().join("middle");
    repository(&middle);
    let origin = bench.home.path().join("origin");
    repository(&origin);
    let add = |to: &Path, from: &Path| {
        let from = from.to_string_lossy();
        let allow = "protocol.file.allow=always";
        git(
            to,
            &["-c", allow, "submodule", "--quiet", "add", &from, "lib"],
        );
        git(to, &["commit", "--quiet", "-m", "with a submodule"]);
        git(to, &["rev-parse", "HEAD"])
    };
    add(&middle, &inner);
    let commit = add(&origin, &middle);
    let artifact = go(&bench, &origin.to_string_lossy(), &commit)
        .await
        .unwrap();
    let root = PathBuf::from(artifact.path.unwrap());
    assert!(root.join("lib/lib/src/file").exists());
    assert!(!root.join("lib/lib/.git").exists());

    git(&middle, &["rm", "--quiet", "--cached", "lib"]);
    add_submodule(&middle, "x", "ext::sh -c true");
    git(&origin.join("lib"), &["pull", "--quiet", "origin", "main"]);
    git(&origin, &["commit", "--quiet", "-a", "-m", "newer"]);
    let commit = git(&origin, &["rev-parse", "HEAD"]);
    let error = go(&bench, &origin.to_string_lossy(), &commit).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("is no git URL that is accepted"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_reach_the_server_and_nobody_else() {
    let bench = bench(&["git"]);
    let origin = bench.home.path().join("origin");
    let (_, commit) = repository(&origin);
    git(&origin, &["update-server-info"]);
    let root = origin.join(".git");
    let server = Server::start(move |_, request| {
        // ada:p@ss
        if request.headers.get("authorization").map(String::as_str) != Some("Basic YWRhOnBAc3M=") {
            return Reply {
                headers: vec![("WWW-Authenticate", "Basic realm=\"x\"".to_owned())],
                ..Reply::status(401)
            };
        }
        let path = request.path.split('?').next().unwrap_or_default();
        let file = path
            .strip_prefix("/origin.git/")
            .map(|path| root.join(path));
        file.and_then(|file| fs::read(file).ok())
            .map_or(Reply::status(404), Reply::ok)
    });
    let mut url = server.url("origin.git");
    url.set_username("ada").unwrap();
    url.set_password(Some("p%40ss")).unwrap();
    let mut step = checkout(url.as_str(), &commit);
    run(&bench.context, &step, &Artifacts::new()).await.unwrap();
    let left = fs::read_dir(bench.context.store.root().join("tmp")).unwrap();
    assert_eq!(left.count(), 0, "the login is not left behind");

    // What fails is shown with its arguments: the login is not among them.
    let Act::Checkout(act) = &mut step.act else {
        unreachable!()
    };
    act.commit = "0".repeat(40);
    let wrong = url.as_str().replace("p%40ss", "wrong-password");
    act.mirrors = vec![engine_provider_api::Mirror::Git { url: wrong }];
    let error = run(&bench.context, &step, &Artifacts::new()).await;
    let error = error.unwrap_err();
    let ActError::Mirrors { failures, .. } = &error else {
        panic!("{error}");
    };
    let ActError::Command { failure, .. } = failures[0].error.as_ref() else {
        panic!("{error}");
    };
    assert!(!failure.command.contains("wrong"), "{}", failure.command);
    for argument in ["ada", "p%40ss"] {
        assert!(!failure.command.contains(argument), "{}", failure.command);
    }
}
