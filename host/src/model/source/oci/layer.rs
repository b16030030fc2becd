//! Which file a layer is.

use super::{super::inside::is_inside, File, OciError};
use crate::{container::Descriptor, net::Source};

/// What a file is called: ModelPack's path first, then the title that everybody else gives.
const NAMES: [&str; 2] = ["org.cncf.model.filepath", "org.opencontainers.image.title"];

/// Says of a layer of ORAS that it is an archive of a directory.
const UNPACK: &str = "io.deis.oras.content.unpack";

/// How the media types of ModelPack's layers begin.
const MODELPACK: &str = "application/vnd.cncf.model.";

/// What ORAS calls a layer that is given no media type, whatever is in it.
const UNTYPED: &str = "application/vnd.oci.image.layer.v1.tar";

/// Names of files whose layer gives none, by a word of its media type.
const USUAL: [(&str, &str); 5] = [
    (".mmproj", "mmproj.gguf"),
    (".gguf", "model.gguf"),
    (".safetensors", "model.safetensors"),
    (".chat.template.jinja", "chat_template.jinja"),
    (".license", "LICENSE"),
];

/// The files that layers are; all of them, or the reason why one is none.
pub(super) fn files(what: &str, layers: Vec<(Descriptor, Source)>) -> Result<Vec<File>, OciError> {
    let mut files: Vec<File> = Vec::new();
    for (layer, source) in layers {
        let is_archive = is_archive(&layer);
        let name = match name(&layer) {
            None if is_archive && is_of_files(&layer) => Some(layer.digest.hex().to_owned()),
            name => name,
        };
        if is_archive && !is_of_files(&layer) {
            return Err(OciError::Archive {
                what: what.to_owned(),
                name: name.unwrap_or_else(|| layer.digest.to_string()),
                media_type: layer.media_type,
            });
        }
        let Some(name) = name else {
            return Err(OciError::Nameless {
                what: what.to_owned(),
                digest: layer.digest.to_string(),
                media_type: layer.media_type,
            });
        };
        let beside = || files.iter().filter(|other| !other.is_archive);
        let collides = !is_archive && beside().any(|other| collide(&other.name, &name));
        if !is_inside(&name) || collides {
            return Err(OciError::Name {
                what: what.to_owned(),
                name,
            });
        }
        files.push(File {
            name,
            layer,
            source,
            is_archive,
        });
    }
    Ok(files)
}

fn name(layer: &Descriptor) -> Option<String> {
    let given = NAMES.iter().find_map(|name| layer.annotations.get(*name));
    let usual = || {
        let mut all = USUAL.iter();
        let (_, name) = all.find(|(word, _)| layer.media_type.contains(word))?;
        Some((*name).to_owned())
    };
    let plain = |name: &String| name.strip_prefix("./").unwrap_or(name).to_owned();
    given.map(plain).or_else(usual)
}

fn is_archive(layer: &Descriptor) -> bool {
    let titled = NAMES
        .iter()
        .any(|name| layer.annotations.contains_key(*name));
    let kind = layer.media_type.as_str();
    if layer
        .annotations
        .get(UNPACK)
        .is_some_and(|text| text == "true")
    {
        return true;
    }
    if kind == UNTYPED && titled {
        return false;
    }
    kind.ends_with(".tar")
        || [".tar+", ".tar.", "+tar"]
            .iter()
            .any(|word| kind.contains(word))
}

/// Whether an archive is one of files, and none of an image's parts, which have no names. ORAS's client for
/// Python gives a directory its name and nothing else.
fn is_of_files(layer: &Descriptor) -> bool {
    let has = |name: &str| layer.annotations.contains_key(name);
    has(UNPACK) || NAMES.into_iter().any(has) || layer.media_type.starts_with(MODELPACK)
}

