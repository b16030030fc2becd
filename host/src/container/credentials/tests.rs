use serde_json::json;

use super::*;
use crate::act::tests::script;

struct Machine {
    home: tempfile::TempDir,
    secrets: Secrets,
}

impl Machine {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            secrets: Secrets::default(),
        }
    }

    fn path(&self, place: &str) -> PathBuf {
        self.home.path().join(place)
    }

    fn write(&self, place: &str, text: &str) -> PathBuf {
        let path = self.path(place);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    /// A helper that answers this and ends with this code.
    fn helper(&self, name: &str, answer: &str, code: i32) {
        let text = format!("cat > \"$0.asked\"\ncat <<'END'\n{answer}\nEND\nexit {code}");
        fs::create_dir_all(self.path("bin")).unwrap();
        script(&self.path(&format!("bin/docker-credential-{name}")), &text);
    }

    async fn find(&self, runtime: Runtime, image: &str) -> Result<Option<Found>, CredentialsError> {
        let home = self.home.path().to_string_lossy().into_owned();
        let path = format!("{home}/bin:/usr/bin:/bin");
        let environment = Environment::from_pairs([
            ("HOME", home.clone()),
            ("XDG_RUNTIME_DIR", format!("{home}/run")),
            ("PATH", path),
        ]);
        let image = Reference::parse(image).unwrap();
        find(&environment, &self.secrets, runtime, &image).await
    }

    async fn user(&self, runtime: Runtime, image: &str) -> Option<String> {
        match self.find(runtime, image).await.unwrap()?.credential {
            Credential::Login { user, .. } => Some(user),
            Credential::Identity { token } => Some(format!("token {token}")),
        }
    }

    async fn podmans(&self, image: &str) -> Option<String> {
        self.user(Runtime::Podman, image).await
    }
}

fn auth(user: &str) -> serde_json::Value {
    json!({"auth": basic(user, "a-password")})
}

#[tokio::test]
async fn the_longest_path_decides_and_old_names_of_registries_are_understood() {
    let machine = Machine::new();
    let auths = json!({"auths": {"ghcr.io": auth("all"), "ghcr.io/org": auth("org"),
        "https://index.docker.io/v1/": auth("hub")}});
    machine.write("run/containers/auth.json", &auths.to_string());
    for (image, user) in [
        ("ghcr.io/org/x:1", Some("org")),
        ("ghcr.io/organ/x:1", Some("all")),
        ("vllm/x:1", Some("hub")),
        ("quay.io/x:1", None),
    ] {
        assert_eq!(machine.podmans(image).await.as_deref(), user, "{image}");
    }
    assert_eq!(machine.secrets.mask("a-password"), "***");
    assert_eq!(machine.secrets.mask(&basic("hub", "a-password")), "***");
}

#[tokio::test]
async fn each_runtime_has_its_own_place_first() {
    let machine = Machine::new();
    let file = |user: &str| json!({"auths": {"a.io": auth(user)}}).to_string();
    machine.write(".config/containers/auth.json", &file("podmans"));
    machine.write(".docker/config.json", &file("dockers"));
    for (runtime, user) in [(Runtime::Podman, "podmans"), (Runtime::Docker, "dockers")] {
        let found = machine.find(runtime, "a.io/x").await.unwrap().unwrap();
        assert_eq!(found.reader, runtime);
        let name = machine.user(runtime, "a.io/x").await;
        assert_eq!(name.as_deref(), Some(user));
    }
}

#[tokio::test]
async fn helpers_are_asked_by_standard_input_and_may_know_nothing() {
    let machine = Machine::new();
    let answer = r#"{"ServerURL": "", "Username": "ada", "Secret": "from-helper"}"#;
    machine.helper("own", answer, 0);
    let answer = r#"{"Username": "<token>", "Secret": "identity"}"#;
    machine.helper("token", answer, 0);
    machine.helper("empty", "credentials not found in native keychain", 1);
    machine.helper("broken", "no key ring", 1);
    let config = json!({"credsStore": "empty", "auths": {"f.io": {}}, "credHelpers": {
        "a.io": "own", "b.io": "token", "c.io": "broken", "d.io": "../x", "e.io": "none"}});
    machine.write(".docker/config.json", &config.to_string());
    let asked = |name: &str| {
        let path = machine.path(&format!("bin/docker-credential-{name}.asked"));
        fs::read_to_string(path).unwrap()
    };
    assert_eq!(machine.podmans("a.io/x").await.as_deref(), Some("ada"));
    assert_eq!(asked("own"), "a.io");
    assert_eq!(machine.secrets.mask("from-helper"), "***");
    assert_eq!(
        machine.podmans("b.io/x").await.as_deref(),
        Some("token identity")
    );
    assert_eq!(machine.podmans("f.io/x").await, None);
    assert_eq!(machine.podmans("busybox").await, None);
    assert_eq!(asked("empty"), DOCKER_HUB_KEY);
    for (image, reason) in [
        ("c.io/x", "no key ring"),
        ("d.io/x", "that is no name of a program"),
        ("e.io/x", "it is in none of the directories of PATH"),
    ] {
        let error = machine.find(Runtime::Podman, image).await.unwrap_err();
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.exit(), Exit::Config);
    }
}

#[tokio::test]
async fn a_bad_file_is_named_and_nothing_of_it_is_shown() {
    let machine = Machine::new();
    let place = "run/containers/auth.json";
    for bad in [
        json!({"auths": {"a.io": "hunter2hunter2"}}).to_string(),
        json!({"auths": {"a.io": {"auth": "hunter2hunter2 no base64"}}}).to_string(),
        json!({"auths": {"a.io": {"auth": "aHVudGVyMmh1bnRlcjI="}}}).to_string(),
        "{\"hunter2hunter2".to_owned(),
    ] {
        let path = machine.write(place, &bad);
        let error = machine.find(Runtime::Podman, "a.io/x").await.unwrap_err();
        assert!(
            matches!(&error, CredentialsError::Malformed { path: named, .. } if *named == path),
            "{error:?}"
        );
        let told = format!("{} {error:?}", crate::narrate::chain(&error));
        assert!(!told.contains("hunter2"), "{told}");
    }
    machine.write(place, "");
    assert_eq!(machine.podmans("a.io/x").await, None);
    fs::remove_file(machine.path(place)).unwrap();
    fs::create_dir(machine.path(place)).unwrap();
    let error = machine.find(Runtime::Podman, "a.io/x").await.unwrap_err();
    assert!(
        matches!(error, CredentialsError::Unreadable { .. }),
        "{error:?}"
    );
}

#[test]
fn a_place_that_may_not_be_entered_is_none_unless_somebody_named_it() {
    let denied = || Err(io::ErrorKind::PermissionDenied.into());
    // Behind a closed directory nothing is seen.
    let closed = Path::new("/run/containers/no-such-user/auth.json");
    assert!(understood(closed, false, denied()).unwrap().is_none());
    let machine = Machine::new();
    let there = machine.write("run/containers/auth.json", "{}");
    for (place, named) in [(closed, true), (&*there, false), (&*there, true)] {
        let error = understood(place, named, denied()).err().unwrap();
        assert!(
            matches!(error, CredentialsError::Unreadable { .. }),
            "{error:?}"
        );
    }
}
