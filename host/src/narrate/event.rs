//! The event itself.

use jiff::Timestamp;
use serde::Serialize;

use super::Secrets;

/// Something that happened, as told to people and machines.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// When, in UTC.
    pub time: Timestamp,
    /// How much it matters.
    pub level: Level,
    /// Who did it.
    pub actor: Actor,
    /// What was done: a word of the documented list, for example `git-clone`.
    pub action: String,
    /// What it was done to: a path, a URL, a step.
    pub target: String,
    /// One sentence for people.
    pub human: String,
    /// For whom and in which job.
    #[serde(flatten)]
    pub context: Context,
    /// How long it took, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// Kind of failure, for failures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_kind: Option<String>,
}

/// For whom and in which job something happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Context {
    /// Pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<String>,
    /// Replica of the pool, for example `r0`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica_id: Option<String>,
    /// Engine family.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine: Option<String>,
    /// What was provisioned, once it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_version: Option<String>,
    /// One run of this program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_id: Option<String>,
    /// Given by the caller, passed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Name of the policy in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_label: Option<String>,
}

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The normal course.
    Info,
    /// The operator should worry.
    Warning,
    /// Something failed.
    Error,
}

/// Who did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// Obtains, starts and stops engines.
    EngineProvisioner,
    /// Obtains models.
    ModelProvisioner,
    /// Keeps pools up.
    PoolManager,
}

impl Actor {
    /// The word used in events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EngineProvisioner => "engine-provisioner",
            Self::ModelProvisioner => "model-provisioner",
            Self::PoolManager => "pool-manager",
        }
    }
}

impl Event {
    /// An event of level info, now, without context.
    #[must_use]
    pub fn new(actor: Actor, action: &str, target: String, human: String) -> Self {
        Self {
            time: Timestamp::now(),
            level: Level::Info,
            actor,
            action: action.to_owned(),
            target,
            human,
            context: Context::default(),
            duration_ms: None,
            error_kind: None,
        }
    }

    /// Masks secrets in every text.
    pub(super) fn mask(&mut self, secrets: &Secrets) {
        let context = &mut self.context;
        let optional = [
            &mut context.pool_id,
            &mut context.replica_id,
            &mut context.engine,
            &mut context.engine_version,
            &mut context.job_id,
            &mut context.correlation_id,
            &mut context.policy_label,
            &mut self.error_kind,
        ];
        let texts = [&mut self.action, &mut self.target, &mut self.human];
        for text in texts
            .into_iter()
            .chain(optional.into_iter().filter_map(Option::as_mut))
        {
            if let std::borrow::Cow::Owned(masked) = secrets.mask(text) {
                *text = masked;
            }
        }
    }
}
