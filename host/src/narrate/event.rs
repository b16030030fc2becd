//! The event itself.

use std::borrow::Cow;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Secrets, TraceContext};

/// Something that happened, as told to people and machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Why an engine fell that is started again: a word of a fixed list. Not read back.
    #[serde(skip_serializing_if = "Option::is_none", skip_deserializing)]
    pub cause: Option<&'static str>,
    /// The work that it happened in, where that is this program's and goes on.
    #[serde(skip)]
    pub place: Option<TraceContext>,
}

/// For whom and in which job something happened.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The trace that it is part of, 32 hexadecimal digits, where traces are given to somebody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<String>,
    /// Name of the policy in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy_label: Option<String>,
}

/// How much an event matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// The normal course.
    Info,
    /// The operator should worry.
    Warning,
    /// Something failed.
    Error,
}

impl Level {
    /// The word used in events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Info => "info",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Who did something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
            cause: None,
            place: None,
        }
    }

    /// Bytes that it takes in memory, with what an allocator adds to each text.
    pub(super) fn bytes(&self) -> usize {
        const ADDED: usize = 16;
        let own = [&self.action, &self.target, &self.human];
        let texts = own.into_iter().chain(&self.error_kind);
        let texts = texts.chain(self.context.texts());
        size_of::<Self>() + texts.map(|text| text.len() + ADDED).sum::<usize>()
    }

    /// Masks secrets in every text.
    pub(super) fn mask(&mut self, secrets: &Secrets) {
        let texts = [&mut self.action, &mut self.target, &mut self.human];
        mask_all(secrets, texts.into_iter().chain(&mut self.error_kind));
        self.context.mask(secrets);
    }
}

impl Context {
    /// Every text.
    fn texts(&self) -> impl Iterator<Item = &String> {
        let optional = [
            &self.pool_id,
            &self.replica_id,
            &self.engine,
            &self.engine_version,
            &self.job_id,
            &self.correlation_id,
            &self.trace_id,
            &self.policy_label,
        ];
        optional.into_iter().flatten()
    }

    /// Masks secrets in every text. Names of traces are numbers.
    fn mask(&mut self, secrets: &Secrets) {
        let optional = [
            &mut self.pool_id,
            &mut self.replica_id,
            &mut self.engine,
            &mut self.engine_version,
            &mut self.job_id,
            &mut self.correlation_id,
            &mut self.policy_label,
        ];
        mask_all(secrets, optional.into_iter().flatten());
    }

    /// A copy without secrets.
    pub(super) fn masked(&self, secrets: &Secrets) -> Self {
        let mut copy = self.clone();
        copy.mask(secrets);
        copy
    }
}

fn mask_all<'a>(secrets: &Secrets, texts: impl IntoIterator<Item = &'a mut String>) {
    for text in texts {
        if let Cow::Owned(masked) = secrets.mask(text) {
            *text = masked;
        }
    }
}
