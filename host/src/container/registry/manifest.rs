//! Documents of registries: index, manifest, configuration (OCI image specification; docker's own
//! second schema has the same fields).

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::net::Digest;

/// What is asked for, best first.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// Longest manifest: what registries accept at most (OCI distribution specification).
pub(super) const MANIFEST_LIMIT_BYTES: u64 = 4 << 20;

/// Longest configuration.
pub(super) const CONFIGURATION_LIMIT_BYTES: u64 = 8 << 20;

/// An index or an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Manifest {
    /// Images per platform.
    Index(Vec<Descriptor>),
    /// One image.
    Image {
        config: Descriptor,
        layers: Vec<Descriptor>,
        annotations: BTreeMap<String, String>,
    },
}

/// Something by digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    /// Empty where it is not said.
    pub(crate) media_type: String,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(super) platform: Option<Written>,
}

#[cfg(test)]
impl Descriptor {
    /// One for tests.
    pub(crate) fn of(
        digest: Digest,
        media_type: &str,
        annotations: BTreeMap<String, String>,
    ) -> Self {
        Self {
            digest,
            size: 1,
            media_type: media_type.to_owned(),
            annotations,
            platform: None,
        }
    }
}

/// A platform as documents write it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Written {
    pub(super) os: String,
    pub(super) architecture: String,
    pub(super) variant: String,
}

/// What an image says of itself.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Configuration {
    #[serde(flatten)]
    pub(super) platform: Written,
    pub(super) config: Run,
}

/// How an image is run.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Run {
    pub(super) user: String,
    pub(super) env: Option<Vec<String>>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) labels: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    schema_version: u64,
    manifests: Option<Vec<Link>>,
    config: Option<Link>,
    layers: Option<Vec<Link>>,
    annotations: Option<BTreeMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Link {
    digest: String,
    #[serde(default)]
    media_type: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
    #[serde(default)]
    size: u64,
    platform: Option<Written>,
}

impl Link {
    fn read(self) -> Result<Descriptor, String> {
        Ok(Descriptor {
            digest: Digest::parse(&self.digest).map_err(|error| error.to_string())?,
            size: self.size,
            media_type: self.media_type,
            annotations: self.annotations.unwrap_or_default(),
            platform: self.platform,
        })
    }
}

impl Manifest {
    /// Reads a manifest.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        let document: Document = serde_json::from_slice(text).map_err(|error| error.to_string())?;
        if document.schema_version != 2 {
            return Err(format!(
                "its schema is {}, which is no longer pulled",
                document.schema_version
            ));
        }
        let all = |links: Vec<Link>| -> Result<Vec<Descriptor>, String> {
            links.into_iter().map(Link::read).collect()
        };
        match (document.manifests, document.config) {
            (Some(entries), None) if document.layers.is_none() => Ok(Self::Index(all(entries)?)),
            (None, Some(config)) => Ok(Self::Image {
                config: config.read()?,
                layers: all(document.layers.unwrap_or_default())?,
                annotations: document.annotations.unwrap_or_default(),
            }),
            // What is both would be one thing to us and another to the runtime.
            (Some(_), _) => Err("it is an index and an image at once".to_owned()),
            (None, None) => Err("it is neither an index nor an image".to_owned()),
        }
    }
}

impl Configuration {
    /// Reads a configuration.
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(value: serde_json::Value) -> Result<Manifest, String> {
        Manifest::parse(value.to_string().as_bytes())
    }

    #[test]
    fn what_is_two_things_or_none_is_refused() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let link = json!({"digest": digest, "size": 3});
        let image = json!({"schemaVersion": 2, "config": link, "layers": [link]});
        assert!(matches!(parse(image), Ok(Manifest::Image { layers, .. }) if layers[0].size == 3));
        let index = json!({"schemaVersion": 2, "manifests": [link]});
        assert!(matches!(parse(index), Ok(Manifest::Index(all)) if all.len() == 1));
        for bad in [
            json!({"schemaVersion": 2, "manifests": [link], "config": link}),
            json!({"schemaVersion": 2, "manifests": [link], "layers": [link]}),
            json!({"schemaVersion": 2}),
            json!({"schemaVersion": 1, "fsLayers": []}),
            json!({"schemaVersion": 2, "config": {"digest": "sha256:1"}}),
            json!([]),
        ] {
            assert!(parse(bad.clone()).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_configuration_may_leave_everything_out() {
        let read = Configuration::parse(br#"{"config": {"Env": null, "Labels": null}}"#).unwrap();
        assert_eq!(read.platform, Written::default());
        assert!(read.config.env.is_none());
        let text = br#"{"architecture": "arm64", "os": "linux", "config": {"User": "1:2", "Entrypoint": ["x"]}}"#;
        let read = Configuration::parse(text).unwrap();
        assert_eq!(read.platform.architecture, "arm64");
        assert_eq!(read.config.user, "1:2");
    }
}
