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
            Self::SecretInArgument { .. } | Self::SecretForRuntime { .. } => Exit::Refused,
            Self::ExternalUrl { .. } => Exit::Config,
            Self::MountMissing { .. } | Self::MountUnreadable { .. } | Self::CacheOwner { .. } => {
                Exit::Storage
            }
            Self::Container { source } => source.exit(),
            Self::SecretMissing { .. } => Exit::Config,
            Self::NoPort { .. } | Self::NameTaken { .. } => Exit::Unavailable,
            Self::Conflict { .. } => Exit::Conflict,
            Self::Store { source } => source.exit(),
            Self::Process { source } => source.exit(),
            Self::Handoff { .. } | Self::Output { .. } => Exit::Storage,
            Self::Cancelled => Exit::Interrupted,
            Self::NotRunning { .. } | Self::NoLog { .. } => Exit::NotFound,
            Self::Died { .. }
            | Self::ImageGone { .. }
            | Self::ContainerLeft { .. }
            | Self::ExternalGone { .. }
            | Self::NeverReady { .. }
            | Self::UnexpectedStatus { .. }
            | Self::ForeignSocket { .. }
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
            Self::Container { source } => source.hints(),
            Self::SecretForRuntime { .. } => vec![hint(
                "give the engine's variable another name, or its value in `provisioning.env`",
                None,
            )],
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
            Self::CacheOwner { .. } => vec![hint(
                "use podman, which needs no root, or run the host as root",
                Some("{host} provision --container-runtime podman"),
            )],
            Self::NameTaken { runtime, name, .. } | Self::ContainerLeft { runtime, name } => {
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
            Self::ForeignSocket { port, .. } => vec![hint(
                "see who listens there",
                Some(&format!("ss -ltnp 'sport = :{port}'")),
            )],
            Self::NoGpuEvidence { .. } => vec![hint(
                "a GPU that need not be proven: prefer it instead",
                Some("{host} provision --gpu prefer"),
            )],
            Self::NotRunning { .. } => vec![hint("see what runs", Some("{host} ps"))],
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
            Self::SecretForRuntime { .. } => "secret-for-runtime",
            Self::Container { source } => source.kind(),
            Self::NoImage { .. } => "no-image",
            Self::ImageGone { .. } => "image-gone",
            Self::NameTaken { .. } => "container-name-taken",
            Self::ContainerLeft { .. } => "container-left",
            Self::ExternalUrl { .. } => "external-url",
            Self::ExternalGone { .. } => "external-gone",
            Self::NoPort { .. } => "no-port",
            Self::Conflict { .. } => "conflict",
            Self::Store { source } => source.kind(),
            Self::Process { source } => source.kind(),
            Self::Died { .. } => "engine-died",
            Self::NeverReady { .. } => "engine-never-ready",
            Self::UnexpectedStatus { .. } => "engine-unexpected-status",
            Self::ForeignSocket { .. } => "foreign-socket",
            Self::NotOnGpu { .. } => "not-on-gpu",
            Self::NoGpuEvidence { .. } => "no-gpu-evidence",
            Self::Handoff { .. } => "handoff-unsafe",
            Self::Cancelled => "cancelled",
            Self::NotRunning { .. } => "not-running",
            Self::NoLog { .. } => "no-log",
            Self::Survivors { .. } => "survivors",
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
