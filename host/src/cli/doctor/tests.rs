use engine_provider_api::{
    PackageManager, Pool, PullImage, RequireTools, Step, Tool, ToolRequirement,
};

use super::*;
use crate::policy::{Origin, Setting};

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
    write(&mut out, rows, Form::Human, &called).unwrap();
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
        false,
    );
    assert_eq!(rows[0].state, State::Ready);
    assert_eq!(exit(&rows), Exit::Success);
    assert_eq!(shown(&rows), "toy source (default): ready\n");
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
    let rows = judge(&info(), &facts, &Policy::default(), &plans, false);
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
    let rows = judge(&info(), &facts(&[]), &policy, &plans, true);
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
    let rows = judge(&info(), &facts(&[]), &Policy::default(), &plans, false);
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
    shown(&judge(&info(), &facts, policy, &plans, false))
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