/// Whether both cannot be there: the same, or one is the directory of the other.
fn collide(a: &str, b: &str) -> bool {
    let below = |above: &str, name: &str| {
        let rest = name.strip_prefix(above);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    below(a, b) || below(b, a)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::net::Digest;

    fn layer(kind: &str, annotations: &[(&str, &str)]) -> (Descriptor, Source) {
        let pairs = annotations
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()));
        let descriptor = Descriptor::of(Digest::of(kind.as_bytes()), kind, pairs.collect());
        (
            descriptor,
            Source::from(url::Url::parse("https://r.test/").unwrap()),
        )
    }

    fn named(kind: &str, annotations: &[(&str, &str)]) -> Result<String, OciError> {
        let mut files = files("it", vec![layer(kind, annotations)])?;
        Ok(files.remove(0).name)
    }

    const TITLE: &str = "org.opencontainers.image.title";

    #[test]
    fn files_are_named_by_every_tool_that_pushes_models() {
        for (kind, annotations, name) in [
            (
                "application/octet-stream",
                vec![(TITLE, "m.gguf")],
                "m.gguf",
            ),
            (UNTYPED, vec![(TITLE, "m.gguf")], "m.gguf"),
            ("application/vnd.docker.ai.gguf.v3", vec![], "model.gguf"),
            ("application/vnd.docker.ai.license", vec![], "LICENSE"),
            (
                "application/vnd.cncf.model.weight.v1.raw",
                vec![("org.cncf.model.filepath", "a/w.safetensors"), (TITLE, "x")],
                "a/w.safetensors",
            ),
            ("x/y", vec![(TITLE, "./config.json")], "config.json"),
        ] {
            assert_eq!(named(kind, &annotations).unwrap(), name);
        }
    }

    #[test]
    fn archives_nameless_layers_and_bad_names_are_refused() {
        for (kind, annotations) in [
            ("application/vnd.oci.image.layer.v1.tar+gzip", vec![]),
            ("application/vnd.docker.image.rootfs.diff.tar.gzip", vec![]),
            (UNTYPED, vec![]),
        ] {
            let refused = named(kind, &annotations);
            assert!(matches!(refused, Err(OciError::Archive { .. })), "{kind}");
        }
        assert!(matches!(named("x/y", &[]), Err(OciError::Nameless { .. })));
        for bad in ["", "..", "a/../b", "/a", "a//b", "a\\b", "a\nb", "a/"] {
            let refused = named("x/y", &[(TITLE, bad)]);
            assert!(matches!(refused, Err(OciError::Name { .. })), "{bad}");
        }
    }

    #[test]
    fn archives_of_files_are_taken_under_any_name_and_need_none() {
        for (kind, annotations) in [
            (
                "application/vnd.cncf.model.weight.v1.tar",
                vec![("org.cncf.model.filepath", "w")],
            ),
            ("application/vnd.cncf.model.doc.v1.tar+gzip", vec![]),
            ("x/y+gzip", vec![(TITLE, "directory"), (UNPACK, "true")]),
            (
                "application/vnd.oci.image.layer.v1.tar+gzip",
                vec![(TITLE, "directory")],
            ),
        ] {
            let files = files("it", vec![layer(kind, &annotations)]).unwrap();
            assert!(files[0].is_archive, "{kind}");
        }
        let raw = [("org.cncf.model.filepath", "w")];
        let raw = layer("application/vnd.cncf.model.weight.v1.raw", &raw);
        assert!(!files("it", vec![raw]).unwrap()[0].is_archive);
    }

    #[test]
    fn two_files_of_one_name_are_refused() {
        for (a, b) in [("m", "m"), ("m/a", "m"), ("m", "m/a")] {
            let all = vec![layer("x/a", &[(TITLE, a)]), layer("x/b", &[(TITLE, b)])];
            assert!(
                matches!(files("it", all), Err(OciError::Name { .. })),
                "{a} {b}"
            );
        }
        let all = vec![
            layer("x/a", &[(TITLE, "m")]),
            layer("x/b", &[(TITLE, "m.b")]),
        ];
        assert_eq!(files("it", all).unwrap().len(), 2);
    }

    proptest::proptest! {
        #[test]
        fn no_name_leads_outside(name in "[a./\\\\\\x00-]{0,8}") {
            let annotations = BTreeMap::from([(TITLE.to_owned(), name)]);
            let descriptor = Descriptor::of(Digest::of(b""), "x/y", annotations);
            let source = Source::from(url::Url::parse("https://r.test/").unwrap());
            if let Ok(files) = files("it", vec![(descriptor, source)]) {
                let path = std::path::Path::new(&files[0].name);
                let plain = |part| matches!(part, std::path::Component::Normal(_));
                proptest::prop_assert!(path.components().all(plain));
            }
        }
    }
}
