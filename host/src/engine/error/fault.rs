//! What failures of the engine room tell beyond their text: exit codes, hints, details.

use engine_provider_api::Hint;

use super::{EngineError, Evidence};
use crate::{
    fault::{Detail, Exit, Fault, hint},
    process::quote,
};

impl Fault for EngineError {
    fn exit(&self) -> Exit {
        match self {
            Self::Template { .. }
            | Self::FileOutside { .. }
            | Self::Name { .. }
            | Self::HostProgram { .. }
            | Self::PathInContainer { .. }
            | Self::BadMount { .. }
            | Self::NamedUser { .. }
            | Self::NoImage { .. }
            | Self::NoGpuEvidence { .. } => Exit::Provider,
            Self::SecretInArgument { .. } => Exit::Refused,
            Self::ExternalUrl { .. } => Exit::Config,
            Self::MountMissing { .. } | Self::MountUnreadable { .. } | Self::CacheOwner { .. } => {
                Exit::Storage
            }
            Self::Container { source } => source.exit(),
            Self::SecretMissing { .. } => Exit::Config,
            Self::NoPort { .. }
            | Self::NameTaken { .. }
            | Self::BothSides { .. }
            | Self::NotAdopted {
                is_attended: false, ..
            } => Exit::Unavailable,
            Self::Conflict { .. } | Self::NotAdopted { .. } => Exit::Conflict,
            Self::Store { source } => source.exit(),
            Self::Process { source } => source.exit(),
            Self::Handoff { .. } | Self::Log { .. } | Self::Output { .. } => Exit::Storage,
            Self::Cancelled => Exit::Interrupted,
            Self::NotRunning { .. } | Self::NoLog { .. } => Exit::NotFound,
            Self::Died { .. }
            | Self::ImageGone { .. }
            | Self::ContainerLeft { .. }
            | Self::ExternalGone { .. }
            | Self::NeverReady { .. }
            | Self::TooSlow { .. }
            | Self::UnexpectedStatus { .. }
            | Self::ForeignSocket { .. }
            | Self::PortLedElsewhere { .. }
            | Self::NoRoute { .. }
            | Self::NotOnGpu { .. }
            | Self::Survivors { .. } => Exit::Engine,
        }
    }

    fn hints(&self) -> Vec<Hint> {
        let of_reason = self
            .evidence()
            .and_then(|evidence| evidence.reason.as_ref()?.fix())
            .map(|fix| hint(fix, None));
        let of_finding = of_reason.or_else(|| {
            let finding = self.evidence()?.finding.as_ref()?;
            Some(hint(finding.fix.clone(), None))
        });
        match self {
            Self::SecretInArgument { .. } => vec![hint(
                "set it in `provisioning.env`; the environment is readable by its owner only",
                None,
            )],
            Self::SecretMissing { name } => vec![hint(
                "secrets come from the host's own environment",
                Some(&format!("export {name}=…")),
            )],
            Self::NoPort { named: true, .. } => {
                vec![hint(
                    "add free ports to `provisioning.ports`",
                    Some("ss -ltnp"),
                )]
            }
            Self::NoPort { .. } => {
                vec![hint(
                    "name free ports in `provisioning.ports`",
                    Some("ss -ltnp"),
                )]
            }
            Self::Conflict { pool, .. } => vec![hint(
                "stop it first, then provision again",
                Some(&format!("{{host}} stop {pool}")),
            )],
            Self::BothSides { .. } | Self::NotAdopted { .. } => {
                vec![hint("see what runs", Some("{host} ps"))]
            }
            Self::Container { source } => source.hints(),
            Self::MountUnreadable {
                path, is_directory, ..
            } => {
                let mode = if *is_directory { "o+rx" } else { "o+r" };
                let path = quote(&path.to_string_lossy());
                vec![hint(
                    "let everybody on this machine read it",
                    Some(&format!("chmod {mode} {path}")),
                )]
            }
            Self::CacheOwner { runtime, .. } if runtime == "docker" => vec![
                hint(
                    "use podman, which needs no root",
                    Some("{again} --container-runtime podman"),
                ),
                hint("or run the host as root", None),
            ],
            Self::CacheOwner { .. } => vec![hint("run the host as root", None)],
            Self::NamedUser { .. } => vec![hint(
                "use an image whose user is a number, or an engine that needs no cache; the provider may \
                 say the number itself",
                None,
            )],
            Self::NotOnGpu { .. } => of_finding
                .into_iter()
                .chain([
                    hint(
                        "see which GPUs are found, and whether the engine's build fits them",
                        Some("{host} doctor"),
                    ),
                    hint(
                        "or let it run on the processor where the GPU does not work",
                        Some("{again} --gpu prefer"),
                    ),
                ])
                .collect(),
            Self::NameTaken { runtime, name, .. } | Self::ContainerLeft { runtime, name, .. } => {
                vec![hint(
                    "see what it is; remove it where it is no longer needed",
                    Some(&format!("{runtime} rm --force {name}")),
                )]
            }
            Self::ExternalGone { url, .. } => vec![hint(
                "see whether it answers",
                Some(&format!("curl -i {}", quote(url))),
            )],
            Self::Store { source } => source.hints(),
            Self::Process { source } => source.hints(),
            Self::NeverReady { .. } => of_finding
                .into_iter()
                .chain([hint(
                    "an engine that really needs longer silences: raise `readiness.stall_timeout`",
                    None,
                )])
                .collect(),
            Self::TooSlow { .. } => of_finding
                .into_iter()
                .chain([hint(
                    "an engine that really needs longer: raise `readiness.timeout`",
                    None,
                )])
                .collect(),
            Self::ForeignSocket { port, .. } => vec![hint(
                "see who listens there",
                Some(&format!("ss -ltnp 'sport = :{port}'")),
            )],
            Self::PortLedElsewhere { address, .. } => {
                let port = address.port();
                vec![hint(
                    "find the rule and delete it, or name other ports in `provisioning.ports`",
                    Some(&format!("iptables -t nat -S | grep -w {port}")),
                )]
            }
            Self::NoRoute { address, .. } => match address.ip().is_loopback() {
                true => vec![hint("bring it up", Some("ip link set lo up"))],
                false => vec![hint("see which there are", Some("ip route"))],
            },
            Self::NoGpuEvidence { .. } => vec![hint(
                "a GPU that need not be proven: prefer it instead",
                Some("{again} --gpu prefer"),
            )],
            Self::NotRunning { .. } | Self::NoLog { .. } => {
                vec![hint("see what runs", Some("{host} ps"))]
            }
            _ => of_finding.into_iter().collect(),
        }
    }

