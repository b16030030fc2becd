//! Models: where they come from, and that nothing wrong is ever used.

use std::fs;

use e2e::{FileServer, Machine, sha256};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::stage;

const TINY: &[u8] = b"TINY model";

fn with_model(model: Value) -> (Machine, Value) {
    let (machine, _repository, mut pool) = stage();
    pool["provisioning"]["model"] = model;
    machine.write_pool(&pool);
    (machine, pool)
}

/// Provisions and gives what the engine says of its model.
fn answer(machine: &Machine, more: &[&str]) -> String {
    let mut running = machine.provision(more);
    let url = running.wait_ready();
    let answer = e2e::http_get(&format!("{url}/completion")).unwrap().1;
    let _ = running.end(Signal::INT).code(130);
    machine.assert_clean();
    answer
}

#[test]
fn a_relative_path_starts_at_the_pool_file_and_the_file_stays_as_it_is() {
    let (machine, _) = with_model(json!({"ref": "./models/tiny.gguf"}));
    let path = machine.work().join("models/tiny.gguf");
    fs::create_dir(path.parent().unwrap()).unwrap();
    fs::write(&path, TINY).unwrap();
    let before = fs::metadata(&path).unwrap();
    assert_eq!(answer(&machine, &[]), "hello from TINY\n");
    let after = fs::metadata(&path).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    assert_eq!(before.permissions(), after.permissions());
}

#[test]
fn a_file_that_only_its_owner_may_read_is_served_all_the_same() {
    use std::os::unix::fs::PermissionsExt;

    let (machine, _) = with_model(json!({"ref": "./tiny.gguf"}));
    let path = machine.work().join("tiny.gguf");
    fs::write(&path, TINY).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(answer(&machine, &[]), "hello from TINY\n");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "a user's own file was changed");
}

#[test]
fn a_flag_serves_another_model_than_the_pools() {
    let (machine, _) = with_model(json!({"ref": "builtin:haiku"}));
    let path = machine.work().join("tiny.gguf");
    fs::write(&path, TINY).unwrap();
    assert_eq!(
        answer(&machine, &["--model", "./tiny.gguf"]),
        "hello from TINY\n"
    );
    let file = format!("file:{}", path.display());
    assert_eq!(answer(&machine, &["--model", &file]), "hello from TINY\n");
}

#[test]
fn a_file_with_another_checksum_is_not_used() {
    let wrong = format!("sha256:{}", sha256(b"something else"));
    let (machine, _) = with_model(json!({"ref": "./tiny.gguf", "checksum": wrong}));
    fs::write(machine.work().join("tiny.gguf"), TINY).unwrap();
    let run = machine.run(&["provision"]).code(9);
    run.says("tiny.gguf is not the model it should be");
    run.says(&wrong);
    run.says(&sha256(TINY));
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_download_with_another_checksum_publishes_nothing() {
    let server = FileServer::start(TINY.to_vec());
    let wrong = format!("sha256:{}", sha256(b"something else"));
    let (machine, mut pool) =
        with_model(json!({"ref": server.url("tiny.gguf"), "checksum": wrong}));
    let run = machine.run(&["provision", "--log-format=json"]).code(9);
    let actions = run.actions();
    assert!(
        actions.iter().any(|action| action == "verify-failed"),
        "{actions:?}"
    );
    assert_eq!(machine.store().blobs(), Vec::<String>::new());
    machine.store().assert_sound();
    machine.assert_clean();

    // With the right one it is fetched once, and served from then on.
    pool["provisioning"]["model"]["checksum"] = format!("sha256:{}", sha256(TINY)).into();
    machine.write_pool(&pool);
    assert_eq!(answer(&machine, &[]), "hello from TINY\n");
    let requests = server.requests();
    assert_eq!(answer(&machine, &[]), "hello from TINY\n");
    assert_eq!(server.requests(), requests, "fetched again");
    machine.store().assert_sound();
}

#[test]
fn a_model_that_is_not_there_is_named_before_anything_is_built() {
    let (machine, _) = with_model(json!({"ref": "./missing.gguf"}));
    let run = machine.run(&["provision"]).code(11);
    run.says("there is no model file");
    run.says("missing.gguf");
    assert_eq!(machine.store().entries("build"), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_hub_that_is_out_of_reach_is_said_before_anything_is_done() {
    let (mut machine, _) = with_model(json!({"ref": "hf:owner/name/file.gguf"}));
    // Nobody listens there.
    machine.lend("HF_ENDPOINT", "http://127.0.0.1:9");
    let run = machine.run(&["provision"]).code(8);
    run.says("the hub could not be asked");
    run.says("see whether the host can be reached from here");
    assert_eq!(machine.store().entries("source"), Vec::<String>::new());
    machine.assert_clean();
}

#[test]
fn a_downloaded_engine_needs_permission_and_its_checksum() {
    let (machine, _repository, mut pool) = stage();
    machine.write_pool(&pool);
    let prepared = machine.run(&["prepare", "--json"]).code(0).json();
    let program = fs::read(prepared["command"]["bin"].as_str().unwrap()).unwrap();
    let digest = sha256(&program);
    let server = FileServer::start(program);

    let provisioning = pool["provisioning"].as_object_mut().unwrap();
    provisioning.remove("source");
    provisioning.insert("mode".to_owned(), "binary".into());
    let wrong = format!("sha256:{}", sha256(b"something else"));
    provisioning.insert(
        "binary".to_owned(),
        json!({"url": server.url("fixture-server"), "checksum": wrong}),
    );
    machine.write_pool(&pool);
    let blobs = machine.store().blobs();
    let run = machine.run(&["provision"]).code(4);
    run.says("downloading programs");
    run.says("--allow-binary-downloads");
    assert_eq!(server.requests(), 0, "asked before it was allowed");
    let run = machine
        .run(&["provision", "--allow-binary-downloads"])
        .code(9);
    run.says(&wrong);
    assert_eq!(machine.store().blobs(), blobs);
    machine.assert_clean();

    pool["provisioning"]["binary"]["checksum"] = format!("sha256:{digest}").into();
    machine.write_pool(&pool);
    let text = answer(&machine, &["--allow-binary-downloads"]);
    assert_eq!(text, "hello from GGUF\n");
    let version = machine
        .run(&["prepare", "--json", "--allow-binary-downloads"])
        .code(0)
        .json();
    assert_eq!(
        version["engine_version"],
        format!("1+sha256:{}", &digest[..12])
    );
    machine.store().assert_sound();
}
