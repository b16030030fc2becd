//! What is known of images that were pulled: `store/images/HEX.json`.
//!
//! | part of a record's name | why |
//! |---|---|
//! | repository with tag, or with digest | what it is asked for by |
//! | platform | the same name is another image elsewhere |
//! | storage | of the runtime: podman and docker, root and others keep images apart |
//!
//! A record is written after the runtime showed the image, so that later runs ask neither a registry
//! nor the runtime. It may be wrong since: an image can be removed behind our back. Then the runtime
//! says so when the image is run, the record is [forgotten](Images::forget) and the image pulled
//! again.

use std::{fs, path::PathBuf};

use engine_provider_api::Image;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{Platform, Reference};
use crate::store::{self, Store, StoreError};

/// Schema of the records that this version writes.
const SCHEMA: u32 = 1;

/// An image that a runtime has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// What it was asked for by, for example `docker.io/vllm/vllm-openai:v0.20.1`.
    pub asked: String,
    /// Platform it is for, for example `linux/amd64`.
    pub platform: String,
    /// Where the runtime keeps it.
    pub storage: String,
    /// Digest of the index that lists it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
    /// Digest of its configuration: the id that the runtime knows it by.
    pub configuration_digest: String,
    /// Bytes of its layers, as they were fetched.
    pub size_bytes: u64,
    /// What providers are told of it; `reference` is what the runtime knows it as.
    pub image: Image,
    /// When the runtime showed it.
    pub pulled: Timestamp,
    /// Whether it was pulled only so that files are taken out of it, and goes when that is done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub for_files: bool,
}

/// The records of a store. Cheap to make.
#[derive(Debug, Clone)]
pub struct Images {
    directory: PathBuf,
}

impl Images {
    /// The records of this store.
    #[must_use]
    pub fn of(store: &Store) -> Self {
        Self {
            directory: store.root().join("images"),
        }
    }

    /// The record of an image; with a digest, the tag does not count.
    pub fn find(
        &self,
        asked: &Reference,
        platform: &Platform,
        storage: &str,
    ) -> Result<Option<ImageRecord>, StoreError> {
        let asked = name_of(asked);
        let path = self.path_of(&asked, &platform.to_string(), storage);
        let record: Option<ImageRecord> = match store::read_document(&path, SCHEMA) {
            // Renamed whole: damage to the disk. The image is asked for again.
            Err(StoreError::Damaged { .. }) => None,
            other => other?,
        };
        Ok(record.filter(|record| record.asked == asked && record.storage == storage))
    }

    /// Keeps a record under every name that the image can be asked for by.
    pub fn keep(&self, record: &ImageRecord, names: &[Reference]) -> Result<(), StoreError> {
        store::make_directory(&self.directory)?;
        for name in names {
            let record = ImageRecord {
                asked: name_of(name),
                ..record.clone()
            };
            let path = self.path_of(&record.asked, &record.platform, &record.storage);
            store::write_document(&path, SCHEMA, 0o644, &record)?;
        }
        Ok(())
    }

    /// Notes that an image which was pulled for its files is used for more, and stays.
    pub fn claim(&self, record: &ImageRecord) -> Result<ImageRecord, StoreError> {
        for (path, mut known) in self.all() {
            if known.image.reference == record.image.reference && known.for_files {
                known.for_files = false;
                store::write_document(&path, SCHEMA, 0o644, &known)?;
            }
        }
        Ok(ImageRecord {
            for_files: false,
            ..record.clone()
        })
    }

