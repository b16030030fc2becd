//! Files of AWS's tools: `~/.aws/config` and `~/.aws/credentials`.
//!
//! Their sections, keys with values, and the one level of nesting that `s3 =` and `[services …]` use.
//! What an error says of them is a line's number: its text may be a secret.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::S3Error;
use crate::config::environment::Environment;

/// Settings of one section; a nested one is called `OUTER.INNER`.
type Section = BTreeMap<String, String>;

/// What both files say.
#[derive(Default)]
struct Files {
    /// Configuration and credentials, whether they are there or not.
    paths: [PathBuf; 2],
    config: BTreeMap<String, Section>,
    credentials: BTreeMap<String, Section>,
}

/// What the files say for a profile.
#[derive(Clone, Default)]
pub(super) struct Profile {
    /// Its name.
    pub(super) name: String,
    files: Arc<Files>,
    config: Section,
    credentials: Section,
    services: Section,
}

/// Which of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum In {
    Config,
    Credentials,
}

impl Profile {
    /// Reads the profile that the environment names, else `default`. A profile that is named must be
    /// there.
    pub(super) fn read(environment: &Environment) -> Result<Self, S3Error> {
        let home = environment.path("HOME");
        let file = |variable: &str, name: &str| {
            let path = environment.path(variable);
            path.or_else(|| Some(home.as_ref()?.join(".aws").join(name)))
                .unwrap_or_default()
        };
        let paths = [
            file("AWS_CONFIG_FILE", "config"),
            file("AWS_SHARED_CREDENTIALS_FILE", "credentials"),
        ];
        let named = environment
            .get("AWS_PROFILE")
            .or_else(|| environment.get("AWS_DEFAULT_PROFILE"));
        let files = Arc::new(Files {
            config: read(&paths[0])?,
            credentials: read(&paths[1])?,
            paths,
        });
        match named {
            Some(name) => Self::of(&files, name),
            None => Self::of(&files, "default").or_else(|_| {
                Ok(Self {
                    name: "default".to_owned(),
                    files,
                    ..Self::default()
                })
            }),
        }
    }

    /// Another profile of the same files, which must be there.
    pub(super) fn other(&self, name: &str) -> Result<Self, S3Error> {
        Self::of(&self.files, name)
    }

    fn of(files: &Arc<Files>, name: &str) -> Result<Self, S3Error> {
        let config = files.config.get(&format!("profile {name}"));
        let config = match name {
            "default" => config.or_else(|| files.config.get("default")),
            _ => config,
        };
        let credentials = files.credentials.get(name);
        if config.is_none() && credentials.is_none() {
            return Err(S3Error::NoProfile {
                profile: name.to_owned(),
                files: files.paths.clone(),
            });
        }
        let config = config.cloned().unwrap_or_default();
        let services = config.get("services");
        let services = services.and_then(|name| files.config.get(&format!("services {name}")));
        Ok(Self {
            name: name.to_owned(),
            files: Arc::clone(files),
            services: services.cloned().unwrap_or_default(),
            credentials: credentials.cloned().unwrap_or_default(),
            config,
        })
    }

    /// A setting, for example `region` or `s3.addressing_style`.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        let found = self.config.get(name);
        let found = found.map(String::as_str);
        found.filter(|value| !value.is_empty())
    }

    /// A setting of the section that `services` names, for example `s3.endpoint_url`.
    pub(super) fn service(&self, name: &str) -> Option<&str> {
        self.services.get(name).map(String::as_str)
    }

    /// A setting of either file, for example `role_arn`.
    pub(super) fn anywhere(&self, name: &str) -> Option<&str> {
        let there = || self.credentials.get(name).map(String::as_str);
        let found = self.get(name).or_else(there);
        found.filter(|value| !value.is_empty())
    }

    /// The keys in one of the files: id, secret, token.
    pub(super) fn keys(&self, file: In) -> Option<(&str, &str, Option<&str>)> {
        let section = match file {
            In::Config => &self.config,
            In::Credentials => &self.credentials,
        };
        let get = |name: &str| section.get(name).map(String::as_str);
        let id = get("aws_access_key_id")?;
        let secret = get("aws_secret_access_key")?;
        Some((id, secret, get("aws_session_token")))
    }

    /// One of the files.
    pub(super) fn path(&self, file: In) -> &Path {
        let [config, credentials] = &self.files.paths;
        match file {
            In::Config => config,
            In::Credentials => credentials,
        }
    }
}

