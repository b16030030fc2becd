//! A real server of S3's protocol that verifies every signature, and a real client to fill it.

use std::{fs, path::PathBuf};

use base64::Engine as _;
use sha2::Digest as _;
use tempfile::TempDir;

use crate::{
    Machine,
    containers::daemon::{Daemon, must},
    free_port, repository_root,
};

/// Access key and secret key.
pub const S3_KEYS: (&str, &str) = ("AKTESTKEY", "correct-horse-battery-s3");

/// A server with a bucket `models`; ends when dropped, or when the tests are killed.
pub struct S3Server {
    directory: TempDir,
    port: u16,
    _daemon: Daemon,
}

impl S3Server {
    /// Begins to serve: `s3s-fs`.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    #[must_use]
    pub fn start() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-s3-")
            .tempdir()
            .unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("models")).unwrap();
        let (key, secret) = S3_KEYS;
        let keys = ["--access-key", key, "--secret-key", secret];
        let more = [&keys[..], &[root.to_str().unwrap()]].concat();
        Self::serve(
            directory,
            &["s3s-fs", "--host", "127.0.0.1", "--port"],
            &more,
        )
    }

    /// Another one, which keeps every version of an object and verifies no signature: `moto`, the mock of
    /// AWS's services that AWS's own Python client is tested with.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    #[must_use]
    pub fn with_versions() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-s3-")
            .tempdir()
            .unwrap();
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository_root().join("target"), PathBuf::from);
        let program = target.join("s3-versions/bin/moto_server");
        assert!(program.exists(), "scripts/setup-tests installs it");
        let program = program.to_str().unwrap();
        let server = Self::serve(directory, &[program, "-H", "127.0.0.1", "-p"], &[]);
        server.ask("models", &["--request", "PUT"]);
        let enabled = "<VersioningConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\
                       <Status>Enabled</Status></VersioningConfiguration>";
        let xml = [
            "--header",
            "Content-Type: application/xml",
            "--data",
            enabled,
        ];
        server.ask(
            "models?versioning",
            &[&["--request", "PUT"], &xml[..]].concat(),
        );
        server
    }

    /// Deletes what lies under a key now; older versions of it stay.
    pub fn delete(&self, key: &str) {
        self.ask(&format!("models/{key}"), &["--request", "DELETE"]);
    }

    /// Starts a program whose port stands between these words.
    fn serve(directory: TempDir, program: &[&str], more: &[&str]) -> Self {
        let port = free_port();
        let number = port.to_string();
        let command = [program, &[&number], more].concat();
        Self {
            _daemon: Daemon::listening("the S3 server", &command, directory.path(), port),
            directory,
            port,
        }
    }

    /// Lets a machine find it, and use its keys.
    pub fn lend(&self, machine: &mut Machine) {
        machine.lend(
            "AWS_ENDPOINT_URL_S3",
            &format!("http://127.0.0.1:{}", self.port),
        );
        machine.lend("AWS_ACCESS_KEY_ID", S3_KEYS.0);
        machine.lend("AWS_SECRET_ACCESS_KEY", S3_KEYS.1);
        machine.lend("AWS_EC2_METADATA_DISABLED", "true");
    }

    /// Uploads an object with curl, which signs by itself, and with the checksum of its content.
    ///
    /// # Panics
    ///
    /// When the server does not take it.
    pub fn upload(&self, key: &str, content: &[u8]) {
        let file = self.directory.path().join("upload");
        fs::write(&file, content).unwrap();
        let hash = sha2::Sha256::digest(content);
        let sum = base64::prelude::BASE64_STANDARD.encode(hash);
        let arguments = [
            "--header",
            &format!("x-amz-checksum-sha256: {sum}"),
            "--header",
            &format!("x-amz-content-sha256: {}", crate::sha256(content)),
            "--upload-file",
            file.to_str().unwrap(),
        ];
        self.ask(&format!("models/{key}"), &arguments);
    }

    /// Asks something of it with curl, and gives the answer.
    fn ask(&self, what: &str, more: &[&str]) -> String {
        let (id, secret) = S3_KEYS;
        let keys = format!("{id}:{secret}");
        let url = format!("http://127.0.0.1:{}/{what}", self.port);
        let mut arguments = vec!["--silent", "--show-error", "--fail", "--noproxy", "*"];
        arguments.extend(["--aws-sigv4", "aws:amz:us-east-1:s3", "--user", &keys]);
        arguments.extend(more);
        arguments.push(&url);
        must("curl", &arguments)
    }

    /// The file that is an object.
    #[must_use]
    pub fn object(&self, key: &str) -> PathBuf {
        self.directory.path().join("root/models").join(key)
    }
}
