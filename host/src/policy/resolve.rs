//! Ceilings, requests and defaults become one policy.

use engine_provider_api::GpuPolicy;

use super::{
    Caller, Layer, NetworkPolicy, Origin, Policy, Refusal, Refusals, SANDBOX_ID, Setting,
    gates::how_to_change,
};
use crate::process::Identity;

/// Resolves what may be done for one pool.
///
/// `ceilings`: outermost first. `requests`: weakest first, flags last. Everything asked for beyond a
/// ceiling is told at once.
pub fn resolve(
    ceilings: &[Layer],
    requests: &[Layer],
    caller: &Caller,
) -> Result<Policy, Refusals> {
    let default = Policy::default();
    let mut fold = Fold {
        ceilings,
        requests,
        refusals: Vec::new(),
    };
    let sandbox = Identity {
        uid: SANDBOX_ID,
        gid: SANDBOX_ID,
    };
    let policy = Policy {
        gpu: fold.setting("gpu", |layer| &layer.gpu, default.gpu.value),
        allow_package_installs: fold.setting(
            "allow_package_installs",
            |layer| &layer.allow_package_installs,
            false,
        ),
        allow_aur: fold.setting("allow_aur", |layer| &layer.allow_aur, false),
        allow_binary_downloads: fold.setting(
            "allow_binary_downloads",
            |layer| &layer.allow_binary_downloads,
            false,
        ),
        allow_unverified_models: fold.setting(
            "allow_unverified_models",
            |layer| &layer.allow_unverified_models,
            true,
        ),
        network: fold.setting("network", |layer| &layer.network, default.network.value),
        tools: fold.optional_list("tools", |layer| &layer.tools),
        run_as: fold.run_as(sandbox, caller),
        engine_environment: fold.setting(
            "environment.engines",
            |layer| &layer.engine_environment,
            default.engine_environment.value,
        ),
        step_environment: fold.setting(
            "environment.steps",
            |layer| &layer.step_environment,
            default.step_environment.value,
        ),
        label: label(ceilings, requests).unwrap_or(default.label),
    };
    if fold.refusals.is_empty() {
        Ok(policy)
    } else {
        Err(Refusals(fold.refusals))
    }
}

/// The most particular name that was given.
fn label(ceilings: &[Layer], requests: &[Layer]) -> Option<String> {
    let layers = ceilings.iter().chain(requests).rev();
    layers.filter_map(|layer| layer.label.clone()).next()
}

struct Fold<'a> {
    ceilings: &'a [Layer],
    requests: &'a [Layer],
    refusals: Vec<Refusal>,
}

impl<'a> Fold<'a> {
    fn setting<T: Bounded + 'a>(
        &mut self,
        name: &'static str,
        field: impl Fn(&'a Layer) -> &'a Option<Setting<T>>,
        default: T,
    ) -> Setting<T> {
        let ceilings = nested(
            self.ceilings
                .iter()
                .filter_map(|layer| field(layer).as_ref()),
        );
        let asked = self
            .requests
            .iter()
            .rev()
            .find_map(|layer| field(layer).as_ref());
        let Some(asked) = asked else {
            return ceilings.iter().fold(Setting::default_of(default), narrowed);
        };
        for ceiling in &ceilings {
            if !asked.value.is_within(&ceiling.value) {
                self.refusals.push(Refusal {
                    setting: name,
                    wanted: asked.value.words(),
                    asked_by: Some(Box::new(asked.origin.clone())),
                    origin: ceiling.origin.clone(),
                    allow: how_to_change(
                        name,
                        &ceiling.origin,
                        &asked.value.and(&ceiling.value).words(),
                        None,
                    ),
                });
                break;
            }
        }
        asked.clone()
    }

