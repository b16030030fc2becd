//! `host doctor`: what this machine lacks, per provider and mode, and what fixes it.
//!
//! The core is pure: a provider was asked to plan its default pool in each of its modes, and
//! [`judge`] says what those answers mean on this machine and under this policy; [`missing`] adds what no
//! provider sees. How it is told is in [`shown`].

mod containers;
mod missing;
mod shown;

use std::collections::BTreeSet;

use engine_provider_api::{
    Act, Facts, GpuPolicy, Hint, Mode, Plan, ProviderError, ProviderInfo, ToolRequirement,
};

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

impl Row {
    /// Whether another mode of the same provider has the same verdict for the same reasons: then they
    /// are told once.
    fn is_judged_like(&self, other: &Self) -> bool {
        let verdict = |row: &Self| Self {
            mode: Mode::Source,
            default: false,
            ..row.clone()
        };
        verdict(self) == verdict(other)
    }
}

/// Judges what a provider answered when it was asked to plan its default pool.
///
/// `plans`: one answer per mode that was asked for. `runtime`: the only container runtime that will do.
/// `root`: whether the host runs as root, so that the commands to paste need no `sudo`.
#[must_use]
pub fn judge(
    info: &ProviderInfo,
    facts: &Facts,
    policy: &Policy,
    plans: &[(Mode, Result<Plan, ProviderError>)],
    runtime: Option<&str>,
    root: bool,
) -> Vec<Row> {
    let machine = Machine {
        facts,
        policy,
        runtime,
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
    runtime: Option<&'a str>,
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
        // Files are taken out of an image by a runtime that never runs it: no GPU is asked of that one.
        let gpu = acts.find_map(|act| match act {
            Act::PullImage(_) => Some(self.policy.gpu.value),
            Act::ExtractImage(_) => Some(GpuPolicy::Forbid),
            _ => None,
        });
        if let Some(gpu) = gpu {
            self.containers(gpu, &mut verdict);
        }
        verdict
    }

    /// A plan that pulls an image needs something that has it.
    fn containers(&self, gpu: GpuPolicy, verdict: &mut Verdict) {
        let found = containers::judge(self.facts, gpu, self.runtime);
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

pub use containers::{RuntimeRow, RuntimeState};
pub(super) use containers::{named, runtimes};
pub use missing::{MissingModel, add_home_problem, add_missing_model, add_missing_packages};
pub use shown::{LeftContainer, Report, left_containers, write};

#[cfg(test)]
mod tests;
