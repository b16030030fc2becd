//! Container images made by hand: a program, the libraries it needs, a configuration.

use std::{fs, io::Read as _, path::Path, process::Command, sync::OnceLock};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use serde_json::{Value, json};

use crate::{Built, sha256};

/// What `org.opencontainers.image.version` of the fake engine's image says.
pub const IMAGE_VERSION: &str = "1.2.3";

/// What `org.opencontainers.image.revision` of the fake engine's image says.
pub const IMAGE_REVISION: &str = "0123456789abcdef0123456789abcdef01234567";

/// An image of one platform.
#[derive(Debug, Clone)]
pub struct Image {
    layers: Vec<Layer>,
    architecture: String,
    config: Value,
}

/// A layer: compressed, and the digest of what it is uncompressed.
#[derive(Debug, Clone)]
pub(super) struct Layer {
    pub(super) compressed: Vec<u8>,
    diff_id: String,
}

/// A file in a layer.
pub struct ImageFile<'a> {
    /// Path in the image, without the first slash.
    pub path: &'a str,
    /// Its content.
    pub content: &'a [u8],
    /// Permissions.
    pub mode: u32,
}

impl Image {
    /// The fake engine, for this machine's processor: `/bin/fake-engine` and the C library.
    #[must_use]
    pub fn engine() -> Self {
        Self::of_program("fake-engine")
    }

    /// One of the fake programs as `/bin/NAME`, with the C library.
    ///
    /// # Panics
    ///
    /// When there is no such program.
    #[must_use]
    pub fn of_program(name: &str) -> Self {
        Self {
            layers: vec![
                libraries().clone(),
                program_layer(name, &format!("bin/{name}")),
            ],
            architecture: this_architecture().to_owned(),
            config: json!({
                "Env": ["PATH=/usr/bin:/bin"],
                "Entrypoint": [format!("/bin/{name}")],
                "Labels": {
                    "org.opencontainers.image.version": IMAGE_VERSION,
                    "org.opencontainers.image.revision": IMAGE_REVISION,
                },
            }),
        }
    }

    /// One made of archives, `.tar.gz`, for this machine's processor; what it runs stands in `config`.
    ///
    /// # Panics
    ///
    /// When an archive cannot be read.
    #[must_use]
    pub fn of_archives(archives: &[&Path], config: Value) -> Self {
        let layer = |path: &&Path| {
            let compressed = fs::read(path).unwrap();
            let mut plain = Vec::new();
            GzDecoder::new(compressed.as_slice())
                .read_to_end(&mut plain)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            Layer {
                diff_id: format!("sha256:{}", sha256(&plain)),
                compressed,
            }
        };
        Self {
            layers: archives.iter().map(layer).collect(),
            architecture: this_architecture().to_owned(),
            config,
        }
    }