    fn details(&self) -> Vec<Detail> {
        let mut details = Vec::new();
        match self {
            Self::Conflict {
                url, difference, ..
            } => {
                details.push(Detail::new("url", url.clone()));
                details.push(Detail::new("change", difference.join("\n")));
            }
            Self::NotRunning { running, .. } if !running.is_empty() => {
                details.push(Detail::new(
                    "note",
                    format!("running: {}", running.join(", ")),
                ));
            }
            Self::NoLog { known, .. } if !known.is_empty() => {
                details.push(Detail::new(
                    "note",
                    format!("there are: {}", known.join(", ")),
                ));
            }
            // One line is in the message.
            Self::ContainerLeft { said, .. } if said.lines().count() > 1 => {
                details.push(Detail::new("said", said.clone()));
            }
            Self::Container { source } => details = source.details(),
            Self::Store { source } => details = source.details(),
            Self::Process { source } => details = source.details(),
            _ => {}
        }
        if let Some(evidence) = self.evidence() {
            details.extend(evidence.details());
        }
        details
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Template { .. } => "bad-launch",
            Self::SecretInArgument { .. } => "secret-in-argument",
            Self::SecretMissing { .. } => "secret-missing",
            Self::FileOutside { .. } => "file-outside",
            Self::Name { .. } => "bad-name",
            Self::HostProgram { .. } => "host-program",
            Self::PathInContainer { .. } => "path-in-container",
            Self::BadMount { .. } => "bad-mount",
            Self::MountMissing { .. } => "mount-missing",
            Self::MountUnreadable { .. } => "mount-unreadable",
            Self::NamedUser { .. } => "named-user",
            Self::CacheOwner { .. } => "cache-owner",
            Self::Container { source } => source.kind(),
            Self::NoImage { .. } => "no-image",
            Self::ImageGone { .. } => "image-gone",
            Self::NameTaken { .. } => "container-name-taken",
            Self::ContainerLeft { .. } => "container-left",
            Self::ExternalUrl { .. } => "external-url",
            Self::ExternalGone { .. } => "external-gone",
            Self::NoPort { .. } => "no-port",
            Self::Conflict { .. } => "conflict",
            Self::BothSides { .. } => "both-sides",
            Self::NotAdopted { .. } => "not-adopted",
            Self::Store { source } => source.kind(),
            Self::Process { source } => source.kind(),
            Self::Died { .. } => "engine-died",
            Self::NeverReady { .. } => "engine-never-ready",
            Self::TooSlow { .. } => "engine-too-slow",
            Self::UnexpectedStatus { .. } => "engine-unexpected-status",
            Self::ForeignSocket { .. } => "foreign-socket",
            Self::PortLedElsewhere { .. } => "port-led-elsewhere",
            Self::NoRoute { .. } => "no-route",
            Self::NotOnGpu { .. } => "not-on-gpu",
            Self::NoGpuEvidence { .. } => "no-gpu-evidence",
            Self::Handoff { .. } => "handoff-unsafe",
            Self::Cancelled => "cancelled",
            Self::NotRunning { .. } => "not-running",
            Self::NoLog { .. } => "no-log",
            Self::Survivors { .. } => "survivors",
            Self::Log { .. } => "log-unreadable",
            Self::Output { .. } => "output",
        }
    }
}

impl Evidence {
    fn details(&self) -> Vec<Detail> {
        let mut details = Vec::new();
        if let Some(reason) = &self.reason {
            details.push(Detail::new("why", reason.to_string()));
        }
        if let Some(finding) = &self.finding {
            details.push(Detail::new("means", finding.meaning.clone()));
        }
        if !self.last_lines.is_empty() {
            details.push(Detail::new("said", self.last_lines.join("\n")));
        }
        details.push(Detail::new("log", quote(&self.log.to_string_lossy())));
        if !self.command.is_empty() {
            details.push(Detail::new("ran", self.command.clone()));
        }
        details
    }
}
