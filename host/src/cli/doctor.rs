//! `host doctor`: what this machine lacks, per provider and mode, and what fixes it.
//!
//! The core is pure: a provider was asked to plan its default pool in each of its modes, and
//! [`judge`] says what those answers mean on this machine and under this policy.

mod containers;

use std::{collections::BTreeSet, io::Write};

use engine_provider_api::{
    Act, Facts, Hint, Mode, Plan, ProviderError, ProviderInfo, ToolRequirement,
};

use super::{config::Form, report::Called};
use crate::{
    act::{Family, is_at_least},
    fault::{Exit, Fault, hint},
    policy::{Policy, Refusal},
};

/// Whether a provider can serve in a mode here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Everything it needs is there.
    Ready,
    /// Something is missing that can be had.
    CanBeMade,
    /// Not on this machine.
    Cannot,
}

/// What was found for one provider and mode.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Row {
    /// Provider.
    pub provider: String,
    /// Mode.
    pub mode: Mode,
    /// Whether it is the provider's default mode.
    pub default: bool,
    /// Whether it can serve.
    pub state: State,
    /// Whether `host provision` would succeed with the flags given, as far as can be seen: what is
    /// missing would be installed because policy allows it.
    pub would_run: bool,
    /// Why not, one phrase each; empty when ready.
    pub reasons: Vec<String>,
    /// What fixes it, best first.
    pub fixes: Vec<Hint>,
    /// What the provider worries about.
    pub warnings: Vec<String>,
    /// What is good to know, for example which container runtime is taken and why another is not.
    pub notes: Vec<String>,
}

/// Judges what a provider answered when it was asked to plan its default pool.
///
/// `plans`: one answer per mode that was asked for. `root`: whether the host runs as root, so that
/// the commands to paste need no `sudo`.
#[must_use]
pub fn judge(
    info: &ProviderInfo,
    facts: &Facts,
    policy: &Policy,
    plans: &[(Mode, Result<Plan, ProviderError>)],
    root: bool,
) -> Vec<Row> {
    let machine = Machine {
        facts,
        policy,
        root,
    };
    plans
        .iter()
        .map(|(mode, answer)| {
            let verdict = match answer {
                Ok(plan) => machine.verdict(plan),
                Err(error) => refused(error),
            };
            Row {
                provider: info.name.clone(),
                mode: *mode,
                default: info.modes.first() == Some(mode),
                state: verdict.state,
                would_run: verdict.state == State::Ready || verdict.allowed,
                reasons: verdict.reasons,
                fixes: verdict.fixes,
                notes: verdict.notes,
                warnings: answer
                    .as_ref()
                    .map(|plan| plan.warnings.clone())
                    .unwrap_or_default(),
            }
        })
        .collect()
}

/// Adds that the home cannot be used, whatever else is ready: nothing would run before that is mended.
pub fn add_home_problem(rows: &mut [Row], problem: &dyn Fault) {
    for row in rows {
        if row.state == State::Ready {
            row.state = State::CanBeMade;
        }
        row.would_run = false;
        row.reasons.push(crate::narrate::chain(problem));
        row.fixes.extend(problem.hints());
    }
}

/// How the program ends: whether the default job of some provider would run.
#[must_use]
pub fn exit(rows: &[Row]) -> Exit {
    if rows.iter().any(|row| row.default && row.would_run) {
        Exit::Success
    } else {
        Exit::Unavailable
    }
}

struct Verdict {
    state: State,
    /// Whether policy lets the host put right what is missing.
    allowed: bool,
    reasons: Vec<String>,
    fixes: Vec<Hint>,
    notes: Vec<String>,
}

/// The provider itself said no. Where it knows a command, there is a way.
fn refused(error: &ProviderError) -> Verdict {
    let mut reason = error.message.clone();
    if !error.causes.is_empty() {
        reason = format!("{reason} ({})", error.causes.join("; "));
    }
    let can = error.hints.iter().any(|hint| hint.command.is_some());
    Verdict {
        state: if can { State::CanBeMade } else { State::Cannot },
        allowed: false,
        reasons: vec![reason],
        fixes: error.hints.clone(),
        notes: Vec::new(),
    }
}

struct Machine<'a> {
    facts: &'a Facts,
    policy: &'a Policy,
    root: bool,
}

