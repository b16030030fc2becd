//! Plans come from plugins: checked before anything is done.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
};

use engine_provider_api::{Act, BuildStep, Plan, Step, Template};
use regex::Regex;

use super::{
    ActError,
    fill::{step_of, templates},
};

/// Words that are no step names because placeholders begin with them.
const RESERVED: [&str; 7] = [
    "tool", "work", "jobs", "cache", "address", "secret", "files",
];

/// The steps of a checked plan and what each waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    order: Vec<usize>,
    needs: Vec<BTreeSet<usize>>,
}

impl Order {
    /// Indexes of all steps, each after what it needs, otherwise as they are shown.
    #[must_use]
    pub fn order(&self) -> &[usize] {
        &self.order
    }

    /// Indexes of the steps that one needs.
    #[must_use]
    pub fn needs(&self, step: usize) -> &BTreeSet<usize> {
        &self.needs[step]
    }

    /// Indexes of the steps that need one.
    pub fn users(&self, step: usize) -> impl Iterator<Item = usize> {
        let needs = self.needs.iter().enumerate();
        needs.filter_map(move |(user, needs)| needs.contains(&step).then_some(user))
    }
}

/// Checks that a plan can be carried out: names, references, templates, output paths, no cycle.
pub fn check(plan: &Plan) -> Result<Order, ActError> {
    let mut numbers = BTreeMap::new();
    for (number, step) in plan.steps.iter().enumerate() {
        check_name(&step.id)?;
        if numbers.insert(step.id.as_str(), number).is_some() {
            return Err(bad(format!("two steps are called `{}`", step.id)));
        }
    }
    let mut needs = Vec::with_capacity(plan.steps.len());
    for step in &plan.steps {
        check_step(step)?;
        check_programs(plan, step)?;
        needs.push(needs_of(plan, step, &numbers)?);
    }
    let order = sort(plan, &needs)?;
    Ok(Order { order, needs })
}

fn bad(reason: impl Into<String>) -> ActError {
    ActError::Plan {
        reason: reason.into(),
    }
}

fn check_name(id: &str) -> Result<(), ActError> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || id.len() > 63 || !id.bytes().all(plain) || RESERVED.contains(&id) {
        return Err(bad(format!("`{id}` is no name for a step")));
    }
    Ok(())
}

fn check_step(step: &Step) -> Result<(), ActError> {
    match &step.act {
        Act::Build(build) => check_build(&step.id, build),
        Act::Observe(observe) if origin_of(&observe.program) != Some(Origin::Step) => Err(bad(
            format!("`{}` observes a program that no step made", step.id),
        )),
        Act::Checkout(checkout) if checkout.mirrors.is_empty() => {
            Err(bad(format!("`{}` names no mirror", step.id)))
        }
        Act::Download(download) if download.urls.is_empty() => {
            Err(bad(format!("`{}` names no URL", step.id)))
        }
        _ => Ok(()),
    }
}

/// What was downloaded as mere data is not run.
fn check_programs(plan: &Plan, step: &Step) -> Result<(), ActError> {
    let is_data = |name: &str| {
        plan.steps.iter().any(|other| {
            other.id == name && matches!(&other.act, Act::Download(act) if !act.program)
        })
    };
    let programs: Vec<&Template> = match &step.act {
        Act::Observe(observe) => vec![&observe.program],
        Act::Build(build) => build
            .attempts
            .iter()
            .flat_map(|attempt| &attempt.commands)
            .map(|command| &command.program)
            .collect(),
        _ => Vec::new(),
    };
    let placeholders = programs
        .into_iter()
        .flat_map(|program| program.placeholders().unwrap_or_default());
    match placeholders.filter_map(step_of).find(|name| is_data(name)) {
        None => Ok(()),
        Some(data) => Err(bad(format!(
            "`{}` runs what `{data}` downloads, which is not said to be a program",
            step.id
        ))),
    }
}

fn check_build(id: &str, build: &BuildStep) -> Result<(), ActError> {
    if build.attempts.is_empty() {
        return Err(bad(format!("`{id}` has no attempt")));
    }
    if build.outputs.is_empty() {
        return Err(bad(format!("`{id}` keeps nothing")));
    }
    for output in &build.outputs {
        check_inside(id, "output", output)?;
    }
    for input in build.inputs.keys() {
        check_inside(id, "input", input)?;
    }
    for (number, attempt) in build.attempts.iter().enumerate() {
        if attempt.commands.is_empty() {
            return Err(bad(format!("an attempt of `{id}` has no command")));
        }
        match (&attempt.when, number) {
            (Some(_), 0) => {
                return Err(bad(format!("the first attempt of `{id}` has a condition")));
            }
            (Some(when), _) => {
                let pattern = when.log.as_deref().unwrap_or_default();
                Regex::new(pattern)
                    .map_err(|error| bad(format!("`{id}` has a bad pattern: {error}")))?;
            }
            (None, _) => {}
        }
        for command in &attempt.commands {
            check_name(&command.id)?;
            if origin_of(&command.program).is_none() {
                return Err(bad(format!(
                    "`{}` of `{id}` runs `{}`, which is no tool, nothing that a step made and \
                     nothing in its working directory",
                    command.id,
                    command.program.as_str()
                )));
            }
        }
    }
    Ok(())
}

