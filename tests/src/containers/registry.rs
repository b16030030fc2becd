//! A real registry on a loopback port, with its blobs in a directory that tests may damage.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
};

use base64::Engine as _;
use serde_json::json;
use tempfile::TempDir;

use super::{
    daemon::{Daemon, must_with},
    image::{INDEX, Image, MANIFEST, descriptor},
};
use crate::{free_port, sha256};

/// User name and password of a registry that asks for them.
pub const CREDENTIALS: (&str, &str) = ("tester", "correct-horse-battery");

/// A registry; ends when dropped, or when the tests are killed.
pub struct Registry {
    directory: TempDir,
    port: u16,
    private: bool,
    daemon: Option<Daemon>,
}

/// An image on several platforms, as it was pushed.
pub struct PushedIndex {
    /// Digest of the index.
    pub digest: String,
    /// Digests of the images in it, in their order.
    pub images: Vec<String>,
}

/// A blob as it was.
pub struct KeptBlob {
    path: PathBuf,
    content: Vec<u8>,
}

impl KeptBlob {
    /// Puts it back.
    ///
    /// # Panics
    ///
    /// When it cannot be written.
    pub fn restore(self) {
        fs::write(self.path, self.content).unwrap();
    }
}

impl Registry {
    /// One that serves everybody.
    #[must_use]
    pub fn open() -> Self {
        Self::new(false)
    }

    /// One that wants [`CREDENTIALS`], in a file made by the real `htpasswd`.
    #[must_use]
    pub fn private() -> Self {
        Self::new(true)
    }

