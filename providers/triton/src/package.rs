//! `tritonserver` as a Python package: the wheel of PyTriton carries it with its Python back end.
//!
//! The back end's helper is linked with one version of Python and has to lie beside it, so a second
//! step puts the one for this machine there.

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, Attempt, BuildStep, Command, Facts, Mode, Observe, Output, ProcessLaunch, ProviderError,
    RequireTools, Step, Template, ToolProbe, ToolRequirement,
};
use engine_provider_kit::{
    observed,
    python::{self, Lock, VENV},
};

use crate::PREFLIGHT;

/// Step that puts the back ends together.
pub(crate) const BACKENDS: &str = "backends";
/// Step that sees whether the helper starts.
pub(crate) const STUB: &str = "observe-stub";
const TOOL: &str = "python";
const STUB_FILE: &str = "triton_python_backend_stub";

/// Version of the package, and of the server in it.
pub(crate) const VERSION: &str = "0.7.0";
pub(crate) const SERVER_VERSION: &str = "2.51.0";

/// Only what runs: the server, and the one module that Python models need.
const LOCK: &str = include_str!("requirements.txt");
/// Versions of Python that the wheel has a helper for and the list a numpy.
const PYTHONS: [&str; 4] = ["3.9", "3.10", "3.11", "3.12"];

pub(crate) fn tool() -> ToolProbe {
    ToolProbe {
        name: TOOL.to_owned(),
        programs: [
            "python3",
            "python3.12",
            "python3.11",
            "python3.10",
            "python3.9",
        ]
        .map(str::to_owned)
        .to_vec(),
        version_args: vec!["--version".to_owned()],
        extra_directories: Vec::new(),
        needed_by: vec![Mode::Package],
        packages: packages(),
    }
}

fn packages() -> BTreeMap<String, Vec<String>> {
    let table: [(&str, &[&str]); 3] = [
        ("apt", &["python3", "python3-venv", "libpython3-dev"]),
        ("dnf", &["python3", "python3-libs"]),
        ("pacman", &["python"]),
    ];
    let own = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    table
        .iter()
        .map(|(family, names)| ((*family).to_owned(), own(names)))
        .collect()
}

/// Python as the helper is named after, for example `3.11`; the usual one while it is not installed.
fn python(facts: &Facts) -> Result<String, ProviderError> {
    let Some(tool) = facts.tool(TOOL) else {
        return Ok("3.11".to_owned());
    };
    let short: Vec<&str> = tool.version.split('.').take(2).collect();
    let short = short.join(".");
    if PYTHONS.contains(&short.as_str()) {
        return Ok(short);
    }
    let (path, version) = (&tool.path, &tool.version);
    let message = format!(
        "Triton's package runs models with Python {} to {}, and {path} is {version}",
        PYTHONS[0],
        PYTHONS[PYTHONS.len() - 1]
    );
    Err(ProviderError::unavailable(message)
        .hint("put such a Python first on PATH, or set `provisioning.mode: container`"))
}

pub(crate) fn steps(facts: &Facts) -> Result<Vec<Step>, ProviderError> {
    if facts.os.arch != "x86_64" && !facts.os.arch.is_empty() {
        let message = format!(
            "Triton's package is made for x86_64, and this is {}",
            facts.os.arch
        );
        return Err(ProviderError::unavailable(message).hint("set `provisioning.mode: container`"));
    }
    let site = site(facts)?;
    let labels = BTreeMap::from([("package".to_owned(), format!("nvidia-pytriton=={VERSION}"))]);
    let step = |id: &str, act: Act| Step {
        id: id.to_owned(),
        after: Vec::new(),
        act,
    };
    let observe = Observe {
        program: format!("{{{BACKENDS}.path}}/backends/python/{STUB_FILE}").into(),
        env: environment(&site),
        timeout_ms: 20_000,
        ..Observe::default()
    };
    Ok(vec![
        step(
            PREFLIGHT,
            Act::RequireTools(RequireTools {
                tools: vec![ToolRequirement {
                    name: TOOL.to_owned(),
                    purpose: "to run Python models".to_owned(),
                    minimum_version: PYTHONS[0].to_owned(),
                    packages: packages(),
                    optional: false,
                }],
            }),
        ),
        python::environment(facts, TOOL, Lock::new(LOCK), labels),
        step(BACKENDS, Act::Build(backends(&site, &python(facts)?))),
        step(STUB, Act::Observe(observe)),
    ])
}

/// Copies the back end and, beside it, the helper for this Python.
fn backends(site: &str, python: &str) -> BuildStep {
    let script = "import os, shutil, sys\n\
                  source, stub, target = sys.argv[1:]\n\
                  shutil.copytree(source, target)\n\
                  stub = shutil.copy(stub, target)\n\
                  os.chmod(stub, 0o755)\n";
    let server = format!("{site}/pytriton/tritonserver");
    let command = Command {
        id: "place-backends".to_owned(),
        program: python::interpreter(),
        args: vec![
            "{work}/place.py".into(),
            format!("{server}/backends/python").into(),
            format!("{server}/python_backend_stubs/{python}/{STUB_FILE}").into(),
            "{work}/backends/python".into(),
        ],
        ..Command::default()
    };
    BuildStep {
        attempts: vec![Attempt {
            commands: vec![command],
            ..Attempt::default()
        }],
        outputs: vec!["backends".to_owned()],
        inputs: BTreeMap::from([("place.py".to_owned(), script.to_owned())]),
        ..BuildStep::default()
    }
}

/// Directory of the packages, with braces for the environment's place.
fn site(facts: &Facts) -> Result<String, ProviderError> {
    let python = python(facts)?;
    Ok(format!(
        "{{{VENV}.path}}/python/lib/python{python}/site-packages"
    ))
}

/// Libraries of the wheel, and numpy for the models: the helper starts its Python isolated, which reads no
/// `PYTHONPATH`, but looks for itself on `PATH` and takes the packages of the environment that it finds
/// itself in.
fn environment(site: &str) -> BTreeMap<String, Template> {
    BTreeMap::from([
        (
            "LD_LIBRARY_PATH".to_owned(),
            format!("{site}/nvidia_pytriton.libs").into(),
        ),
        (
            "PATH".to_owned(),
            format!("{{{VENV}.path}}/python/bin:/usr/bin:/bin").into(),
        ),
    ])
}

/// Refuses a machine on which the helper does not start.
pub(crate) fn check(stub: Option<&Output>, facts: &Facts) -> Result<(), ProviderError> {
    observed::started(stub, "the program that runs Python models", facts)
}

/// The process, but for the arguments that every mode has.
pub(crate) fn launch(
    facts: &Facts,
    mut args: Vec<Template>,
    given: BTreeMap<String, Template>,
) -> Result<ProcessLaunch, ProviderError> {
    let site = site(facts)?;
    args.extend([
        "--backend-directory".into(),
        format!("{{{BACKENDS}.path}}/backends").into(),
    ]);
    let mut env = environment(&site);
    env.extend(given);
    Ok(ProcessLaunch {
        program: format!("{site}/pytriton/tritonserver/bin/tritonserver").into(),
        args,
        env,
        ..ProcessLaunch::default()
    })
}
