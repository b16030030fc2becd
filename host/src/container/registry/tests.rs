//! Against a real registry, and a small one of our own for what the real one does not do.

use std::{fs, path::Path, sync::Arc};

use serde_json::json;

use super::{
    testing::{Registry, configuration, here},
    *,
};
use crate::{
    fault::{Exit, Fault as _},
    net::testing::{Reply, Server, net_with, open_net},
};

/// A machine with this home.
struct Machine {
    net: Net,
    environment: Environment,
    secrets: Secrets,
    cancel: CancellationToken,
}

impl Machine {
    fn at(home: &Path) -> Self {
        let home = home.to_string_lossy().into_owned();
        let rules = format!("{home}/registries.conf");
        if !Path::new(&rules).exists() {
            fs::write(&rules, "").unwrap();
        }
        Self {
            net: open_net(),
            environment: Environment::from_pairs([
                ("HOME", home.clone()),
                ("XDG_RUNTIME_DIR", home.clone()),
                ("CONTAINERS_REGISTRIES_CONF", rules),
                ("PATH", format!("{home}/bin:/usr/bin:/bin")),
            ]),
            secrets: Secrets::default(),
            cancel: CancellationToken::new(),
        }
    }

    async fn describe(&self, image: &str) -> Result<RemoteImage, RegistryError> {
        let inquirer = Inquirer {
            net: &self.net,
            environment: &self.environment,
            secrets: &self.secrets,
            runtime: Runtime::Podman,
            cancel: &self.cancel,
        };
        let image = Reference::parse(image).unwrap();
        inquirer.describe(&image, &Platform::of_machine("")).await
    }
}

fn login(home: &Path, registry: &str, user: &str, password: &str) {
    let text = json!({"auths": {registry: {"auth": credentials::basic(user, password)}}});
    fs::create_dir_all(home.join("containers")).unwrap();
    fs::write(home.join("containers/auth.json"), text.to_string()).unwrap();
}

#[tokio::test]
async fn an_image_is_known_by_tag_digest_and_index_before_a_layer_is_fetched() {
    let registry = Registry::open();
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    let pushed = registry.push("a/b", "1", configuration(here())).await;
    let remote = machine.describe(&registry.name("a/b:1")).await.unwrap();
    assert_eq!(remote.digest, pushed.manifest);
    assert_eq!(remote.configuration_digest, pushed.configuration);
    assert_eq!(remote.layers, [(pushed.layer.clone(), pushed.size as u64)]);
    assert_eq!((remote.index.as_ref(), remote.plain_http), (None, true));
    assert_eq!(remote.user, "2000:0");
    assert_eq!(remote.entrypoint, ["/hello"]);
    assert_eq!(remote.variable("NVIDIA_REQUIRE_CUDA"), Some("cuda>=12.9"));
    assert_eq!(remote.labels["org.opencontainers.image.version"], "1.2.3");

    let other = registry.push("a/b", "other", configuration("s390x")).await;
    let images = [("s390x", &other), (here(), &pushed)];
    let index = registry.push_index("a/b", "all", &images).await;
    let by_index = format!("a/b@{index}");
    for name in ["a/b:all", by_index.as_str()] {
        let remote = machine.describe(&registry.name(name)).await.unwrap();
        assert_eq!(remote.digest, pushed.manifest, "{name}");
        assert_eq!(remote.index.as_ref(), Some(&index), "{name}");
    }
}

#[tokio::test]
async fn what_is_not_there_or_not_for_this_machine_is_named() {
    let registry = Registry::open();
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    registry.push("a/b", "1", configuration("s390x")).await;
    let error = machine.describe(&registry.name("a/b:1")).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unavailable);
    assert_eq!(error.details()[0].text, "linux/s390x");

    let error = machine.describe(&registry.name("a/b:2")).await.unwrap_err();
    assert!(
        matches!(&error, RegistryError::NotFound { said, .. } if said.contains("MANIFEST_UNKNOWN")),
        "{error:?}"
    );
    assert_eq!(error.exit(), Exit::Network);
    let wrong = format!("a/b@sha256:{}", "0".repeat(64));
    let error = machine.describe(&registry.name(&wrong)).await.unwrap_err();
    assert!(matches!(error, RegistryError::NotFound { .. }), "{error:?}");
}

