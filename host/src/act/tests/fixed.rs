//! Builds whose result may not be moved.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

use engine_provider_api::Attempt;

use super::*;
use crate::{
    fault::Fault as _,
    net::{
        Url,
        testing::{Reply, Server},
    },
    policy::{NetworkPolicy, Setting},
    process::Identity,
};

fn build(script: &str) -> Step {
    step(
        json!({"id": "env", "kind": "build", "fixed_path": true, "outputs": ["venv"],
        "inputs": {"lists/wanted.txt": "one\n"},
        "attempts": [{"title": "", "commands": [
            {"id": "make", "program": "{tool.sh}", "args": ["-c", script, "{work}"]}]}]}),
    )
}

async fn go(bench: &Bench, step: &Step) -> Result<Artifact, ActError> {
    run(&bench.context, step, &Artifacts::new()).await
}

fn path_of(artifact: &Artifact) -> PathBuf {
    PathBuf::from(artifact.path.clone().unwrap())
}

/// Everything below `build/` and `tmp/`.
fn left(bench: &Bench) -> usize {
    let root = bench.context.store.root();
    let count = |name: &str| fs::read_dir(root.join(name)).map_or(0, Iterator::count);
    count("build") + count("tmp")
}

const GOOD: &str = "mkdir venv && pwd > venv/where && cat lists/wanted.txt >> venv/where \
                    && touch rest && mkdir -p \"$HOME/x\" \"$TMPDIR/y\"";

