//! Credentials for a runtime that does not find them itself: those that lie in the other runtime's
//! place are written into a directory that only this user can enter, which its program is pointed at
//! by its environment and which is removed afterwards.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    io::Write as _,
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use serde_json::{Map, Value, json};

use crate::{
    act::{ActError, Context},
    config::environment::Environment,
    container::{Credential, Found, Reference, Runtime, basic, registry_key},
    store::{StoreError, Temporary},
};

/// Lends credentials for these places where the runtime's program would not find them; gives what
/// must be kept as long as it runs.
pub(super) fn lend(
    context: &Context,
    step: &engine_provider_api::Step,
    runtime: Runtime,
    found: &[(Reference, Found)],
    env: &mut BTreeMap<String, String>,
) -> Result<Option<Temporary>, ActError> {
    if found.iter().all(|(_, found)| found.reader == runtime) {
        return Ok(None);
    }
    let failed = |source| ActError::store(step, source);
    let directory = context.store.temporary("credentials").map_err(failed)?;
    let (variable, name, document) = match runtime {
        Runtime::Podman => ("REGISTRY_AUTH_FILE", "auth.json", auths(found, runtime)),
        Runtime::Docker => {
            let own = docker_directory(&context.environment);
            let mut document = own.as_deref().map(settings_of).unwrap_or_default();
            document.extend(auths(found, runtime));
            if let Some(contexts) = own.map(|own| own.join("contexts")).filter(|it| it.is_dir()) {
                let link = directory.path().join("contexts");
                std::os::unix::fs::symlink(contexts, &link)
                    .map_err(|source| failed(StoreError::io("create", link, source)))?;
            }
            ("DOCKER_CONFIG", "config.json", document)
        }
    };
    let path = directory.path().join(name);
    let written = fs::set_permissions(directory.path(), Permissions::from_mode(0o700))
        .and_then(|()| {
            let mut options = fs::OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).open(&path)
        })
        .and_then(|mut file| file.write_all(Value::Object(document).to_string().as_bytes()));
    written.map_err(|source| failed(StoreError::io("write", &path, source)))?;
    let value = match runtime {
        Runtime::Podman => &path,
        Runtime::Docker => directory.path(),
    };
    env.insert(variable.to_owned(), value.to_string_lossy().into_owned());
    Ok(Some(directory))
}

/// `auths` of a credentials file.
fn auths(found: &[(Reference, Found)], runtime: Runtime) -> Map<String, Value> {
    let entry = |(place, found): &(Reference, Found)| {
        let entry = match &found.credential {
            Credential::Login { user, password } => json!({"auth": basic(user, password)}),
            Credential::Identity { token } => json!({
                "auth": basic("00000000-0000-0000-0000-000000000000", ""),
                "identitytoken": token,
            }),
        };
        (registry_key(place, runtime), entry)
    };
    let auths: Map<String, Value> = found.iter().map(entry).collect();
    Map::from_iter([("auths".to_owned(), Value::Object(auths))])
}

/// What else docker's own configuration says: which daemon it talks to, and through which proxies.
fn settings_of(directory: &Path) -> Map<String, Value> {
    let text = fs::read(directory.join("config.json")).unwrap_or_default();
    let mut settings: Map<String, Value> = serde_json::from_slice(&text).unwrap_or_default();
    settings
        .retain(|name, _| matches!(name.as_str(), "currentContext" | "proxies" | "HttpHeaders"));
    settings
}

fn docker_directory(environment: &Environment) -> Option<PathBuf> {
    environment
        .path("DOCKER_CONFIG")
        .or_else(|| Some(environment.path("HOME")?.join(".docker")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::act::tests::bench;

    fn found(place: &str, reader: Runtime) -> (Reference, Found) {
        let credential = Credential::Login {
            user: "ada".to_owned(),
            password: "pw123".to_owned(),
        };
        let found = Found {
            credential,
            place: "/x".into(),
            reader,
        };
        (Reference::parse(place).unwrap(), found)
    }

    fn step() -> engine_provider_api::Step {
        let step = json!({"id": "image", "kind": "pull-image", "image": {"repository": "x"}});
        serde_json::from_value(step).unwrap()
    }

    #[test]
    fn docker_gets_a_directory_of_its_own_that_still_names_its_daemon() {
        let mut bench = bench(&[]);
        let own = bench.home.path().join("docker");
        fs::create_dir_all(own.join("contexts")).unwrap();
        let config = json!({"currentContext": "far", "credsStore": "desktop", "auths": {"x": {}}});
        fs::write(own.join("config.json"), config.to_string()).unwrap();
        let pairs = [("DOCKER_CONFIG", own.clone())];
        bench.context.environment = std::sync::Arc::new(Environment::from_pairs(pairs));
        let mut env = BTreeMap::new();
        let all = [
            found("docker.io/a/b", Runtime::Podman),
            found("own.io/c", Runtime::Docker),
        ];
        let lent = lend(&bench.context, &step(), Runtime::Docker, &all, &mut env).unwrap();
        let directory = PathBuf::from(&env["DOCKER_CONFIG"]);
        let file = directory.join("config.json");
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
        assert!(directory.join("contexts").is_dir());
        let text = fs::read_to_string(file).unwrap();
        let auth = json!({"auth": "YWRhOnB3MTIz"});
        let expected = json!({"currentContext": "far",
            "auths": {"https://index.docker.io/v1/": auth, "own.io": auth}});
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
        drop(lent);
        assert!(!directory.exists() && own.join("contexts").is_dir());
    }

    #[test]
    fn who_finds_them_itself_is_lent_nothing() {
        let bench = bench(&[]);
        let mut env = BTreeMap::new();
        let all = [found("own.io/c", Runtime::Podman)];
        let lent = lend(&bench.context, &step(), Runtime::Podman, &all, &mut env).unwrap();
        assert!(lent.is_none() && env.is_empty());
    }
}
