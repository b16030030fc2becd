//! A pool file, read: typed pools that remember where every value stands.

use std::path::{Path, PathBuf};

use engine_provider_api::{Pool, Provisioning, Readiness, StopSettings};
use serde_json::Value;

use super::{
    across, check,
    document::{Node, Source, parse},
    duration,
    environment::Environment,
    notify::Notify,
    places::Places,
    problem::{ConfigError, FileKind, Problem},
    schema::{Report, conform},
    supervision::Supervision,
    syntax::Base,
    written::{PoolFile, PoolWritten, ProvisioningWritten},
};
use crate::policy::{Caller, Ceiling, Layer, PolicyFile, layer_of, set};

/// A pool file that was read and found right.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The file.
    pub source: Source,
    /// Its pools, in order.
    pub pools: Vec<PoolEntry>,
    /// Whom a daemon tells of handoffs, beside their files.
    pub notify: Option<Notify>,
    /// What the operator should know, in the order of the file.
    pub notices: Vec<Problem>,
}

/// A pool of a file.
#[derive(Debug, Clone)]
pub struct PoolEntry {
    /// The pool. `gpu` and `provisioning.mode` are as written; policy and flags come later.
    pub pool: Pool,
    /// How a daemon keeps it up.
    pub supervision: Supervision,
    /// What the file asks of policy: `policy{}` first, then the pool's own fields.
    pub requests: Vec<Layer>,
    /// Where its values stand.
    pub places: Places,
}

/// What reading a pool file depends on beside its text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// Home directory of the user, for `~/`.
    pub home: Option<PathBuf>,
    /// Who runs the host, for `policy.run_as`.
    pub caller: Caller,
}

impl Surroundings {
    /// Those of this process.
    #[must_use]
    pub fn of(environment: &Environment) -> Self {
        Self {
            home: environment.path("HOME"),
            caller: Caller::of_this_process(Path::new("/")),
        }
    }
}

/// Reads a pool file.
pub fn load(path: &Path, surroundings: &Surroundings) -> Result<Loaded, ConfigError> {
    let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    read_at(&whole, &Source::new(path, text_of(path)?), surroundings)
}

/// The text of a pool file.
pub(super) fn text_of(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        kind: FileKind::Pools,
        source,
    })
}

/// Reads the text of the pool file at `whole`, an absolute path.
pub(super) fn read_at(
    whole: &Path,
    source: &Source,
    surroundings: &Surroundings,
) -> Result<Loaded, ConfigError> {
    let base = Base {
        directory: whole.parent().unwrap_or(Path::new("/")).to_owned(),
        home: surroundings.home.clone(),
    };
    read(source, &base, &surroundings.caller)
}

/// Reads the text of a pool file; everything that is wrong is told at once.
pub fn read(source: &Source, base: &Base, caller: &Caller) -> Result<Loaded, ConfigError> {
    let invalid = |problems| ConfigError::invalid(FileKind::Pools, source, problems);
    let node = parse(source).map_err(|problem| invalid(vec![problem]))?;
    let schema = schemars::schema_for!(PoolFile).to_value();
    let mut report = Report::default();
    let value = conform(&schema, &node, "", &mut report);
    if !report.problems.is_empty() {
        return Err(invalid(report.problems));
    }
    let places = Places::of_file(source, &node);
    let mut file: PoolFile = serde_json::from_value(value)
        .map_err(|error| invalid(vec![Problem::new("", node.place, error.to_string())]))?;
    let mut reading = Reading {
        base,
        caller,
        problems: Vec::new(),
        notices: not_used(&report, &node),
    };
    let notify = file.notify.take();
    let notify = notify.map(|it| it.settle(&places.below("notify"), &mut reading.problems));
    let pools = reading.pools(file, &places);
    across::check(&pools, &places, &mut reading.problems);
    if !reading.problems.is_empty() {
        return Err(invalid(reading.problems));
    }
    reading.notices.sort_by_key(|notice| notice.place);
    Ok(Loaded {
        source: source.clone(),
        pools,
        notify,
        notices: reading.notices,
    })
}

