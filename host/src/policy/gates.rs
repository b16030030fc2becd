//! Questions asked of a policy at the moment of acting, and the refusals that answer them.

use super::{
    ENGINE_SANDBOX_ID, NetworkPolicy, Origin, Policy,
    resolve::{Bounded as _, covers},
};
use crate::{
    fault::{Detail, Exit, Fault, Hint, hint},
    process::Identity,
};

/// Something that policy does not allow.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("policy does not allow {}", self.what())]
pub struct Refusal {
    /// The setting in the way, for example `allow_package_installs`.
    pub setting: &'static str,
    /// What was wanted, for example `true`, a host, a package.
    pub wanted: String,
    /// Who wanted it; `None` for a step of the plan.
    pub asked_by: Option<Box<Origin>>,
    /// Who set the value that is in the way.
    pub origin: Origin,
    /// The exact line or flag that would allow it.
    pub allow: String,
}

impl Refusal {
    fn what(&self) -> String {
        match (&self.asked_by, self.setting) {
            (None, "allow_package_installs") => {
                format!("installing packages ({})", self.wanted)
            }
            (None, "allow_aur") => {
                format!(
                    "building packages of the Arch User Repository ({})",
                    self.wanted
                )
            }
            (None, "allow_binary_downloads") => {
                format!("downloading programs ({})", self.wanted)
            }
            (None, "allow_unverified_models") => {
                format!("a model without any digest ({})", self.wanted)
            }
            (None, "network") => format!("reaching `{}`", self.wanted),
            (None, "tools") => format!("running `{}`", self.wanted),
            (Some(origin), setting) => {
                format!("`{setting}: {}`, asked for by {origin}", self.wanted)
            }
            (None, setting) => format!("`{setting}: {}`", self.wanted),
        }
    }
}

impl Fault for Refusal {
    fn exit(&self) -> Exit {
        Exit::Refused
    }

    fn hints(&self) -> Vec<Hint> {
        vec![hint(self.allow.clone(), None)]
    }

    fn details(&self) -> Vec<Detail> {
        match &self.origin {
            Origin::Default => Vec::new(),
            origin => vec![Detail::new(
                "where",
                format!("`{}` is set by {origin}", self.setting),
            )],
        }
    }

    fn kind(&self) -> &'static str {
        "policy-refused"
    }
}

/// Everything that policy does not allow of what was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Refusals(pub Vec<Refusal>);

impl Refusals {
    fn sentence(&self) -> String {
        match self.0.as_slice() {
            [one] => one.to_string(),
            several => format!(
                "policy does not allow {} of the settings asked for",
                several.len()
            ),
        }
    }
}

impl Fault for Refusals {
    fn exit(&self) -> Exit {
        Exit::Refused
    }

    fn hints(&self) -> Vec<Hint> {
        self.0.iter().flat_map(Fault::hints).collect()
    }

    fn details(&self) -> Vec<Detail> {
        let several = self.0.len() > 1;
        let of_each = |refusal: &Refusal| {
            let itself = several.then(|| Detail::new("refused", refusal.what()));
            itself.into_iter().chain(refusal.details())
        };
        self.0.iter().flat_map(of_each).collect()
    }

    fn kind(&self) -> &'static str {
        "policy-refused"
    }
}

/// How to allow something: the flag where nothing is in the way, else the line to change.
pub(super) fn how_to_change(
    setting: &str,
    origin: &Origin,
    value: &str,
    flag: Option<&str>,
) -> String {
    match (origin, flag) {
        (Origin::Default, Some(flag)) => {
            format!("add `{flag}`, or write `policy: {{{setting}: {value}}}` in the pool file")
        }
        (Origin::Default, None) => {
            format!("write `policy: {{{setting}: {value}}}` in the pool file")
        }
        (Origin::Flag(given), _) => format!("leave `{given}` out"),
        (
            Origin::File {
                path,
                line,
                ceiling,
            },
            _,
        ) => {
            let limit = if *ceiling {
                ", the limit for this machine or user"
            } else {
                ""
            };
            format!(
                "change line {line} of {}{limit}, to `{setting}: {value}`",
                path.display()
            )
        }
    }
}