#[tokio::test]
async fn a_registry_with_passwords_wants_the_right_one() {
    let registry = Registry::guarded("ada", "correct horse");
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    registry.push("a/b", "1", configuration(here())).await;
    let name = registry.name("a/b:1");
    let error = machine.describe(&name).await.unwrap_err();
    assert!(
        matches!(&error, RegistryError::Unauthorized { sent: None, .. }),
        "{error:?}"
    );
    let login_command = format!("podman login {}", registry.address());
    assert_eq!(
        error.hints()[0].command.as_deref(),
        Some(login_command.as_str())
    );

    login(home.path(), registry.address(), "ada", "wrong horse");
    let error = machine.describe(&name).await.unwrap_err();
    assert!(
        matches!(&error, RegistryError::Unauthorized { sent: Some(_), .. }),
        "{error:?}"
    );
    assert_eq!(error.exit(), Exit::Network);
    let told = format!("{}{:?}", crate::narrate::chain(&error), error.details());
    assert!(!told.contains("horse"), "{told}");

    // Credentials may be filed under a part of the path.
    login(home.path(), &registry.name("a"), "ada", "correct horse");
    assert!(machine.describe(&name).await.is_ok());
    assert_eq!(machine.secrets.mask("the correct horse"), "the ***");
    login(home.path(), &registry.name("other"), "ada", "correct horse");
    assert!(machine.describe(&name).await.is_err());
}

#[tokio::test]
async fn a_damaged_configuration_or_manifest_is_not_believed() {
    let registry = Registry::open();
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    let pushed = registry.push("a/b", "1", configuration(here())).await;
    let path = registry.blob_path(&pushed.configuration);
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let error = machine.describe(&registry.name("a/b:1")).await.unwrap_err();
    assert!(
        matches!(&error, RegistryError::Mismatch { expected, .. } if *expected == pushed.configuration),
        "{error:?}"
    );
    assert_eq!(error.exit(), Exit::Verification);

    fs::write(&path, whole).unwrap();
    let manifest = registry.blob_path(&pushed.manifest);
    let other = fs::read_to_string(&manifest).unwrap().replace("{", "{ ");
    fs::write(&manifest, other).unwrap();
    let by_digest = registry.name(&format!("a/b@{}", pushed.manifest));
    let error = machine.describe(&by_digest).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Verification, "{error:?}");
}

#[tokio::test]
async fn mirrors_are_asked_first_and_the_registry_after_them() {
    let registry = Registry::open();
    let home = tempfile::tempdir().unwrap();
    let pushed = registry
        .push("hub/vllm/x", "1", configuration(here()))
        .await;
    let address = registry.address();
    let rules = format!(
        "[[registry]]\nprefix = 'docker.io'\nlocation = '{address}/nowhere'\n\
         [[registry.mirror]]\nlocation = '127.0.0.1:1/gone'\n\
         [[registry.mirror]]\nlocation = '{address}/hub'\n"
    );
    fs::write(home.path().join("registries.conf"), rules).unwrap();
    let machine = Machine::at(home.path());
    let remote = machine.describe("vllm/x:1").await.unwrap();
    assert_eq!(remote.digest, pushed.manifest);
    assert_eq!(
        remote.endpoint.reference.to_string(),
        registry.name("hub/vllm/x:1")
    );

    let error = machine.describe("vllm/y:1").await.unwrap_err();
    let tried: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
    assert!(matches!(&error, RegistryError::Places { failures, .. } if failures.len() == 3));
    assert!(
        tried[0].starts_with("127.0.0.1:1/gone/vllm/y:1: "),
        "{tried:?}"
    );
    assert_eq!(error.exit(), Exit::Network);
}