/// One notice for all fields that belong to an orchestrator.
fn not_used(report: &Report, root: &Node) -> Vec<Problem> {
    let Some((first, place)) = report.not_used.first() else {
        return Vec::new();
    };
    let mut names: Vec<&str> = Vec::new();
    for (path, _) in &report.not_used {
        let name = path.rsplit('.').next().unwrap_or(path);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let message = format!(
        "not used here, they belong to an orchestrator: {}",
        super::problem::list(names)
    );
    vec![Problem::new(first, place.or(root.place), message)]
}

struct Reading<'a> {
    base: &'a Base,
    caller: &'a Caller,
    problems: Vec<Problem>,
    notices: Vec<Problem>,
}

impl Reading<'_> {
    fn pools(&mut self, file: PoolFile, places: &Places) -> Vec<PoolEntry> {
        let policy = file.policy.unwrap_or_default();
        let shared = layer_of(&policy, &places.below("policy"), Ceiling::No, self.caller)
            .unwrap_or_else(|mut problems| {
                self.problems.append(&mut problems);
                Layer::default()
            });
        let pools = file.pools.into_iter().enumerate();
        pools
            .map(|(index, written)| {
                let places = places.below(&format!("pools[{index}]"));
                self.pool(written, &policy, shared.clone(), places)
            })
            .collect()
    }

    fn pool(
        &mut self,
        mut written: PoolWritten,
        policy: &PolicyFile,
        shared: Layer,
        places: Places,
    ) -> PoolEntry {
        let own = own_requests(&written, &places);
        let gpu = written.gpu.or(policy.gpu).unwrap_or_default();
        let supervision = written.supervision.take().unwrap_or_default().settle();
        let mut pool = to_pool(written, gpu);
        let mut checking = check::Checking {
            places: &places,
            base: self.base,
            problems: &mut self.problems,
            notices: &mut self.notices,
        };
        checking.pool(&mut pool);
        checking.supervision(&pool, &supervision);
        PoolEntry {
            pool,
            supervision,
            requests: vec![shared, own],
            places,
        }
    }
}

/// What a pool's own fields ask of policy.
fn own_requests(written: &PoolWritten, places: &Places) -> Layer {
    let provisioning = written.provisioning.clone().unwrap_or_default();
    let allow = |value: Option<bool>, name: &str| {
        set(value, &format!("provisioning.{name}"), places, Ceiling::No)
    };
    Layer {
        gpu: set(written.gpu, "gpu", places, Ceiling::No),
        allow_package_installs: allow(
            provisioning.allow_package_installs,
            "allow_package_installs",
        ),
        allow_binary_downloads: allow(
            provisioning.allow_binary_downloads,
            "allow_binary_downloads",
        ),
        ..Layer::default()
    }
}

fn to_pool(written: PoolWritten, gpu: engine_provider_api::GpuPolicy) -> Pool {
    let read = |text: &super::written::DurationText| duration::milliseconds(&text.0);
    let grace = written.stop.and_then(|it| it.grace);
    Pool {
        requires: Vec::new(),
        id: written.id,
        engine: written.engine,
        model: written.model,
        quant: written.quant,
        ctx: written.ctx,
        devices: written.devices,
        tensor_split: written.tensor_split,
        preload: written.preload.unwrap_or(true),
        profile: written.profile.unwrap_or_default(),
        options: written.options,
        gpu,
        replicas: written.replicas.unwrap_or(1),
        readiness: written
            .readiness
            .map_or_else(Readiness::default, |written| Readiness {
                stall_timeout_ms: (written.stall_timeout.as_ref().and_then(read))
                    .unwrap_or(Readiness::default().stall_timeout_ms),
                timeout_ms: written.timeout.as_ref().and_then(read),
            }),
        stop: grace
            .as_ref()
            .and_then(read)
            .map_or_else(StopSettings::default, |ms| StopSettings { grace_ms: ms }),
        provisioning: to_provisioning(written.provisioning.unwrap_or_default()),
    }
}

/// Settings that say nothing count as not given.
fn to_provisioning(written: ProvisioningWritten) -> Provisioning {
    fn given<T: Default + PartialEq>(settings: Option<T>) -> Option<T> {
        settings.filter(|settings| *settings != T::default())
    }
    Provisioning {
        mode: written.mode,
        source: given(written.source),
        container: given(written.container),
        package: given(written.package),
        binary: given(written.binary),
        external: given(written.external),
        model: written.model.map(Into::into),
        ports: written.ports,
        env: written.env,
        flags: written.flags,
    }
}

/// The pool file's schema as it is printed.
#[must_use]
pub fn schema() -> Value {
    super::written::pool_file_schema()
}

#[cfg(test)]
mod tests;
