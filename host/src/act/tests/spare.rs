use std::fs;

use super::*;

/// A repository's last commit, and builds that read its file, by the name of the step.
fn plan_of(bench: &Bench, builds: &[&str]) -> Plan {
    let origin = bench.home.path().join("origin");
    if !origin.exists() {
        repository(&origin);
    }
    let commit = git(&origin, &["rev-parse", "HEAD"]);
    let source = json!({"id": "source", "kind": "checkout", "commit": commit,
        "mirrors": [{"kind": "git", "url": origin}]});
    let build = |id: &&str| {
        json!({"id": id, "kind": "build", "outputs": ["out"], "attempts": [{"title": "", "commands": [
            {"id": id, "program": "{tool.sh}", "args": ["-c", format!("cat {{source.path}}/src/file > out; echo {id} >> out")]}]}]})
    };
    plan(
        std::iter::once(source)
            .chain(builds.iter().map(build))
            .collect(),
    )
}

fn outlooks(bench: &Bench, plan: &Plan) -> Vec<Outlook> {
    let all = expected(&bench.context, plan).unwrap();
    let steps = plan.steps.iter();
    steps.map(|step| all[&step.id].outlook.clone()).collect()
}

/// Removes a result, as `host engine remove` does.
fn lose(artifact: &Artifact) {
    let tree = Path::new(artifact.path.as_ref().unwrap());
    fs::remove_dir_all(tree.parent().unwrap()).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_which_all_is_made_is_not_fetched_again() {
    let bench = bench(&["git", "sh"]);
    let plan = plan_of(&bench, &["one", "two"]);
    let first = run_all(&bench.context, &plan).await.unwrap();
    lose(&first["source"]);
    fs::remove_dir_all(bench.home.path().join("origin")).unwrap();

    assert_eq!(
        outlooks(&bench, &plan),
        [Outlook::Spared, Outlook::Cached, Outlook::Cached]
    );
    let told = bench.told.actions().len();
    let second = run_all(&bench.context, &plan).await.unwrap();
    assert_eq!(bench.told.actions()[told..], ["spared", "cached", "cached"]);
    assert_eq!(
        second["source"],
        Artifact {
            state: engine_provider_api::ArtifactState::Expected,
            labels: BTreeMap::new(),
            ..first["source"].clone()
        }
    );
    assert_eq!(
        [&second["one"], &second["two"]],
        [&first["one"], &first["two"]]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_is_fetched_for_what_is_not_made_yet() {
    let bench = bench(&["git", "sh"]);
    let plan = plan_of(&bench, &["one"]);
    let first = run_all(&bench.context, &plan).await.unwrap();

    lose(&first["source"]);
    let more = plan_of(&bench, &["one", "two"]);
    let [source, one, two] = &outlooks(&bench, &more)[..] else {
        panic!("three steps");
    };
    assert!(matches!(source, Outlook::Fetch { .. }), "{source:?}");
    assert_eq!(*one, Outlook::Cached);
    assert!(matches!(two, Outlook::Build { .. }), "{two:?}");
    let second = run_all(&bench.context, &more).await.unwrap();
    let out = Path::new(second["two"].path.as_ref().unwrap()).join("out");
    assert_eq!(fs::read_to_string(out).unwrap(), "twotwo\n");

    // Nor is one spared of which nothing is made at all.
    lose(&second["source"]);
    let alone = plan_of(&bench, &[]);
    run_all(&bench.context, &alone).await.unwrap();
    assert!(Path::new(second["source"].path.as_ref().unwrap()).exists());
}
