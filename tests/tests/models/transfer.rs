//! Downloads that are killed, shared, too large for the disk, behind real servers.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use e2e::{
    FileServer, Machine, RUN_LIMIT, Reply, Repository, Run, fixture_pool, free_port, noise, sha256,
    wait_for,
};
use rustix::process::Signal;
use serde_json::{Value, json};

/// Enough for several connections.
pub(crate) const SIZE: usize = 40 << 20;

/// Most bytes read of a model to know what it is.
const LOOK_LIMIT_BYTES: u64 = 1 << 20;

/// A machine whose engine is built, so that only models are to be had.
struct Stage {
    machine: Machine,
    pool: Value,
    /// Models that came with the engine.
    own: Vec<String>,
    _repository: Repository,
}

impl Stage {
    fn new() -> Self {
        Self::on(Machine::new())
    }

    fn on(machine: Machine) -> Self {
        let repository = Repository::create(machine.root());
        let mut stage = Self {
            pool: fixture_pool(&repository),
            own: Vec::new(),
            machine,
            _repository: repository,
        };
        stage.machine.write_pool(&stage.pool);
        let _ = stage.prepare().code(0);
        stage.own = stage.blobs();
        stage
    }

    /// Makes this the pool's model.
    fn wants(&self, url: &str, sha256: &str) {
        let mut pool = self.pool.clone();
        let checksum = format!("sha256:{sha256}");
        pool["provisioning"]["model"] = json!({"ref": url, "checksum": checksum});
        self.machine.write_pool(&pool);
    }

    fn prepare(&self) -> Run {
        self.machine.run(&["prepare"])
    }

    /// Models that were fetched.
    fn blobs(&self) -> Vec<String> {
        let mut names = self.machine.store().blobs();
        names.retain(|name| !self.own.contains(name));
        names
    }
}

#[test]
fn killed_at_any_instant_a_download_goes_on_and_nothing_unverified_is_published() {
    e2e::kill_downloads(0..20);
}

#[test]
fn killed_at_any_instant_a_directory_goes_on_and_nothing_is_published_by_halves() {
    e2e::kill_directories(0..8);
}

#[test]
fn two_processes_that_want_one_model_fetch_it_once() {
    let stage = Stage::new();
    let bytes = noise(1000, SIZE);
    let digest = sha256(&bytes);
    let server = FileServer::slow(bytes, Duration::from_millis(20));
    stage.wants(&server.url("m.gguf"), &digest);
    let start = || stage.machine.start(stage.machine.command(&["prepare"]));
    let both = [start(), start()];
    for one in both {
        let _ = one.finish(RUN_LIMIT).code(0);
    }
    // Each looks at the first bytes beforehand: what the model is.
    let looks = server.sent_in_all() - SIZE as u64;
    assert!(
        looks <= 2 * LOOK_LIMIT_BYTES,
        "{looks} bytes beside the one transfer"
    );
    assert_eq!(stage.blobs(), [digest]);
}