/// Where a program comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// Exactly `{tool.NAME}`.
    Tool,
    /// A path in what a step made, `{STEP.path}/…`.
    Step,
    /// A path in what this build has made so far, `{work}/…`.
    Work,
}

/// Where a program comes from; `None` for paths that a plan chose by itself, also by climbing.
fn origin_of(program: &Template) -> Option<Origin> {
    let (name, rest) = program.as_str().strip_prefix('{')?.split_once('}')?;
    let inside = rest.is_empty() || rest.starts_with('/');
    let climbs = Path::new(rest)
        .components()
        .any(|part| part == Component::ParentDir);
    // A placeholder further on could be filled with anything.
    if !inside || climbs || rest.contains(['{', '}']) {
        return None;
    }
    match name.split_once('.') {
        Some(("tool", _)) => rest.is_empty().then_some(Origin::Tool),
        Some((step, "path")) if !RESERVED.contains(&step) => Some(Origin::Step),
        None if name == "work" => Some(Origin::Work),
        _ => None,
    }
}

/// Outputs and inputs are relative, lead nowhere else and are not the whole working directory.
fn check_inside(id: &str, what: &str, path: &str) -> Result<(), ActError> {
    let mut parts = Path::new(path).components().peekable();
    let plain = parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)));
    if plain {
        Ok(())
    } else {
        Err(bad(format!(
            "{what} `{path}` of `{id}` is not a path below its working directory"
        )))
    }
}

/// What a step waits for: `after`, results it refers to, and the step that looks for its tools.
fn needs_of(
    plan: &Plan,
    step: &Step,
    numbers: &BTreeMap<&str, usize>,
) -> Result<BTreeSet<usize>, ActError> {
    let mut needs = BTreeSet::new();
    let mut need = |name: &str| match numbers.get(name) {
        Some(number) => {
            needs.insert(*number);
            Ok(())
        }
        None => Err(bad(format!(
            "`{}` refers to `{name}`, which is no step",
            step.id
        ))),
    };
    for name in &step.after {
        need(name)?;
    }
    let mut tools = BTreeSet::new();
    for template in step_templates(step) {
        let placeholders = template
            .placeholders()
            .map_err(|source| ActError::Template {
                step: step.id.clone(),
                source,
            })?;
        for placeholder in placeholders {
            match placeholder.split_once('.') {
                Some(("tool", tool)) => {
                    tools.insert(tool.to_owned());
                }
                Some(("cache", name)) if is_cache_name(name) => {}
                None if matches!(placeholder, "work" | "jobs") => {}
                Some((name, "path")) if !RESERVED.contains(&name) => need(name)?,
                _ => {
                    let reason = format!(
                        "`{}` uses `{{{placeholder}}}`, which is nothing here",
                        step.id
                    );
                    return Err(bad(reason));
                }
            }
        }
    }
    if matches!(step.act, Act::Checkout(_)) {
        tools.insert("git".to_owned());
    }
    needs.extend(tool_steps(plan, step, &tools));
    Ok(needs)
}

fn is_cache_name(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn step_templates(step: &Step) -> Vec<&Template> {
    match &step.act {
        Act::Build(build) => build
            .attempts
            .iter()
            .flat_map(|attempt| &attempt.commands)
            .flat_map(templates)
            .collect(),
        Act::Observe(observe) => std::iter::once(&observe.program)
            .chain(&observe.args)
            .chain(observe.env.values())
            .collect(),
        _ => Vec::new(),
    }
}

/// Steps that look for, or install, one of these tools.
fn tool_steps<'a>(
    plan: &'a Plan,
    step: &'a Step,
    tools: &'a BTreeSet<String>,
) -> impl Iterator<Item = usize> + 'a {
    let gives = |other: &Step| match &other.act {
        Act::RequireTools(act) => act.tools.iter().any(|tool| tools.contains(&tool.name)),
        _ => false,
    };
    let all = plan.steps.iter().enumerate();
    all.filter(move |(_, other)| other.id != step.id && gives(other))
        .map(|(number, _)| number)
}

