//! Which hosts a plan names, and what policy says to them.

use std::{collections::BTreeSet, sync::Arc};

use engine_provider_api::{Act, ExtractImage, Facts, Mirror, Plan, PullImage};

use super::git;
use crate::{
    config::environment::Environment,
    container,
    model::{self, Reference},
    net::{Gate, Url},
    policy::{NetworkPolicy, Policy, Refusal},
};

/// Hosts that the steps of a plan name.
///
/// Hosts that these redirect or link to are not among them: the gate lets a named host vouch.
#[must_use]
pub fn planned_hosts(plan: &Plan, facts: &Facts, environment: &Environment) -> BTreeSet<String> {
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
                if let Ok(reference) = Reference::parse(&model.reference) {
                    hosts.extend(model::hosts(&reference, environment));
                }
                hosts.extend(model.mirrors.iter().filter_map(|url| host(url)));
            }
            Act::RequireTools(_) | Act::Observe(_) | Act::InstallPackages(_) => {}
            Act::PullImage(PullImage { image, .. })
            | Act::ExtractImage(ExtractImage { image, .. }) => {
                if let Ok(image) = container::Reference::of(image) {
                    hosts.extend(image.hosts());
                }
            }
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
    policy: Arc<Policy>,
    planned: Vec<String>,
}

impl PlanGate {
    /// The policy, with the hosts that the plan names.
    #[must_use]
    pub fn new(policy: Arc<Policy>, planned: BTreeSet<String>) -> Self {
        Self {
            policy,
            planned: planned.into_iter().collect(),
        }
    }
}

impl Gate for PlanGate {
    /// A host that the plan names vouches for where it sends; a list of hosts holds for every hop.
    fn check(&self, host: &str, from: Option<&str>) -> Result<(), Refusal> {
        let allowed = self.policy.allow_host(host, &self.planned);
        match (&self.policy.network.value, from) {
            (NetworkPolicy::AsPlanned, Some(from)) if allowed.is_err() => self
                .policy
                .allow_host(from, &self.planned)
                .and(Ok(()))
                .or(allowed),
            _ => allowed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Setting;

    fn gate(network: NetworkPolicy) -> PlanGate {
        let policy = Policy {
            network: Setting::default_of(network),
            ..Policy::default()
        };
        PlanGate::new(Arc::new(policy), BTreeSet::from(["git.test".to_owned()]))
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
    fn a_list_holds_for_every_hop_and_offline_for_all() {
        let listed = gate(NetworkPolicy::Only(vec!["*.example.org".to_owned()]));
        assert!(listed.check("a.example.org", None).is_ok());
        assert!(listed.check("git.test", Some("a.example.org")).is_err());
        let offline = gate(NetworkPolicy::Offline);
        assert!(offline.check("git.test", Some("git.test")).is_err());
    }

    #[test]
    fn hosts_are_read_from_every_kind_of_step() {
        let plan: Plan = serde_json::from_value(serde_json::json!({"steps": [
            {"id": "a", "kind": "checkout", "commit": "x", "mirrors": [
                {"kind": "git", "url": "https://git.test/x"},
                {"kind": "git", "url": "/srv/x"},
                {"kind": "index", "project": "p", "version": "1", "sha256": "", "git_directory": ".git"}]},
            {"id": "b", "kind": "download", "urls": ["https://files.test/x"], "digest": ""},
            {"id": "c", "kind": "stage-model", "reference": "https://models.test/x.gguf",
                "mirrors": ["https://mirror.test/x.gguf"]},
            {"id": "d", "kind": "stage-model", "reference": "builtin:haiku"},
            {"id": "e", "kind": "pull-image", "image": {"repository": "own.test:5000/x", "tag": "1"}},
            {"id": "f", "kind": "extract-image", "paths": ["/x"], "image": {"repository": "x"}},
            {"id": "g", "kind": "pull-image", "image": {"repository": "--no name"}},
            {"id": "h", "kind": "stage-model", "reference": "s3://bucket/key"},
            {"id": "i", "kind": "stage-model", "reference": "oci://oci.test:5000/model:1"},
            {"id": "j", "kind": "stage-model", "reference": "hf:o/n"},
        ]}))
        .unwrap();
        let facts = Facts {
            package_index: Some("https://index.test/simple".to_owned()),
            ..Facts::default()
        };
        let environment = Environment::from_pairs([
            ("AWS_ENDPOINT_URL_S3", "https://s3.test"),
            ("HF_ENDPOINT", "https://hub.test"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]);
        let hosts: Vec<String> = planned_hosts(&plan, &facts, &environment)
            .into_iter()
            .collect();
        assert_eq!(
            hosts,
            [
                "auth.docker.io",
                "files.test",
                "git.test",
                "hub.test",
                "index.test",
                "mirror.test",
                "models.test",
                "oci.test",
                "own.test",
                "registry-1.docker.io",
                "s3.test"
            ]
        );
    }
}
