//! What policy says to a step, and the line that would allow more.

use std::collections::BTreeSet;

use engine_provider_api::{Act, Facts, Mirror, Plan};

use super::{ActError, git};
use crate::{
    fault::{Hint, hint},
    model::Reference,
    net::{Gate, Url},
    policy::{NetworkPolicy, Origin, Policy, Setting},
};

/// Hosts that the steps of a plan name.
///
/// Hosts that these redirect or link to are not among them: the gate lets a named host vouch.
#[must_use]
pub fn planned_hosts(plan: &Plan, facts: &Facts) -> BTreeSet<String> {
    let mut hosts = BTreeSet::new();
    for step in &plan.steps {
        match &step.act {
            Act::Checkout(checkout) => {
                hosts.extend(checkout.mirrors.iter().filter_map(|mirror| match mirror {
                    Mirror::Git { url } => git::host_of(url),
                    Mirror::Index { .. } => facts.package_index.as_deref().and_then(host),
                }));
            }
            Act::Download(download) => {
                hosts.extend(download.urls.iter().filter_map(|url| host(url)))
            }
            Act::Build(build) => hosts.extend(build.network.iter().cloned()),
            Act::StageModel(model) => {
                if let Ok(Reference::Url(url)) = Reference::parse(&model.reference) {
                    hosts.extend(url.host_str().map(str::to_owned));
                }
            }
            Act::RequireTools(_) | Act::Observe(_) => {}
        }
    }
    hosts
}

fn host(url: &str) -> Option<String> {
    Some(Url::parse(url).ok()?.host_str()?.to_owned())
}

/// The network policy for one plan.
#[derive(Debug, Clone)]
pub struct PlanGate {
    network: Setting<NetworkPolicy>,
    planned: BTreeSet<String>,
}

impl PlanGate {
    /// The policy, with the hosts that the plan names.
    #[must_use]
    pub fn new(policy: &Policy, planned: BTreeSet<String>) -> Self {
        Self {
            network: policy.network.clone(),
            planned,
        }
    }
}

impl Gate for PlanGate {
    fn check(&self, host: &str, from: Option<&str>) -> Result<(), String> {
        let origin = &self.network.origin;
        match &self.network.value {
            NetworkPolicy::Offline => Err(format!("the network is off (set by {origin})")),
            NetworkPolicy::AsPlanned => {
                let planned = |host: &str| self.planned.contains(host);
                if planned(host) || from.is_some_and(planned) {
                    Ok(())
                } else {
                    Err(format!(
                        "the plan does not name `{host}` (`network`, set by {origin})"
                    ))
                }
            }
            NetworkPolicy::Only(list) => {
                if list.iter().any(|pattern| covers(pattern, host)) {
                    Ok(())
                } else {
                    Err(format!(
                        "add `{host}` to `network` (set by {origin}) to allow it"
                    ))
                }
            }
        }
    }
}

/// Whether `*.example.org` or `example.org` covers a host.
fn covers(pattern: &str, host: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(domain) => host
            .strip_suffix(domain)
            .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        None => pattern.eq_ignore_ascii_case(host),
    }
}

/// Refuses what a switch of the policy does not allow.
pub(super) fn require(
    setting: &Setting<bool>,
    name: &'static str,
    flag: &str,
    what: &str,
) -> Result<(), ActError> {
    if setting.value {
        return Ok(());
    }
    Err(ActError::Refused {
        what: what.to_owned(),
        setting: name,
        origin: setting.origin.to_string(),
        hints: vec![switch_hint(&setting.origin, name, flag)],
    })
}

/// What would turn a switch on.
pub(super) fn switch_hint(origin: &Origin, name: &str, flag: &str) -> Hint {
    match origin {
        Origin::File {
            path,
            line,
            ceiling: true,
        } => hint(
            format!(
                "the machine's policy decides: set `{name}: true` in {}, line {line}",
                path.display()
            ),
            None,
        ),
        _ => hint(
            format!("allow it with `{flag}`, or with `{name}: true` in the pool file"),
            None,
        ),
    }
}

/// Refuses tools that policy does not list.
pub(super) fn tool(policy: &Policy, name: &str) -> Result<(), ActError> {
    let setting = &policy.tools;
    match &setting.value {
        Some(list) if !list.iter().any(|allowed| allowed == name) => Err(ActError::Refused {
            what: format!("running `{name}`"),
            setting: "tools",
            origin: setting.origin.to_string(),
            hints: vec![hint(format!("add `{name}` to `tools` of the policy"), None)],
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate(network: NetworkPolicy) -> PlanGate {
        let policy = Policy {
            network: Setting::default_of(network),
            ..Policy::default()
        };
        PlanGate::new(&policy, BTreeSet::from(["git.test".to_owned()]))
    }

    #[test]
    fn a_planned_host_vouches_for_where_it_redirects() {
        let gate = gate(NetworkPolicy::AsPlanned);
        assert!(gate.check("git.test", None).is_ok());
        assert!(gate.check("files.test", Some("git.test")).is_ok());
        assert!(gate.check("files.test", None).is_err());
        assert!(gate.check("files.test", Some("other.test")).is_err());
    }

    #[test]
    fn a_list_holds_for_every_hop() {
        let gate = gate(NetworkPolicy::Only(vec!["*.example.org".to_owned()]));
        assert!(gate.check("a.example.org", None).is_ok());
        assert!(gate.check("example.org", None).is_err());
        assert!(gate.check("evil-example.org", None).is_err());
        let error = gate.check("git.test", Some("a.example.org")).unwrap_err();
        assert!(error.contains("add `git.test` to `network`"), "{error}");
    }

    #[test]
    fn offline_names_who_said_so() {
        let mut gate = gate(NetworkPolicy::Offline);
        gate.network.origin = Origin::Flag("--offline".to_owned());
        let error = gate.check("git.test", None).unwrap_err();
        assert_eq!(error, "the network is off (set by --offline)");
    }

    #[test]
    fn a_ceiling_names_its_line_and_everything_else_a_flag() {
        let mut setting = Setting::default_of(false);
        let refusal = |setting: &Setting<bool>| {
            let error = require(setting, "allow_x", "--allow-x", "x").unwrap_err();
            crate::fault::Fault::hints(&error)[0].text.clone()
        };
        assert!(refusal(&setting).contains("`--allow-x`"));
        setting.origin = Origin::File {
            path: "/etc/engine-host/policy.yaml".into(),
            line: 7,
            ceiling: true,
        };
        let text = refusal(&setting);
        assert!(
            text.contains("/etc/engine-host/policy.yaml, line 7"),
            "{text}"
        );
    }
}
