//! Which way leads to the keys: read from environment and profiles, nobody is asked.

use std::fmt;

use super::{
    Signer,
    sts::{Role, WebIdentity},
};
use crate::{
    config::environment::Environment,
    model::source::s3::{
        S3Error,
        profile::{In, Profile},
        settings::is_true,
        sign::Key,
    },
};

/// The metadata service of AWS's machines.
const INSTANCE: &str = "http://169.254.169.254";

/// The service of ECS's containers, which relative URLs belong to.
const CONTAINER: &str = "http://169.254.170.2";

/// Where keys are, or who has to be asked for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    Nobody,
    Known(Signer),
    WebIdentity(WebIdentity),
    /// A role, taken on with the keys that another way leads to.
    Role {
        role: Role,
        by: Box<Way>,
    },
    Program {
        /// Where the command stands, in words.
        from: String,
        command: String,
    },
    Container(String),
    Instance(String),
}

impl fmt::Display for Way {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody => formatter.write_str("nobody"),
            Self::Known(signer) => formatter.write_str(&signer.from),
            Self::WebIdentity(identity) => write!(formatter, "web identity for {}", identity.role),
            Self::Role { role, .. } => write!(formatter, "role {}", role.arn),
            Self::Program { from, .. } => formatter.write_str(from),
            Self::Container(_) => formatter.write_str("the container's credential service"),
            Self::Instance(_) => formatter.write_str("the instance's metadata service"),
        }
    }
}

/// The way of this environment, with the profile that it names.
pub(super) fn find(environment: &Environment, profile: &Profile) -> Result<Way, S3Error> {
    if is_true(environment, "AWS_NO_SIGN_REQUEST") {
        return Ok(Way::Nobody);
    }
    // A profile that is asked for by name goes before keys that lie about.
    if environment.get("AWS_PROFILE").is_none()
        && let Some(signer) = of_environment(environment)?
    {
        return Ok(Way::Known(signer));
    }
    let get = |name| environment.get(name).map(str::to_owned);
    if let (Some(token_file), Some(role)) =
        (get("AWS_WEB_IDENTITY_TOKEN_FILE"), get("AWS_ROLE_ARN"))
    {
        return Ok(Way::WebIdentity(WebIdentity {
            token_file,
            role,
            session: get("AWS_ROLE_SESSION_NAME"),
        }));
    }
    let mut visited = vec![profile.name.clone()];
    let way = match profile.anywhere("role_arn") {
        Some(arn) => Some(of_role(environment, profile, arn, &mut visited)?),
        None => of_keys(profile)?,
    };
    if let Some(way) = way.or_else(|| of_container(environment)) {
        return Ok(way);
    }
    match is_true(environment, "AWS_EC2_METADATA_DISABLED") {
        true => Ok(Way::Nobody),
        false => Ok(of_instance(environment)),
    }
}

fn of_environment(environment: &Environment) -> Result<Option<Signer>, S3Error> {
    let get = |name| environment.get(name);
    let Some(id) = get("AWS_ACCESS_KEY_ID") else {
        return Ok(None);
    };
    let secret = get("AWS_SECRET_ACCESS_KEY").ok_or_else(|| S3Error::Setting {
        setting: "AWS_ACCESS_KEY_ID",
        reason: "is set, AWS_SECRET_ACCESS_KEY is not".to_owned(),
    })?;
    let from = "AWS_ACCESS_KEY_ID of the environment".to_owned();
    Ok(Some(known(id, secret, get("AWS_SESSION_TOKEN"), from)))
}

fn of_container(environment: &Environment) -> Option<Way> {
    let path = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    let url = path.map(|path| format!("{CONTAINER}{path}"));
    let full = || environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    url.or_else(|| full().map(str::to_owned))
        .map(Way::Container)
}

fn of_instance(environment: &Environment) -> Way {
    let url = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    let url = url.unwrap_or(INSTANCE).trim_end_matches('/');
    Way::Instance(url.to_owned())
}

