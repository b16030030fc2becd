use super::*;

const DIGITS: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn names_are_read_as_docker_reads_them() {
    let cases = [
        ("busybox", "docker.io/library/busybox"),
        ("busybox:1.36", "docker.io/library/busybox:1.36"),
        (
            "vllm/vllm-openai:v0.20.1",
            "docker.io/vllm/vllm-openai:v0.20.1",
        ),
        ("index.docker.io/a/b", "docker.io/a/b"),
        ("docker.io/busybox", "docker.io/library/busybox"),
        ("localhost/a", "localhost/a"),
        ("localhost:5000/a/b:x", "localhost:5000/a/b:x"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a"),
        ("[::1]:5000/a", "[::1]:5000/a"),
        (
            "GHCR.io/ggml-org/llama.cpp:server",
            "ghcr.io/ggml-org/llama.cpp:server",
        ),
        (
            "nvcr.io/nvidia/tritonserver:26.07-py3",
            "nvcr.io/nvidia/tritonserver:26.07-py3",
        ),
    ];
    for (text, full) in cases {
        assert_eq!(Reference::parse(text).unwrap().to_string(), full, "{text}");
    }
    let both = format!("quay.io/a/b:x@sha256:{DIGITS}");
    let read = Reference::parse(&both).unwrap();
    assert_eq!(read.to_string(), both);
    let alone = read.with_digest(read.digest().unwrap());
    assert_eq!(alone.to_string(), format!("quay.io/a/b@sha256:{DIGITS}"));
}

#[test]
fn what_is_no_name_is_refused() {
    for bad in [
        "",
        "-x",
        "--rm",
        "a b",
        "A/b/c d",
        "a//b",
        "/a",
        "a/",
        "a..b",
        "a___b",
        "a:",
        "a:-x",
        "a:x/y:z w",
        "a@sha256:12",
        "a@md5:d41d8cd98f00b204e9800998ecf8427e",
        "host:99999/a",
        "host:+1/a",
        "-host.io/a",
        "[::1/a",
        "a\n",
        "https://ghcr.io/a",
        "docker://a",
        "dir:/etc",
    ] {
        assert!(Reference::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn tag_and_digest_of_a_plan_join_those_of_the_text() {
    let name = |repository: &str, tag: Option<&str>, digest: Option<&str>| ImageName {
        repository: repository.to_owned(),
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    };
    let read = |name: &ImageName| Reference::of(name).map(|read| read.to_string());
    assert_eq!(
        read(&name("a", None, None)).unwrap(),
        "docker.io/library/a:latest"
    );
    let digest = format!("sha256:{DIGITS}");
    assert_eq!(
        read(&name("a/b:x", Some("x"), Some(&digest))).unwrap(),
        format!("docker.io/a/b:x@{digest}")
    );
    assert!(read(&name("a/b:x", Some("y"), None)).is_err());
    assert!(read(&name("a", Some("-v/:/host"), None)).is_err());
    assert!(read(&name("a", None, Some("sha256:0"))).is_err());
}

#[test]
fn the_hub_answers_elsewhere_than_it_is_named() {
    let hub = Reference::parse("busybox").unwrap();
    assert_eq!(hub.authority(), "registry-1.docker.io");
    assert_eq!(hub.hosts(), ["registry-1.docker.io", "auth.docker.io"]);
    let own = Reference::parse("[::1]:5000/a").unwrap();
    assert_eq!(own.hosts(), ["[::1]"]);
}

proptest::proptest! {
    #[test]
    fn whatever_is_read_is_no_option_and_reads_again_as_itself(text in "[a-zA-Z0-9:/@._ -]{0,24}") {
        if let Ok(reference) = Reference::parse(&text) {
            let shown = reference.to_string();
            proptest::prop_assert!(!shown.starts_with('-') && !shown.contains(' '));
            proptest::prop_assert_eq!(Reference::parse(&shown).unwrap(), reference);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in ".{0,40}") {
        let _ = Reference::parse(&text);
    }
}
