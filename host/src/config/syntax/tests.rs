use super::*;

fn base() -> Base {
    Base {
        directory: "/etc/pools".into(),
        home: Some("/home/ada".into()),
    }
}

#[test]
fn model_references_are_absolute_or_refused() {
    for (written, expected) in [
        ("./m.gguf", "file:/etc/pools/m.gguf"),
        ("../m.gguf", "file:/etc/m.gguf"),
        ("m.gguf", "file:/etc/pools/m.gguf"),
        ("~/m.gguf", "file:/home/ada/m.gguf"),
        ("/m.gguf", "file:/m.gguf"),
        ("file:/m.gguf", "file:/m.gguf"),
        ("file:///m.gguf", "file:/m.gguf"),
        ("local:/models/x.gguf", "file:/models/x.gguf"),
        ("builtin:haiku", "builtin:haiku"),
        ("hf:org/repo/x.gguf", "hf:org/repo/x.gguf"),
        ("hf://org/repo", "hf:org/repo"),
        ("https://h/x.gguf", "https://h/x.gguf"),
        ("s3://bucket/x.gguf", "s3://bucket/x.gguf"),
    ] {
        assert_eq!(model_reference(written, &base()).as_deref(), Ok(expected));
    }
    let refused = |text: &str| {
        let (message, help) = model_reference(text, &base()).expect_err(text);
        format!("{text} => {message} [{}]", help.unwrap_or_default())
    };
    insta::assert_snapshot!(
        ["", "org/repo", "huggingface:x", "hff:a/b", "hf:x", "builtin:", "https://u:p@h/x", "file:", " x.gguf", "~bob/x.gguf"]
            .into_iter()
            .skip(1)
            .map(refused)
            .collect::<Vec<_>>()
            .join("\n"),
        @r"
    org/repo => `org/repo` can be a file or a hub repository [write `./org/repo` or `hf:org/repo`]
    huggingface:x => `huggingface:` is not a kind of model reference [write `file:`, `https://`, `hf:`, `s3://`, `oci://` or `builtin:`]
    hff:a/b => `hff:` is not a kind of model reference [did you mean `hf:`?]
    hf:x => `hf:x` names no repository [write `hf:organisation/repository` or `hf:organisation/repository/file`]
    builtin: => `builtin:` names nothing [write for example `builtin:haiku`]
    https://u:p@h/x => the URL carries a password [take it out: secrets never stand in URLs]
    file: => the reference names no file [write `file:/path/to/model.gguf`]
     x.gguf => the reference has spaces around it or control characters in it [remove them]
    ~bob/x.gguf => `~bob/x.gguf` is no path [write the whole path]
    "
    );
}

#[test]
fn digests_say_their_algorithm() {
    let hex = "0".repeat(64);
    let both = &["sha256", "sha512"][..];
    assert_eq!(digest(&format!("sha256:{hex}"), both), Ok(()));
    assert_eq!(digest(&format!("sha512:{hex}{hex}"), both), Ok(()));
    let refused = |text: &str, allowed: &[&str]| {
        let (message, help) = digest(text, allowed).expect_err(text);
        format!("{message} [{}]", help.unwrap_or_default()).replace(&hex, "HEX")
    };
    insta::assert_snapshot!(
        [
            refused(&hex, both),
            refused(&format!("sha512:{hex}{hex}"), &["sha256"]),
            refused("md5:0", both),
            refused("sha256:0", both),
            refused(&format!("sha256:{}", "A".repeat(64)), both),
            refused("x", &["sha256"]),
        ].join("\n"), @r"
    the digest does not say its algorithm [did you mean `sha256:HEX`?]
    digests of algorithm `sha512` are not accepted here [write `sha256:` and 64 hexadecimal digits]
    digests of algorithm `md5` are not accepted here [write `sha256:` and 64 hexadecimal digits, or `sha512:` and 128 hexadecimal digits]
    a sha256 digest has 64 hexadecimal digits, not 1 characters []
    digests are written in lower case [write `sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa`]
    `x` is no digest [write `sha256:` and 64 hexadecimal digits]
    ");
}

#[test]
fn only_secrets_are_filled_into_the_environment() {
    for fine in [
        "",
        "plain",
        "{secret.HF_TOKEN}",
        "a{secret.X}b",
        "{{\"a\":1}}",
    ] {
        assert_eq!(variable_value(fine), Ok(()), "{fine}");
    }
    for bad in [
        "{HF_TOKEN}",
        "{address.port}",
        "{\"a\":1}",
        "{secret.a.b}",
        "{",
    ] {
        assert!(variable_value(bad).is_err(), "{bad}");
    }
}

#[test]
fn git_is_never_given_an_option_or_a_program() {
    for bad in ["-x", "a..b", "a b", "", "x:y", "HEAD^", "/x"] {
        assert!(git_reference(bad).is_err(), "{bad}");
    }
    for fine in ["master", "b1234", "v1.2.3", "feature/x", &"a".repeat(40)] {
        assert_eq!(git_reference(fine), Ok(()));
    }
    for bad in [
        "--upload-pack=x",
        "ext::sh -c x",
        "ext::x",
        "https://a:b@h/x",
        "ftp://h/x",
    ] {
        assert!(git_repository(bad).is_err(), "{bad}");
    }
    for fine in [
        "https://h/x.git",
        "git@h:x.git",
        "/srv/x.git",
        "file:///srv/x.git",
    ] {
        assert_eq!(git_repository(fine), Ok(()));
    }
}

#[test]
fn a_name_that_counts_tokens_names_no_secret() {
    for secret in [
        "HF_TOKEN",
        "hf_token_2",
        "TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "X_API_KEY",
    ] {
        assert!(names_a_secret(secret), "{secret}");
    }
    for plain in ["MAX_INPUT_TOKENS", "TOKENIZERS_PARALLELISM", "HOME"] {
        assert!(!names_a_secret(plain), "{plain}");
    }
}

#[test]
fn an_engine_that_runs_already_has_a_plain_http_address() {
    for fine in [
        "http://127.0.0.1:8000",
        "http://host/",
        "http://[::1]:9",
        "http://localhost:1",
    ] {
        assert_eq!(engine_url(fine), Ok(()), "{fine}");
    }
    for bad in [
        "https://h",
        "http://h/v1",
        "http://h?x",
        "http://me@h",
        "http://me:pw@h",
        "file:///etc/passwd",
        "unix:/x",
        "h:1",
        "http://h:70000",
    ] {
        assert!(engine_url(bad).is_err(), "{bad}");
    }
}
