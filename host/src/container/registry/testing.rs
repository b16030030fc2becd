//! A real registry on loopback, and tiny images pushed to it by hand.

mod tokens;

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::Duration,
};

use flate2::{Compression, write::GzEncoder};
use reqwest::{Client, Method, Response};
use serde_json::{Value, json};
use tempfile::TempDir;

use self::tokens::Issuer;
use crate::{
    act::tests::which,
    net::{Digest, testing::FreePort},
};

pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Debian's `docker-registry`, ended when this is dropped.
pub(crate) struct Registry {
    child: Child,
    directory: TempDir,
    port: FreePort,
    address: String,
    /// `Authorization` of who pushes.
    login: Option<String>,
    scheme: &'static str,
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// An image that was pushed.
pub(crate) struct Pushed {
    pub(crate) manifest: Digest,
    pub(crate) configuration: Digest,
    pub(crate) layer: Digest,
    pub(crate) size: usize,
}

impl Registry {
    /// A registry that everybody may use.
    pub(crate) fn open() -> Self {
        Self::start(tempfile::tempdir().unwrap(), None, false)
    }

    /// A registry that wants tokens of its own service, which everybody gets for the repository; how
    /// long each lives is said whenever one is given out.
    pub(crate) fn with_tokens(
        repository: &str,
        lifetime: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let issuer = Issuer::serve(directory.path(), repository, lifetime);
        let mut registry = Self::start(directory, Some(issuer.wanted()), false);
        let token = issuer.token(Duration::from_secs(3600));
        registry.login = Some(format!("Bearer {token}"));
        registry
    }

    /// A registry that wants this user and password.
    pub(crate) fn guarded(user: &str, password: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("htpasswd");
        fs::write(&file, htpasswd(user, password)).unwrap();
        let auth = json!({"htpasswd": {"realm": "test", "path": file}});
        let mut registry = Self::start(directory, Some(auth), false);
        let pair = crate::container::basic(user, password);
        registry.login = Some(format!("Basic {pair}"));
        registry
    }

    /// A registry that speaks TLS alone, with a certificate that nobody has signed; gives that too.
    pub(crate) fn encrypted() -> (Self, PathBuf) {
        let registry = Self::start(tempfile::tempdir().unwrap(), None, true);
        let certificate = registry.directory.path().join("server.crt");
        (registry, certificate)
    }