    /// Forgets an image that its runtime no longer has, by the reference that the runtime knew it as.
    pub fn forget(&self, reference: &str) -> Result<(), StoreError> {
        for (path, record) in self.all() {
            if record.image.reference == reference {
                match fs::remove_file(&path) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(StoreError::io("remove", path, error));
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether the runtime has another image of this repository, with which layers may be shared.
    #[must_use]
    pub fn has_relative(&self, image: &Reference, storage: &str) -> bool {
        let repository = image.repository();
        self.all().any(|(_, record)| {
            let rest = record.asked.strip_prefix(&repository);
            record.storage == storage && rest.is_some_and(|rest| rest.starts_with([':', '@']))
        })
    }

    /// Name of the lock for pulling an image.
    #[must_use]
    pub fn lock_name(asked: &Reference, platform: &Platform, storage: &str) -> String {
        let hex = hex_of(&name_of(asked), &platform.to_string(), storage);
        format!("image-{hex}")
    }

    /// Every record, one for each name of an image.
    pub fn records(&self) -> impl Iterator<Item = ImageRecord> {
        self.all().map(|(_, record)| record)
    }

    fn all(&self) -> impl Iterator<Item = (PathBuf, ImageRecord)> {
        let entries = fs::read_dir(&self.directory)
            .into_iter()
            .flatten()
            .flatten();
        entries.filter_map(|entry| {
            let record = store::read_document(&entry.path(), SCHEMA).ok()??;
            Some((entry.path(), record))
        })
    }

    fn path_of(&self, asked: &str, platform: &str, storage: &str) -> PathBuf {
        let hex = hex_of(asked, platform, storage);
        self.directory.join(format!("{hex}.json"))
    }
}

/// What an image is asked for by: its digest, else its tag.
fn name_of(reference: &Reference) -> String {
    match reference.digest() {
        Some(digest) => reference.with_digest(digest).to_string(),
        None => reference.to_string(),
    }
}

fn hex_of(asked: &str, platform: &str, storage: &str) -> String {
    let text = format!("{asked}\n{platform}\n{storage}\n");
    store::hex(&Sha256::digest(text.as_bytes())[..16])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    fn record(storage: &str) -> ImageRecord {
        ImageRecord {
            asked: String::new(),
            platform: "linux/amd64".to_owned(),
            storage: storage.to_owned(),
            index: None,
            configuration_digest: format!("sha256:{}", "1".repeat(64)),
            size_bytes: 5,
            image: Image {
                reference: format!("docker.io/a/b@sha256:{}", "2".repeat(64)),
                ..Image::default()
            },
            pulled: Timestamp::UNIX_EPOCH,
            for_files: false,
        }
    }

    #[test]
    fn an_image_is_known_by_tag_and_digest_in_its_own_storage_until_it_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let images = Images::of(&Store::at(directory.path()));
        let amd64 = Platform::of_machine("x86_64");
        let by_tag = reference("a/b:1");
        let by_digest = reference(&record("").image.reference);
        assert_eq!(images.find(&by_tag, &amd64, "/s").unwrap(), None);
        images.forget("nothing").unwrap();
        images
            .keep(&record("/s"), &[by_tag.clone(), by_digest.clone()])
            .unwrap();
        let found = images.find(&by_tag, &amd64, "/s").unwrap().unwrap();
        assert_eq!(found.asked, "docker.io/a/b:1");
        let both = reference(&format!("a/b:9@sha256:{}", "2".repeat(64)));
        assert!(images.find(&both, &amd64, "/s").unwrap().is_some());
        assert_eq!(images.find(&by_tag, &amd64, "/other").unwrap(), None);
        let arm64 = Platform::of_machine("aarch64");
        assert_eq!(images.find(&by_tag, &arm64, "/s").unwrap(), None);
        assert!(images.has_relative(&reference("a/b:2"), "/s"));
        assert!(!images.has_relative(&reference("a/bc:2"), "/s"));

        images.forget(&found.image.reference).unwrap();
        assert_eq!(images.find(&by_tag, &amd64, "/s").unwrap(), None);
        assert_eq!(images.find(&by_digest, &amd64, "/s").unwrap(), None);
    }

    #[test]
    fn a_damaged_record_is_as_good_as_none_and_a_newer_one_is_not_guessed_at() {
        let directory = tempfile::tempdir().unwrap();
        let images = Images::of(&Store::at(directory.path()));
        let amd64 = Platform::of_machine("x86_64");
        let asked = reference("a/b:1");
        images
            .keep(&record("/s"), std::slice::from_ref(&asked))
            .unwrap();
        let path = fs::read_dir(directory.path().join("images"))
            .unwrap()
            .next()
            .unwrap()
            .unwrap()
            .path();
        fs::write(&path, "{").unwrap();
        assert_eq!(images.find(&asked, &amd64, "/s").unwrap(), None);
        fs::write(&path, "{\"schema\": 99}").unwrap();
        let error = images.find(&asked, &amd64, "/s").unwrap_err();
        assert!(matches!(error, StoreError::Newer { .. }));
    }
}
