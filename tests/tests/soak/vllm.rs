//! The real vLLM on the processor, from its packages, asked by the real `openai` client.
//!
//! Six gigabytes of packages are installed below a temporary directory and removed with it. The model is
//! made here: two layers of random weights and a tokenizer that knows bytes.

mod model;

use std::{
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use e2e::{Machine, free_port, repository_root};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Longest time for 170 packages and the first start, which compiles kernels, on two busy processors.
const READY_LIMIT: Duration = Duration::from_secs(40 * 60);

/// Time between TERM and KILL. An engine that is gone sooner has ended by itself.
const GRACE: Duration = Duration::from_secs(20);

/// What is asked of the engine, by the client that most people use.
const CLIENT: &str = r#"
import json, sys
from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none")

def ask():
    chunks = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Say something."}],
        max_tokens=24, temperature=1.0, seed=7, stream=True)
    return [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]

first, second = ask(), ask()
print(json.dumps({
    "models": [model.id for model in client.models.list()],
    "chunks": len([text for text in first if text]),
    # How tokens are gathered into chunks is a matter of timing; the text is not.
    "texts": ["".join(first), "".join(second)],
}))
"#;

#[test]
fn vllm_from_packages_streams_to_the_openai_client_and_ends_by_itself() {
    let machine = Machine::new().networked();
    let directory = machine.root().join("tiny");
    model::write(&directory);
    let port = free_port();
    machine.write_pool(&json!({
        "id": "default",
        "engine": "vllm",
        "model": "tiny",
        "ctx": 256,
        "readiness": { "stall_timeout": "10m" },
        "stop": { "grace": format!("{}s", GRACE.as_secs()) },
        "provisioning": {
            "model": { "ref": format!("file:{}", directory.display()) },
            "ports": [port],
            "env": { "VLLM_CPU_KVCACHE_SPACE": "1", "TMPDIR": temporary(machine.root()) },
        },
    }));
    let begun = Instant::now();
    let mut running = machine.start(command(
        &machine,
        &[
            "provision",
            "--provider=vllm",
            "--mode=package",
            "--gpu=forbid",
        ],
    ));
    let log = Log(machine.home().join("logs/default-r0/latest.log"));
    let url = running.wait_ready_for(READY_LIMIT);
    println!("ready after {:.0} s", begun.elapsed().as_secs_f64());

    let handoff = machine.handoff();
    assert_eq!(handoff["engine"], "vllm");
    assert_eq!(handoff["engine_version"], "0.32.0");
    assert_eq!(handoff["observed_version"], "0.32.0");
    assert_eq!(handoff["provisioning_mode"], "package");
    assert_eq!(handoff["model"]["id"], "tiny");
    assert_eq!(handoff["slots_total"], 1);

    let answer = ask(&machine, &url);
    assert_eq!(answer["models"], json!(["tiny"]));
    assert!(answer["chunks"].as_u64().unwrap() > 1, "{answer}");
    let texts = &answer["texts"];
    assert_eq!(texts[0], texts[1], "profile deterministic");
    drop(log);

    let stopping = Instant::now();
    let run = running.end(Signal::TERM).code(143);
    let took = stopping.elapsed();
    println!("stopped in {:.1} s\n{}", took.as_secs_f64(), run.stderr);
    assert!(took < GRACE, "it was killed");
    assert!(machine.processes().is_empty());
    assert!(machine.handoffs().is_empty());

    let again = machine.start(command(
        &machine,
        &[
            "plan",
            "--json",
            "--offline",
            "--gpu=forbid",
            "--mode=package",
        ],
    ));
    let plan = again.finish(e2e::RUN_LIMIT).code(0).json();
    let install = plan["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["id"] == "pip-install")
        .expect("pip is planned");
    assert_eq!(install["state"], "cached", "without network: {install}");
}

/// Where the engine keeps compiled headers and sockets, which it leaves behind: they go with the machine.
fn temporary(root: &Path) -> String {
    let directory = root.join("tmp");
    fs::create_dir(&directory).unwrap();
    // The engine of a root host runs under another user.
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o1777)).unwrap();
    directory
        .to_str()
        .expect("test directories are UTF-8")
        .to_owned()
}

/// The engine's log, shown where the test fails: it is gone with the machine.
struct Log(PathBuf);

impl Drop for Log {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = fs::read_to_string(&self.0).unwrap_or_default();
            eprintln!("{}:\n{text}", self.0.display());
        }
    }
}

/// The program, which finds the Python that `scripts/setup-vllm` found or laid out.
fn command(machine: &Machine, arguments: &[&str]) -> Command {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = std::iter::once(python().parent().unwrap().to_owned());
    let path = env::join_paths(directories.chain(env::split_paths(&path))).unwrap();
    let mut command = machine.command(arguments);
    command.env("PATH", path);
    command
}

fn python() -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| repository_root().join("target"));
    let python = target.join("python-3.12/bin/python3.12");
    assert!(python.is_file(), "run scripts/setup-vllm first");
    python
}

/// Installs the client and asks with it.
fn ask(machine: &Machine, url: &str) -> Value {
    let client = machine.root().join("client");
    done(Command::new(python()).args(["-m", "venv"]).arg(&client));
    let pip = ["-m", "pip", "install", "--quiet", "openai"];
    done(Command::new(client.join("bin/python")).args(pip));
    let script = machine.root().join("ask.py");
    fs::write(&script, CLIENT).unwrap();
    let said = done(
        Command::new(client.join("bin/python"))
            .arg(&script)
            .arg(url),
    );
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"))
}

fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}:\n{said}{complained}");
    said
}
