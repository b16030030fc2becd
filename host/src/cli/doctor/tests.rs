use engine_provider_api::{
    InstallPackages, PackageManager, Pool, PullImage, RequireTools, Step, Tool, ToolRequirement,
};

use super::*;
use crate::{
    cli::{config::Form, report::Called},
    policy::{Origin, Setting},
};

fn info() -> ProviderInfo {
    let pool: Pool =
        serde_json::from_value(serde_json::json!({"id": "default", "engine": "toy"})).unwrap();
    ProviderInfo {
        requires: Vec::new(),
        name: "toy".to_owned(),
        version: "1.0.0".to_owned(),
        modes: vec![Mode::Source, Mode::Container],
        tools: Vec::new(),
        options_schema: serde_json::Value::Null,
        default_pool: pool,
        homepage: None,
    }
}

fn tool(name: &str, minimum: &str) -> ToolRequirement {
    ToolRequirement {
        name: name.to_owned(),
        purpose: "to build".to_owned(),
        minimum_version: minimum.to_owned(),
        packages: [("apt".to_owned(), vec![format!("{name}-package")])].into(),
        optional: false,
    }
}

fn plan(tools: Vec<ToolRequirement>) -> Plan {
    Plan {
        steps: vec![Step {
            id: "preflight".to_owned(),
            after: Vec::new(),
            act: Act::RequireTools(RequireTools { tools }),
        }],
        ..Plan::default()
    }
}

fn facts(tools: &[(&str, &str)]) -> Facts {
    let tool = |(name, version): &(&str, &str)| {
        let path = format!("/usr/bin/{name}");
        let version = (*version).to_owned();
        ((*name).to_owned(), Tool { path, version })
    };
    Facts {
        tools: tools.iter().map(tool).collect(),
        package_manager: Some(PackageManager {
            family: "apt".to_owned(),
            path: "/usr/bin/apt-get".to_owned(),
        }),
        ..Facts::default()
    }
}

