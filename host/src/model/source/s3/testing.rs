//! A real server of S3's protocol on loopback, which verifies every signature: `s3s-fs`.

use std::{
    fs,
    net::Ipv4Addr,
    path::PathBuf,
    process::{Child, Stdio},
};

use tempfile::TempDir;

use crate::{act::tests::which, config::environment::Environment, net::testing::FreePort};

pub(super) const KEY: &str = "AKTESTKEY";
pub(super) const SECRET: &str = "not-so-secret-after-all";

/// The server, ended when this is dropped. Buckets are directories, objects files.
pub(super) struct Server {
    child: Child,
    directory: TempDir,
    port: FreePort,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub(super) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = FreePort::at(Ipv4Addr::LOCALHOST);
        let log = directory.path().join("log");
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("models")).unwrap();
        #[expect(clippy::disallowed_methods, reason = "tests start the real server")]
        let child = std::process::Command::new(which("s3s-fs"))
            .args(["--host", "127.0.0.1"])
            .args(["--port", &port.address().port().to_string()])
            .args(["--access-key", KEY, "--secret-key", SECRET])
            .arg(&root)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut server = Self {
            child,
            directory,
            port,
        };
        server.port.wait_for(&mut server.child, &log);
        server
    }

    /// What a user of it has set.
    pub(super) fn environment(&self) -> Environment {
        self.open_environment()
            .with("AWS_ACCESS_KEY_ID", KEY)
            .with("AWS_SECRET_ACCESS_KEY", SECRET)
    }

    /// The same without keys.
    pub(super) fn open_environment(&self) -> Environment {
        Environment::from_pairs([
            (
                "AWS_ENDPOINT_URL_S3",
                format!("http://{}", self.port.address()),
            ),
            ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
        ])
    }

    /// Puts an object into the bucket `models`, as a tool would that keeps no checksums.
    pub(super) fn place(&self, key: &str, content: &[u8]) -> PathBuf {
        let path = self.directory.path().join("root/models").join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Puts an object there with curl, which signs by itself, and with the checksum of its content.
    pub(super) fn upload(&self, key: &str, content: &[u8]) {
        let file = self.directory.path().join("upload");
        fs::write(&file, content).unwrap();
        let hex = crate::net::Digest::of(content).hex().to_owned();
        let bytes: Vec<u8> = (0..hex.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
            .collect();
        let sum = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, bytes);
        #[expect(clippy::disallowed_methods, reason = "tests run a real client")]
        let output = std::process::Command::new(which("curl"))
            .args(["--silent", "--show-error", "--fail", "--noproxy", "*"])
            .args(["--aws-sigv4", "aws:amz:us-east-1:s3"])
            .args(["--user", &format!("{KEY}:{SECRET}")])
            .args(["--header", &format!("x-amz-checksum-sha256: {sum}")])
            .args(["--header", &format!("x-amz-content-sha256: {hex}")])
            .arg("--upload-file")
            .arg(&file)
            .arg(format!("http://{}/models/{key}", self.port.address()))
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}
