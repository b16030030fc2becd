use super::*;

fn registries(text: &str) -> Registries {
    let mut all = Registries::default();
    all.add(text).unwrap();
    all
}

fn places(registries: &Registries, image: &str) -> Vec<String> {
    let image = Reference::parse(image).unwrap();
    registries
        .endpoints(&image)
        .unwrap()
        .into_iter()
        .map(|endpoint| {
            let mark = if endpoint.insecure { " insecure" } else { "" };
            format!("{}{mark}", endpoint.reference)
        })
        .collect()
}

const RULES: &str = r#"
    unqualified-search-registries = ["docker.io"]
    [[registry]]
    prefix = "docker.io"
    location = "docker.io"
    [[registry.mirror]]
    location = "mirror.example:5000/hub"
    insecure = true
    [[registry.mirror]]
    location = "second.example"
    pull-from-mirror = "digest-only"
    [[registry]]
    prefix = "docker.io/vllm"
    location = "own.example/vllm"
    [[registry]]
    location = "bad.example"
    blocked = true
    [[registry]]
    prefix = "*.corp.example"
    insecure = true
"#;

#[test]
fn mirrors_come_first_and_the_longest_prefix_decides() {
    let rules = registries(RULES);
    assert_eq!(
        places(&rules, "busybox:1"),
        [
            "mirror.example:5000/hub/library/busybox:1 insecure",
            "docker.io/library/busybox:1"
        ]
    );
    assert_eq!(places(&rules, "vllm/x:1"), ["own.example/vllm/x:1"]);
    assert_eq!(places(&rules, "vllmm/x:1").len(), 2);
    assert_eq!(places(&rules, "quay.io/a:1"), ["quay.io/a:1"]);
    assert_eq!(
        places(&rules, "a.corp.example:5000/x:1"),
        ["a.corp.example:5000/x:1 insecure"]
    );
    assert_eq!(places(&rules, "corp.example/x:1"), ["corp.example/x:1"]);
}

#[test]
fn a_mirror_for_digests_is_not_asked_for_tags() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let found = places(&registries(RULES), &format!("busybox@{digest}"));
    assert_eq!(found.len(), 3);
    assert!(found[1].starts_with("second.example/library/busybox@"));
}

#[test]
fn a_blocked_registry_is_refused_by_name() {
    let image = Reference::parse("bad.example/x:1").unwrap();
    let error = registries(RULES).endpoints(&image).unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    assert_eq!(error.to_string(), "registries.conf blocks bad.example/x:1");
}

#[test]
fn later_files_replace_rules_and_bad_ones_are_named() {
    let mut rules = registries(RULES);
    rules
        .add("[[registry]]\nprefix = 'docker.io/vllm'\nlocation = 'other.example/v'\n")
        .unwrap();
    assert_eq!(places(&rules, "vllm/x:1"), ["other.example/v/x:1"]);
    assert!(rules.add("[[registry]]\n").is_err());
    assert!(rules.add("registry = 3\n").is_err());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("r.conf");
    fs::write(&path, "[[registry]\n").unwrap();
    let pairs = [("CONTAINERS_REGISTRIES_CONF", path.clone())];
    let error = Registries::read(&Environment::from_pairs(pairs)).unwrap_err();
    assert!(matches!(&error, RegistriesError::Malformed { path: named, .. } if *named == path));
    let pairs = [("CONTAINERS_REGISTRIES_CONF", directory.path().join("none"))];
    let error = Registries::read(&Environment::from_pairs(pairs)).unwrap_err();
    assert!(matches!(error, RegistriesError::Unreadable { .. }));
}

#[test]
fn a_users_own_file_stands_for_the_administrators() {
    let home = tempfile::tempdir().unwrap();
    let own = home.path().join(".config/containers");
    fs::create_dir_all(own.join("registries.conf.d")).unwrap();
    fs::write(own.join("registries.conf"), RULES).unwrap();
    let text = "[[registry]]\nlocation = 'bad.example'\n";
    fs::write(own.join("registries.conf.d/50-mine.conf"), text).unwrap();
    let environment = Environment::from_pairs([("HOME", home.path())]);
    let rules = Registries::read(&environment).unwrap();
    assert_eq!(places(&rules, "bad.example/x:1"), ["bad.example/x:1"]);
}
