//! A small project, from its repository to what its program says, as a provider would plan it.

use std::fs;

use super::*;
use crate::{policy::Setting, process::Identity};

fn origin(directory: &Path) -> String {
    fs::create_dir_all(directory).unwrap();
    fs::write(
        directory.join("CMakeLists.txt"),
        "cmake_minimum_required(VERSION 3.18)\nproject(toy C)\n\
         set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)\n\
         add_executable(toy toy.c)\ntarget_compile_definitions(toy PRIVATE ANSWER=${ANSWER})\n",
    )
    .unwrap();
    let program =
        "#include <stdio.h>\nint main(void) { printf(\"toy %d\\n\", ANSWER); return 0; }\n";
    fs::write(directory.join("toy.c"), program).unwrap();
    git(directory, &["init", "--quiet"]);
    git(directory, &["add", "."]);
    git(directory, &["commit", "--quiet", "-m", "toy"]);
    git(directory, &["rev-parse", "HEAD"])
}

fn project(origin: &Path, commit: &str, answer: u32) -> Plan {
    let environment = json!({"CCACHE_DIR": "{cache.ccache}", "CCACHE_BASEDIR": "{work}", "CCACHE_NOHASHDIR": "1"});
    plan(json!([
        {"id": "tools", "kind": "require-tools", "tools": [
            {"name": "git", "purpose": "source"}, {"name": "cmake", "purpose": "building"},
            {"name": "ninja", "purpose": "building"}]},
        {"id": "git-clone", "kind": "checkout", "commit": commit,
            "mirrors": [{"kind": "git", "url": origin}]},
        {"id": "cmake-build", "kind": "build", "outputs": ["bin/toy"], "native": true,
            "labels": {"backend": "cpu"},
            "attempts": [{"title": "with the system's compiler", "commands": [
                {"id": "cmake-configure", "program": "{tool.cmake}", "env": environment, "args": [
                    "-S", "{git-clone.path}", "-B", "{work}", "-G", "Ninja", format!("-DANSWER={answer}"),
                    "-DCMAKE_MAKE_PROGRAM={tool.ninja}", "-DCMAKE_C_COMPILER_LAUNCHER={tool.ccache}"],
                    "narration": {"start": "cmake-configure", "retry": "cmake-retry", "failed": "cmake-failed"}},
                {"id": "cmake-compile", "program": "{tool.cmake}", "env": environment,
                    "args": ["--build", "{work}", "--target", "toy", "--parallel", "{jobs}"],
                    "progress": "counter",
                    "narration": {"start": "cmake-build", "failed": "cmake-failed"}}]}]},
        {"id": "version", "kind": "observe", "program": "{cmake-build.path}/bin/toy", "args": []},
        {"id": "model-fetch", "kind": "stage-model", "reference": "builtin:haiku", "formats": ["gguf"]},
    ]))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_project_goes_from_its_repository_to_what_its_program_says() {
    let mut bench = bench(&["git", "cmake", "ninja", "ccache"]);
    if rustix::process::geteuid().is_root() {
        Arc::make_mut(&mut bench.context.policy).run_as = Setting::default_of(Some(Identity {
            uid: 64_123,
            gid: 64_123,
        }));
    }
    let source = bench.home.path().join("origin");
    let commit = origin(&source);
    let plan = project(&source, &commit, 42);
    let before = expected(&bench.context, &plan).unwrap();
    let after = run_all(&bench.context, &plan).await.unwrap();
    assert_eq!(after["version"].output.as_ref().unwrap().stdout, "toy 42\n");
    for step in ["git-clone", "cmake-build", "model-fetch"] {
        assert_eq!(after[step].path, before[step].artifact.path, "{step}");
    }
    let told = bench.told.actions();
    for action in [
        "preflight",
        "git-clone",
        "git-checkout",
        "cmake-configure",
        "cmake-build",
        "resolve",
        "ensure",
        "verified",
    ] {
        assert!(
            told.iter().any(|other| other == action),
            "{action}: {told:?}"
        );
    }
    // Nothing is left to do, and nothing is done.
    let again = expected(&bench.context, &plan).unwrap();
    assert!(
        again.values().all(|step| step.outlook == Outlook::Cached),
        "{again:?}"
    );
    assert_eq!(run_all(&bench.context, &plan).await.unwrap(), after);

    let changed = project(&source, &commit, 43);
    let because = expected(&bench.context, &changed).unwrap()["cmake-build"]
        .outlook
        .clone();
    assert_eq!(
        because,
        Outlook::Build {
            because: Some("cmake-configure argument changed: -DANSWER=42 → -DANSWER=43".to_owned())
        }
    );
    let after = run_all(&bench.context, &changed).await.unwrap();
    assert_eq!(after["version"].output.as_ref().unwrap().stdout, "toy 43\n");
}