fn sort(plan: &Plan, needs: &[BTreeSet<usize>]) -> Result<Vec<usize>, ActError> {
    let mut order: Vec<usize> = Vec::with_capacity(needs.len());
    while order.len() < needs.len() {
        let ready = (0..needs.len()).find(|number| {
            !order.contains(number) && needs[*number].iter().all(|need| order.contains(need))
        });
        match ready {
            Some(number) => order.push(number),
            None => {
                let stuck: Vec<&str> = (0..needs.len())
                    .filter(|number| !order.contains(number))
                    .map(|number| plan.steps[number].id.as_str())
                    .collect();
                return Err(bad(format!("{} wait for each other", stuck.join(", "))));
            }
        }
    }
    Ok(order)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan(steps: serde_json::Value) -> Plan {
        serde_json::from_value(json!({ "steps": steps })).unwrap()
    }

    fn build(id: &str, argument: &str) -> serde_json::Value {
        json!({"id": id, "kind": "build", "outputs": ["bin/x"], "attempts": [
            {"title": "", "commands": [{"id": "make", "program": "{tool.make}", "args": [argument]}]}]})
    }

    #[test]
    fn steps_are_ordered_by_what_they_refer_to() {
        let plan = plan(json!([
            build("second", "{first.path}/x"),
            build("first", "{work} {jobs} {cache.ccache}"),
            {"id": "tools", "kind": "require-tools", "tools": [{"name": "make", "purpose": ""}]},
            {"id": "look", "kind": "observe", "program": "{second.path}/x", "args": []},
        ]));
        let order = check(&plan).unwrap();
        assert_eq!(order.order(), [2, 1, 0, 3]);
        assert_eq!(order.needs(0), &BTreeSet::from([1, 2]));
        assert_eq!(order.needs(3), &BTreeSet::from([0]));
    }

    #[test]
    fn programs_are_tools_or_what_was_made_and_never_paths_of_the_machine() {
        let origin = |program: &str| origin_of(&Template::from(program));
        assert_eq!(origin("{tool.cmake}"), Some(Origin::Tool));
        assert_eq!(origin("{source.path}/configure"), Some(Origin::Step));
        assert_eq!(origin("{get.path}"), Some(Origin::Step));
        assert_eq!(origin("{work}/venv/bin/pip"), Some(Origin::Work));
        for program in [
            "/usr/bin/curl",
            "curl",
            "",
            "{tool.cmake}/../curl",
            "{source.path}/../../../usr/bin/curl",
            "{source.path}evil",
            "{work}/{jobs}",
            "{cache.ccache}/x",
            "{tool.path}/x",
        ] {
            assert_eq!(origin(program), None, "{program}");
        }
        let mut free = build("a", "x");
        free["attempts"][0]["commands"][0]["program"] = json!("/usr/bin/curl");
        let error = check(&plan(json!([free]))).unwrap_err().to_string();
        assert!(
            error.contains("runs `/usr/bin/curl`, which is no tool"),
            "{error}"
        );
    }

    #[test]
    fn plans_that_cannot_be_carried_out_are_refused_with_the_reason() {
        let mut up = build("a", "x");
        up["outputs"] = json!(["../x"]);
        let mut absolute = build("a", "x");
        absolute["outputs"] = json!(["/etc"]);
        let mut all = build("a", "x");
        all["outputs"] = json!(["."]);
        let mut pattern = build("a", "x");
        pattern["attempts"][0]["when"] = json!({"log": "x"});
        let cases = [
            (
                json!([build("a", "x"), build("a", "y")]),
                "two steps are called `a`",
            ),
            (json!([build("work", "x")]), "`work` is no name for a step"),
            (json!([build("A", "x")]), "`A` is no name for a step"),
            (
                json!([build("a", "{b.path}")]),
                "`a` refers to `b`, which is no step",
            ),
            (json!([build("a", "{a.path}")]), "a wait for each other"),
            (
                json!([build("a", "{secret.X}")]),
                "`{secret.X}`, which is nothing here",
            ),
            (json!([build("a", "{cache.../x}")]), "cannot be filled in"),
            (json!([up]), "output `../x` of `a` is not a path below"),
            (
                json!([absolute]),
                "output `/etc` of `a` is not a path below",
            ),
            (json!([all]), "output `.` of `a` is not a path below"),
            (json!([pattern]), "the first attempt of `a` has a condition"),
            (
                json!([{"id": "o", "kind": "observe", "program": "/bin/sh", "args": []}]),
                "observes a program that no step made",
            ),
            (
                json!([build("a", "x"),
                    {"id": "o", "kind": "observe", "program": "{a.path}/../../bin/sh", "args": []}]),
                "observes a program that no step made",
            ),
            (
                json!([{"id": "get", "kind": "download", "urls": ["https://h/x"], "digest": ""},
                    {"id": "o", "kind": "observe", "program": "{get.path}/x", "args": []}]),
                "`o` runs what `get` downloads, which is not said to be a program",
            ),
        ];
        for (steps, reason) in cases {
            let error = check(&plan(steps)).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
