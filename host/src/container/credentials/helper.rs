//! Programs that keep credentials: docker's credential helpers.

use std::{path::Path, time::Duration};

use serde::Deserialize;

use super::{Credential, CredentialsError};
use crate::{
    config::environment::Environment,
    container,
    process::{self, Question},
};

/// User name of helpers that give an identity token.
const TOKEN_USER: &str = "<token>";

/// Longest time a helper may take: it may ask a key ring, not a person.
const LIMIT: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks `docker-credential-NAME get` (docker-credential-helpers); `None` where it knows nothing.
pub(super) async fn ask(
    environment: &Environment,
    place: &Path,
    name: &str,
    server: &str,
) -> Result<Option<Credential>, CredentialsError> {
    let helper = format!("docker-credential-{name}");
    let failed = |reason: String| CredentialsError::Helper {
        helper: helper.clone(),
        registry: server.to_owned(),
        path: place.to_owned(),
        reason,
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(failed("that is no name of a program".to_owned()));
    }
    let mut programs = environment.search_path().into_iter();
    let program = programs
        .find_map(|directory| {
            let path = directory.join(&helper);
            path.is_file().then_some(path)
        })
        .ok_or_else(|| failed("it is in none of the directories of PATH".to_owned()))?;
    let question = Question {
        program,
        args: vec!["get".to_owned()],
        env: container::environment(environment),
        identity: None,
        limit: LIMIT,
    };
    let answer = process::ask_with_input(&question, server)
        .await
        .map_err(|error| failed(crate::narrate::chain(&error)))?;
    if !answer.exited.success() {
        // Helpers say on either stream that there is nothing.
        let said = format!("{}{}", answer.stdout, answer.stderr);
        if said.contains("credentials not found") {
            return Ok(None);
        }
        let first = said.lines().next().unwrap_or_default();
        return Err(failed(format!("{}: {first}", answer.exited)));
    }
    let read: Answer = serde_json::from_str(&answer.stdout)
        .map_err(|_| failed("its answer is not what helpers answer".to_owned()))?;
    Ok(Some(match read.username.as_str() {
        TOKEN_USER => Credential::Identity { token: read.secret },
        _ => Credential::Login {
            user: read.username,
            password: read.secret,
        },
    }))
}
