use std::fs;

use engine_provider_api::PackageManager;

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    policy::Setting,
};

fn tools() -> Step {
    step(json!({"id": "tools", "kind": "require-tools", "tools": [
        {"name": "sh", "purpose": "running scripts"},
        {"name": "toy", "purpose": "playing", "minimum_version": "2.0", "packages": {"apt": ["toy-tools"]}},
        {"name": "nice-to-have", "purpose": "", "optional": true}]}))
}

/// A bench with a package manager that records its arguments and installs a `toy`.
fn with_manager(work: &str) -> Bench {
    let mut bench = bench(&["sh"]);
    let manager = bench.home.path().join("apt-get");
    let home = bench.home.path().to_owned();
    let text = format!(
        "cd {}\necho \"$DEBIAN_FRONTEND $*\" >> calls\n{work}",
        home.display()
    );
    script(&manager, &text);
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.package_manager = Some(PackageManager {
        family: "apt".to_owned(),
        path: bench.home.path().join("apt").to_string_lossy().into_owned(),
    });
    let find: FindTool = Arc::new(move |name| {
        let path = home.join(&name);
        let found = path.exists().then(|| Tool {
            path: path.to_string_lossy().into_owned(),
            version: "2.1".to_owned(),
        });
        Box::pin(async move { found })
    });
    bench.context.tools = Toolbox::new(bench.context.tools.all(), find);
    bench
}

fn allow(bench: &mut Bench) {
    Arc::make_mut(&mut bench.context.policy).allow_package_installs = Setting::default_of(true);
}

fn calls(bench: &Bench) -> String {
    fs::read_to_string(bench.home.path().join("calls")).unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_the_command_to_paste_and_the_flag_are_named() {
    let bench = with_manager("touch toy");
    let error = run(&bench.context, &tools(), &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    let hints = error.hints();
    let command = hints[0].command.clone().unwrap();
    assert!(
        command.ends_with("apt-get install -y toy-tools"),
        "{command}"
    );
    assert!(
        hints[1].text.contains("--allow-package-installs"),
        "{hints:?}"
    );
    assert_eq!(calls(&bench), "");
    let expected = expected_of(&bench.context, &tools(), &Artifacts::new()).unwrap();
    assert_eq!(
        expected.outlook,
        Outlook::Install {
            tools: vec!["toy".to_owned()],
            packages: vec!["toy-tools".to_owned()],
            allowed: false
        }
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn with_leave_they_are_installed_and_looked_for_again() {
    let mut bench = with_manager("touch toy");
    allow(&mut bench);
    needs_root();
    let artifact = run(&bench.context, &tools(), &Artifacts::new())
        .await
        .unwrap();
    assert!(artifact.labels["toy"].ends_with("/toy 2.1"), "{artifact:?}");
    assert_eq!(bench.context.tools.get("toy").unwrap().version, "2.1");
    let calls = calls(&bench);
    assert!(calls.starts_with("noninteractive -y "), "{calls}");
    assert!(calls.ends_with("install -- toy-tools\n"), "{calls}");
    assert_eq!(bench.told.actions(), ["preflight", "install", "installed"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_fetched_only_when_a_package_is_unknown() {
    let mut bench = with_manager(
        "case \"$*\" in *update) touch lists;; *) [ -e lists ] || { echo 'E: Unable to locate package toy-tools'; exit 100; }; touch toy;; esac",
    );
    allow(&mut bench);
    needs_root();
    run(&bench.context, &tools(), &Artifacts::new())
        .await
        .unwrap();
    let calls = calls(&bench);
    let words: Vec<&str> = calls
        .lines()
        .filter_map(|line| line.split(' ').next_back())
        .collect();
    assert_eq!(words, ["toy-tools", "update", "toy-tools"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installation_that_brings_nothing_is_an_error() {
    let mut bench = with_manager("true");
    allow(&mut bench);
    needs_root();
    let error = run(&bench.context, &tools(), &Artifacts::new())
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "`toy` is missing");
    assert_eq!(error.exit(), Exit::Step);
}

#[tokio::test(flavor = "multi_thread")]
async fn old_tools_and_tools_without_a_package_are_named() {
    let bench = bench(&["sh"]);
    let step = step(json!({"id": "tools", "kind": "require-tools", "tools": [
        {"name": "sh", "purpose": "x"},
        {"name": "old", "purpose": "y", "minimum_version": "3.18"}]}));
    let find: FindTool = Arc::new(|_| Box::pin(async { None }));
    let old = Tool {
        path: "/usr/bin/old".to_owned(),
        version: "3.9".to_owned(),
    };
    let mut context = bench.context.clone();
    let mut known = context.tools.all();
    known.insert("old".to_owned(), old);
    context.tools = Toolbox::new(known, find);
    let error = run(&context, &step, &Artifacts::new()).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "`old` 3.18 or newer (here: 3.9) is missing"
    );
}
