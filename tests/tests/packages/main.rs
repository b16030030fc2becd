//! Engines that come as downloads and as packages of the distribution: llama.cpp's provider, a real
//! pacman, and a stand-in for the program that behaves like it where the host looks. And builds whose
//! result may not be moved, as packages of other kinds are.

mod apt;
mod archive;
mod download;
mod in_place;
mod pacman;

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use e2e::{Built, Machine};
use serde_json::{Value, json};

/// What the stand-in says of itself: the build, the flags it knows, no device.
const SERVER: &str = r#"#!/bin/sh
case "$1" in
--version) echo 'version: 7000 (build 7000, commit 0123456)' >&2 ;;
--help) printf -- '--host HOST                 ip address to listen\n--port PORT                 port to listen\n-m,    --model FNAME         model path\n' ;;
--list-devices) echo 'Available devices:' ;;
*) exec "${0%/*}/llama-stand-in" "$@" ;;
esac
"#;

/// The program that the stand-in becomes when it serves.
fn stand_in() -> Vec<u8> {
    let path = Built::debug().directory.join("fake-engine");
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Makes the directory of a package's programs, with those of the stand-in.
fn write_programs(bin: &Path) {
    fs::create_dir_all(bin).unwrap();
    for (name, content) in [
        ("llama-server", SERVER.as_bytes()),
        ("llama-stand-in", &stand_in()),
    ] {
        let path = bin.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// A pool of llama.cpp in a mode, on the processor.
fn pool(mode: &str, settings: Value) -> Value {
    json!({
        "id": "default",
        "engine": "llamacpp",
        "gpu": "forbid",
        "provisioning": {
            "mode": mode,
            "model": {"ref": "builtin:haiku"},
            "ports": [e2e::free_port()],
            mode: settings,
        },
    })
}

/// The state and the detail of a step of a plan.
fn state(plan: &Value, step: &str) -> (String, String) {
    let steps = plan["steps"].as_array().unwrap();
    let step = steps
        .iter()
        .find(|candidate| candidate["id"] == step)
        .unwrap_or_else(|| panic!("no step {step} in {plan:#}"));
    let text = |name: &str| step[name].as_str().unwrap().to_owned();
    (text("state"), text("detail"))
}

/// Asserts that a refused download left nothing: no result, no part of it, no work.
#[track_caller]
fn assert_nothing_kept(machine: &Machine) {
    for name in ["archive", "partial", "tmp"] {
        let left: Vec<PathBuf> = fs::read_dir(machine.home().join("store").join(name))
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new());
    }
    machine.store().assert_sound();
    machine.assert_clean();
}
