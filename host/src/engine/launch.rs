//! From a provider's launch to the exact command: every placeholder filled in, nothing inherited.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use engine_provider_api::{Artifact, ProcessLaunch, Template};
use serde::{Deserialize, Serialize};

use super::EngineError;
use crate::config::paths::Home;

/// Shortest secret that is looked for in arguments; shorter ones would be found everywhere.
const SHORTEST_SECRET: usize = 4;

/// What placeholders stand for.
pub(super) struct Places<'a> {
    /// Results by step.
    pub(super) artifacts: &'a BTreeMap<String, Artifact>,
    /// Directory of the engine's placed files.
    pub(super) files: &'a Path,
    /// Where caches are.
    pub(super) home: &'a Home,
    /// Address the engine must listen on.
    pub(super) host: &'a str,
    /// Port, or `{address.port}` for a comparison of commands.
    pub(super) port: &'a str,
    /// Secrets by name.
    pub(super) secrets: &'a dyn Fn(&str) -> Option<String>,
}

/// A launch with everything filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// The launch's own environment, without the host's allow-list.
    pub(super) env: BTreeMap<String, String>,
    /// Values that must not be told.
    pub(super) secrets: Vec<String>,
    /// Names of the caches it uses.
    pub(super) caches: BTreeSet<String>,
}

/// Fills a launch in.
pub(super) fn render(launch: &ProcessLaunch, places: &Places<'_>) -> Result<Rendered, EngineError> {
    let mut rendered = Rendered {
        program: PathBuf::new(),
        args: Vec::new(),
        env: BTreeMap::new(),
        secrets: Vec::new(),
        caches: BTreeSet::new(),
    };
    if !is_a_result(&launch.program) {
        return Err(EngineError::HostProgram {
            program: launch.program.as_str().to_owned(),
        });
    }
    rendered.program = public(&launch.program, places, &mut rendered.caches)?.into();
    for argument in &launch.args {
        let text = public(argument, places, &mut rendered.caches)?;
        rendered.args.push(text);
    }
    for (name, template) in &launch.env {
        let value = with_secrets(template, places, &mut rendered)?;
        rendered.env.insert(name.clone(), value);
    }
    refuse_told_secrets(&rendered)?;
    Ok(rendered)
}

/// Whether a program is the result of a step or lies in one: `{STEP.path}` or something below it. A
/// provider must not start what happens to be on the machine, nor what an engine may have written.
fn is_a_result(program: &Template) -> bool {
    let Some((step, below)) = program
        .as_str()
        .strip_prefix('{')
        .and_then(|rest| rest.split_once(".path}"))
    else {
        return false;
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let climbs = Path::new(below)
        .components()
        .any(|part| part == Component::ParentDir);
    !step.is_empty()
        && step.bytes().all(plain)
        && (below.is_empty() || below.starts_with('/'))
        && !climbs
}

/// A text that others can read: no secrets.
pub(super) fn public(
    template: &Template,
    places: &Places<'_>,
    caches: &mut BTreeSet<String>,
) -> Result<String, EngineError> {
    let secret = template
        .placeholders()?
        .into_iter()
        .find_map(|name| name.strip_prefix("secret."));
    if let Some(name) = secret {
        return Err(EngineError::SecretInArgument {
            argument: template.as_str().to_owned(),
            name: name.to_owned(),
        });
    }
    Ok(template.render(|name| place(name, places, caches))?)
}

fn with_secrets(
    template: &Template,
    places: &Places<'_>,
    rendered: &mut Rendered,
) -> Result<String, EngineError> {
    for name in template.placeholders()? {
        if let Some(name) = name.strip_prefix("secret.") {
            let value = (places.secrets)(name).ok_or_else(|| EngineError::SecretMissing {
                name: name.to_owned(),
            })?;
            rendered.secrets.push(value);
        }
    }
    Ok(template.render(|name| match name.strip_prefix("secret.") {
        Some(secret) => (places.secrets)(secret),
        None => place(name, places, &mut rendered.caches),
    })?)
}

fn place(name: &str, places: &Places<'_>, caches: &mut BTreeSet<String>) -> Option<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    match name {
        "address.host" => return Some(places.host.to_owned()),
        "address.port" => return Some(places.port.to_owned()),
        "files" => return Some(path(places.files)),
        _ => {}
    }
    if let Some(cache) = name.strip_prefix("cache.") {
        caches.insert(cache.to_owned());
        return Some(path(&places.home.cache(cache)));
    }
    let step = name.strip_suffix(".path")?;
    places.artifacts.get(step)?.path.clone()
}

