//! `host config`: check a pool file, print its schema, show the policy in force.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use serde_json::json;

use crate::{
    config::{
        Surroundings,
        environment::Environment,
        load,
        paths::Home,
        pools::{self, Loaded, PoolEntry},
        problem::{ConfigError, FileKind, Problem, list, nearest},
        select::{Overlay, USUAL_FILE},
    },
    fault::Failure,
    policy::{self, Policy, Row},
};

/// How results are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For people.
    Human,
    /// As JSON.
    Json,
}

/// `host config check [FILE]`: everything that is wrong with a pool file, else what it holds.
///
/// `engines`: names of the providers that are here; none: there is nothing to compare with.
pub fn check(
    out: &mut dyn Write,
    file: Option<&Path>,
    form: Form,
    surroundings: &Surroundings,
    engines: &[String],
) -> Result<(), Failure> {
    let path = file.unwrap_or(Path::new(USUAL_FILE));
    let loaded = load(path, surroundings)?;
    check_engines(&loaded, engines)?;
    let pools: Vec<(&str, &str)> = loaded
        .pools
        .iter()
        .map(|entry| (entry.pool.id.as_str(), entry.pool.engine.as_str()))
        .collect();
    let render = |notice: &Problem| notice.render(&loaded.source);
    let mut notices: Vec<String> = loaded.notices.iter().map(render).collect();
    if engines.is_empty() {
        notices.push("no provider is here: `engine` is compared with none".to_owned());
    }
    if loaded.pools.iter().any(|it| !it.pool.options.is_empty()) {
        notices.push("`options` are checked by their provider, in `host plan`".to_owned());
    }
    let written = match form {
        Form::Json => writeln!(
            out,
            "{}",
            json!({
                "file": path,
                "pools": pools.iter().map(|(id, engine)| json!({"id": id, "engine": engine})).collect::<Vec<_>>(),
                "notices": notices,
            })
        ),
        Form::Human => human_check(out, path, &pools, &notices),
    };
    written.map_err(output)
}

/// Refuses engines that no provider here is called like.
fn check_engines(loaded: &Loaded, engines: &[String]) -> Result<(), ConfigError> {
    let names = || engines.iter().map(String::as_str);
    let is_unknown =
        |entry: &&PoolEntry| !engines.is_empty() && !engines.contains(&entry.pool.engine);
    let problems: Vec<Problem> = loaded
        .pools
        .iter()
        .filter(is_unknown)
        .map(|entry| {
            let engine = &entry.pool.engine;
            let help = match nearest(engine, names()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("there are {}", list(names())),
            };
            let message = format!("there is no provider `{engine}` here");
            entry.places.problem("engine", message).help(help)
        })
        .collect();
    match problems.is_empty() {
        true => Ok(()),
        false => Err(ConfigError::invalid(
            FileKind::Pools,
            &loaded.source,
            problems,
        )),
    }
}

fn human_check(
    out: &mut dyn Write,
    path: &Path,
    pools: &[(&str, &str)],
    notices: &[String],
) -> std::io::Result<()> {
    let count = match pools.len() {
        1 => "1 pool".to_owned(),
        several => format!("{several} pools"),
    };
    writeln!(out, "{} is right: {count}", path.display())?;
    for (id, engine) in pools {
        writeln!(out, "  {id} ({engine})")?;
    }
    for notice in notices {
        writeln!(out, "note: {notice}")?;
    }
    Ok(())
}

/// `host config schema`: the JSON Schema of pool files.
pub fn schema(out: &mut dyn Write) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(&pools::schema()).expect("a schema is plain JSON");
    writeln!(out, "{text}").map_err(output)
}

/// `host config policy`: every setting in force, and who set it.
///
/// `file`: pool file whose `policy{}` is included; default: the usual one, where there is one.
pub fn show_policy(
    out: &mut dyn Write,
    file: Option<&Path>,
    form: Form,
    home: &Home,
    environment: &Environment,
    overlay: &Overlay,
) -> Result<(), Failure> {
    let surroundings = Surroundings::of(environment);
    let ceilings = policy::ceilings(home, &surroundings.caller)?;
    let usual = || Some(PathBuf::from(USUAL_FILE)).filter(|path| path.is_file());
    let mut requests = Vec::new();
    if let Some(path) = file.map(Path::to_owned).or_else(usual) {
        let loaded = load(&path, &surroundings)?;
        // What the file asks for all of its pools; each pool's own fields come on top of it.
        requests.extend(
            loaded
                .pools
                .first()
                .and_then(|entry| entry.requests.first().cloned()),
        );
    }
    requests.push(overlay.layer());
    let policy = policy::resolve(&ceilings, &requests, &surroundings.caller)?;
    print_policy(out, &policy, form).map_err(output)
}