/// A file system of its own for a store.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: &Path, mebibytes: u32) -> Self {
        fs::create_dir_all(at).unwrap();
        run_as_root(
            &["mount", "-t", "tmpfs", "-o", &size_of(mebibytes), "tmpfs"],
            at,
        );
        Self(at.to_owned())
    }

    fn resize(&self, mebibytes: u32) {
        let options = format!("remount,{}", size_of(mebibytes));
        run_as_root(&["mount", "-o", &options], &self.0);
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

fn size_of(mebibytes: u32) -> String {
    format!("size={mebibytes}m,mode=755")
}

fn run_as_root(words: &[&str], at: &Path) {
    let mut command = Command::new(words[0]);
    let status = command.args(&words[1..]).arg(at).status().unwrap();
    assert!(status.success(), "{words:?} needs root");
}

#[test]
fn a_full_disk_is_said_and_harms_nothing_and_more_space_is_enough() {
    let machine = Machine::new();
    let tmpfs = Tmpfs::mount(&machine.home().join("store"), 32);
    let stage = Stage::on(machine);
    let entries = stage.machine.store().fingerprint();
    let bytes = noise(2000, SIZE);
    let digest = sha256(&bytes);
    // Told before the first byte is kept.
    let sized = FileServer::start(bytes.clone());
    stage.wants(&sized.url("m.gguf"), &digest);
    let run = stage.prepare().code(14);
    run.says("no space left");
    run.says("HOST_HOME");
    assert_eq!(stage.blobs(), [""; 0]);
    assert_eq!(stage.machine.store().partial(), [""; 0]);
    // Nobody could tell: the disk runs full on the way.
    let server = FileServer::start(bytes.clone());
    server.spoil(move |_, _| Reply::of(200, bytes.clone()).telling(None));
    stage.wants(&server.url("m.gguf"), &digest);
    let run = stage.prepare().code(14);
    run.says("no space left");
    assert_eq!(stage.blobs(), [""; 0]);
    // What else there is still works.
    stage.machine.write_pool(&stage.pool);
    let _ = stage.prepare().code(0);
    assert_eq!(stage.machine.store().fingerprint(), entries);
    // What came before is not asked for twice: with it there is room for all, without it there is not.
    tmpfs.resize(56);
    stage.wants(&sized.url("m.gguf"), &digest);
    let before = sized.sent_in_all();
    let _ = stage.prepare().code(0);
    assert_eq!(stage.blobs(), [digest]);
    let fetched = sized.sent_in_all() - before;
    assert!(fetched < SIZE as u64, "nothing was resumed");
}

/// A real web server.
pub(crate) struct Nginx {
    child: Child,
    pub(crate) port: u16,
}

impl Nginx {
    /// Serves the files of a directory; `more` goes into its server block.
    pub(crate) fn start(directory: &Path, more: &str) -> Self {
        let port = free_port();
        let at = directory.display();
        let text = format!(
            "daemon off; worker_processes 1; pid {at}/pid; error_log stderr;\n\
             events {{}}\n\
             http {{ access_log off; client_body_temp_path {at}/b; proxy_temp_path {at}/p;\n\
             fastcgi_temp_path {at}/f; uwsgi_temp_path {at}/u; scgi_temp_path {at}/s;\n\
             server {{ listen 127.0.0.1:{port}{more} root {at}/files; }} }}\n"
        );
        let configuration = directory.join(format!("nginx-{port}.conf"));
        fs::write(&configuration, text).unwrap();
        let log = directory.join(format!("nginx-{port}.log"));
        let mut child = Command::new("/usr/sbin/nginx")
            .arg("-c")
            .arg(&configuration)
            .args(["-p", directory.to_str().unwrap(), "-g", "user root;"])
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .expect("scripts/setup-tests installs nginx");
        wait_for("nginx", RUN_LIMIT, || {
            let said = fs::read_to_string(&log).unwrap();
            assert_eq!(child.try_wait().unwrap(), None, "nginx ended:\n{said}");
            std::net::TcpStream::connect(("127.0.0.1", port)).map_err(|_| said)
        });
        Self { child, port }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // Asked to end, it takes its worker along.
        e2e::signal(self.child.id(), Signal::TERM);
        let _ = self.child.wait();
    }
}

pub(crate) fn files(machine: &Machine, seed: u64) -> (PathBuf, String) {
    let directory = machine.root().join(format!("nginx-{seed}"));
    fs::create_dir_all(directory.join("files")).unwrap();
    let bytes = noise(seed, SIZE);
    fs::write(directory.join("files/m.gguf"), &bytes).unwrap();
    (directory, sha256(&bytes))
}

#[test]
fn nginx_with_and_without_ranges_gives_the_file() {
    let stage = Stage::new();
    for (seed, more) in [(3000, ";"), (3001, "; max_ranges 0;")] {
        let (directory, digest) = files(&stage.machine, seed);
        let nginx = Nginx::start(&directory, more);
        stage.wants(&format!("http://127.0.0.1:{}/m.gguf", nginx.port), &digest);
        let _ = stage.prepare().code(0);
        assert!(stage.blobs().contains(&digest));
    }
}

/// Makes an authority (`ca.pem`) and what it says of a host (`cert.pem`).
pub(crate) fn certify(directory: &Path, host: &str) {
    let empty = "[req]\ndistinguished_name = dn\n[dn]\n";
    fs::write(directory.join("openssl.cnf"), empty).unwrap();
    let openssl = |name: &str, more: &[&str]| {
        let (key, out) = (format!("{name}-key.pem"), format!("{name}.pem"));
        let made = Command::new("openssl")
            .current_dir(directory)
            .args([
                "req",
                "-config",
                "openssl.cnf",
                "-x509",
                "-days",
                "2",
                "-nodes",
            ])
            .args(["-newkey", "rsa:2048", "-keyout", &key, "-out", &out])
            .args(more)
            .stderr(Stdio::null())
            .status();
        assert!(made.unwrap().success(), "{name}");
    };
    let is_authority = "basicConstraints=critical,CA:TRUE";
    openssl(
        "ca",
        &["-subj", "/CN=test authority", "-addext", is_authority],
    );
    let by = ["-CA", "ca.pem", "-CAkey", "ca-key.pem"];
    let (subject, name) = (format!("/CN={host}"), format!("subjectAltName=DNS:{host}"));
    let of = ["-subj", &subject, "-addext", &name];
    openssl("cert", &[of, by].concat());
}

#[test]
fn nginx_with_tls_is_trusted_by_its_authority_alone_and_never_left_for_http() {
    let mut stage = Stage::new();
    let (directory, digest) = files(&stage.machine, 4000);
    let path = |name: &str| directory.join(name).display().to_string();
    certify(&directory, "localhost");
    let more = format!(
        " ssl; ssl_certificate {}; ssl_certificate_key {};\n\
         location /away.gguf {{ return 302 http://models.invalid/m; }}",
        path("cert.pem"),
        path("cert-key.pem")
    );
    let nginx = Nginx::start(&directory, &more);
    let url = |name: &str| format!("https://localhost:{}/{name}", nginx.port);
    stage.wants(&url("m.gguf"), &digest);
    let run = stage.prepare().code(8);
    run.says("certificate");
    fs::create_dir(directory.join("trusted")).unwrap();
    fs::copy(path("ca.pem"), path("trusted/5ed36f99.0")).unwrap();
    stage.machine.lend("SSL_CERT_DIR", &path("trusted"));
    stage.wants(&url("away.gguf"), &digest);
    let run = stage.prepare().code(8);
    run.says("away from https");
    stage.machine.lend("SSL_CERT_DIR", "/nowhere");
    let run = stage.prepare().code(3);
    run.says("SSL_CERT_DIR");
    stage.machine.lend("SSL_CERT_DIR", "");
    stage.machine.lend("SSL_CERT_FILE", &path("ca.pem"));
    stage.wants(&url("m.gguf"), &digest);
    let _ = stage.prepare().code(0);
    assert_eq!(stage.blobs(), [digest]);
}
