//! Mode `source`: cmake builds it.

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, Attempt, BuildStep, Checkout, Command, Mirror, Narration, PlanRequest, Pool, Progress,
    ProviderError, RequireTools, Step, Template, ToolRequirement, When,
};
use serde_json::{Value, json};

use crate::step;

pub(crate) fn steps(request: &PlanRequest) -> Result<Vec<Step>, ProviderError> {
    let source = request.pool.provisioning.source.clone().unwrap_or_default();
    let url = source.repo.ok_or_else(|| {
        ProviderError::invalid(
            "provisioning.source.repo",
            "a source build needs the URL of a repository",
        )
    })?;
    Ok(vec![
        step("tools", Act::RequireTools(tools())),
        Step {
            after: vec!["tools".to_owned()],
            ..step(
                "source",
                Act::Checkout(Checkout {
                    mirrors: vec![Mirror::Git { url }],
                    commit: source.reference.unwrap_or_else(|| "main".to_owned()),
                    submodules: source.submodules,
                    narration: narration("git-clone"),
                }),
            )
        },
        step("build", Act::Build(build(request)?)),
    ])
}

fn tools() -> RequireTools {
    let tool = |name: &str, purpose: &str, package: &str| ToolRequirement {
        name: name.to_owned(),
        purpose: purpose.to_owned(),
        packages: BTreeMap::from([("apt".to_owned(), vec![package.to_owned()])]),
        ..ToolRequirement::default()
    };
    RequireTools {
        tools: vec![
            tool("git", "to fetch the source", "git"),
            tool("cmake", "to build", "cmake"),
            tool("cc", "to compile", "build-essential"),
            ToolRequirement {
                optional: true,
                ..tool("ninja", "to build faster", "ninja-build")
            },
        ],
    }
}

fn build(request: &PlanRequest) -> Result<BuildStep, ProviderError> {
    let settings = request
        .pool
        .provisioning
        .source
        .clone()
        .unwrap_or_default()
        .build;
    let mut arguments: Vec<Template> = vec![
        "-S".into(),
        "{source.path}".into(),
        "-B".into(),
        "{work}".into(),
        "-DCMAKE_BUILD_TYPE=Release".into(),
        "-DCMAKE_RUNTIME_OUTPUT_DIRECTORY={work}/bin".into(),
    ];
    let ninja = request.facts.tool("ninja").map(|_| "Ninja".to_owned());
    if let Some(generator) = settings.generator.or(ninja) {
        arguments.extend(["-G".into(), Template::literal(&generator)]);
    }
    arguments.extend(
        settings
            .cmake_flags
            .iter()
            .map(|flag| Template::literal(flag)),
    );

    let mut attempts = vec![attempt("as configured", None, &arguments)];
    if let Some(pattern) = text_option(&request.pool, "retry_when")? {
        let flags = list_option(&request.pool, "retry_flags")?;
        arguments.extend(flags.iter().map(|flag| Template::literal(flag)));
        let when = When {
            log: Some(pattern),
            ..When::default()
        };
        attempts.push(attempt("with retry_flags", Some(when), &arguments));
    }
    Ok(BuildStep {
        attempts,
        outputs: vec!["bin/fixture-server".to_owned()],
        fixed_path: request.pool.options.get("in_place") == Some(&Value::Bool(true)),
        ..BuildStep::default()
    })
}

fn attempt(title: &str, when: Option<When>, configure: &[Template]) -> Attempt {
    let command = |id: &str, args: Vec<Template>| Command {
        id: id.to_owned(),
        program: "{tool.cmake}".into(),
        args,
        narration: narration(id),
        ..Command::default()
    };
    let build = ["--build", "{work}", "--parallel", "{jobs}"].map(Template::from);
    let progress = if configure.contains(&Template::from("Ninja")) {
        Progress::Counter
    } else {
        Progress::Percent
    };
    Attempt {
        title: title.to_owned(),
        when,
        commands: vec![
            command("cmake-configure", configure.to_vec()),
            Command {
                progress: Some(progress),
                ..command("cmake-build", build.to_vec())
            },
        ],
    }
}

fn narration(start: &str) -> Narration {
    Narration {
        start: start.to_owned(),
        retry: "cmake-retry".to_owned(),
        failed: "cmake-failed".to_owned(),
    }
}

fn text_option(pool: &Pool, name: &str) -> Result<Option<String>, ProviderError> {
    match pool.options.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(ProviderError::invalid(
            format!("options.{name}"),
            "must be a text",
        )),
    }
}

pub(crate) fn list_option(pool: &Pool, name: &str) -> Result<Vec<String>, ProviderError> {
    let value = pool.options.get(name).cloned().unwrap_or(json!([]));
    serde_json::from_value(value)
        .map_err(|_| ProviderError::invalid(format!("options.{name}"), "must be a list of texts"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine_provider_api::{EngineProvisioner as _, Facts, Mode, Tool};

    use crate::Fixture;

    fn request(pool: serde_json::Value) -> PlanRequest {
        PlanRequest {
            requires: Vec::new(),
            pool: serde_json::from_value(pool).unwrap(),
            mode: Mode::Source,
            facts: Facts::default(),
        }
    }

    #[test]
    fn without_a_repository_the_field_that_is_missing_is_named() {
        let request = request(json!({"id": "p", "engine": "fixture"}));
        let refusal = Fixture.plan(&request).unwrap_err();
        assert_eq!(refusal.field.as_deref(), Some("provisioning.source.repo"));
    }

    #[test]
    fn ninja_is_used_where_the_machine_has_it() {
        let mut request = request(json!({
            "id": "p", "engine": "fixture",
            "provisioning": {"source": {"repo": "https://example.org/x.git"}},
        }));
        let generator = |request: &PlanRequest| {
            let arguments = build(request).unwrap().attempts[0].commands[0].args.clone();
            arguments.contains(&Template::from("Ninja"))
        };
        assert!(!generator(&request));
        request
            .facts
            .tools
            .insert("ninja".to_owned(), Tool::default());
        assert!(generator(&request));
    }
}
