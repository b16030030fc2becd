//! The examples of engines that no test machine can run, planned for machines that could.

use e2e::{Machine, Run, facts, repository_root};
use serde_json::Value;

fn plan(example: &str, on: &str, more: &[&str]) -> (Machine, Run) {
    let machine = Machine::new();
    let example = repository_root().join("examples").join(example);
    let facts = facts(on);
    let mut arguments = vec!["plan", "--config", example.to_str().unwrap()];
    arguments.extend(["--facts", &facts]);
    arguments.extend(more);
    let run = machine.run(&arguments);
    machine.assert_untouched();
    (machine, run)
}

fn planned(example: &str, on: &str) -> Value {
    plan(example, on, &["--json"]).1.code(0).json()
}

fn ids(plan: &Value) -> Vec<&str> {
    let steps = plan["steps"].as_array().unwrap();
    steps
        .iter()
        .map(|step| step["id"].as_str().unwrap())
        .collect()
}

#[test]
fn vllm_in_a_container_is_planned_with_the_image_that_the_driver_can_run() {
    let one = planned("vllm-qwen-0.5b.yaml", "podman-one-gpu");
    assert_eq!(ids(&one), ["pull-image", "model-fetch", "run"]);
    let detail = one["steps"][0]["detail"].as_str().unwrap();
    assert!(
        detail.contains("docker.io/vllm/vllm-openai:v0.30.0@sha256:"),
        "{detail}"
    );
    let old = planned("vllm-qwen-0.5b.yaml", "docker-old-one-gpu");
    let detail = old["steps"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("v0.30.0-cu129"), "{detail}");
}

#[test]
fn vllm_on_a_machine_without_gpu_is_refused_with_the_flag_that_allows_it() {
    let (_machine, run) = plan("vllm-qwen-0.5b.yaml", "podman-cpu", &[]);
    let run = run.code(5);
    run.says("requires a GPU");
    run.says("--gpu prefer");
}

#[test]
fn vllm_from_packages_is_planned_without_a_container() {
    let plan = planned("vllm-package-cpu.yaml", "debian-cpu");
    assert_eq!(plan["run"]["engine_version"], "0.32.0");
    let hosts = plan["hosts"].as_array().unwrap();
    assert!(hosts.iter().any(|host| host == "files.pythonhosted.org"));
    let install = plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["id"] == "pip-install")
        .expect("pip is run");
    let words = install["command"].to_string();
    for word in ["--require-hashes", "--no-deps", "--only-binary"] {
        assert!(words.contains(word), "{words}");
    }
}

#[test]
fn an_engine_that_runs_already_is_planned_without_a_step() {
    let plan = planned("vllm-attach.yaml", "debian-cpu");
    assert_eq!(ids(&plan), ["run"]);
    assert_eq!(plan["mode"], "external");
}

#[test]
fn tgi_is_planned_with_the_advice_to_use_vllm() {
    let plan = planned("tgi-two-gpus.yaml", "podman-two-gpus");
    assert_eq!(ids(&plan), ["pull-image", "model-fetch", "run"]);
    let warnings = plan["warnings"].to_string();
    assert!(warnings.contains("maintenance mode"), "{warnings}");
    assert!(warnings.contains("engine: vllm"), "{warnings}");
    assert_eq!(plan["run"]["device_mask"].as_array().unwrap().len(), 2);
}

#[test]
fn without_a_pool_file_the_line_to_write_is_named() {
    let machine = Machine::new();
    for engine in ["vllm", "tgi"] {
        let facts = facts("podman-one-gpu");
        let run = machine.run(&["plan", "--provider", engine, "--facts", &facts]);
        let run = run.code(3);
        run.says("the pool names no model to serve");
        run.says("provisioning.model.ref");
    }
    machine.assert_untouched();
}

#[test]
fn what_a_provider_misses_in_a_pool_file_is_shown_where_it_belongs() {
    let machine = Machine::new();
    machine.write("pools.yaml", "pools:\n- id: chat\n  engine: vllm\n");
    let run = machine.run(&["plan", "--facts", &facts("podman-one-gpu")]);
    let run = run.code(3);
    run.says("pools.yaml:2:3: `provisioning.model` belongs here");
    machine.assert_untouched();
}

#[test]
fn every_page_about_an_engine_links_examples_that_are_there() {
    let pages = repository_root().join("docs/engines");
    for page in std::fs::read_dir(&pages).unwrap() {
        let page = page.unwrap().path();
        let text = std::fs::read_to_string(&page).unwrap();
        let links: Vec<&str> = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
            .filter(|link| link.contains("examples/"))
            .collect();
        assert!(!links.is_empty(), "{} links no example", page.display());
        for link in links {
            assert!(pages.join(link).is_file(), "{}: {link}", page.display());
        }
    }
}

#[test]
fn every_example_is_planned_for_a_machine_that_could_run_it() {
    let directory = repository_root().join("examples");
    let mut names: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".yaml"))
        .collect();
    names.sort();
    assert!(names.len() >= 14, "{names:?}");
    for name in names {
        let on = match &*name {
            "llamacpp-3090-source.yaml" => "rtx3090-cuda124",
            name if name.contains("package") || name.contains("release") => "debian-cpu",
            _ => "podman-two-gpus",
        };
        let mut machine = Machine::new();
        // Nobody listens there, wherever the tests run.
        machine.lend("HF_ENDPOINT", "http://127.0.0.1:9");
        let path = directory.join(&name);
        let arguments = [
            "plan",
            "--config",
            path.to_str().unwrap(),
            "--facts",
            &facts(on),
        ];
        let run = machine.run(&arguments);
        assert_eq!(run.code, 0, "{name} on {on}: {}{}", run.stdout, run.stderr);
        machine.assert_untouched();
    }
}