fn shown(rows: &[Row]) -> String {
    let mut out = Vec::new();
    let called = Called::by(["target/release/host".to_owned()]);
    let report = Report {
        rows: rows.to_vec(),
        ..Report::default()
    };
    write(&mut out, &report, Form::Human, &called).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_machine_with_all_tools_is_ready() {
    let plans = [(Mode::Source, Ok(plan(vec![tool("cmake", "3.20")])))];
    let rows = judge(
        &info(),
        &facts(&[("cmake", "3.25.1")]),
        &Policy::default(),
        &plans,
        None,
        false,
    );
    assert_eq!(rows[0].state, State::Ready);
    assert_eq!(exit(&rows), Exit::Success);
    assert_eq!(shown(&rows), "toy source (default): ready\n");
}

#[test]
fn modes_that_lack_the_same_are_told_once_and_each_is_tried_again_in_its_own() {
    let refusal = || {
        let error = ProviderError::unavailable("no usable GPU");
        Err(error.fix("run on the processor", "{again} --gpu prefer"))
    };
    let modes = [Mode::Source, Mode::Container, Mode::External];
    let plans = modes.map(|mode| match mode {
        Mode::External => (mode, Ok(plan(Vec::new()))),
        _ => (mode, refusal()),
    });
    let rows = judge(
        &info(),
        &facts(&[]),
        &Policy::default(),
        &plans,
        None,
        false,
    );
    insta::assert_snapshot!(shown(&rows), @r"
    toy source (default), container: can be made ready
      why: no usable GPU
      fix: run on the processor
             target/release/host provision --provider toy --gpu prefer
    toy external: ready
    ");
    assert_eq!(
        shown(&rows[1..2]).lines().last().unwrap().trim(),
        "target/release/host provision --provider toy --mode container --gpu prefer"
    );
}

#[test]
fn what_is_missing_is_told_with_the_command_that_installs_it() {
    let plans = [
        (
            Mode::Source,
            Ok(plan(vec![
                tool("cmake", "3.30"),
                tool("ninja", ""),
                tool("git", ""),
            ])),
        ),
        (
            Mode::Container,
            Err(ProviderError::unavailable("no container runtime was found")),
        ),
    ];
    let facts = facts(&[("cmake", "3.25.1"), ("git", "2.39")]);
    let rows = judge(&info(), &facts, &Policy::default(), &plans, None, false);
    assert_eq!(exit(&rows), Exit::Unavailable);
    insta::assert_snapshot!(shown(&rows), @r"
    toy source (default): can be made ready
      why: `cmake` is 3.25.1, and 3.30 is needed (to build)
      why: `ninja` is missing (to build)
      fix: install what is missing
             sudo apt-get install -y cmake-package ninja-package
      fix: add `--allow-package-installs`, or write `policy: {allow_package_installs: true}` in the pool file
    toy container: cannot
      why: no container runtime was found
    ");
}

#[test]
fn what_policy_lets_the_host_install_would_run() {
    let plans = [(Mode::Source, Ok(plan(vec![tool("cmake", "")])))];
    let policy = Policy {
        allow_package_installs: Setting {
            value: true,
            origin: Origin::Flag("--allow-package-installs".to_owned()),
        },
        ..Policy::default()
    };
    let rows = judge(&info(), &facts(&[]), &policy, &plans, None, true);
    assert_eq!((rows[0].state, rows[0].would_run), (State::CanBeMade, true));
    assert_eq!(exit(&rows), Exit::Success);
    assert_eq!(
        rows[0].fixes[0].command.as_deref(),
        Some("apt-get install -y cmake-package")
    );
}

#[test]
fn a_tool_without_a_package_cannot_be_had() {
    let mut homeless = tool("nvcc", "");
    homeless.packages.clear();
    let plans = [(Mode::Source, Ok(plan(vec![homeless])))];
    let rows = judge(
        &info(),
        &facts(&[]),
        &Policy::default(),
        &plans,
        None,
        false,
    );
    assert_eq!((rows[0].state, rows[0].would_run), (State::Cannot, false));
    assert!(rows[0].fixes[0].text.contains("nvcc"), "{rows:?}");
}

#[test]
fn a_refusal_of_the_provider_keeps_its_commands() {
    let error = ProviderError::unavailable("no usable GPU")
        .because("the driver is broken")
        .fix("run on the processor", "{host} provision --gpu prefer");
    let rows = judge(
        &info(),
        &facts(&[]),
        &Policy::default(),
        &[(Mode::Source, Err(error))],
        None,
        false,
    );
    assert_eq!(
        (rows[0].state, rows[0].would_run),
        (State::CanBeMade, false)
    );
    insta::assert_snapshot!(shown(&rows), @r"
    toy source (default): can be made ready
      why: no usable GPU (the driver is broken)
      fix: run on the processor
             target/release/host provision --gpu prefer
    ");
}

#[test]
fn a_tool_that_policy_forbids_is_no_missing_tool() {
    let policy = Policy {
        tools: Setting::default_of(Some(vec!["git".to_owned()])),
        ..Policy::default()
    };
    let plans = [(Mode::Source, Ok(plan(vec![tool("cmake", "")])))];
    let rows = judge(
        &info(),
        &facts(&[("cmake", "3.25")]),
        &policy,
        &plans,
        None,
        false,
    );
    assert_eq!(
        (rows[0].state, rows[0].would_run),
        (State::CanBeMade, false)
    );
    assert!(rows[0].reasons[0].contains("running `cmake`"), "{rows:?}");
}

/// A provider whose engine comes as an image, on a recorded machine.
fn in_a_container(machine: &str, policy: &Policy) -> String {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
    let facts = crate::facts::read(&fixtures.join(machine)).unwrap();
    let pull = Plan {
        steps: vec![Step {
            id: "image".to_owned(),
            after: Vec::new(),
            act: Act::PullImage(PullImage::default()),
        }],
        ..Plan::default()
    };
    let plans = [(Mode::Container, Ok(pull))];
    shown(&judge(&info(), &facts, policy, &plans, None, false))
}

#[test]
fn a_container_runtime_is_named_and_those_passed_over() {
    let policy = Policy::default();
    insta::assert_snapshot!(in_a_container("podman-cpu.json", &policy), @r"
    toy container: ready
      note: runs with podman 4.3.1, rootless
    ");
    insta::assert_snapshot!(in_a_container("docker-old-one-gpu.json", &policy), @r"
    toy container: ready
      note: runs with docker 24.0.7 (engine 24.0.7)
      note: podman was passed over: version 3.4.4 is too old: 4.0 or later is needed
    ");
    insta::assert_snapshot!(in_a_container("podman-mig.json", &policy), @r"
    toy container: ready
      note: runs with podman 5.4.2
      note: container devices: nvidia.com/gpu=0:0, nvidia.com/gpu=0:1, nvidia.com/gpu=all
    ");
}

#[test]
fn a_machine_without_a_runtime_or_devices_is_told_what_to_type() {
    let policy = Policy::default();
    // Facts of a machine on which nobody looked for containers.
    insta::assert_snapshot!(in_a_container("debian-cpu.json", &policy), @r"
    toy container: can be made ready
      why: no container runtime can be used here
      why: podman, docker: not looked for on this machine
      fix: install podman
             sudo apt-get install podman catatonit
    ");
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
    let mut facts = crate::facts::read(&fixtures.join("podman-two-gpus.json")).unwrap();
    facts.containers.cdi_devices = vec!["nvidia.com/gpu=0".to_owned()];
    let found = containers::judge(&facts, policy.gpu.value, None);
    insta::assert_snapshot!(format!("{:#?}", (&found.reasons, &found.fixes)), @r#"
    (
        [
            "no container device stands for GPU `GPU-66666666-7777-8888-9999-aaaaaaaaaaaa`",
            "there are: nvidia.com/gpu=0",
        ],
        [
            Hint {
                text: "describe the GPUs to container runtimes (NVIDIA Container Toolkit), again after every change of driver or MIG layout",
                command: Some(
                    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
                ),
            },
            Hint {
                text: "or let it run on the processor",
                command: Some(
                    "{again} --gpu forbid",
                ),
            },
        ],
    )
    "#);
}

#[test]
fn a_program_of_a_package_is_missed_where_it_is_not_installed() {
    let step = Step {
        id: "install".to_owned(),
        after: Vec::new(),
        act: Act::InstallPackages(InstallPackages {
            packages: [("apt".to_owned(), vec!["llama.cpp".to_owned()])].into(),
            program: "llama-server".to_owned(),
            ..InstallPackages::default()
        }),
    };
    let plan = Plan {
        steps: vec![step],
        ..Plan::default()
    };
    let plans = [(Mode::Package, Ok(plan))];
    let told = |facts: &Facts, has: bool| {
        let policy = Policy::default();
        let mut rows = judge(&info(), facts, &policy, &plans, None, true);
        add_missing_packages(&mut rows, &plans, facts, &policy, true, |_| has);
        (rows[0].state, rows[0].would_run, shown(&rows))
    };
    let (state, would_run, _) = told(&facts(&[]), true);
    assert_eq!((state, would_run), (State::Ready, true));
    let (state, would_run, text) = told(&facts(&[]), false);
    assert_eq!((state, would_run), (State::CanBeMade, false));
    assert!(text.contains("`llama-server` is not installed"), "{text}");
    assert!(text.contains("apt-get install -y llama.cpp"), "{text}");
    assert!(text.contains("--allow-package-installs"), "{text}");
    let elsewhere = Facts {
        package_manager: None,
        ..facts(&[])
    };
    assert_eq!(told(&elsewhere, false).0, State::Cannot);
}

#[test]
fn a_container_that_is_left_is_named_with_what_removes_it() {
    let left = vec![LeftContainer {
        runtime: "podman".to_owned(),
        name: "engine-host-chat-r0".to_owned(),
        pool: "chat".to_owned(),
        command: "podman rm --force engine-host-chat-r0".to_owned(),
    }];
    let report = Report {
        left,
        ..Report::default()
    };
    let called = Called::by(["host".to_owned()]);
    let mut out = Vec::new();
    write(&mut out, &report, Form::Human, &called).unwrap();
    insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
    podman container engine-host-chat-r0: left
      why: the engine of pool chat has ended, and nobody could remove it
      fix: a daemon tries again by itself; at once:
             podman rm --force engine-host-chat-r0
    ");
    let mut out = Vec::new();
    write(&mut out, &report, Form::Json, &called).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(json["left_containers"][0]["name"], "engine-host-chat-r0");
}

fn recorded(machine: &str) -> Facts {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
    crate::facts::read(&fixtures.join(machine)).unwrap()
}

fn runtimes_of(facts: &Facts, wanted: Option<&str>) -> String {
    let report = Report {
        runtimes: runtimes(facts, wanted),
        ..Report::default()
    };
    let mut out = Vec::new();
    write(&mut out, &report, Form::Human, &Called::default()).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_runtime_is_told_of_whatever_the_providers_say() {
    insta::assert_snapshot!(runtimes_of(&recorded("podman-mig.json"), None), @r"
    runtime podman 5.4.2, rootful: used
      note: container devices: nvidia.com/gpu=0:0, nvidia.com/gpu=0:1, nvidia.com/gpu=all
    runtime docker: cannot
      why: not found
    ");
    let old = recorded("docker-old-one-gpu.json");
    insta::assert_snapshot!(runtimes_of(&old, None), @r"
    runtime podman 3.4.4, rootful: cannot
      why: version 3.4.4 is too old: 4.0 or later is needed
    runtime docker 24.0.7, rootful: used
    ");
    let mut both = recorded("podman-cpu.json");
    let docker = &mut both.containers.runtimes[1];
    (docker.path, docker.version) = ("/usr/bin/docker".to_owned(), "28.2.2".to_owned());
    docker.unusable = Some("Cannot connect to the Docker daemon".to_owned());
    insta::assert_snapshot!(runtimes_of(&both, None), @r"
    runtime podman 4.3.1, rootless: used
    runtime docker 28.2.2, rootful: cannot
      why: Cannot connect to the Docker daemon
      fix: start docker
             sudo systemctl start docker
    ");
    both.containers.runtimes[1].unusable = None;
    insta::assert_snapshot!(runtimes_of(&both, Some("docker")), @r"
    runtime podman 4.3.1, rootless: usable, not used
      why: `--container-runtime docker` was given
    runtime docker 28.2.2, rootful: used
    ");
}

#[test]
fn a_default_pool_without_a_model_is_not_ready_and_nothing_that_fails_is_offered() {
    let error = ProviderError::invalid("provisioning.model", "the pool names no model to serve")
        .hint("write a pool file with `provisioning.model.ref`");
    let missing = MissingModel::refused(&error).unwrap();
    let gpu = ProviderError::unavailable("there is no GPU").fix("let it", "{again} --gpu prefer");
    assert_eq!(MissingModel::refused(&gpu), None);
    let plans = [
        (Mode::Source, Ok(Plan::default())),
        (Mode::Container, Err(gpu)),
    ];
    let mut rows = judge(
        &info(),
        &facts(&[]),
        &Policy::default(),
        &plans,
        None,
        false,
    );
    add_missing_model(&mut rows[0], missing.clone());
    add_missing_model(&mut rows[1], missing);
    assert_eq!(exit(&rows), Exit::Unavailable);
    insta::assert_snapshot!(shown(&rows), @r"
    toy source (default): can be made ready
      why: the default pool names no model: it needs a pool file with `provisioning.model.ref`
      fix: write a pool file with `provisioning.model.ref`
    toy container: can be made ready
      why: there is no GPU
      why: the default pool names no model: it needs a pool file with `provisioning.model.ref`
      fix: let it
      fix: write a pool file with `provisioning.model.ref`
    ");
    let mut rows = judge(
        &info(),
        &facts(&[]),
        &Policy::default(),
        &plans[..1],
        None,
        false,
    );
    add_missing_model(&mut rows[0], MissingModel::not_here("./models"));
    assert_eq!(
        (rows[0].state, rows[0].would_run),
        (State::CanBeMade, false)
    );
    assert!(
        rows[0].reasons[0].contains("`./models` is not here"),
        "{rows:?}"
    );
}

#[test]
fn files_out_of_an_image_need_a_runtime_and_no_gpu_of_it() {
    let extract = || Plan {
        steps: vec![Step {
            id: "get".to_owned(),
            after: Vec::new(),
            act: Act::ExtractImage(engine_provider_api::ExtractImage::default()),
        }],
        ..Plan::default()
    };
    let state = |facts: &Facts| {
        let plans = [(Mode::Binary, Ok(extract()))];
        judge(&info(), facts, &Policy::default(), &plans, None, false)[0].state
    };
    let mut undescribed = recorded("podman-two-gpus.json");
    undescribed.containers.cdi_devices.clear();
    assert_eq!(state(&undescribed), State::Ready);
    assert_eq!(state(&recorded("debian-cpu.json")), State::CanBeMade);
}