/// The keys of a profile that has no role; `None` where it has none of its own.
fn of_keys(profile: &Profile) -> Result<Option<Way>, S3Error> {
    const PERSON: [&str; 2] = ["sso_session", "sso_start_url"];
    let person = PERSON.iter().find(|name| profile.anywhere(name).is_some());
    if let Some(setting) = person {
        return Err(S3Error::Indirect {
            profile: profile.name.clone(),
            setting,
        });
    }
    let program = || {
        let command = profile.anywhere("credential_process")?.to_owned();
        let from = format!("`credential_process` of profile `{}`", profile.name);
        Some(Way::Program { from, command })
    };
    let way = in_file(profile, In::Credentials).map(Way::Known);
    let way = way.or_else(program);
    Ok(way.or_else(|| in_file(profile, In::Config).map(Way::Known)))
}

fn in_file(profile: &Profile, file: In) -> Option<Signer> {
    let (id, secret, token) = profile.keys(file)?;
    let path = profile.path(file).display();
    let from = format!("profile `{}` of {path}", profile.name);
    Some(known(id, secret, token, from))
}

/// A profile's role, and who takes it on.
fn of_role(
    environment: &Environment,
    profile: &Profile,
    arn: &str,
    visited: &mut Vec<String>,
) -> Result<Way, S3Error> {
    let get = |name| profile.anywhere(name).map(str::to_owned);
    let wrong = |setting, reason: &str| S3Error::Setting {
        setting,
        reason: format!("of AWS profile `{}` {reason}", profile.name),
    };
    if let Some(token_file) = get("web_identity_token_file") {
        return Ok(Way::WebIdentity(WebIdentity {
            token_file,
            role: arn.to_owned(),
            session: get("role_session_name"),
        }));
    }
    if profile.anywhere("mfa_serial").is_some() {
        return Err(S3Error::Indirect {
            profile: profile.name.clone(),
            setting: "mfa_serial",
        });
    }
    let by = match (get("source_profile"), get("credential_source")) {
        (Some(name), None) => of_source(environment, profile, &name, visited)?,
        (None, Some(source)) => match source.as_str() {
            "Environment" => match of_environment(environment)? {
                Some(signer) => Way::Known(signer),
                None => {
                    let reason = "is `Environment`, which has no AWS_ACCESS_KEY_ID";
                    return Err(wrong("`credential_source`", reason));
                }
            },
            "EcsContainer" => of_container(environment).ok_or_else(|| {
                let reason = "is `EcsContainer`, and the environment names no service of one";
                wrong("`credential_source`", reason)
            })?,
            "Ec2InstanceMetadata" => of_instance(environment),
            _ => {
                let reason = "is neither Environment nor EcsContainer nor Ec2InstanceMetadata";
                return Err(wrong("`credential_source`", reason));
            }
        },
        (None, None) => {
            let reason = "wants `source_profile`, `credential_source` or \
                          `web_identity_token_file` beside it";
            return Err(wrong("`role_arn`", reason));
        }
        (Some(_), Some(_)) => {
            return Err(wrong("`source_profile`", "excludes `credential_source`"));
        }
    };
    let role = Role {
        arn: arn.to_owned(),
        session: get("role_session_name"),
        external_id: get("external_id"),
        seconds: get("duration_seconds"),
    };
    let by = Box::new(by);
    Ok(Way::Role { role, by })
}

/// The keys that a role is taken on with: those of another profile, of its own where it names itself.
fn of_source(
    environment: &Environment,
    profile: &Profile,
    name: &str,
    visited: &mut Vec<String>,
) -> Result<Way, S3Error> {
    let source = profile.other(name)?;
    // Keys beside a role are there for just this.
    let own = in_file(&source, In::Credentials).or_else(|| in_file(&source, In::Config));
    if let Some(signer) = own {
        return Ok(Way::Known(signer));
    }
    let wrong = |reason: String| S3Error::Setting {
        setting: "`source_profile`",
        reason: format!("of AWS profile `{}` {reason}", profile.name),
    };
    match source.anywhere("role_arn") {
        Some(_) if visited.iter().any(|one| one == name) => {
            Err(wrong("leads back to itself".to_owned()))
        }
        Some(arn) => {
            visited.push(name.to_owned());
            of_role(environment, &source, arn, visited)
        }
        None => of_keys(&source)?.ok_or_else(|| wrong(format!("is `{name}`, which has no keys"))),
    }
}

fn known(id: &str, secret: &str, token: Option<&str>, from: String) -> Signer {
    Signer {
        key: Key {
            id: id.to_owned(),
            secret: secret.to_owned(),
            token: token.filter(|token| !token.is_empty()).map(str::to_owned),
        },
        from,
        expires: None,
    }
}