    /// Sets a label; another label makes another digest.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.config["Labels"][name] = json!(value);
        self
    }

    /// Adds a variable to its environment, `NAME=value`.
    #[must_use]
    pub fn env(mut self, pair: &str) -> Self {
        let env = self.config["Env"].as_array_mut().expect("an array");
        env.push(json!(pair));
        self
    }

    /// Sets what it runs.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.config["Entrypoint"] = json!(words);
        self
    }

    /// Says that it is for another processor.
    #[must_use]
    pub fn architecture(mut self, name: &str) -> Self {
        name.clone_into(&mut self.architecture);
        self
    }

    /// Adds a layer with one file.
    #[must_use]
    pub fn file(mut self, file: &ImageFile<'_>) -> Self {
        self.layers
            .push(layer(&mut |archive| append(archive, file)));
        self
    }

    /// Adds a layer with one symbolic link, its path without the first slash.
    #[must_use]
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.layers.push(layer(&mut |archive| {
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_size(0);
            header.set_mode(0o777);
            archive.append_link(&mut header, path, target).unwrap();
        }));
        self
    }

    /// Adds one of the fake programs under a path of one's own.
    #[must_use]
    pub fn program(mut self, name: &str, path: &str) -> Self {
        self.layers.push(program_layer(name, path));
        self
    }

    /// Adds a layer that cannot be compressed: `/ballast`, this large.
    #[must_use]
    pub fn ballast(self, bytes: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let content: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        })
        .take(bytes / 8)
        .flatten()
        .collect();
        self.file(&ImageFile {
            path: "ballast",
            content: &content,
            mode: 0o644,
        })
    }

    pub(super) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Digests of its layers, as they are fetched.
    #[must_use]
    pub fn layer_digests(&self) -> Vec<String> {
        let layers = self.layers.iter();
        layers
            .map(|layer| format!("sha256:{}", sha256(&layer.compressed)))
            .collect()
    }

    pub(super) fn platform(&self) -> Value {
        json!({"architecture": self.architecture, "os": "linux"})
    }

    /// The configuration blob.
    pub(super) fn configuration(&self) -> Vec<u8> {
        let diff_ids: Vec<&str> = self.layers.iter().map(|one| one.diff_id.as_str()).collect();
        let document = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        document.to_string().into_bytes()
    }

    /// The manifest, which names the configuration and the layers by their digests.
    pub(super) fn manifest(&self) -> Vec<u8> {
        let configuration = self.configuration();
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|layer| {
                descriptor(
                    "application/vnd.oci.image.layer.v1.tar+gzip",
                    &layer.compressed,
                )
            })
            .collect();
        let document = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": descriptor("application/vnd.oci.image.config.v1+json", &configuration),
            "layers": layers,
        });
        document.to_string().into_bytes()
    }
}

/// Media type of a manifest (OCI image specification 1.0).
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// Media type of an index.
pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// How one blob refers to another.
pub(super) fn descriptor(media_type: &str, content: &[u8]) -> Value {
    json!({
        "mediaType": media_type,
        "digest": format!("sha256:{}", sha256(content)),
        "size": content.len(),
    })
}

/// The word that images use for this machine's processor.
#[must_use]
pub fn this_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// What every program of the tests is linked with, and the directories that an image needs.
fn libraries() -> &'static Layer {
    static LAYER: OnceLock<Layer> = OnceLock::new();
    LAYER.get_or_init(|| {
        let program = Built::debug().directory.join("fake-engine");
        let output = Command::new("ldd").arg(&program).output().unwrap();
        let listed = String::from_utf8(output.stdout).unwrap();
        let words = listed.split_whitespace();
        let paths: Vec<&str> = words.filter(|word| word.starts_with('/')).collect();
        assert!(
            paths.len() >= 2,
            "libraries of {}: {listed}",
            program.display()
        );
        layer(&mut |archive| {
            for (directory, mode) in [("tmp/", 0o1777), ("bin/", 0o755), ("proc/", 0o755)] {
                append_directory(archive, directory, mode);
            }
            for path in &paths {
                let file = ImageFile {
                    path: path.trim_start_matches('/'),
                    content: &fs::read(path).unwrap(),
                    mode: 0o755,
                };
                append(archive, &file);
            }
        })
    })
}

fn program_layer(name: &str, path_inside: &str) -> Layer {
    let path = Built::debug().directory.join(name);
    let content = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    layer(&mut |archive| {
        let file = ImageFile {
            path: path_inside,
            content: &content,
            mode: 0o755,
        };
        append(archive, &file);
    })
}

type Archive = tar::Builder<Vec<u8>>;

fn layer(fill: &mut dyn FnMut(&mut Archive)) -> Layer {
    let mut archive = tar::Builder::new(Vec::new());
    fill(&mut archive);
    let plain = archive.into_inner().unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    std::io::Write::write_all(&mut encoder, &plain).unwrap();
    Layer {
        compressed: encoder.finish().unwrap(),
        diff_id: format!("sha256:{}", sha256(&plain)),
    }
}

fn append(archive: &mut Archive, file: &ImageFile<'_>) {
    let mut header = tar::Header::new_gnu();
    header.set_size(file.content.len() as u64);
    header.set_mode(file.mode);
    archive
        .append_data(&mut header, Path::new(file.path), file.content)
        .unwrap();
}

fn append_directory(archive: &mut Archive, path: &str, mode: u32) {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_size(0);
    header.set_mode(mode);
    archive
        .append_data(&mut header, path, std::io::empty())
        .unwrap();
}