    fn start(directory: TempDir, auth: Option<Value>, tls: bool) -> Self {
        let path = |name: &str| directory.path().join(name);
        let port = FreePort::at(Ipv4Addr::LOCALHOST);
        let address = port.address().to_string();
        let mut config = json!({"version": 0.1, "log": {"level": "warn"},
            "storage": {"filesystem": {"rootdirectory": path("storage")}, "delete": {"enabled": true}},
            "http": {"addr": address, "secret": "test"}});
        if let Some(auth) = auth {
            config["auth"] = auth;
        }
        if tls {
            let (key, certificate) = (path("server.key"), path("server.crt"));
            certify(&key, &certificate);
            config["http"]["tls"] = json!({"certificate": certificate, "key": key});
        }
        // JSON is YAML.
        fs::write(path("config.yml"), config.to_string()).unwrap();
        let log = path("log");
        #[expect(clippy::disallowed_methods, reason = "tests start the real registry")]
        let child = std::process::Command::new(which("docker-registry"))
            .arg("serve")
            .arg(path("config.yml"))
            .env("OTEL_TRACES_EXPORTER", "none")
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut registry = Self {
            child,
            directory,
            port,
            address,
            login: None,
            scheme: if tls { "https" } else { "http" },
        };
        registry.port.wait_for(&mut registry.child, &log);
        registry
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The name of an image in it.
    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// The file in which the registry keeps a blob.
    pub(crate) fn blob_path(&self, digest: &Digest) -> PathBuf {
        let hex = digest.hex();
        let blobs = "storage/docker/registry/v2/blobs/sha256";
        let blobs = self.directory.path().join(blobs);
        blobs.join(&hex[..2]).join(hex).join("data")
    }

    /// Pushes an image with one file in its one layer.
    pub(crate) async fn push(&self, repository: &str, tag: &str, configuration: Value) -> Pushed {
        let (layer, unpacked) = layer(&[("hello", b"hello")]);
        self.push_layer(repository, tag, configuration, layer, &unpacked)
            .await
    }

    /// Pushes an image with this layer; `unpacked` is the digest of its content.
    pub(crate) async fn push_layer(
        &self,
        repository: &str,
        tag: &str,
        mut configuration: Value,
        layer: Vec<u8>,
        unpacked: &Digest,
    ) -> Pushed {
        configuration["rootfs"] = json!({"type": "layers", "diff_ids": [unpacked.to_string()]});
        let configuration = configuration.to_string().into_bytes();
        let layer_digest = self.push_blob(repository, &layer).await;
        let configuration_digest = self.push_blob(repository, &configuration).await;
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": configuration_digest.to_string(), "size": configuration.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": layer_digest.to_string(), "size": layer.len()}]});
        let manifest = self
            .push_manifest(repository, tag, MANIFEST, &manifest)
            .await;
        Pushed {
            manifest,
            configuration: configuration_digest,
            size: layer.len(),
            layer: layer_digest,
        }
    }

    /// Pushes an index of images that are there: architecture and image.
    pub(crate) async fn push_index(
        &self,
        repository: &str,
        tag: &str,
        images: &[(&str, &Pushed)],
    ) -> Digest {
        let entries: Vec<Value> = images
            .iter()
            .map(|(architecture, image)| {
                json!({"mediaType": MANIFEST, "digest": image.manifest.to_string(), "size": 1,
                    "platform": {"os": "linux", "architecture": architecture}})
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        self.push_manifest(repository, tag, INDEX, &index).await
    }

    /// Pushes what is no image: layers by media type, annotations and content.
    pub(crate) async fn push_artifact(
        &self,
        repository: &str,
        tag: &str,
        (config_type, config): (&str, &Value),
        layers: &[(&str, Value, &[u8])],
    ) -> Digest {
        let config = config.to_string().into_bytes();
        let config_digest = self.push_blob(repository, &config).await;
        let mut links = Vec::new();
        for (kind, annotations, content) in layers {
            let digest = self.push_blob(repository, content).await;
            links.push(json!({"mediaType": kind, "digest": digest.to_string(),
                "size": content.len(), "annotations": annotations}));
        }
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
            "config": {"mediaType": config_type, "digest": config_digest.to_string(),
                "size": config.len()}, "layers": links});
        self.push_manifest(repository, tag, MANIFEST, &manifest)
            .await
    }

    /// Pushes an index of manifests that are there: platform (null: none) and digest.
    pub(crate) async fn push_index_of(
        &self,
        repository: &str,
        tag: &str,
        entries: &[(Value, &Digest)],
    ) -> Digest {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(platform, digest)| {
                let digest = digest.to_string();
                json!({"mediaType": MANIFEST, "digest": digest, "size": 1, "platform": platform})
            })
            .collect();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": entries});
        self.push_manifest(repository, tag, INDEX, &index).await
    }

    async fn push_manifest(
        &self,
        repository: &str,
        tag: &str,
        kind: &str,
        manifest: &Value,
    ) -> Digest {
        let body = manifest.to_string().into_bytes();
        let url = format!(
            "{}://{}/v2/{repository}/manifests/{tag}",
            self.scheme, self.address
        );
        self.send(Method::PUT, &url, kind, body.clone()).await;
        Digest::of(&body)
    }

    async fn push_blob(&self, repository: &str, blob: &[u8]) -> Digest {
        let digest = Digest::of(blob);
        let url = format!(
            "{}://{}/v2/{repository}/blobs/uploads/",
            self.scheme, self.address
        );
        let begun = self
            .send(Method::POST, &url, "text/plain", Vec::new())
            .await;
        let place = begun.headers()["location"].to_str().unwrap();
        let place = format!("{place}&digest={digest}");
        let kind = "application/octet-stream";
        self.send(Method::PUT, &place, kind, blob.to_vec()).await;
        digest
    }

    async fn send(&self, method: Method, url: &str, kind: &str, body: Vec<u8>) -> Response {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = Client::builder()
            .no_proxy()
            .tls_danger_accept_invalid_certs(true)
            .build()
            .unwrap();
        let mut request = client.request(method, url).header("content-type", kind);
        if let Some(login) = &self.login {
            request = request.header("authorization", login);
        }
        let response = request.body(body).send().await.unwrap();
        assert!(response.status().is_success(), "{url}: {response:?}");
        response
    }
}

/// A configuration for this machine's platform.
pub(crate) fn configuration(architecture: &str) -> Value {
    json!({"architecture": architecture, "os": "linux", "config": {
        "Entrypoint": ["/hello"], "User": "2000:0",
        "Env": ["PATH=/", "NVIDIA_REQUIRE_CUDA=cuda>=12.9"],
        "Labels": {"org.opencontainers.image.version": "1.2.3"}}})
}

/// This machine's architecture, as registries write it.
pub(crate) fn here() -> &'static str {
    match std::env::consts::ARCH {
        "aarch64" => "arm64",
        _ => "amd64",
    }
}

/// A gzip-compressed layer with these files, and the digest of what is in it.
pub(crate) fn layer(files: &[(&str, &[u8])]) -> (Vec<u8>, Digest) {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o755);
        header.set_size(content.len() as u64);
        builder.append_data(&mut header, name, *content).unwrap();
    }
    let tar = builder.into_inner().unwrap();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut gzip, &tar).unwrap();
    (gzip.finish().unwrap(), Digest::of(&tar))
}

/// Makes a key and a certificate for loopback.
fn certify(key: &Path, certificate: &Path) {
    #[expect(clippy::disallowed_methods, reason = "tests make real certificates")]
    let output = std::process::Command::new(which("openssl"))
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
        ])
        .args(["-nodes", "-days", "2", "-subj", "/CN=test"])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .arg("-keyout")
        .arg(key)
        .arg("-out")
        .arg(certificate)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn htpasswd(user: &str, password: &str) -> Vec<u8> {
    #[expect(clippy::disallowed_methods, reason = "tests make real password files")]
    let output = std::process::Command::new(which("htpasswd"))
        .args(["-Bbn", user, password])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}