impl Policy {
    /// Who runs engines; `None`: this process's user.
    ///
    /// Whoever `run_as` names, if somebody set it; by default engines are kept apart from builds.
    #[must_use]
    pub fn engine_identity(&self) -> Option<Identity> {
        let builder = self.run_as.value?;
        let engine = Identity {
            uid: ENGINE_SANDBOX_ID,
            gid: ENGINE_SANDBOX_ID,
        };
        Some(match self.run_as.origin {
            Origin::Default => engine,
            _ => builder,
        })
    }

    /// May these distribution packages be installed?
    pub fn allow_package_install(&self, packages: &[String]) -> Result<(), Refusal> {
        self.permission(
            self.allow_package_installs.value,
            "allow_package_installs",
            &self.allow_package_installs.origin,
            packages.join(", "),
            Some("--allow-package-installs"),
        )
    }

    /// May these packages be built from the Arch User Repository?
    pub fn allow_aur_install(&self, packages: &[String]) -> Result<(), Refusal> {
        self.allow_package_install(packages)?;
        self.permission(
            self.allow_aur.value,
            "allow_aur",
            &self.allow_aur.origin,
            packages.join(", "),
            None,
        )
    }

    /// May this program be downloaded?
    pub fn allow_binary_download(&self, url: &str) -> Result<(), Refusal> {
        self.permission(
            self.allow_binary_downloads.value,
            "allow_binary_downloads",
            &self.allow_binary_downloads.origin,
            url.to_owned(),
            Some("--allow-binary-downloads"),
        )
    }

    /// May a model be used that nobody gives a digest for?
    pub fn allow_unverified_model(&self, reference: &str) -> Result<(), Refusal> {
        self.permission(
            self.allow_unverified_models.value,
            "allow_unverified_models",
            &self.allow_unverified_models.origin,
            reference.to_owned(),
            None,
        )
    }

    /// May this host be reached, given the hosts that the plan names?
    pub fn allow_host(&self, host: &str, planned: &[String]) -> Result<(), Refusal> {
        let host = host.to_lowercase();
        let any = |patterns: &[String]| patterns.iter().any(|pattern| covers(pattern, &host));
        let allowed = match &self.network.value {
            NetworkPolicy::Offline => false,
            NetworkPolicy::AsPlanned => any(planned),
            NetworkPolicy::Only(hosts) => any(hosts),
        };
        if allowed {
            return Ok(());
        }
        let allow = match (&self.network.value, &self.network.origin) {
            (NetworkPolicy::AsPlanned, _) => format!(
                "the plan does not name `{host}`; to allow it, list every host under `policy: {{network: […]}}` in the pool file"
            ),
            (NetworkPolicy::Only(hosts), origin) => {
                let mut hosts = hosts.clone();
                hosts.push(host.clone());
                how_to_change("network", origin, &hosts.words(), None)
            }
            (NetworkPolicy::Offline, origin) => {
                how_to_change("network", origin, "as-planned", None)
            }
        };
        Err(Refusal {
            setting: "network",
            wanted: host,
            asked_by: None,
            origin: self.network.origin.clone(),
            allow,
        })
    }

    /// May this tool be run? `name` is its program name.
    pub fn allow_tool(&self, name: &str) -> Result<(), Refusal> {
        let Some(tools) = &self.tools.value else {
            return Ok(());
        };
        if tools.iter().any(|tool| tool == name) {
            return Ok(());
        }
        let mut wanted = tools.clone();
        wanted.push(name.to_owned());
        Err(Refusal {
            setting: "tools",
            wanted: name.to_owned(),
            asked_by: None,
            origin: self.tools.origin.clone(),
            allow: how_to_change("tools", &self.tools.origin, &wanted.words(), None),
        })
    }

    fn permission(
        &self,
        value: bool,
        setting: &'static str,
        origin: &Origin,
        wanted: String,
        flag: Option<&str>,
    ) -> Result<(), Refusal> {
        if value {
            return Ok(());
        }
        Err(Refusal {
            setting,
            wanted,
            asked_by: None,
            origin: origin.clone(),
            allow: how_to_change(setting, origin, "true", flag),
        })
    }
}

#[cfg(test)]
mod tests;
