//! A plan as it is shown, to people and as JSON.

mod run;

use engine_provider_api::{Act, ImageName, Step};
use schemars::JsonSchema;
use serde::Serialize;

use super::Planned;
pub use run::{CommandView, ContainerView, ModelView, MountView, PortView, RunView, run_view};

use crate::act::{Expected, Outlook, allowed_hosts};

/// What `host plan --json` prints.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PlanView {
    /// Schema of this document.
    pub schema: u32,
    /// The pool.
    pub pool_id: String,
    /// The engine family.
    pub engine: String,
    /// The provider that planned.
    pub provider: ProviderView,
    /// How the engine comes onto the machine.
    pub mode: String,
    /// Whether a GPU must, may or must not be used.
    pub gpu: String,
    /// Steps in the order they are shown; the last one is `run`.
    pub steps: Vec<StepView>,
    /// What would run.
    pub run: RunView,
    /// Hosts that the plan names and policy lets it reach.
    pub hosts: Vec<String>,
    /// What was decided, and how to change it.
    pub notes: Vec<String>,
    /// What the operator should worry about.
    pub warnings: Vec<String>,
}

/// The provider that planned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProviderView {
    /// Name.
    pub name: String,
    /// Version.
    pub version: String,
    /// Path of its library.
    pub path: String,
}

/// One line of the plan: a step, or one command of a build.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct StepView {
    /// Name, for example `cmake-build`.
    pub id: String,
    /// Kind of step: `checkout`, `build`, …, `run`.
    pub kind: String,
    /// What has to be done: `cached`, `fetch`, `build`, `install`, `missing`, `run`, `copy`,
    /// `spared`, `refused`, `unsupported`.
    pub state: String,
    /// One line for people.
    pub detail: String,
    /// The command line of a build's command, placeholders left in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Vec<String>>,
    /// Bytes to fetch, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
    /// Where the result is or will be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
}

impl Planned {
    /// What the operator should worry about, each thing once.
    pub(super) fn warnings(&self) -> Vec<String> {
        let mut all = self.plan.warnings.clone();
        all.extend(self.passed_over.clone());
        let contained = self.contained.iter().flat_map(|it| &it.warnings);
        for warning in self.engine.warnings.iter().chain(contained) {
            if !all.contains(warning) {
                all.push(warning.clone());
            }
        }
        all
    }

    /// The plan as it is shown.
    #[must_use]
    pub fn view(&self) -> PlanView {
        let pool = &self.chosen.wanted.pool;
        let mut steps: Vec<StepView> = self
            .plan
            .steps
            .iter()
            .flat_map(|step| lines_of(step, &self.expected[&step.id]))
            .collect();
        let path_of = |step: &str| self.expected.get(step)?.artifact.path.clone();
        let run = run_view(&self.engine, pool, path_of, self.contained.as_ref());
        steps.push(StepView {
            id: "run".to_owned(),
            kind: "run".to_owned(),
            state: "run".to_owned(),
            detail: run.summary(&self.engine.engine),
            command: None,
            size_bytes: None,
            path: None,
        });
        PlanView {
            schema: 1,
            pool_id: pool.id.clone(),
            engine: pool.engine.clone(),
            provider: ProviderView {
                name: self.chosen.found.manifest.name.clone(),
                version: self.chosen.found.manifest.version.clone(),
                path: self.chosen.found.path.display().to_string(),
            },
            mode: self.chosen.mode.to_string(),
            gpu: word(&pool.gpu),
            steps,
            run,
            hosts: allowed_hosts(&self.context, &self.plan),
            notes: self.plan.notes.clone(),
            warnings: self
                .unresolved
                .iter()
                .cloned()
                .chain(self.warnings())
                .collect(),
        }
    }
}