    /// A list whose default is "whatever is needed".
    fn optional_list(
        &mut self,
        name: &'static str,
        field: impl Fn(&'a Layer) -> &'a Option<Setting<Vec<String>>>,
    ) -> Setting<Option<Vec<String>>> {
        let speaks = |layers: &'a [Layer]| {
            layers
                .iter()
                .filter_map(|layer| field(layer).as_ref())
                .next()
        };
        let Some(first) = speaks(self.ceilings).or_else(|| speaks(self.requests)) else {
            return Setting::default_of(None);
        };
        let resolved = self.setting(name, field, first.value.clone());
        Setting {
            // Only ceilings speak: the list is that of the outermost.
            origin: match resolved.origin {
                Origin::Default => first.origin.clone(),
                other => other,
            },
            value: Some(resolved.value),
        }
    }

    fn run_as(&mut self, sandbox: Identity, caller: &Caller) -> Setting<Option<Identity>> {
        if !caller.is_root() {
            return self.run_as_myself(caller);
        }
        let resolved = self.setting("run_as", |layer| &layer.run_as, sandbox);
        Setting {
            value: (resolved.value != caller.identity()).then_some(resolved.value),
            origin: resolved.origin,
        }
    }

    /// Only root can become somebody else. A ceiling's `run_as` speaks of hosts that run as root.
    fn run_as_myself(&mut self, caller: &Caller) -> Setting<Option<Identity>> {
        let asked = self
            .requests
            .iter()
            .rev()
            .find_map(|layer| layer.run_as.as_ref());
        match asked {
            Some(asked) if asked.value != caller.identity() => self.refusals.push(Refusal {
                setting: "run_as",
                wanted: asked.value.words(),
                asked_by: Some(Box::new(asked.origin.clone())),
                origin: Origin::Default,
                allow: format!(
                    "only root can run engines as somebody else: start the host as root, or take `run_as` out of {}",
                    asked.origin
                ),
            }),
            _ => {}
        }
        Setting::default_of(None)
    }
}

/// Ceilings, each brought below those outside it: an inner one cannot widen an outer one.
fn nested<'a, T: Bounded + 'a>(ceilings: impl Iterator<Item = &'a Setting<T>>) -> Vec<Setting<T>> {
    let mut nested: Vec<Setting<T>> = Vec::new();
    for ceiling in ceilings {
        nested.push(nested.iter().fold(ceiling.clone(), |inner, outer| {
            if inner.value.is_within(&outer.value) {
                inner
            } else {
                Setting {
                    value: inner.value.narrow(&outer.value),
                    origin: outer.origin.clone(),
                }
            }
        }));
    }
    nested
}

/// A value nobody asked for, below a ceiling.
fn narrowed<T: Bounded>(value: Setting<T>, ceiling: &Setting<T>) -> Setting<T> {
    let untouched = value.origin == Origin::Default;
    let below = match untouched {
        true => value.value.default_below(&ceiling.value),
        false => value.value.narrow(&ceiling.value),
    };
    if below.words() == value.value.words() {
        return value;
    }
    Setting {
        value: below,
        origin: ceiling.origin.clone(),
    }
}

/// A value that a ceiling can bound.
pub(super) trait Bounded: Clone {
    /// Whether it goes no further than a ceiling.
    fn is_within(&self, ceiling: &Self) -> bool;

    /// What is left of it below a ceiling; within both.
    fn narrow(&self, ceiling: &Self) -> Self;

    /// The least ceiling that permits this and what an old one did.
    fn and(&self, _ceiling: &Self) -> Self {
        self.clone()
    }

    /// What a default becomes below a ceiling.
    fn default_below(&self, ceiling: &Self) -> Self {
        self.narrow(ceiling)
    }

    /// As it is written in a policy file.
    fn words(&self) -> String;
}

impl Bounded for bool {
    fn is_within(&self, ceiling: &Self) -> bool {
        !self || *ceiling
    }

    fn narrow(&self, ceiling: &Self) -> Self {
        *self && *ceiling
    }

    fn words(&self) -> String {
        self.to_string()
    }
}

