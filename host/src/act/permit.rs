//! Which hosts a plan names, and what policy says to them.

use std::{collections::BTreeSet, sync::Arc};

use engine_provider_api::{Act, ExtractImage, Facts, Mirror, Plan, PullImage, StageModel, Step};

use super::{ActError, Context, git};
use crate::{
    config::environment::Environment,
    container,
    model::{self, Reference},
    net::{Gate, NetError, Url},
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

/// Hosts that the steps of a plan name and policy lets them reach.
pub(crate) fn allowed_hosts(context: &Context, plan: &Plan) -> Vec<String> {
    let is_allowed = |host: &String| {
        let url = Url::parse(&format!("https://{host}/"));
        url.is_ok_and(|url| context.net.check_host(&url).is_ok())
    };
    planned_hosts(plan, &context.facts, &context.environment)
        .into_iter()
        .filter(is_allowed)
        .collect()
}

/// Why a step cannot fetch, in one line, where policy lets it reach none of its places.
///
/// Images and models in registries are not judged: the registry may have mirrors, and an image may be
/// in the runtime already.
pub(super) fn refused_fetch(context: &Context, step: &Step) -> Option<String> {
    let url = |text: &str| refusal(context.net.check_host(&Url::parse(text).ok()?).err()?);
    let mirror = |mirror: &Mirror| match mirror {
        Mirror::Git { url } => match git::check_url(context, step, url).err()? {
            ActError::Net { source, .. } => refusal(*source),
            _ => None,
        },
        Mirror::Index { .. } => url(context.facts.package_index.as_deref()?),
    };
    // `None` as soon as one place may be reached, or is not known.
    let refusals: Option<Vec<Refusal>> = match &step.act {
        Act::Checkout(act) => act.mirrors.iter().map(mirror).collect(),
        Act::Download(act) => act.urls.iter().map(|text| url(text)).collect(),
        Act::StageModel(act) => {
            let of_reference = match model_hosts(act, &context.environment) {
                hosts if hosts.is_empty() => return None,
                hosts => hosts
                    .into_iter()
                    .map(|host| url(&format!("https://{host}/"))),
            };
            let of_mirrors = act.mirrors.iter().map(|text| url(text));
            of_reference.chain(of_mirrors).collect()
        }
        _ => None,
    };
    let refusals = refusals?;
    let first = refusals.first()?;
    Some(format!("{first}: {}", first.allow))
}

/// What policy does not allow, where that is what is wrong.
fn refusal(error: NetError) -> Option<Refusal> {
    match error {
        NetError::Forbidden { source, .. } => Some(*source),
        _ => None,
    }
}

/// Hosts of the place that a model's reference names; none where that is no place, or has mirrors of its
/// own.
fn model_hosts(act: &StageModel, environment: &Environment) -> Vec<String> {
    match Reference::parse(&act.reference) {
        Ok(Reference::Oci(_)) | Err(_) => Vec::new(),
        Ok(reference) => model::hosts(&reference, environment),
    }
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
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        act::{Artifacts, Outlook, expected_of, tests::bench},
        net::Net,
        policy::Setting,
    };

    fn only(host: &str) -> NetworkPolicy {
        NetworkPolicy::Only(vec![host.to_owned()])
    }

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

    #[tokio::test(flavor = "multi_thread")]
    async fn a_fetch_is_refused_where_policy_lets_none_of_its_places_be_reached() {
        let mut bench = bench(&[]);
        bench.context.facts = Arc::new(Facts {
            package_index: Some("https://index.test/simple".to_owned()),
            ..Facts::default()
        });
        let digest = format!("sha256:{}", "0".repeat(64));
        let download = |urls: &[&str]| json!({"kind": "download", "urls": urls, "digest": digest});
        let model = |reference: &str| json!({"kind": "stage-model", "reference": reference});
        let index = json!({"kind": "index", "project": "p", "version": "1", "sha256": "",
            "git_directory": ".git"});
        let git = |url: &str| json!({"kind": "git", "url": url});
        let checkout = |mirrors: [Value; 2]| {
            json!({"kind": "checkout", "commit": "0".repeat(40),
            "mirrors": mirrors})
        };
        for (network, mut step, why) in [
            (
                NetworkPolicy::Offline,
                download(&["https://a.test/x"]),
                Some("a.test"),
            ),
            (
                only("b.test"),
                download(&["https://a.test/x", "https://b.test/x"]),
                None,
            ),
            (
                only("b.test"),
                download(&["https://a.test/x"]),
                Some("a.test"),
            ),
            (
                only("b.test"),
                checkout([git("git@a.test:x"), index.clone()]),
                Some("a.test"),
            ),
            (
                only("index.test"),
                checkout([git("git@a.test:x"), index.clone()]),
                None,
            ),
            (
                NetworkPolicy::Offline,
                checkout([git("https://a.test/x"), git("/srv/x")]),
                None,
            ),
            (
                NetworkPolicy::Offline,
                model("hf:o/n"),
                Some("huggingface.co"),
            ),
            (
                NetworkPolicy::Offline,
                model("https://a.test/m.gguf"),
                Some("a.test"),
            ),
            // The registry may have a mirror on this machine.
            (NetworkPolicy::Offline, model("oci://a.test/m:1"), None),
        ] {
            step["id"] = "step".into();
            let step: Step = serde_json::from_value(step).unwrap();
            bench.context.net = Net::new(&Environment::default(), Arc::new(gate(network.clone())));
            let expected = expected_of(&bench.context, &step, &Artifacts::new()).unwrap();
            let Outlook::Fetch { refused, .. } = expected.outlook else {
                panic!("{step:?}: {expected:?}");
            };
            let said = refused.as_deref().unwrap_or_default();
            assert_eq!(
                refused.is_some(),
                why.is_some(),
                "{network:?} {step:?}: {said}"
            );
            assert!(said.contains(why.unwrap_or_default()), "{said}");
            assert!(!said.contains('\n'), "{said}");
        }
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
