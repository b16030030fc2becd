//! Steps, carried out for real: with git, a keeper and the shell.

mod build;
mod checkout;
mod dag;
mod download;
mod extract_image;
mod fixed;
mod observe;
mod packages;
mod project;
mod pull_image;
mod require_tools;
mod spare;
mod submodules;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use engine_provider_api::{Facts, Plan, Tool};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    config::{environment::Environment, paths::Home},
    narrate::{Capture, Narrator},
    net::testing::open_net,
    policy::Policy,
    process::testing::keeper_at,
    store::Store,
};

/// Fails where what a test promises can only be seen as root: becoming somebody else, installing.
#[track_caller]
pub(crate) fn needs_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test needs root: run it as root or in a container"
    );
}

/// A home of its own with everything that steps need.
pub(crate) struct Bench {
    pub(crate) home: tempfile::TempDir,
    pub(crate) context: Context,
    pub(crate) told: Capture,
}

/// A bench whose facts know these programs of this machine.
pub(crate) fn bench(tools: &[&str]) -> Bench {
    let home = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let tools: BTreeMap<String, Tool> = tools
        .iter()
        .map(|name| {
            let path = which(name).to_string_lossy().into_owned();
            let version = String::new();
            ((*name).to_owned(), Tool { path, version })
        })
        .collect();
    let (narrator, told) = Narrator::capture();
    let context = Context {
        home: Home::at(home.path()),
        store: Store::open(&Home::at(home.path())),
        keeper: keeper_at(home.path()),
        policy: Arc::new(Policy::default()),
        facts: Arc::new(Facts {
            tools: tools.clone(),
            ..Facts::default()
        }),
        tools: Toolbox::new(tools, Arc::new(|_| Box::pin(async { None }))),
        narrator,
        cancel: CancellationToken::new(),
        net: open_net(),
        environment: Arc::new(Environment::from_pairs([("PATH", "/usr/bin:/bin")])),
        package_index: None,
        logs: Logs::new(&Home::at(home.path()), "chat", Some("job")),
        registries: Registries::default(),
        refresh_models: false,
        refresh_images: false,
        models: crate::model::Models::default(),
        verify: crate::model::Verify::default(),
        trees: Arc::default(),
        model_versions: Arc::default(),
        pool: Arc::new(engine_provider_api::Pool::new("chat", "toy")),
        pool_id: "chat".to_owned(),
        engine: "toy".to_owned(),
        base: home.path().to_owned(),
    };
    Bench {
        home,
        context,
        told,
    }
}

/// Where a program is; a test that needs one fails without it.
pub(crate) fn which(program: &str) -> PathBuf {
    let usual = ["/usr/local/bin", "/usr/bin", "/bin"].map(PathBuf::from);
    // Cargo puts what it installs elsewhere.
    let others = Environment::of_this_process().search_path();
    usual
        .into_iter()
        .chain(others)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{program} must be installed: see scripts/setup-tests"))
}

/// Makes a script that can be run at once.
pub(crate) fn script(path: &Path, text: &str) {
    program(path, &format!("#!/bin/sh\n{text}\n"));
}

/// Makes a file that can be run at once, as far as its content can.
///
/// Another process writes it: a descriptor of this one may be inherited, for an instant, by what other
/// tests start, and a program that somebody has open for writing cannot be run.
pub(crate) fn program(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    let words = [draft.as_path(), path].map(|path| path.to_string_lossy().into_owned());
    #[expect(clippy::disallowed_methods, reason = "tests make programs")]
    let output = std::process::Command::new("install")
        .args(["-m", "755", "--"])
        .args(words)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

pub(crate) fn plan(steps: Value) -> Plan {
    serde_json::from_value(json!({ "steps": steps })).unwrap()
}

fn step(step: Value) -> Step {
    serde_json::from_value(step).unwrap()
}

/// Runs git in a directory; gives what it prints.
pub(crate) fn git(directory: &Path, args: &[&str]) -> String {
    #[expect(
        clippy::disallowed_methods,
        reason = "tests make repositories with the real git"
    )]
    let output = std::process::Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@t"])
        .args(["-c", "init.defaultBranch=main"])
        .args(args)
        .current_dir(directory)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "git {args:?}: {output:?}");
    printed
}

/// A repository with two commits on `main`, the first tagged `v1`; gives both.
pub(crate) fn repository(directory: &Path) -> (String, String) {
    std::fs::create_dir_all(directory.join("src")).unwrap();
    git(directory, &["init", "--quiet"]);
    let mut commits = Vec::new();
    for text in ["one", "two"] {
        std::fs::write(directory.join("src/file"), text).unwrap();
        git(directory, &["add", "."]);
        git(directory, &["commit", "--quiet", "-m", text]);
        commits.push(git(directory, &["rev-parse", "HEAD"]));
        if text == "one" {
            git(directory, &["tag", "-a", "v1", "-m", "v1"]);
        }
    }
    (commits.remove(0), commits.remove(0))
}
