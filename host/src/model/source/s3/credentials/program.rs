//! Programs that give keys: `credential_process` of a profile.
//!
//! Started as AWS's tools start them: without a shell, in the user's environment. What they print is
//! read and never shown; the first line of what they complain of is.

use std::{path::PathBuf, time::Duration};

use jiff::Timestamp;
use serde::Deserialize;

use super::Signer;
use crate::{
    config::environment::Environment,
    model::source::s3::{S3Error, sign::Key},
    narrate::chain,
    process::{self, Question},
};

/// Longest time such a program may take: it may ask a service, not a person.
const LIMIT: Duration = Duration::from_secs(60);

/// Longest complaint that is shown.
const SAID: usize = 200;

/// What is printed (AWS SDKs and Tools reference guide, "Process credential provider").
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    #[serde(default)]
    session_token: Option<String>,
    #[serde(default)]
    expiration: Option<Timestamp>,
}

/// Runs the command. `from` says whose it is.
pub(super) async fn ask(
    environment: &Environment,
    from: &str,
    command: &str,
) -> Result<Signer, S3Error> {
    let failed = |reason: String| S3Error::NoKeys {
        from: from.to_owned(),
        reason,
    };
    let words = words(command).ok_or_else(|| failed("a quote is not closed".to_owned()))?;
    let mut words = words.into_iter();
    let name = words
        .next()
        .ok_or_else(|| failed("it is empty".to_owned()))?;
    let program = find(environment, &name)
        .ok_or_else(|| failed(format!("`{name}` is neither an absolute path nor on PATH")))?;
    let question = Question {
        program,
        args: words.collect(),
        env: environment.all(),
        identity: None,
        limit: LIMIT,
    };
    let answer = process::ask(&question).await;
    // Arguments may be secrets: of what went wrong only the rest is told.
    let answer = answer.map_err(|error| match error {
        process::ProcessError::Start { reason, .. } => failed(chain(&reason)),
        other => failed(chain(&other)),
    })?;
    if !answer.exited.success() {
        let first = answer.stderr.lines().find(|line| !line.trim().is_empty());
        let visible = first.unwrap_or_default().chars();
        let said: String = visible.filter(|c| !c.is_control()).take(SAID).collect();
        return Err(failed(format!("{}: {said}", answer.exited)));
    }
    read(&answer.stdout, Timestamp::now(), from).map_err(failed)
}

/// What the parser says beyond the place may quote a secret.
fn read(text: &str, now: Timestamp, from: &str) -> Result<Signer, String> {
    let printed: Printed = serde_json::from_str(text).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        format!("what it printed is none, line {line}, column {column}")
    })?;
    if printed.version != 1 {
        return Err(format!(
            "it printed version {} of the format, known is 1",
            printed.version
        ));
    }
    if let Some(end) = printed.expiration.filter(|end| *end <= now) {
        return Err(format!("what it printed expired at {end}"));
    }
    Ok(Signer {
        key: Key {
            id: printed.access_key_id,
            secret: printed.secret_access_key,
            token: printed.session_token,
        },
        from: from.to_owned(),
        expires: printed.expiration,
    })
}

fn find(environment: &Environment, name: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|path| path.is_absolute());
    }
    let mut all = environment.search_path().into_iter();
    all.find_map(|directory| {
        let path = directory.join(name);
        path.is_file().then_some(path)
    })
}

/// Words as a POSIX shell splits them, without what it would replace in them; `None` where a quote is
/// not closed.
fn words(text: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match next {
            blank if blank.is_ascii_whitespace() => words.extend(word.take()),
            '\'' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        '\'' => break,
                        other => word.push(other),
                    }
                }
            }
            '"' => {
                let word = word.get_or_insert_default();
                loop {
                    match rest.next()? {
                        '"' => break,
                        '\\' => match rest.next()? {
                            special @ ('"' | '\\' | '$' | '`') => word.push(special),
                            other => word.extend(['\\', other]),
                        },
                        other => word.push(other),
                    }
                }
            }
            '\\' => word.get_or_insert_default().push(rest.next()?),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_split_as_a_shell_splits_them() {
        let split = |text: &str| words(text).unwrap();
        assert_eq!(split(" a  b\tc "), ["a", "b", "c"]);
        assert_eq!(
            split(r#""/opt/my tool" --x='a "b"' "" c\ d "e\"f\g""#),
            ["/opt/my tool", "--x=a \"b\"", "", "c d", "e\"f\\g"]
        );
        assert_eq!(split(""), [""; 0]);
        for open in ["'a", "\"a", "a\\", "\"\\"] {
            assert_eq!(words(open), None, "{open}");
        }
    }

    #[test]
    fn what_is_printed_is_read_or_refused_without_being_shown() {
        let now: Timestamp = "2026-01-02T00:00:00Z".parse().unwrap();
        let keys = r#""AccessKeyId": "AK", "SecretAccessKey": "the-secret""#;
        let read = |more: &str| read(&format!("{{{keys}{more}}}"), now, "it");
        let signer = read(r#", "Version": 1"#).unwrap();
        assert_eq!((signer.key.token, signer.expires), (None, None));
        let signer = read(
            r#", "Version": 1, "SessionToken": "t", "Expiration": "2026-01-02T01:00:00+00:00""#,
        );
        assert_eq!(signer.unwrap().key.token.as_deref(), Some("t"));
        for (more, told) in [
            (r#", "Version": 2"#, "version 2"),
            (
                r#", "Version": 1, "Expiration": "2026-01-01T23:00:00Z""#,
                "expired at",
            ),
            ("", "is none"),
            (r#", "Version": "the-secret""#, "is none"),
        ] {
            let error = read(more).unwrap_err();
            assert!(
                error.contains(told) && !error.contains("the-secret"),
                "{error}"
            );
        }
    }
}
