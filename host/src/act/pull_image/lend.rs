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