/// A secret may have come into an argument by another way, for example out of a pool file.
fn refuse_told_secrets(rendered: &Rendered) -> Result<(), EngineError> {
    for secret in &rendered.secrets {
        let told = rendered.args.iter().find(|text| text.contains(secret));
        if let Some(argument) = told.filter(|_| secret.len() >= SHORTEST_SECRET) {
            return Err(EngineError::SecretInArgument {
                argument: argument.replace(secret, "***"),
                name: "***".to_owned(),
            });
        }
    }
    Ok(())
}

/// Where a placed file goes, below `files`; refuses a path that leaves it.
pub(super) fn placed_path(files: &Path, path: &str) -> Result<PathBuf, EngineError> {
    let relative = Path::new(path);
    let inside = relative
        .components()
        .all(|component| matches!(component, Component::Normal(_)));
    if inside && !path.is_empty() {
        Ok(files.join(relative))
    } else {
        Err(EngineError::FileOutside {
            path: path.to_owned(),
        })
    }
}

/// A command as it is compared with another: its port left open, values of its environment as
/// digests, what the operator's own shell adds left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Program.
    pub program: String,
    /// Arguments, with `{address.port}` where the port stands.
    pub args: Vec<String>,
    /// Digest of each value of the environment, by name.
    pub env: BTreeMap<String, String>,
    /// Digest of each placed file, by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

impl Fingerprint {
    /// What differs, as lines with `-` (this one) and `+` (the other); empty when nothing does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let program = |print: &Self| vec![print.program.clone()];
        compare(&mut lines, program(self), program(other));
        compare(&mut lines, flags(&self.args), flags(&other.args));
        let maps = [
            ("environment", &self.env, &other.env),
            ("file", &self.files, &other.files),
        ];
        for (what, own, others) in maps {
            let names: BTreeSet<&String> = own.keys().chain(others.keys()).collect();
            for name in names {
                match (own.get(name), others.get(name)) {
                    (Some(_), None) => lines.push(format!("- {what} {name}")),
                    (None, Some(_)) => lines.push(format!("+ {what} {name}")),
                    (a, b) if a != b => lines.push(format!("~ {what} {name} has another content")),
                    _ => {}
                }
            }
        }
        if lines.is_empty() && self != other {
            lines.push("~ the order of the arguments".to_owned());
        }
        lines
    }
}

/// Arguments in groups: a flag together with its values.
fn flags(args: &[String]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for argument in args {
        let is_number = argument.parse::<f64>().is_ok();
        match groups.last_mut() {
            Some(group) if !argument.starts_with('-') || is_number => {
                group.push(' ');
                group.push_str(argument);
            }
            _ => groups.push(argument.clone()),
        }
    }
    groups
}