impl Machine<'_> {
    fn verdict(&self, plan: &Plan) -> Verdict {
        let mut verdict = Verdict {
            state: State::Ready,
            allowed: true,
            reasons: Vec::new(),
            fixes: Vec::new(),
            notes: Vec::new(),
        };
        let tools = plan.steps.iter().flat_map(|step| match &step.act {
            Act::RequireTools(act) => act.tools.as_slice(),
            _ => &[],
        });
        let required: Vec<&ToolRequirement> = tools.filter(|tool| !tool.optional).collect();
        self.missing_tools(&required, &mut verdict);
        for tool in required {
            if let Err(refusal) = self.policy.allow_tool(&tool.name) {
                forbidden(refusal, &mut verdict);
            }
        }
        let mut acts = plan.steps.iter().map(|step| &step.act);
        if acts.any(|act| matches!(act, Act::PullImage(_))) {
            self.containers(&mut verdict);
        }
        verdict
    }

    /// A plan that pulls an image needs something that runs it.
    fn containers(&self, verdict: &mut Verdict) {
        let found = containers::judge(self.facts, self.policy.gpu.value, None);
        verdict.notes.extend(found.notes);
        if found.reasons.is_empty() {
            return;
        }
        // The host installs neither runtimes nor drivers: it says what does.
        verdict.allowed = false;
        verdict.state = match (verdict.state, found.fixes.is_empty()) {
            (State::Cannot, _) | (_, true) => State::Cannot,
            _ => State::CanBeMade,
        };
        verdict.reasons.extend(found.reasons);
        verdict.fixes.extend(found.fixes);
    }

    fn missing_tools(&self, required: &[&ToolRequirement], verdict: &mut Verdict) {
        let missing: Vec<&&ToolRequirement> = required
            .iter()
            .filter(|tool| self.lacks(tool).is_some())
            .collect();
        if missing.is_empty() {
            return;
        }
        let reasons = missing.iter().filter_map(|tool| self.lacks(tool));
        verdict.reasons.extend(reasons);
        verdict.state = State::CanBeMade;
        let manager = self.facts.package_manager.as_ref();
        let family = manager.map_or("", |manager| manager.family.as_str());
        let mut packages = BTreeSet::new();
        let mut homeless = Vec::new();
        for tool in missing {
            match tool.packages.get(family) {
                Some(names) => packages.extend(names.iter().cloned()),
                None => homeless.push(tool.name.as_str()),
            }
        }
        if !homeless.is_empty() {
            verdict.state = State::Cannot;
            verdict.allowed = false;
            verdict.fixes.push(hint(
                format!(
                    "no package of this system is known to carry {}: install it so that it is on PATH",
                    homeless.join(", ")
                ),
                None,
            ));
        }
        let packages: Vec<String> = packages.into_iter().collect();
        if packages.is_empty() {
            return;
        }
        if let Some(family) = Family::of(family) {
            let command = family.paste(&packages, self.root);
            verdict
                .fixes
                .push(hint("install what is missing", Some(&command)));
        }
        match self.policy.allow_package_install(&packages) {
            Ok(()) => verdict
                .fixes
                .push(hint("`host provision` installs it itself", None)),
            Err(refusal) => {
                verdict.allowed = false;
                verdict.fixes.extend(refusal.hints());
            }
        }
    }

    /// What is wrong with a tool, if anything.
    fn lacks(&self, tool: &ToolRequirement) -> Option<String> {
        match self.facts.tool(&tool.name) {
            None => Some(format!("`{}` is missing ({})", tool.name, tool.purpose)),
            Some(found) if is_at_least(&found.version, &tool.minimum_version) => None,
            Some(found) => Some(format!(
                "`{}` is {}, and {} is needed ({})",
                tool.name, found.version, tool.minimum_version, tool.purpose
            )),
        }
    }
}

/// Policy is in the way: a line can be changed, but not by the host.
fn forbidden(refusal: Refusal, verdict: &mut Verdict) {
    verdict.allowed = false;
    if verdict.state == State::Ready {
        verdict.state = State::CanBeMade;
    }
    verdict.reasons.push(refusal.to_string());
    verdict.fixes.extend(refusal.hints());
}

/// Writes the verdicts; `called`: for commands to paste.
pub fn write(
    out: &mut dyn Write,
    rows: &[Row],
    form: Form,
    called: &Called,
) -> std::io::Result<()> {
    if form == Form::Json {
        let shown: Vec<Row> = rows.iter().map(|row| with_commands(row, called)).collect();
        let json = serde_json::json!({ "rows": shown, "would_run": exit(rows) == Exit::Success });
        return writeln!(out, "{json}");
    }
    for row in rows {
        let state = match row.state {
            State::Ready => "ready",
            State::CanBeMade => "can be made ready",
            State::Cannot => "cannot",
        };
        let default = if row.default { " (default)" } else { "" };
        writeln!(out, "{} {}{default}: {state}", row.provider, row.mode)?;
        for reason in &row.reasons {
            writeln!(out, "  why: {reason}")?;
        }
        for fix in &with_commands(row, called).fixes {
            writeln!(out, "  fix: {}", fix.text)?;
            for line in fix.command.iter().flat_map(|command| command.lines()) {
                writeln!(out, "         {line}")?;
            }
        }
        for note in row.warnings.iter().chain(&row.notes) {
            writeln!(out, "  note: {note}")?;
        }
    }
    Ok(())
}

/// The row with commands that can be pasted. What a provider wants tried again is its main job.
fn with_commands(row: &Row, called: &Called) -> Row {
    let mut row = row.clone();
    let job = format!("{{host}} provision --provider {}", row.provider);
    for fix in &mut row.fixes {
        if let Some(command) = &mut fix.command {
            *command = called.fill(&command.replace("{again}", &job));
        }
    }
    row
}

pub(super) use containers::named;

#[cfg(test)]
mod tests;
