//! Models in buckets and in registries: real servers that verify who asks, real clients that fill them.

use std::{fs, path::PathBuf, process::Command};

use e2e::{
    CREDENTIALS, Machine, Registry, Repository, S3_KEYS, S3Server, basic, fixture_pool, http_get,
    repository_root, sha256,
};
use rustix::process::Signal;
use serde_json::{Value, json};

const TINY: &[u8] = b"TINY model";

fn add(machine: &Machine, more: &[&str]) -> Value {
    let arguments = [&["model", "add", "--json"], more].concat();
    machine.run(&arguments).code(0).json()
}

fn path(added: &Value) -> PathBuf {
    added["path"].as_str().unwrap().into()
}

/// No key, password or signature is in any file that the program wrote.
fn assert_no_secret(machine: &Machine) {
    for name in machine.files_below(&machine.home()) {
        let content = fs::read(machine.home().join(&name)).unwrap_or_default();
        let text = String::from_utf8_lossy(&content);
        for secret in [S3_KEYS.1, CREDENTIALS.1, &basic(), "X-Amz-Signature"] {
            assert!(!text.contains(secret), "{name} has {secret}");
        }
    }
}

#[test]
fn an_object_is_verified_kept_and_needs_nobody_any_more() {
    let server = S3Server::start();
    let mut machine = Machine::new();
    server.lend(&mut machine);
    server.upload("lm/tiny.gguf", TINY);
    let added = add(&machine, &["s3://models/lm/tiny.gguf"]);
    assert_eq!(fs::read(path(&added)).unwrap(), TINY);
    assert_eq!(added["digest"], format!("sha256:{}", sha256(TINY)));
    assert_no_secret(&machine);
    drop(server);
    let again = add(&machine, &["s3://models/lm/tiny.gguf", "--offline"]);
    assert_eq!(again["path"], added["path"]);
    machine.store().assert_sound();
    machine.assert_clean();
}

#[test]
fn what_lies_below_a_prefix_is_a_model_for_engines_that_read_a_directory() {
    let server = S3Server::start();
    let mut machine = Machine::new();
    server.lend(&mut machine);
    for name in ["config.json", "w/1.safetensors"] {
        server.upload(&format!("lm/{name}"), name.as_bytes());
    }
    let added = add(&machine, &["s3://models/lm/", "--as", "directory"]);
    for name in ["config.json", "w/1.safetensors"] {
        let content = fs::read(path(&added).join(name)).unwrap();
        assert_eq!(content, name.as_bytes());
    }
    machine.assert_clean();
}

