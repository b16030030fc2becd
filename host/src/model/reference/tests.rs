use super::*;

#[test]
fn every_kind_of_reference_is_read() {
    let file = |path: &str| Reference::File(PathBuf::from(path));
    let cases = [
        ("builtin:haiku", Reference::Builtin("haiku".to_owned())),
        ("file:/models/x.gguf", file("/models/x.gguf")),
        ("file:///models/x.gguf", file("/models/x.gguf")),
        ("file:x.gguf", file("x.gguf")),
        ("/models/x.gguf", file("/models/x.gguf")),
        ("./x.gguf", file("./x.gguf")),
        ("models/a:b.gguf", file("models/a:b.gguf")),
        (
            "https://host/x.gguf",
            Reference::Url(Url::parse("https://host/x.gguf").unwrap()),
        ),
        (
            "hf:Owner/Name-GGUF@main/q/x.gguf",
            Reference::HuggingFace(HubName {
                repository: "Owner/Name-GGUF".to_owned(),
                revision: Some("main".to_owned()),
                quant: None,
                path: Some("q/x.gguf".to_owned()),
            }),
        ),
        (
            "s3://bucket/a/b",
            Reference::S3 {
                bucket: "bucket".to_owned(),
                key: "a/b".to_owned(),
                version: None,
            },
        ),
        (
            "oci://host:5000/a/b:tag",
            Reference::Oci(container::Reference::parse("host:5000/a/b:tag").unwrap()),
        ),
    ];
    for (text, reference) in cases {
        assert_eq!(Reference::parse(text).unwrap(), reference, "{text}");
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    for bad in [
        "",
        " x",
        "builtin:",
        "builtin:a/b",
        "file:",
        "file://host",
        "https:",
        "https://",
        "hf:owner",
        "hf:owner/name/../x",
        "hf:owner/name@/x",
        "s3://bucket",
        "s3:/x",
        "oci:x",
        "ftp://host/x",
        "c:\\models\\x",
    ] {
        assert!(Reference::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn the_formats_of_an_engine_are_held() {
    let formats = ["gguf".to_owned()];
    let check = |text: &str| Reference::parse(text).unwrap().check_format(&formats);
    assert!(check("x.GGUF").is_ok());
    assert!(check("https://h/x.gguf?token=1").is_ok());
    assert!(check("x.safetensors").is_err());
    assert!(check("builtin:haiku").is_ok());
}

#[test]
fn versions_and_prefixes_of_objects_are_read() {
    let s3 = |text: &str| match Reference::parse(text) {
        Ok(Reference::S3 { key, version, .. }) => Some((key, version)),
        _ => None,
    };
    let key = |key: &str| Some((key.to_owned(), None));
    assert_eq!(s3("s3://b/"), key(""));
    assert_eq!(s3("s3://b/p/"), key("p/"));
    assert_eq!(s3("s3://b/a?b=c"), key("a?b=c"));
    let version = Some("v_1.x-".to_owned());
    assert_eq!(
        s3("s3://b/k?versionId=v_1.x-"),
        Some(("k".to_owned(), version))
    );
    for bad in [
        "s3://b/p/?versionId=1",
        "s3://b/k?versionId=",
        "s3://b/../k",
        "s3://B b/k",
    ] {
        assert_eq!(s3(bad), None, "{bad}");
    }
}

#[test]
fn an_artifact_names_its_registry() {
    for good in ["oci://ghcr.io/a/b", "oci://localhost/a", "oci://h:5000/a:1"] {
        assert_eq!(Reference::parse(good).unwrap().to_string(), good);
    }
    for bad in [
        "oci://a/b",
        "oci://ghcr.io",
        "oci://ghcr.io/A",
        "oci://ghcr.io/a@sha256:1",
        "oci://--x.y/a",
    ] {
        assert!(Reference::parse(bad).is_err(), "{bad}");
    }
}

proptest::proptest! {
    #[test]
    fn objects_are_read_as_they_are_written(
        bucket in "[a-z][a-z0-9.-]{1,20}",
        key in "[ -~]{1,30}",
        version in proptest::option::of("[A-Za-z0-9._-]{1,12}"),
    ) {
        let written = Reference::S3 { bucket, key, version };
        if let Ok(read) = Reference::parse(&written.to_string()) {
            proptest::prop_assert_eq!(read.to_string(), written.to_string());
            let Reference::S3 { key, .. } = read else { panic!("it is an object") };
            proptest::prop_assert!(!key.split('/').any(|part| part == ".."));
        }
    }

    #[test]
    fn what_is_read_is_harmless_and_is_read_again_as_it_is_written(
        text in "(hf:|s3://|oci://|builtin:|https://|file:)?([-a-zA-Z0-9@.:?=%~ é]{0,8}/){0,4}[-a-z0-9@.:?=% ]{0,12}"
    ) {
        let Ok(reference) = Reference::parse(&text) else {
            return Ok(());
        };
        // A path that looks like something else is shown without its `file:`, a URL without its query.
        if !matches!(reference, Reference::File(_) | Reference::Url(_)) {
            let again = Reference::parse(&reference.to_string()).unwrap();
            proptest::prop_assert_eq!(&again, &reference);
        }
        for word in words(&reference) {
            proptest::prop_assert!(!word.starts_with('-'), "{word} is an option");
            proptest::prop_assert!(!word.split('/').any(|part| part == ".."), "{word} climbs");
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,60}") {
        if let Ok(reference) = Reference::parse(&text) {
            proptest::prop_assert!(!reference.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn the_place_of_a_path_is_never_an_option(text in "[-a./]{1,12}") {
        if let Ok(Reference::File(path)) = Reference::parse(&text) {
            let place: PathBuf = std::path::Path::new("/base").join(path).components().collect();
            proptest::prop_assert!(place.is_absolute());
        }
    }
}

/// What of a reference stands somewhere by itself: in a URL, as the name of a file, on a command line.
fn words(reference: &Reference) -> Vec<String> {
    match reference {
        Reference::Builtin(name) => vec![name.clone()],
        Reference::HuggingFace(name) => {
            let words = [
                Some(&name.repository),
                name.revision.as_ref(),
                name.quant.as_ref(),
            ];
            let mut words: Vec<String> = words.into_iter().flatten().cloned().collect();
            // Below the repository: what begins with `-` there has a directory before it.
            words.extend(name.path.iter().map(|path| format!("x/{path}")));
            words
        }
        Reference::S3 {
            bucket,
            key,
            version,
        } => {
            let version = version
                .iter()
                .map(|version| format!("?versionId={version}"));
            let mut words = vec![bucket.clone(), format!("x/{key}")];
            words.extend(version);
            words
        }
        Reference::Oci(name) => vec![name.registry().to_owned(), name.path().to_owned()],
        Reference::File(_) | Reference::Url(_) => Vec::new(),
    }
}
