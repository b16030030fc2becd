//! The llama-server that was built, obtained in every other way: it streams the same haiku out of an
//! archive, out of an image that is never run, and in containers.

use std::{fs, path::Path, process::Command};

use e2e::{ContainerKind, Containers, FileServer, Image, Machine, Registry, free_port, sha256};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{first::haiku, machine, program};

/// The program and its libraries where llama.cpp's images have them, and CUDA's, of which there is a
/// file here, where NVIDIA's have them: behind three links.
const IMAGE: &str = r#"
ldd "$1" | grep -o '/[^ ]*' | while read -r library; do install -D "$library" "$2$library"; done
install -D "$1" "$2/app/llama-server"
mkdir -m 1777 "$2/tmp"
cuda=/usr/local/cuda-12.8
mkdir -p "$2/etc/alternatives" "$2$cuda/targets/x86_64-linux/lib"
echo none >"$2$cuda/targets/x86_64-linux/lib/libcudart.so.12"
ln -s targets/x86_64-linux/lib "$2$cuda/lib64"
ln -s /etc/alternatives/cuda "$2/usr/local/cuda"
ln -s "$cuda" "$2/etc/alternatives/cuda"
"#;

/// The program where llama.cpp's releases have it.
const RELEASE: &str = r#"install -D "$1" "$2/llama-b10000/llama-server""#;

/// A compressed archive of the directory that a script fills.
fn archive(machine: &Machine, name: &str, script: &str) -> std::path::PathBuf {
    let directory = machine.root().join(name);
    let archive = machine.root().join(format!("{name}.tar.gz"));
    let frame =
        format!("set -eu\nmkdir \"$2\"\n{script}\ntar --owner=0 --group=0 -C \"$2\" -czf \"$3\" .");
    let status = Command::new("bash")
        .args(["-c", &frame, name])
        .args([program().as_path(), &directory, &archive])
        .status()
        .unwrap();
    assert!(status.success(), "{name}");
    archive
}

/// A server with the program as llama.cpp's releases have it, and where that is.
pub(crate) fn release(machine: &Machine) -> (FileServer, Value) {
    let archive = fs::read(archive(machine, "release", RELEASE)).unwrap();
    let digest = sha256(&archive);
    let server = FileServer::start(archive);
    let url = server.url("llama-b10000-bin-ubuntu-x64.tar.gz");
    let settings = json!({"url": url, "checksum": format!("sha256:{digest}")});
    (server, settings)
}

fn image(machine: &Machine) -> Image {
    let archive = archive(machine, "image", IMAGE);
    // As in llama.cpp's own: whoever forgets `--host` is reachable by everybody.
    let config = json!({
        "Env": ["PATH=/usr/bin:/bin", "LLAMA_ARG_HOST=0.0.0.0"],
        "Entrypoint": ["/app/llama-server"],
        "Labels": {"org.opencontainers.image.version": "b10000"},
    });
    Image::of_archives(&[&archive], config)
}

/// The haiku pool with these settings of provisioning.
pub(crate) fn pool(mode: &str, settings: Value) -> Value {
    json!({
        "id": "default", "engine": "llamacpp", "gpu": "forbid",
        "provisioning": {
            "mode": mode,
            mode: settings,
            "allow_binary_downloads": mode == "binary",
            "model": {"ref": "builtin:haiku"},
            "ports": [free_port()],
        },
    })
}

/// Asserts that the pool's engine streams the haiku of the one that was built; gives its handoff.
#[track_caller]
fn assert_same_haiku(machine: &Machine, pool: &Value) -> Value {
    machine.write_pool(pool);
    let mut running = machine.provision(&[]);
    assert_eq!(haiku(&running.wait_ready()), crate::expected_haiku());
    let handoff = machine.handoff();
    let observed = handoff["observed_version"].as_str().unwrap_or_default();
    assert!(observed.contains("0c1e570"), "{handoff}");
    running.end(Signal::INT).code(130).says("stopped");
    machine.assert_clean();
    handoff
}

#[test]
fn a_release_s_archive_streams_the_same_haiku_and_is_named_by_its_checksum() {
    let machine = machine();
    let (server, settings) = release(&machine);
    let pool = pool("binary", settings);
    let mut forbidden = pool.clone();
    forbidden["provisioning"]["allow_binary_downloads"] = json!(false);
    machine.write_pool(&forbidden);
    let run = machine.run(&["provision"]).code(4);
    run.says("allow_binary_downloads");
    assert_eq!(server.requests(), 0, "it was fetched all the same");

    let handoff = assert_same_haiku(&machine, &pool);
    let checksum = pool["provisioning"]["binary"]["checksum"].as_str().unwrap();
    let version = format!("b10000+{}", &checksum[.."sha256:".len() + 12]);
    assert_eq!(handoff["engine_version"], version, "{handoff}");
    let requests = server.requests();
    let _ = assert_same_haiku(&machine, &pool);
    assert_eq!(server.requests(), requests, "it was fetched again");
}

#[test]
fn a_program_is_taken_out_of_an_image_without_running_it() {
    for kind in ContainerKind::BOTH {
        let mut machine = machine();
        let (_containers, registry) = runtime(&mut machine, kind);
        let digest = registry.push("ggml-org/llama.cpp", "server-cuda-b10000", &image(&machine));
        let settings = json!({"image": {
            "image": format!("{}/ggml-org/llama.cpp", registry.address()),
            "tag": "server-cuda-b10000",
            "digest": digest,
            "runtime": kind.name(),
        }});
        let handoff = assert_same_haiku(&machine, &pool("binary", settings));
        let version = format!("b10000+{}", &digest[.."sha256:".len() + 12]);
        assert_eq!(handoff["engine_version"], version, "{handoff}");
        let archives = machine.home().join("store/archive");
        let taken = machine.files_below(&archives);
        let library = "/usr/local/cuda/lib64/libcudart.so.12";
        assert!(
            taken.iter().any(|file| file.ends_with(library)),
            "{taken:?}"
        );
    }
}

/// A runtime of one's own, lent to the machine, and a registry that it trusts.
fn runtime(machine: &mut Machine, kind: ContainerKind) -> (Containers, Registry) {
    let containers = Containers::new(kind, machine.root());
    let registry = Registry::open();
    containers.trust(&registry);
    containers.lend(machine);
    (containers, registry)
}

#[test]
fn containers_stream_the_same_haiku_under_podman_and_docker() {
    let image = image(&machine());
    for kind in ContainerKind::BOTH {
        let mut machine = machine();
        let (_containers, registry) = runtime(&mut machine, kind);
        let digest = registry.push("ggml-org/llama.cpp", "server-b10000", &image);
        let settings = json!({
            "image": format!("{}/ggml-org/llama.cpp", registry.address()),
            "digest": digest,
            "runtime": kind.name(),
        });
        let handoff = assert_same_haiku(&machine, &pool("container", settings));
        assert_eq!(handoff["engine_version"], digest, "{handoff}");
        assert!(Path::new(handoff["model"]["path"].as_str().unwrap()).is_file());
    }
}