fn read(path: &Path) -> Result<BTreeMap<String, Section>, S3Error> {
    match fs::read_to_string(path) {
        Ok(text) => parse(&text).map_err(|line| S3Error::Malformed {
            path: path.to_owned(),
            line,
        }),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(BTreeMap::new())
        }
        Err(source) => Err(S3Error::Unreadable {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Sections by name, blanks in it made single and quotes left out; else the line that is wrong.
fn parse(text: &str) -> Result<BTreeMap<String, Section>, usize> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut section: Option<String> = None;
    let mut outer = String::new();
    for (number, line) in (1_usize..).zip(text.lines()) {
        let bare = without_comment(line).trim();
        if bare.is_empty() || bare.starts_with(['#', ';']) {
            continue;
        }
        if let Some(name) = bare.strip_prefix('[') {
            let name = name.strip_suffix(']').ok_or(number)?;
            let words: Vec<&str> = name.split_whitespace().collect();
            let name = words.join(" ").replace(['"', '\''], "");
            sections.entry(name.clone()).or_default();
            section = Some(name);
            outer.clear();
            continue;
        }
        let section = section.as_ref().and_then(|name| sections.get_mut(name));
        let section = section.ok_or(number)?;
        let (name, value) = bare.split_once('=').ok_or(number)?;
        let (name, value) = (name.trim().to_ascii_lowercase(), value.trim());
        let nested = line.starts_with([' ', '\t']) && !outer.is_empty();
        let name = if nested {
            format!("{outer}.{name}")
        } else {
            outer = if value.is_empty() {
                name.clone()
            } else {
                String::new()
            };
            name
        };
        section.insert(name, value.to_owned());
    }
    Ok(sections)
}

/// A line without the comment at its end, which has a blank before it.
fn without_comment(line: &str) -> &str {
    let ends = [" #", " ;", "\t#", "\t;"];
    let end = ends.iter().filter_map(|mark| line.find(mark)).min();
    &line[..end.unwrap_or(line.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "\
# ours
[default]
region = eu-west-1 ; near
s3 =
    addressing_style = virtual
    max_concurrent_requests = 20
output = json
[profile  \"lab\"]
region=lab-1
services = lab
[services lab]
s3 =
  endpoint_url = http://lab:9000
[profile far]
sso_session = x
";
    const CREDENTIALS: &str = "\
[default]
aws_access_key_id = AK
aws_secret_access_key = abc/def+ghi=#jkl
[lab]
aws_access_key_id=LAB
aws_secret_access_key=lab-secret
aws_session_token=lab-token
";

    fn profile(name: Option<&str>) -> Result<Profile, S3Error> {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join(".aws");
        fs::create_dir(&home).unwrap();
        fs::write(home.join("config"), CONFIG).unwrap();
        fs::write(home.join("credentials"), CREDENTIALS).unwrap();
        let environment = Environment::default().with("HOME", directory.path());
        Profile::read(&match name {
            Some(name) => environment.with("AWS_PROFILE", name),
            None => environment,
        })
    }

    #[test]
    fn the_default_profile_is_read_with_its_nested_settings() {
        let profile = profile(None).unwrap();
        assert_eq!(profile.get("region"), Some("eu-west-1"));
        assert_eq!(profile.get("s3.addressing_style"), Some("virtual"));
        assert_eq!(profile.get("output"), Some("json"));
        let keys = profile.keys(In::Credentials).unwrap();
        assert_eq!(keys, ("AK", "abc/def+ghi=#jkl", None));
        assert_eq!(profile.keys(In::Config), None);
        let path = profile.path(In::Credentials);
        assert!(path.ends_with(".aws/credentials"), "{path:?}");
    }

    #[test]
    fn a_named_profile_is_read_or_said_to_be_missing() {
        let lab = profile(Some("lab")).unwrap();
        assert_eq!(lab.get("region"), Some("lab-1"));
        assert_eq!(lab.service("s3.endpoint_url"), Some("http://lab:9000"));
        assert_eq!(lab.keys(In::Credentials).unwrap().2, Some("lab-token"));
        let far = lab.other("far").unwrap();
        assert_eq!(far.anywhere("sso_session"), Some("x"));
        assert_eq!(far.service("s3.endpoint_url"), None);
        assert!(matches!(
            profile(Some("none")),
            Err(S3Error::NoProfile { profile, .. }) if profile == "none"
        ));
    }

    #[test]
    fn what_cannot_be_read_is_named_by_line_and_not_shown() {
        for (text, line) in [("key = secret", 1), ("[a]\nsecret", 2), ("[a", 1)] {
            assert_eq!(parse(text).unwrap_err(), line, "{text}");
        }
    }
}