#[tokio::test(flavor = "multi_thread")]
async fn it_is_made_where_it_stays_and_nothing_else_stays() {
    let bench = bench(&["sh"]);
    let step = build(GOOD);
    let before = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
    assert_eq!(before.outlook, Outlook::Build { because: None });
    let artifact = go(&bench, &step).await.unwrap();
    assert_eq!(artifact.path, before.artifact.path);
    let path = path_of(&artifact);
    let said = fs::read_to_string(path.join("venv/where")).unwrap();
    assert_eq!(said, format!("{}\none\n", path.display()));
    assert_eq!(
        fs::metadata(path.join("venv/where")).unwrap().mode() & 0o777,
        0o444
    );
    let names = |path: &Path| {
        let mut names: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&path), ["venv"]);
    assert_eq!(names(path.parent().unwrap()), ["manifest.json", "tree"]);
    assert_eq!(left(&bench), 1);
    // Nothing is read again: the second time costs what finding it costs.
    assert_eq!(go(&bench, &step).await.unwrap(), artifact);
    assert_eq!(bench.told.actions(), ["built", "cached"]);

    let mut other = step.clone();
    let Act::Build(act) = &mut other.act else {
        unreachable!()
    };
    act.inputs
        .insert("lists/wanted.txt".to_owned(), "two\n".to_owned());
    let outlook = expected_of(&bench.context, &other, &Artifacts::new())
        .unwrap()
        .outlook;
    assert!(
        matches!(&outlook, Outlook::Build { because: Some(why) } if why.starts_with("text lists/wanted.txt changed")),
        "{outlook:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_attempt_starts_empty_and_a_failure_leaves_nothing() {
    let bench = bench(&["sh"]);
    let mut step = build("touch venv; exit 3");
    let Act::Build(act) = &mut step.act else {
        unreachable!()
    };
    let again: Attempt = serde_json::from_value(json!({"title": "again", "when": {"exit": 3},
        "commands": [{"id": "make", "program": "{tool.sh}", "args": ["-c", GOOD]}]}))
    .unwrap();
    act.attempts.push(again);
    let artifact = go(&bench, &step).await.unwrap();
    assert_eq!(artifact.attempt, Some(1));

    let before = left(&bench);
    go(&bench, &build("mkdir venv; exit 1")).await.unwrap_err();
    let error = go(&bench, &build("touch other")).await.unwrap_err();
    assert_eq!(error.to_string(), "step `env` did not make venv");
    assert_eq!(left(&bench), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn links_lead_inside_or_to_the_tools_of_the_build() {
    let bench = bench(&["sh"]);
    let sh = which("sh");
    let good = format!(
        "mkdir venv && ln -s {} venv/python && ln -s python venv/python3",
        sh.display()
    );
    let artifact = go(&bench, &build(&good)).await.unwrap();
    assert!(path_of(&artifact).join("venv/python3").exists());
    let before = left(&bench);
    let error = go(&bench, &build("mkdir venv && ln -s /etc/passwd venv/x"))
        .await
        .unwrap_err();
    assert!(
        crate::narrate::chain(&error).contains("is a link out of the result"),
        "{error}"
    );
    assert_eq!(left(&bench), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_user_made_is_taken_over_and_linked_files_are_copied() {
    needs_root();
    let mut bench = bench(&["sh"]);
    let builder = Identity {
        uid: 64_123,
        gid: 64_123,
    };
    Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(builder));
    let mut step = build("");
    let Act::Build(act) = &mut step.act else {
        unreachable!()
    };
    // As uv does: the package lies in a cache, and in the environment under a second name.
    act.attempts[0].commands[0].args = [
        "-c",
        "umask 0; mkdir -p venv/lib && echo x > \"$1/package\" && ln -f \"$1/package\" venv/lib/package && cp lists/wanted.txt venv",
        "sh",
        "{cache.packages}",
    ]
    .map(Into::into)
    .to_vec();
    let path = path_of(&go(&bench, &step).await.unwrap());
    for name in [
        "",
        "venv",
        "venv/lib",
        "venv/lib/package",
        "venv/wanted.txt",
    ] {
        let metadata = fs::metadata(path.join(name).components().collect::<PathBuf>()).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o022), (0, 0), "{name}");
    }
    let cached = bench.context.home.cache("packages").join("package");
    fs::write(cached, "changed").unwrap();
    assert_eq!(
        fs::read_to_string(path.join("venv/lib/package")).unwrap(),
        "x\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_crash_left_is_swept_unless_somebody_makes_it() {
    let bench = bench(&["sh"]);
    let step = build(GOOD);
    let expected = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
    let tree = path_of(&expected.artifact);
    let half = || {
        fs::create_dir_all(tree.join("venv")).unwrap();
        fs::write(tree.join("venv/half"), "x").unwrap();
        symlink("/etc", tree.join("out")).unwrap();
    };
    half();
    assert_eq!(
        expected_of(&bench.context, &step, &Artifacts::new()).unwrap(),
        expected,
        "it does not count"
    );
    let key = tree
        .parent()
        .unwrap()
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned();
    let lock = bench.context.store.lock_path(&format!("build-{key}"));
    fs::create_dir_all(lock.parent().unwrap()).unwrap();
    let held = crate::store::try_lock(&lock, "making it").unwrap().unwrap();
    bench.context.store.sweep().unwrap();
    assert!(tree.join("venv/half").exists(), "somebody makes it");
    drop(held);
    bench.context.store.sweep().unwrap();
    assert!(!tree.exists());
    half();
    go(&bench, &step).await.unwrap();
    assert!(!tree.join("venv/half").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn two_at_once_make_it_once_and_a_cancelled_one_leaves_nothing() {
    let bench = bench(&["sh"]);
    let step = build(GOOD);
    let (first, second) = tokio::join!(go(&bench, &step), go(&bench, &step));
    assert_eq!(first.unwrap(), second.unwrap());
    let made = bench.told.actions();
    assert_eq!(
        made.iter().filter(|action| *action == "built").count(),
        1,
        "{made:?}"
    );

    let slow = build("mkdir venv; touch venv/begun; exec sleep 600");
    let tree = path_of(
        &expected_of(&bench.context, &slow, &Artifacts::new())
            .unwrap()
            .artifact,
    );
    let cancel = async {
        while !tree.join("venv/begun").exists() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        bench.context.cancel.cancel();
    };
    let (result, ()) = tokio::join!(go(&bench, &slow), cancel);
    assert!(result.unwrap_err().is_cancelled());
    assert!(!tree.parent().unwrap().exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_virtual_environment_runs_from_where_it_was_made() {
    let bench = bench(&["python3"]);
    let step = step(
        json!({"id": "env", "kind": "build", "fixed_path": true, "outputs": ["venv"],
        "attempts": [{"title": "", "commands": [
            {"id": "venv", "program": "{tool.python3}", "args": ["-m", "venv", "--without-pip", "{work}/venv"]},
            {"id": "use", "program": "{work}/venv/bin/python", "args": ["-c", "import sys; assert sys.prefix.endswith('venv')"]}]}]}),
    );
    let path = path_of(&go(&bench, &step).await.unwrap());
    let answer = crate::process::ask(&crate::process::Question {
        program: path.join("venv/bin/python"),
        args: ["-c", "import sys; print(sys.prefix)"]
            .map(str::to_owned)
            .to_vec(),
        env: BTreeMap::new(),
        identity: None,
        limit: std::time::Duration::from_secs(30),
    })
    .await
    .unwrap();
    assert_eq!(answer.stdout.trim(), path.join("venv").to_string_lossy());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_index_is_seen_by_builds_that_may_reach_it_and_refused_before_all_else_offline() {
    let mut bench = bench(&["sh"]);
    let index = "https://me:p%22ss@index.test/simple";
    bench.context.package_index = Some(Url::parse(index).unwrap());
    // Passed through, as an operator's environment has it.
    let environment = Environment::from_pairs([("PIP_INDEX_URL", index)]);
    bench.context.environment = Arc::new(environment);
    let with = |hosts: Value| {
        let mut step = build(
            "mkdir venv; (echo \"$PIP_INDEX_URL\"; stat -c %a ~/.netrc; cat ~/.netrc) > venv/index || true",
        );
        let Act::Build(act) = &mut step.act else {
            unreachable!()
        };
        act.network = serde_json::from_value(hosts).unwrap();
        step
    };
    let all =
        "https://index.test/simple\n600\nmachine index.test login \"me\" password \"p\\\"ss\"\n";
    for (hosts, seen) in [
        (json!(["index.test"]), all),
        (json!(["other.test"]), "\n"),
        (json!([]), "\n"),
    ] {
        let path = path_of(&go(&bench, &with(hosts)).await.unwrap());
        assert_eq!(fs::read_to_string(path.join("venv/index")).unwrap(), seen);
        assert!(
            !path.with_file_name("home").exists(),
            "with the credentials"
        );
    }
    let policy = Arc::make_mut(&mut bench.context.policy);
    policy.network = Setting::default_of(NetworkPolicy::Offline);
    let gate = PlanGate::new(
        Arc::clone(&bench.context.policy),
        ["far.test".to_owned()].into(),
    );
    bench.context.net = crate::net::Net::new(&bench.context.environment, Arc::new(gate));
    let step = with(json!(["far.test"]));
    let outlook = expected_of(&bench.context, &step, &Artifacts::new())
        .unwrap()
        .outlook;
    assert!(
        matches!(&outlook, Outlook::Refused { why } if why.contains("far.test")),
        "{outlook:?}"
    );
    assert_eq!(
        go(&bench, &step).await.unwrap_err().exit(),
        crate::fault::Exit::Refused
    );
}

/// A wheel with one module, as the zip archive that it is.
fn wheel() -> Vec<u8> {
    use std::io::Write as _;
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default();
    for (name, text) in [
        ("toy.py", "VALUE = 7\n"),
        (
            "toy-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\n",
        ),
        (
            "toy-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        ),
        ("toy-1.0.dist-info/RECORD", ""),
    ] {
        zip.start_file(name, options).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[tokio::test(flavor = "multi_thread")]
async fn real_pip_installs_what_is_locked_from_an_index_that_wants_a_password() {
    use sha2::Digest as _;
    let mut bench = bench(&["python3"]);
    if rustix::process::geteuid().is_root() {
        let builder = Identity {
            uid: 64_123,
            gid: 64_123,
        };
        Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(builder));
    }
    let content = wheel();
    let sha256 = crate::store::hex(&sha2::Sha256::digest(&content));
    let server = Server::start(move |_, request| {
        // "me:secret"
        let login = request.headers.get("authorization").map(String::as_str);
        match (login, request.path.as_str()) {
            (Some("Basic bWU6c2VjcmV0"), "/simple/toy/") => {
                let file = "toy-1.0-py3-none-any.whl";
                let mut reply = Reply::ok(format!("<a href=\"/{file}\">{file}</a>"));
                reply.headers.push(("Content-Type", "text/html".to_owned()));
                reply
            }
            (Some(_), "/toy-1.0-py3-none-any.whl") => Reply::ok(content.clone()),
            _ => Reply::status(401),
        }
    });
    let mut index = server.url("simple");
    let shown = index.to_string();
    index.set_username("me").unwrap();
    index.set_password(Some("secret")).unwrap();
    bench.context.package_index = Some(index);
    let pip = format!(
        "-m pip install --no-deps --require-hashes --only-binary :all: --no-input --no-cache-dir \
         --index-url {shown} -r {{work}}/list.txt"
    );
    let pip: Vec<&str> = pip.split_whitespace().collect();
    let step = step(
        json!({"id": "env", "kind": "build", "fixed_path": true, "outputs": ["venv"],
        "network": ["127.0.0.1"], "inputs": {"list.txt": format!("toy==1.0 --hash=sha256:{sha256}\n")},
        "attempts": [{"title": "", "commands": [
            {"id": "venv", "program": "{tool.python3}", "args": ["-m", "venv", "{work}/venv"]},
            {"id": "pip", "program": "{work}/venv/bin/python", "args": pip},
            {"id": "use", "program": "{work}/venv/bin/python", "args": ["-c", "import toy; assert toy.VALUE == 7"]}]}]}),
    );
    let path = path_of(&go(&bench, &step).await.unwrap());
    assert!(path.join("venv/bin/pip").exists());
    assert!(!path.join("list.txt").exists());
}