fn compare(lines: &mut Vec<String>, own: Vec<String>, mut others: Vec<String>) {
    for group in own {
        match others.iter().position(|other| *other == group) {
            Some(at) => drop(others.remove(at)),
            None => lines.push(format!("- {group}")),
        }
    }
    lines.extend(others.into_iter().map(|group| format!("+ {group}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn try_render(args: &[&str], env: &[(&str, &str)]) -> Result<Rendered, EngineError> {
        let build = Artifact {
            path: Some("/store/build".to_owned()),
            ..Artifact::default()
        };
        let launch = ProcessLaunch {
            program: "{cmake-build.path}/bin/server".into(),
            args: args.iter().map(|text| Template::new(*text)).collect(),
            env: env
                .iter()
                .map(|(name, value)| ((*name).to_owned(), Template::new(*value)))
                .collect(),
            usual_port: 8080,
            more_ports: Vec::new(),
        };
        render(
            &launch,
            &Places {
                artifacts: &BTreeMap::from([("cmake-build".to_owned(), build)]),
                files: Path::new("/state/files"),
                home: &Home::at("/home"),
                host: "127.0.0.1",
                port: "8081",
                secrets: &|name| (name == "TOKEN").then(|| "hunter2".to_owned()),
            },
        )
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        let rendered = try_render(
            &["--port", "{address.port}", "{files}/x", "{{literal}}"],
            &[("CACHE", "{cache.torch}"), ("TOKEN", "{secret.TOKEN}")],
        )
        .unwrap();
        assert_eq!(rendered.program, Path::new("/store/build/bin/server"));
        assert_eq!(
            rendered.args,
            ["--port", "8081", "/state/files/x", "{literal}"]
        );
        assert_eq!(rendered.env["CACHE"], "/home/cache/torch");
        assert_eq!(rendered.env["TOKEN"], "hunter2");
        assert_eq!(rendered.secrets, ["hunter2"]);
        assert!(rendered.caches.contains("torch"));
    }

    #[test]
    fn secrets_are_refused_in_arguments_however_they_come_there() {
        let named = try_render(&["--key={secret.TOKEN}"], &[]).unwrap_err();
        assert_eq!(
            named.to_string(),
            "the argument `--key={secret.TOKEN}` would show the secret `TOKEN` to everybody on this machine"
        );
        let copied = try_render(&["--key=hunter2"], &[("K", "{secret.TOKEN}")]).unwrap_err();
        assert!(!copied.to_string().contains("hunter2"), "{copied}");
        let missing = try_render(&[], &[("K", "{secret.OTHER}")]).unwrap_err();
        assert_eq!(missing.to_string(), "the secret `OTHER` is not set");
        let unknown = try_render(&["{nothing.path}"], &[]).unwrap_err();
        assert!(matches!(unknown, EngineError::Template { .. }));
    }

    #[test]
    fn only_results_of_steps_are_started() {
        let is = |program: &str| is_a_result(&Template::new(program));
        assert!(is("{build.path}") && is("{cmake-build.path}/bin/server"));
        for bad in [
            "/usr/bin/curl",
            "curl",
            "",
            "{files}/run",
            "{cache.x}/run",
            "{{build.path}}/x",
            "{build.path}/../../../usr/bin/curl",
            "{build.path}x",
            "{address.host}{build.path}",
        ] {
            assert!(!is(bad), "{bad}");
        }
        let launch = ProcessLaunch {
            program: "/usr/bin/curl".into(),
            ..ProcessLaunch::default()
        };
        let places = Places {
            artifacts: &BTreeMap::new(),
            files: Path::new("/state/files"),
            home: &Home::at("/home"),
            host: "127.0.0.1",
            port: "8081",
            secrets: &|_| None,
        };
        let error = render(&launch, &places).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the provider starts `/usr/bin/curl`, which is no result of one of its steps"
        );
    }

    #[test]
    fn placed_files_stay_in_their_directory() {
        let files = Path::new("/f");
        assert_eq!(placed_path(files, "m/1/x").unwrap(), Path::new("/f/m/1/x"));
        for bad in ["", "/etc/passwd", "../x", "a/../../x", "."] {
            assert!(placed_path(files, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_difference_names_what_changed_and_nothing_else() {
        let print = |args: &[&str], env: &str| Fingerprint {
            program: "/p".to_owned(),
            args: args.iter().map(|text| (*text).to_owned()).collect(),
            env: BTreeMap::from([("A".to_owned(), env.to_owned())]),
            files: BTreeMap::new(),
        };
        let running = print(&["--ctx-size", "2048", "--seed", "-1", "--metrics"], "1");
        let asked = print(&["--ctx-size", "4096", "--seed", "-1", "--jinja"], "2");
        assert_eq!(
            running.difference(&asked),
            [
                "- --ctx-size 2048",
                "- --metrics",
                "+ --ctx-size 4096",
                "+ --jinja",
                "~ environment A has another content"
            ]
        );
        assert!(running.difference(&running.clone()).is_empty());
    }
}