    fn new(private: bool) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-registry-")
            .tempdir()
            .unwrap();
        let mut registry = Self {
            directory,
            port: free_port(),
            private,
            daemon: None,
        };
        registry.start();
        registry
    }

    /// Where it is, as the first part of an image's name.
    #[must_use]
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Starts it again, under the same address.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    pub fn start(&mut self) {
        let root = self.directory.path();
        let mut configuration = json!({
            "version": "0.1",
            "log": {"level": "info", "accesslog": {"disabled": false}},
            "storage": {"filesystem": {"rootdirectory": root.join("data")}},
            "http": {"addr": self.address(), "secret": "not-one"},
        });
        if self.private {
            let (user, password) = CREDENTIALS;
            // Nobody who looks at command lines is to see it, not even for a moment.
            let line = must_with("htpasswd", &["-niB", user], password);
            fs::write(root.join("htpasswd"), line).unwrap();
            configuration["auth"] =
                json!({"htpasswd": {"realm": "tests", "path": root.join("htpasswd")}});
        }
        let file = root.join("config.yml");
        // JSON is YAML.
        fs::write(&file, configuration.to_string()).unwrap();
        let command = ["docker-registry", "serve", file.to_str().unwrap()];
        let daemon = Daemon::listening("the registry", &command, root, self.port);
        self.daemon = Some(daemon);
    }

    /// Ends it; what was pushed stays.
    pub fn stop(&mut self) {
        self.daemon = None;
    }

    /// What it has logged: every request is a line.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    /// How often a blob was fetched to its end.
    #[must_use]
    pub fn fetches(&self, digest: &str) -> usize {
        let path = format!("/blobs/{digest} ");
        let log = self.log();
        let lines = log.lines().filter(|line| line.contains("\"GET "));
        lines
            .filter(|line| line.contains(&path) && line.contains("\" 200 "))
            .count()
    }

    /// Pushes an image under a tag and gives its digest.
    ///
    /// # Panics
    ///
    /// When it does not take it.
    pub fn push(&self, repository: &str, tag: &str, image: &Image) -> String {
        self.push_blobs(repository, image);
        self.push_manifest(repository, tag, MANIFEST, &image.manifest())
    }

    /// Pushes an index of images, one for each platform.
    ///
    /// # Panics
    ///
    /// When it does not take it.
    pub fn push_index(&self, repository: &str, tag: &str, images: &[Image]) -> PushedIndex {
        let mut manifests = Vec::new();
        let mut digests = Vec::new();
        for image in images {
            self.push_blobs(repository, image);
            let manifest = image.manifest();
            let digest = format!("sha256:{}", sha256(&manifest));
            self.push_manifest(repository, &digest, MANIFEST, &manifest);
            let mut entry = descriptor(MANIFEST, &manifest);
            entry["platform"] = image.platform();
            manifests.push(entry);
            digests.push(digest);
        }
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests});
        let digest = self.push_manifest(repository, tag, INDEX, index.to_string().as_bytes());
        PushedIndex {
            digest,
            images: digests,
        }
    }

    /// Pushes what is no image, its layers being files with their names, and gives its digest.
    ///
    /// # Panics
    ///
    /// When it does not take it.
    pub fn push_artifact(&self, repository: &str, tag: &str, files: &[(&str, &[u8])]) -> String {
        const EMPTY: &str = "application/vnd.oci.empty.v1+json";
        self.push_blob(repository, b"{}");
        let layers: Vec<serde_json::Value> = files
            .iter()
            .map(|(name, content)| {
                self.push_blob(repository, content);
                let mut layer = descriptor("application/octet-stream", content);
                layer["annotations"] = json!({"org.opencontainers.image.title": name});
                layer
            })
            .collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST,
            "config": descriptor(EMPTY, b"{}"), "layers": layers});
        self.push_manifest(repository, tag, MANIFEST, manifest.to_string().as_bytes())
    }

    /// Path of a blob in the registry's storage.
    #[must_use]
    pub fn blob(&self, digest: &str) -> PathBuf {
        let hexadecimal = digest.strip_prefix("sha256:").expect("a digest");
        self.directory
            .path()
            .join("data/docker/registry/v2/blobs/sha256")
            .join(&hexadecimal[..2])
            .join(hexadecimal)
            .join("data")
    }

    /// Keeps the last layer of an image as it is now, so that it can be put back.
    ///
    /// # Panics
    ///
    /// When the image was never pushed.
    #[must_use]
    pub fn keep_last_layer(&self, image: &Image) -> KeptBlob {
        let path = self.blob(image.layer_digests().last().expect("images have layers"));
        KeptBlob {
            content: fs::read(&path).unwrap(),
            path,
        }
    }

    /// Cuts the last layer of an image in half, as a failing disk or proxy would.
    ///
    /// # Panics
    ///
    /// When the image was never pushed.
    pub fn truncate_last_layer(&self, image: &Image) {
        let path = self.blob(image.layer_digests().last().expect("images have layers"));
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        file.set_len(length / 2).unwrap();
    }

    fn push_blobs(&self, repository: &str, image: &Image) {
        for layer in image.layers() {
            self.push_blob(repository, &layer.compressed);
        }
        self.push_blob(repository, &image.configuration());
    }

    fn push_blob(&self, repository: &str, content: &[u8]) {
        let digest = format!("sha256:{}", sha256(content));
        let (status, _) = self.ask("HEAD", &format!("/v2/{repository}/blobs/{digest}"), "", &[]);
        if status == 200 {
            return;
        }
        let (status, head) = self.ask("POST", &format!("/v2/{repository}/blobs/uploads/"), "", &[]);
        assert_eq!(status, 202, "{head}");
        let location = head
            .lines()
            .find_map(|line| line.strip_prefix("Location: "))
            .expect("an upload has a place");
        let at = location.find("/v2/").expect("a path");
        let path = format!("{}&digest={digest}", &location[at..]);
        let (status, head) = self.ask("PUT", &path, "application/octet-stream", content);
        assert_eq!(status, 201, "{head}");
    }

    fn push_manifest(&self, repository: &str, name: &str, kind: &str, content: &[u8]) -> String {
        let path = format!("/v2/{repository}/manifests/{name}");
        let (status, head) = self.ask("PUT", &path, kind, content);
        assert_eq!(status, 201, "{head}");
        format!("sha256:{}", sha256(content))
    }

    /// Status and head of the answer.
    fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let mut head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.address(),
            body.len()
        );
        if !kind.is_empty() {
            head += &format!("Content-Type: {kind}\r\n");
        }
        if self.private {
            head += &format!("Authorization: Basic {}\r\n", basic());
        }
        stream.write_all(format!("{head}\r\n").as_bytes()).unwrap();
        stream.write_all(body).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok());
        (status.unwrap_or_else(|| panic!("{answer}")), answer)
    }
}

/// [`CREDENTIALS`] as an `Authorization` header and an `auth` entry of credential files have them.
#[must_use]
pub fn basic() -> String {
    let (user, password) = CREDENTIALS;
    base64::prelude::BASE64_STANDARD.encode(format!("{user}:{password}"))
}
