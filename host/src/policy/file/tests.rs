use super::*;

fn read_text(text: &str) -> Result<Option<Layer>, ConfigError> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.yaml");
    std::fs::write(&path, text).unwrap();
    read(&path, &Caller::test_root())
}

#[test]
fn a_policy_file_is_read_with_the_line_of_each_setting() {
    let layer = read_text(
        "# lab machines\nlabel: lab\ngpu: prefer\nnetwork:\n  - GitHub.com\n  - '*.example.org'\nrun_as: ada\n",
    )
    .unwrap()
    .unwrap();
    assert_eq!(layer.label.as_deref(), Some("lab"));
    let gpu = layer.gpu.unwrap();
    assert!(gpu.origin.is_ceiling());
    assert!(gpu.origin.to_string().ends_with("policy.yaml:3"));
    assert_eq!(
        layer.network.unwrap().value,
        NetworkPolicy::Only(vec!["github.com".into(), "*.example.org".into()])
    );
    assert_eq!(
        layer.run_as.unwrap().value,
        Identity {
            uid: 1000,
            gid: 1001
        }
    );
    assert_eq!(layer.tools, None);
}

#[test]
fn the_policy_in_the_manual_is_right() {
    let manual = include_str!("../../../../docs/pool-file.md");
    let text = manual
        .split("```yaml\n")
        .find(|it| it.starts_with("# /etc"));
    let text = text
        .and_then(|it| it.split("```").next())
        .expect("it is there");
    let mut caller = Caller::test_root();
    caller.passwd.push_str("engine:x:900:900::/:/bin/false\n");
    caller.group.push_str("engine:x:900:\n");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("policy.yaml");
    std::fs::write(&path, text).unwrap();
    let layer = read(&path, &caller).unwrap().unwrap();
    assert_eq!(layer.run_as.unwrap().value, Identity { uid: 900, gid: 900 });
}

#[test]
fn an_empty_or_missing_policy_says_nothing() {
    assert_eq!(
        read_text("# nothing yet\n").unwrap(),
        Some(Layer::default())
    );
    let missing = Path::new("/nonexistent/policy.yaml");
    assert_eq!(read(missing, &Caller::test_root()).unwrap(), None);
}

#[test]
fn everything_wrong_with_a_policy_is_told() {
    let told = |text: &str| {
        let Err(ConfigError::Invalid { problems, .. }) = read_text(text) else {
            panic!("refused");
        };
        problems
            .iter()
            .map(|p| {
                format!(
                    "{}: {} [{}]",
                    p.field,
                    p.message,
                    p.help.as_deref().unwrap_or("-")
                )
            })
            .collect::<Vec<_>>()
            .join("\n")
    };
    insta::assert_snapshot!(told("gpu: required\nallow_aurs: true\nnetwork: online\ntools: git\n"), @r"
    gpu: `gpu` cannot be `required` [did you mean `require`?]
    allow_aurs: there is no `allow_aurs` [did you mean `allow_aur`?]
    network: `network` cannot be `online` [did you mean `offline`?]
    tools: `tools` must be a list, not the text `git` [-]
    ");
    insta::assert_snapshot!(told("network: ['https://github.com/x']\nrun_as: nobody-here\n"), @r"
    network[0]: `https://github.com/x` is no host name [write a host such as `github.com`, or `*.example.org`, without scheme or path]
    run_as: there is no user `nobody-here` here [write `root`, `uid`, `uid:gid`, or a user of this machine]
    ");
}