/// A registry that wants tokens; gives what it answers for the manifest, from this image.
fn token_server(image: Vec<u8>, configuration: Vec<u8>) -> Arc<Server> {
    let realm: Arc<std::sync::OnceLock<String>> = Arc::default();
    let known = Arc::clone(&realm);
    let server = Server::start(move |_, request| {
        let authorization = request.headers.get("authorization").map(String::as_str);
        let wants = Reply {
            headers: vec![(
                "WWW-Authenticate",
                format!(
                    "Bearer realm=\"{}\",service=\"small\",scope=\"repository:a/b:pull\"",
                    known.get().unwrap()
                ),
            )],
            ..Reply::status(401)
        };
        match (request.path.as_str(), authorization) {
            (path, sent) if path.starts_with("/token?") => match sent {
                None => Reply::ok(r#"{"token": "for-nobody"}"#),
                Some("Basic YWRhOnB3MTIz") => Reply::ok(r#"{"access_token": "for-ada"}"#),
                Some(_) => Reply::status(401),
            },
            // A form, whose text this server does not read.
            ("/token", None) => Reply::ok(r#"{"access_token": "for-ada"}"#),
            (path, Some("Bearer for-ada")) if path.contains("/manifests/") => {
                Reply::ok(image.clone())
            }
            (path, Some("Bearer for-ada")) if path.contains("/blobs/") => {
                Reply::ok(configuration.clone())
            }
            (_, Some("Bearer for-nobody")) => Reply {
                body: br#"{"errors": [{"code": "DENIED", "message": "not yours"}]}"#.to_vec(),
                ..Reply::status(403)
            },
            _ => wants,
        }
    });
    realm.set(server.url("token").to_string()).unwrap();
    Arc::new(server)
}

#[tokio::test]
async fn a_token_is_fetched_with_our_credentials_and_sent_to_the_registry() {
    let text = configuration(here()).to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": Digest::of(&text).to_string()}});
    let server = token_server(manifest.to_string().into_bytes(), text);
    let authority = server.url("").authority().to_owned();
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    let name = format!("{authority}/a/b:1");
    let error = machine.describe(&name).await.unwrap_err();
    let details: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
    assert_eq!(details[0], "403, DENIED: not yours");

    login(home.path(), &authority, "ada", "pw123");
    let remote = machine.describe(&name).await.unwrap();
    assert_eq!(remote.digest, Digest::of(manifest.to_string().as_bytes()));
    let asked = server.requests();
    let token = asked
        .iter()
        .find(|one| one.path.starts_with("/token"))
        .unwrap();
    assert_eq!(
        token.path,
        "/token?service=small&scope=repository%3Aa%2Fb%3Apull"
    );
    assert_eq!(machine.secrets.mask("for-ada"), "***");
}

#[tokio::test]
async fn an_identity_token_is_exchanged_by_a_form() {
    let text = configuration(here()).to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": Digest::of(&text).to_string()}});
    let server = token_server(manifest.to_string().into_bytes(), text);
    let authority = server.url("").authority().to_owned();
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    let auths = json!({"auths": {authority.as_str(): {"identitytoken": "long-lived"}}});
    fs::create_dir_all(home.path().join(".docker")).unwrap();
    fs::write(home.path().join(".docker/config.json"), auths.to_string()).unwrap();
    machine
        .describe(&format!("{authority}/a/b:1"))
        .await
        .unwrap();
    let asked = server.requests();
    let form = asked.iter().find(|one| one.path == "/token").unwrap();
    assert_eq!(
        form.headers["content-type"],
        "application/x-www-form-urlencoded"
    );
    assert_eq!(machine.secrets.mask("long-lived"), "***");
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_server() {
    let text = configuration(here()).to_string().into_bytes();
    let manifest = json!({"schemaVersion": 2, "config": {"digest": Digest::of(&text).to_string()}});
    let elsewhere = Arc::new(Server::start(move |_, _| Reply::ok(text.clone())));
    let target = elsewhere.url("blob").to_string();
    let server = Server::start(move |_, request| {
        match (
            request.headers.get("authorization"),
            request.path.contains("/blobs/"),
        ) {
            (None, _) => Reply {
                headers: vec![("WWW-Authenticate", "Basic realm=x".to_owned())],
                ..Reply::status(401)
            },
            (Some(_), true) => Reply::redirect(&target),
            (Some(_), false) => Reply::ok(manifest.to_string()),
        }
    });
    let home = tempfile::tempdir().unwrap();
    let authority = server.url("").authority().to_owned();
    login(home.path(), &authority, "ada", "pw123");
    let machine = Machine::at(home.path());
    machine
        .describe(&format!("{authority}/a/b:1"))
        .await
        .unwrap();
    let asked = elsewhere.requests();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].headers.get("authorization"), None);
}

#[tokio::test]
async fn a_registry_proves_who_it_is_unless_the_operator_says_otherwise() {
    let (registry, certificate) = Registry::encrypted();
    registry.push("a/b", "1", configuration(here())).await;
    let name = registry.name("a/b:1");
    let home = tempfile::tempdir().unwrap();
    let machine = Machine::at(home.path());
    let error = machine.describe(&name).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Network);
    let told = crate::narrate::chain(&error).to_lowercase();
    assert!(told.contains("certificate"), "{told}");

    let rules = format!(
        "[[registry]]\nlocation = '{}'\ninsecure = true\n",
        registry.address()
    );
    fs::write(home.path().join("registries.conf"), rules).unwrap();
    assert!(!machine.describe(&name).await.unwrap().plain_http);

    fs::write(home.path().join("registries.conf"), "").unwrap();
    let trusted = home
        .path()
        .join(".config/containers/certs.d")
        .join(registry.address());
    fs::create_dir_all(&trusted).unwrap();
    fs::copy(certificate, trusted.join("ca.crt")).unwrap();
    assert!(!machine.describe(&name).await.unwrap().plain_http);
}

#[tokio::test]
async fn policy_is_asked_about_every_host() {
    let refuse = |_: &str, _: Option<&str>| -> Result<(), crate::policy::Refusal> {
        let policy = crate::policy::Policy {
            network: crate::policy::Setting::default_of(crate::policy::NetworkPolicy::Offline),
            ..Default::default()
        };
        policy.allow_host("x", &[])
    };
    let home = tempfile::tempdir().unwrap();
    let machine = Machine {
        net: net_with(Arc::new(refuse)),
        ..Machine::at(home.path())
    };
    let error = machine.describe("127.0.0.1:1/a:1").await.unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
}