fn print_policy(out: &mut dyn Write, policy: &Policy, form: Form) -> std::io::Result<()> {
    let rows = policy::rows(policy);
    match form {
        Form::Json => writeln!(out, "{}", json!({"label": policy.label, "settings": rows})),
        Form::Human => {
            writeln!(out, "policy `{}`", policy.label)?;
            for row in &rows {
                human_row(out, row)?;
            }
            Ok(())
        }
    }
}

fn human_row(out: &mut dyn Write, row: &Row) -> std::io::Result<()> {
    let limit = if row.ceiling { ", a limit" } else { "" };
    writeln!(out, "  {}: {}", row.setting, row.value)?;
    writeln!(
        out,
        "      set by {}{limit}; change: {}",
        row.set_by, row.change
    )
}

/// Standard output could not be written to.
#[derive(Debug, thiserror::Error)]
#[error("the result could not be printed")]
pub struct OutputFailed(#[source] std::io::Error);

impl crate::fault::Fault for OutputFailed {
    fn exit(&self) -> crate::fault::Exit {
        crate::fault::Exit::Storage
    }

    fn kind(&self) -> &'static str {
        "output-failed"
    }
}

pub(crate) fn output(error: std::io::Error) -> Failure {
    Box::new(OutputFailed(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pools.yaml");
        std::fs::write(&path, text).unwrap();
        (directory, path)
    }

    fn engines() -> Vec<String> {
        ["llamacpp", "vllm"].map(str::to_owned).into()
    }

    #[test]
    fn a_misspelt_engine_is_shown_with_the_nearest_provider() {
        let (_directory, path) =
            file("pools:\n  - {id: a, engine: lamacpp}\n  - {id: b, engine: x}\n");
        let check = |engines: &[String]| {
            let around = Surroundings::default();
            check(&mut Vec::new(), Some(&path), Form::Human, &around, engines)
        };
        let error = check(&engines()).unwrap_err();
        assert_eq!(error.exit(), crate::fault::Exit::Config);
        let told: String = error.details().into_iter().map(|it| it.text).collect();
        for text in [
            ":2:21: there is no provider `lamacpp`",
            "did you mean `llamacpp`?",
            "there are `llamacpp`, `vllm`",
        ] {
            assert!(told.contains(text), "{told}");
        }
        assert!(check(&[]).is_ok(), "nothing to compare with");
    }

    #[test]
    fn a_right_file_is_summed_up_with_its_notices() {
        let (_directory, path) = file(
            "pools:\n  - {id: a, engine: llamacpp, queue: {}}\n  - {id: b, engine: vllm, options: {x: 1}}\n",
        );
        let mut out = Vec::new();
        let around = Surroundings::default();
        check(&mut out, Some(&path), Form::Human, &around, &engines()).unwrap();
        let text = String::from_utf8(out).unwrap();
        let text = text.replace(&*path.to_string_lossy(), "pools.yaml");
        insta::assert_snapshot!(text, @r"
        pools.yaml is right: 2 pools
          a (llamacpp)
          b (vllm)
        note: pools.yaml:2:31: not used here, they belong to an orchestrator: `queue`
              |
            2 |   - {id: a, engine: llamacpp, queue: {}}
              |                               ^^^^^
        note: `options` are checked by their provider, in `host plan`
        ");
    }

    #[test]
    fn a_wrong_file_ends_with_the_code_for_files() {
        let (_directory, path) = file("pools: 1\n");
        let error = check(
            &mut Vec::new(),
            Some(&path),
            Form::Json,
            &Surroundings::default(),
            &[],
        );
        let error = error.unwrap_err();
        assert_eq!(error.exit(), crate::fault::Exit::Config);
        assert!(
            error.hints()[0]
                .command
                .as_ref()
                .unwrap()
                .contains("config check")
        );
    }

    #[test]
    fn the_policy_in_force_says_who_set_it() {
        let (directory, path) = file("policy: {gpu: prefer}\npools: [{id: a, engine: x}]\n");
        let mut out = Vec::new();
        show_policy(
            &mut out,
            Some(&path),
            Form::Human,
            &Home::at(directory.path()),
            &Environment::default(),
            &Overlay {
                offline: true,
                ..Overlay::default()
            },
        )
        .unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("gpu: prefer\n      set by"), "{text}");
        assert!(
            text.contains("network: offline\n      set by --offline;"),
            "{text}"
        );
    }

    #[test]
    fn the_schema_is_json() {
        let mut out = Vec::new();
        schema(&mut out).unwrap();
        let schema: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(schema["title"], "Pool file");
    }
}