/// A step as its lines: the commands of a build, else the step itself.
fn lines_of(step: &Step, expected: &Expected) -> Vec<StepView> {
    let line = |id: &str, detail: String| StepView {
        id: id.to_owned(),
        kind: step.act.kind().to_owned(),
        state: state(&expected.outlook).to_owned(),
        detail,
        command: None,
        size_bytes: match &expected.outlook {
            Outlook::Fetch {
                size_bytes,
                refused: None,
                ..
            } => *size_bytes,
            _ => None,
        },
        path: expected.artifact.path.clone(),
    };
    let Act::Build(build) = &step.act else {
        return vec![line(&step.id, detail(step, expected))];
    };
    let others = build.attempts.len().saturating_sub(1);
    build.attempts[0]
        .commands
        .iter()
        .map(|command| {
            let mut detail = detail(step, expected);
            if others > 0 && command.narration.retry != String::new() {
                detail.push_str(&format!("; {others} other ways to try"));
            }
            let mut words = vec![command.program.to_string()];
            words.extend(command.args.iter().map(ToString::to_string));
            StepView {
                command: Some(words),
                ..line(&command.id, detail)
            }
        })
        .collect()
}

fn state(outlook: &Outlook) -> &'static str {
    match outlook {
        Outlook::Cached => "cached",
        Outlook::Fetch { refused: None, .. } => "fetch",
        Outlook::Build { .. } => "build",
        Outlook::Install { .. } => "install",
        Outlook::Missing { .. } => "missing",
        Outlook::Run => "run",
        Outlook::Copy => "copy",
        Outlook::Spared => "spared",
        Outlook::Fetch { .. } | Outlook::Refused { .. } => "refused",
        Outlook::Unsupported { .. } => "unsupported",
    }
}

fn detail(step: &Step, expected: &Expected) -> String {
    let what = match &step.act {
        Act::Checkout(act) => format!("commit {}", short(&act.commit)),
        Act::StageModel(act) => act.reference.clone(),
        Act::PullImage(act) => name_of(&act.image),
        Act::ExtractImage(act) => name_of(&act.image),
        Act::InstallPackages(act) => act.program.clone(),
        Act::Observe(act) => act
            .args
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(" "),
        _ => String::new(),
    };
    let todo = match &expected.outlook {
        Outlook::Cached if matches!(step.act, Act::RequireTools(_)) => "all there".to_owned(),
        Outlook::Cached => "nothing to do".to_owned(),
        Outlook::Fetch {
            refused: Some(why), ..
        } => why.clone(),
        // What is named by its URL needs no second mention of it.
        Outlook::Fetch { from, .. } if *from == [what.as_str()] => "to fetch".to_owned(),
        Outlook::Fetch { from, .. } => format!("from {}", from.join(", else ")),
        Outlook::Build { because } => match because {
            Some(reason) => format!("again: {reason}"),
            None => "not built here yet".to_owned(),
        },
        Outlook::Install {
            tools,
            packages,
            allowed,
        } => format!(
            "{} missing: {} {}",
            tools.join(", "),
            if *allowed {
                "installs"
            } else {
                "needs --allow-package-installs for"
            },
            packages.join(" ")
        ),
        Outlook::Missing { tools } => format!("{} missing", tools.join(", ")),
        Outlook::Run => "once it is here".to_owned(),
        Outlook::Copy => "written into the store".to_owned(),
        Outlook::Spared => "not needed, what is made of it is here".to_owned(),
        Outlook::Refused { why } => return why.clone(),
        // It names the reference itself.
        Outlook::Unsupported { why } => return why.clone(),
    };
    match what.as_str() {
        "" => todo,
        what => format!("{what}: {todo}"),
    }
}

/// `docker.io/x/y:v1`, with the beginning of its digest where that is known.
fn name_of(image: &ImageName) -> String {
    let tag = image.tag.as_ref().map(|tag| format!(":{tag}"));
    let digest = image.digest.as_ref().map(|digest| {
        let end = digest.len().min("sha256:".len() + 12);
        format!("@{}", digest.get(..end).unwrap_or(digest))
    });
    let [tag, digest] = [tag, digest].map(Option::unwrap_or_default);
    format!("{}{tag}{digest}", image.repository)
}

fn short(commit: &str) -> &str {
    match commit.len() {
        40 => &commit[..12],
        _ => commit,
    }
}

/// The word that pool files use for a value.
pub(super) fn word<T: Serialize>(value: &T) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}