impl Bounded for GpuPolicy {
    fn is_within(&self, ceiling: &Self) -> bool {
        *ceiling == Self::Prefer || self == ceiling
    }

    fn narrow(&self, ceiling: &Self) -> Self {
        if self.is_within(ceiling) {
            *self
        } else {
            *ceiling
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Require => "require",
            Self::Prefer => "prefer",
            Self::Forbid => "forbid",
        }
        .to_owned()
    }
}

impl Bounded for Identity {
    fn is_within(&self, ceiling: &Self) -> bool {
        self == ceiling
    }

    fn narrow(&self, ceiling: &Self) -> Self {
        *ceiling
    }

    fn words(&self) -> String {
        format!("{}:{}", self.uid, self.gid)
    }
}

impl Bounded for Vec<String> {
    fn is_within(&self, ceiling: &Self) -> bool {
        self.iter().all(|name| ceiling.contains(name))
    }

    /// A ceiling that lists names says what this machine needs: it replaces the default list.
    fn default_below(&self, ceiling: &Self) -> Self {
        ceiling.clone()
    }

    fn and(&self, ceiling: &Self) -> Self {
        let added = self.iter().filter(|name| !ceiling.contains(name));
        ceiling.iter().chain(added).cloned().collect()
    }

    fn narrow(&self, ceiling: &Self) -> Self {
        self.iter()
            .filter(|name| ceiling.contains(name))
            .cloned()
            .collect()
    }

    fn words(&self) -> String {
        // A YAML word that starts with `*` would be an alias.
        let written = self.iter().map(|name| match name.starts_with('*') {
            true => format!("'{name}'"),
            false => name.clone(),
        });
        format!("[{}]", written.collect::<Vec<_>>().join(", "))
    }
}

impl Bounded for NetworkPolicy {
    fn is_within(&self, ceiling: &Self) -> bool {
        match (self, ceiling) {
            (Self::Offline, _) | (_, Self::AsPlanned) => true,
            (Self::Only(hosts), Self::Only(allowed)) => hosts
                .iter()
                .all(|host| allowed.iter().any(|pattern| covers(pattern, host))),
            (Self::Only(hosts), Self::Offline) => hosts.is_empty(),
            (Self::AsPlanned, _) => false,
        }
    }

    fn narrow(&self, ceiling: &Self) -> Self {
        match (self, ceiling) {
            (Self::Offline, _) | (_, Self::Offline) => Self::Offline,
            (mine, Self::AsPlanned) => mine.clone(),
            (Self::AsPlanned, only) => only.clone(),
            (Self::Only(mine), Self::Only(theirs)) => {
                let within = |hosts: &[String], patterns: &[String]| {
                    let covered =
                        |host: &&String| patterns.iter().any(|pattern| covers(pattern, host));
                    hosts.iter().filter(covered).cloned().collect::<Vec<_>>()
                };
                let mut both = within(mine, theirs);
                for host in within(theirs, mine) {
                    if !both.contains(&host) {
                        both.push(host);
                    }
                }
                Self::Only(both)
            }
        }
    }

    fn and(&self, ceiling: &Self) -> Self {
        match (self, ceiling) {
            (Self::Only(mine), Self::Only(theirs)) => Self::Only(mine.and(theirs)),
            _ => self.clone(),
        }
    }

    fn words(&self) -> String {
        match self {
            Self::Offline => "offline".to_owned(),
            Self::AsPlanned => "as-planned".to_owned(),
            Self::Only(hosts) => hosts.words(),
        }
    }
}

/// Whether a pattern (`host` or `*.domain`) covers a host or another pattern.
pub(super) fn covers(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix('*') {
        // `*.example.org` covers `a.example.org` and `*.b.example.org`, not `example.org`.
        Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix) || pattern == host,
        None => pattern.eq_ignore_ascii_case(host),
    }
}

#[cfg(test)]
mod tests;
