//! From a provider's launch to the exact command: every placeholder filled in, nothing inherited.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path, PathBuf},
};

use engine_provider_api::{Artifact, ProcessLaunch, Template};

use super::EngineError;
use crate::config::paths::Home;

/// Shortest secret that is looked for in arguments; shorter ones would be found everywhere.
const SHORTEST_SECRET: usize = 4;

/// What placeholders stand for.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// Results by step.
    pub(super) artifacts: &'a BTreeMap<String, Artifact>,
    /// Directory of the engine's placed files.
    pub(super) files: &'a Path,
    /// Where caches are.
    pub(super) home: &'a Home,
    /// Whose caches are meant, where users have their own.
    pub(super) cache_user: Option<&'a str>,
    /// Address the engine must listen on.
    pub(super) host: &'a str,
    /// Port, or `{address.port}` for a comparison of commands.
    pub(super) port: &'a str,
    /// Other ports by name.
    pub(super) ports: &'a BTreeMap<String, String>,
    /// From where what is filled in is read.
    pub(super) seen_from: SeenFrom,
    /// Secrets by name.
    pub(super) secrets: &'a (dyn Fn(&str) -> Option<String> + Send + Sync),
}

/// From where a text is read: paths of this machine mean nothing inside a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SeenFrom {
    Machine,
    Container,
}

/// A launch with everything filled in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Rendered {
    pub(super) program: PathBuf,
    pub(super) args: Vec<String>,
    /// The launch's own environment, without the host's allow-list.
    pub(super) env: BTreeMap<String, String>,
    /// Values that must not be told.
    pub(super) secrets: Vec<String>,
    /// Names of the caches it uses, below the home's.
    pub(super) caches: BTreeSet<String>,
}

/// Fills a launch in.
pub(super) fn render(launch: &ProcessLaunch, places: &Places<'_>) -> Result<Rendered, EngineError> {
    let mut rendered = Rendered::default();
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
pub(super) fn is_a_result(program: &Template) -> bool {
    let Some((step, below)) = program
        .as_str()
        .strip_prefix('{')
        .and_then(|rest| rest.split_once(".path}"))
    else {
        return false;
    };
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !step.is_empty() && step.bytes().all(plain) && stays_below(below)
}

/// Whether what follows a directory's placeholder stays in that directory.
pub(super) fn stays_below(rest: &str) -> bool {
    let climbs = Path::new(rest)
        .components()
        .any(|part| part == Component::ParentDir);
    (rest.is_empty() || rest.starts_with('/')) && !climbs
}

/// A text that others can read: no secrets.
pub(super) fn public(
    template: &Template,
    places: &Places<'_>,
    caches: &mut BTreeSet<String>,
) -> Result<String, EngineError> {
    refuse_machine_paths(template, places)?;
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

/// A text for the environment, secrets filled in.
pub(super) fn with_secrets(
    template: &Template,
    places: &Places<'_>,
    rendered: &mut Rendered,
) -> Result<String, EngineError> {
    refuse_machine_paths(template, places)?;
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

/// What stands for a path of this machine leads nowhere inside a container.
fn refuse_machine_paths(template: &Template, places: &Places<'_>) -> Result<(), EngineError> {
    if places.seen_from == SeenFrom::Machine {
        return Ok(());
    }
    let is_path =
        |name: &&str| *name == "files" || name.starts_with("cache.") || name.ends_with(".path");
    match template.placeholders()?.into_iter().find(is_path) {
        None => Ok(()),
        Some(name) => Err(EngineError::PathInContainer {
            text: template.as_str().to_owned(),
            placeholder: name.to_owned(),
        }),
    }
}

fn place(name: &str, places: &Places<'_>, caches: &mut BTreeSet<String>) -> Option<String> {
    let path = |path: &Path| path.to_string_lossy().into_owned();
    match name {
        "address.host" => return Some(places.host.to_owned()),
        "address.port" => return Some(places.port.to_owned()),
        "files" => return Some(path(places.files)),
        _ => {}
    }
    if let Some(port) = name.strip_prefix("port.") {
        return places.ports.get(port).cloned();
    }
    if let Some(cache) = name.strip_prefix("cache.") {
        let own = match places.cache_user {
            Some(user) => format!("{cache}.{user}"),
            None => cache.to_owned(),
        };
        let place = path(&places.home.cache(&own));
        caches.insert(own);
        return Some(place);
    }
    let step = name.strip_suffix(".path")?;
    places.artifacts.get(step)?.path.clone()
}

/// A secret may have come into an argument by another way, for example out of a pool file.
pub(super) fn refuse_told_secrets(rendered: &Rendered) -> Result<(), EngineError> {
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
                cache_user: None,
                host: "127.0.0.1",
                port: "8081",
                ports: &BTreeMap::from([("grpc".to_owned(), "9001".to_owned())]),
                seen_from: SeenFrom::Machine,
                secrets: &|name| (name == "TOKEN").then(|| "hunter2".to_owned()),
            },
        )
    }

    #[test]
    fn every_placeholder_is_filled_in() {
        let rendered = try_render(
            &[
                "--port",
                "{address.port}",
                "{port.grpc}",
                "{files}/x",
                "{{literal}}",
            ],
            &[("CACHE", "{cache.torch}"), ("TOKEN", "{secret.TOKEN}")],
        )
        .unwrap();
        assert_eq!(rendered.program, Path::new("/store/build/bin/server"));
        assert_eq!(
            rendered.args,
            ["--port", "8081", "9001", "/state/files/x", "{literal}"]
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
            cache_user: None,
            host: "127.0.0.1",
            port: "8081",
            ports: &BTreeMap::new(),
            seen_from: SeenFrom::Machine,
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
}
