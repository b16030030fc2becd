//! Which settings of a pool belong to which way to the engine.

use engine_provider_api::{Mode, Pool};

use super::{places::Places, problem::Problem, schema::join};

/// Modes whose settings a pool carries.
pub(super) fn sections(pool: &Pool) -> Vec<Mode> {
    let provisioning = &pool.provisioning;
    [
        (provisioning.source.is_some(), Mode::Source),
        (provisioning.container.is_some(), Mode::Container),
        (provisioning.package.is_some(), Mode::Package),
        (provisioning.binary.is_some(), Mode::Binary),
        (provisioning.external.is_some(), Mode::External),
    ]
    .into_iter()
    .filter_map(|(there, mode)| there.then_some(mode))
    .collect()
}

/// Fields that mean nothing for an engine that somebody else runs.
const NOT_EXTERNAL: &[&str] = &[
    "quant",
    "ctx",
    "devices",
    "tensor_split",
    "replicas",
    "stop",
    "provisioning.model",
    "provisioning.ports",
    "provisioning.env",
    "provisioning.flags",
    "provisioning.allow_package_installs",
    "provisioning.allow_binary_downloads",
];

/// Written fields that do not fit a mode, each as a problem with the reason.
pub(super) fn misfits(pool: &Pool, mode: Mode, places: &Places, help: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mode_place = places.exact("provisioning.mode");
    for section in sections(pool)
        .into_iter()
        .filter(|section| *section != mode)
    {
        let field = join("provisioning", section.as_str());
        let detail = first_below(pool, section);
        let message = format!("`{section}{detail}` has no meaning under mode `{mode}`");
        let problem = places
            .problem(&format!("{field}{detail}"), message)
            .help(help);
        problems.push(problem.also(mode_place, "the mode is set here"));
    }
    if mode == Mode::External {
        for field in NOT_EXTERNAL
            .iter()
            .filter(|field| places.exact(field).is_some())
        {
            let message = format!("`{field}` has no meaning for an engine that already runs");
            let problem = places.problem(field, message).help(help);
            problems.push(problem.also(mode_place, "the mode is set here"));
        }
    }
    problems
}

/// `.image` of `container`: the first setting written there, so that the message names it.
fn first_below(pool: &Pool, section: Mode) -> String {
    let value = serde_json::to_value(&pool.provisioning).unwrap_or_default();
    let settings = value
        .get(section.as_str())
        .and_then(|value| value.as_object());
    let said = |value: &serde_json::Value| !matches!(value, serde_json::Value::Bool(false));
    let not_empty = |value: &serde_json::Value| value.as_object().is_none_or(|map| !map.is_empty());
    settings
        .and_then(|settings| {
            settings
                .iter()
                .find(|(_, value)| said(value) && not_empty(value))
        })
        .map(|(name, _)| format!(".{name}"))
        .unwrap_or_default()
}