#[test]
fn keys_that_are_wrong_and_objects_that_are_missing_leave_nothing_behind() {
    let server = S3Server::start();
    let mut machine = Machine::new();
    server.lend(&mut machine);
    server.upload("tiny.gguf", TINY);
    let run = machine
        .run(&["model", "add", "s3://models/other.gguf"])
        .code(11);
    run.says("there is no s3://models/other.gguf");
    machine.lend("AWS_SECRET_ACCESS_KEY", "wrong-secret-key");
    let run = machine
        .run(&["model", "add", "s3://models/tiny.gguf"])
        .code(8);
    run.says("refuses the signature: the secret key is wrong");
    run.says("AWS_ACCESS_KEY_ID of the environment");
    assert!(!run.stderr.contains("wrong-secret-key"), "{}", run.stderr);
    machine.lend("AWS_NO_SIGN_REQUEST", "true");
    let run = machine
        .run(&["model", "add", "s3://models/tiny.gguf"])
        .code(8);
    run.says("access to s3://models/tiny.gguf is denied");
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn an_object_that_is_not_what_its_server_says_is_refused() {
    let server = S3Server::start();
    let mut machine = Machine::new();
    server.lend(&mut machine);
    server.upload("tiny.gguf", TINY);
    fs::write(server.object("tiny.gguf"), b"TIMY model").unwrap();
    let run = machine
        .run(&["model", "add", "s3://models/tiny.gguf"])
        .code(9);
    run.says(&sha256(TINY));
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
}

/// A machine with a pool whose model is all below a prefix, in two parts.
fn prefixed(server: &S3Server) -> (Machine, Repository) {
    let mut machine = Machine::new();
    server.lend(&mut machine);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": "s3://models/lm/"});
    machine.write_pool(&pool);
    (machine, repository)
}

#[test]
fn what_is_locked_below_a_prefix_is_had_on_another_machine_after_it_was_replaced() {
    let server = S3Server::with_versions();
    let parts = ["lm/m-00001-of-00002.gguf", "lm/m-00002-of-00002.gguf"];
    server.upload(parts[0], b"TINY model");
    server.upload(parts[1], b"and more of it");
    let (machine, _repository) = prefixed(&server);
    let _ = machine.run(&["lock"]).code(0);
    let text = fs::read_to_string(machine.work().join("host.lock")).unwrap();
    let versions = text.lines().filter(|line| line.starts_with("version = \""));
    // One is the provider's.
    assert_eq!(versions.count(), 3, "{text}");
    let _ = machine.run(&["lock", "--check"]).code(0);

    server.upload(parts[0], b"EVIL model");
    server.delete(parts[1]);
    for options in [&["--locked"][..], &[]] {
        let (other, _repository) = prefixed(&server);
        other.write("host.lock", &relocated(&text, &machine, &other));
        let run = other
            .run(&[&["prepare", "--json"], options].concat())
            .code(0);
        let path = PathBuf::from(model_of(&run.json()));
        assert_eq!(fs::read(&path).unwrap(), b"TINY model");
        let second = path.with_file_name("m-00002-of-00002.gguf");
        assert_eq!(fs::read(second).unwrap(), b"and more of it");
        other.assert_clean();
    }
    // Asked for what there is now, the lock takes that.
    let run = machine.run(&["lock", "--update", "default.model"]);
    run.code(3).says("m-00002-of-00002.gguf");
    server.upload(parts[1], b"and another end");
    let run = machine.run(&["lock", "--update", "default.model"]);
    run.code(0)
        .prints("~ model.files.m-00002-of-00002.gguf.version");
}

/// Where a prepared pool's model is.
fn model_of(prepared: &Value) -> String {
    let artifacts = prepared["artifacts"].as_object().unwrap().values();
    let mut paths = artifacts.filter_map(|artifact| artifact["path"].as_str());
    paths
        .find(|path| path.ends_with(".gguf"))
        .unwrap()
        .to_owned()
}

/// A lock file for a machine whose repository lies elsewhere.
fn relocated(text: &str, from: &Machine, to: &Machine) -> String {
    let text = text.replace(from.root().to_str().unwrap(), to.root().to_str().unwrap());
    let lines = text.lines().filter(|line| !line.starts_with("seal = "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_pool_serves_a_model_from_a_bucket() {
    let server = S3Server::start();
    let mut machine = Machine::new();
    server.lend(&mut machine);
    server.upload("tiny.gguf", TINY);
    let repository = Repository::create(machine.root());
    let mut pool = fixture_pool(&repository);
    pool["provisioning"]["model"] = json!({"ref": "s3://models/tiny.gguf"});
    machine.write_pool(&pool);
    let mut running = machine.provision(&[]);
    let url = running.wait_ready();
    let answer = http_get(&format!("{url}/completion")).unwrap().1;
    assert_eq!(answer, "hello from TINY\n");
    let _ = running.end(Signal::INT).code(130);
    assert_no_secret(&machine);
    machine.assert_clean();
}

/// Credentials for a registry, as `podman login` writes them.
fn log_in(machine: &mut Machine, registry: &Registry, auth: &str) {
    let text = json!({"auths": {registry.address(): {"auth": auth}}}).to_string();
    let file = machine.write("auth.json", &text);
    machine.lend("REGISTRY_AUTH_FILE", file.to_str().unwrap());
}

#[test]
fn an_artifact_of_a_registry_that_wants_a_login_is_pinned_to_its_digest() {
    let registry = Registry::private();
    let digest = registry.push_artifact("lm", "1", &[("tiny.gguf", TINY)]);
    let reference = format!("oci://{}/lm:1", registry.address());
    let mut machine = Machine::new();
    let run = machine.run(&["model", "add", &reference]).code(8);
    run.says("podman login");
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    log_in(&mut machine, &registry, &basic());
    let added = add(&machine, &[&reference]);
    assert_eq!(fs::read(path(&added)).unwrap(), TINY);
    let pinned = format!("oci://{}/lm@{digest}", registry.address());
    let shown = machine
        .run(&["model", "show", &reference, "--json"])
        .code(0);
    assert!(shown.stdout.contains(&pinned), "{}", shown.stdout);
    assert_no_secret(&machine);
    let missing = format!("oci://{}/none:1", registry.address());
    let run = machine.run(&["model", "add", &missing]).code(11);
    run.says("compare name and tag with what its publisher lists");
    machine.assert_clean();
}

#[test]
fn a_layer_that_is_not_what_its_digest_says_is_refused() {
    let registry = Registry::open();
    registry.push_artifact("lm", "1", &[("tiny.gguf", TINY)]);
    fs::write(
        registry.blob(&format!("sha256:{}", sha256(TINY))),
        b"TIMY model",
    )
    .unwrap();
    let machine = Machine::new();
    let reference = format!("oci://{}/lm:1", registry.address());
    let run = machine.run(&["model", "add", &reference]).code(9);
    run.says(&sha256(TINY));
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
}

/// Pushes every file named, in this directory, with the OCI project's own client for Python.
const PUSH: &str = "
import sys, oras.client
oras.client.OrasClient(insecure=True, tls_verify=False).push(
    target=sys.argv[1], files=sys.argv[2:], disable_path_validation=True)
";

#[test]
fn what_the_real_client_of_oras_pushes_is_a_model() {
    let registry = Registry::open();
    let machine = Machine::new();
    machine.write("config.json", "{}");
    machine.write("m.safetensors", "weights");
    // A directory goes as an archive.
    fs::create_dir(machine.work().join("onnx")).unwrap();
    machine.write("onnx/model.onnx", "more weights");
    let target = std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| repository_root().join("target"), PathBuf::from);
    let output = Command::new(target.join("oras-client/bin/python"))
        .args(["-c", PUSH, &format!("{}/lm:1", registry.address())])
        .args(["config.json", "m.safetensors", "onnx"])
        .current_dir(machine.work())
        .output()
        .expect("scripts/setup-tests installs the client");
    assert!(output.status.success(), "{output:?}");
    let reference = format!("oci://{}/lm:1", registry.address());
    let added = add(&machine, &[&reference, "--as", "directory"]);
    assert_eq!(fs::read(path(&added).join("config.json")).unwrap(), b"{}");
    assert_eq!(
        fs::read(path(&added).join("m.safetensors")).unwrap(),
        b"weights"
    );
    assert_eq!(
        fs::read(path(&added).join("onnx/model.onnx")).unwrap(),
        b"more weights"
    );
    machine.assert_clean();
}
