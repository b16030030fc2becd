//! What a build is made of; the table is in the module above.

use std::collections::{BTreeMap, BTreeSet};

use engine_provider_api::BuildStep;
use sha2::{Digest as _, Sha256};

use crate::{
    act::{Artifacts, Context, fill},
    store::{Ingredients, hex},
};

/// Counts up when commands are run in another way that changes what they make.
const RECIPE: u32 = 1;

/// What the result is made of; `None` while a tool or an input is not known.
pub(super) fn ingredients(
    context: &Context,
    act: &BuildStep,
    inputs: &Artifacts,
) -> Option<Ingredients> {
    let os = &context.facts.os;
    let mut all = Ingredients::new()
        .with("recipe", RECIPE)
        .with("machine", format!("{} glibc {}", os.arch, os.glibc));
    for (number, attempt) in act.attempts.iter().enumerate() {
        let prefix = match number {
            0 => String::new(),
            number => format!("attempt {}: ", number + 1),
        };
        if let Some(when) = &attempt.when {
            all.add(format!("{prefix}condition"), when);
        }
        for command in &attempt.commands {
            let id = format!("{prefix}{}", command.id);
            all.add(format!("{id} program"), &command.program);
            all.add(format!("{id} argument"), &command.args);
            all.add(format!("{id} environment"), &command.env);
            all.add(format!("{id} directory"), &command.directory);
        }
    }
    for name in fill::names(act, "tool") {
        let tool = context.tools.get(name)?;
        all.add(
            format!("tool {name}"),
            format!("{} {}", tool.path, tool.version),
        );
    }
    for name in input_names(act) {
        let identity = fill::identity(&context.store, inputs.get(name)?)?;
        all.add(format!("input {name}"), identity);
    }
    all.add("output", &act.outputs);
    all.add("network", &act.network);
    if act.native {
        let cpu = &context.facts.cpu;
        all.add("processor", &cpu.features);
    }
    all.add("label", &act.labels);
    for (name, text) in &act.inputs {
        let digest = hex(&Sha256::digest(text.as_bytes()));
        all.add(format!("text {name}"), format!("sha256:{digest}"));
    }
    if act.fixed_path {
        all.add("place", context.store.root());
    }
    Some(all)
}

/// Commits of the sources that the commands refer to, by step.
pub(super) fn commits(act: &BuildStep, inputs: &Artifacts) -> BTreeMap<String, String> {
    let names = input_names(act).into_iter();
    let commit = |name: &str| Some((name.to_owned(), inputs.get(name)?.commit.clone()?));
    names.filter_map(commit).collect()
}

/// Steps whose results the commands refer to.
fn input_names(act: &BuildStep) -> BTreeSet<&str> {
    act.attempts
        .iter()
        .flat_map(|attempt| &attempt.commands)
        .flat_map(fill::templates)
        .flat_map(|template| template.placeholders().unwrap_or_default())
        .filter_map(fill::step_of)
        .collect()
}
