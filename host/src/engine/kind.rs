//! What kind of engine a start brings up, and what follows from that alone.

use engine_provider_api::{
    ContainerLaunch, ContainerRuntime, ExtraPort, Image, Launch, ProcessLaunch,
};

use super::{EngineError, StartRequest, external::External, port::Numbers};
use crate::container::{self, Runtime};

/// A launch with what it needs of this machine.
#[derive(Debug)]
pub(super) enum Kind<'a> {
    Process(&'a ProcessLaunch),
    Container(Contained<'a>),
    External(External),
}

/// A container with the runtime that runs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contained<'a> {
    pub(super) launch: &'a ContainerLaunch,
    pub(super) runtime: &'a ContainerRuntime,
    pub(super) image: &'a Image,
}

impl<'a> Kind<'a> {
    pub(super) fn of(request: &StartRequest<'a>) -> Result<Self, EngineError> {
        Ok(match &request.prepared.launch {
            Launch::Process(launch) => Self::Process(launch),
            Launch::External(launch) => Self::External(External::parse(&launch.url)?),
            Launch::Container(launch) => {
                let settings = request.pool.provisioning.container.as_ref();
                let wanted = settings.and_then(|settings| settings.runtime.as_deref());
                let image = request
                    .artifacts
                    .get(&launch.image)
                    .and_then(|artifact| artifact.image.as_ref())
                    .filter(|image| !image.reference.is_empty());
                Self::Container(Contained {
                    launch,
                    runtime: container::choose(request.facts, wanted)?,
                    image: image.ok_or_else(|| EngineError::NoImage {
                        step: launch.image.clone(),
                    })?,
                })
            }
        })
    }

    /// The word for it.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Process(_) => "process",
            Self::Container(_) => "container",
            Self::External(_) => "external",
        }
    }

    pub(super) fn more_ports(&self) -> &'a [ExtraPort] {
        match self {
            Self::Process(launch) => &launch.more_ports,
            Self::Container(contained) => &contained.launch.more_ports,
            Self::External(_) => &[],
        }
    }

    /// Port of this machine that is usual for it.
    pub(super) fn usual_port(&self) -> u16 {
        match self {
            Self::Process(launch) => launch.usual_port,
            Self::Container(Contained { launch, .. }) if launch.usual_port == 0 => launch.port,
            Self::Container(Contained { launch, .. }) => launch.usual_port,
            Self::External(external) => external.port(),
        }
    }
}

impl Contained<'_> {
    /// Ports as they are inside.
    pub(super) fn numbers_inside(&self) -> Numbers {
        let more = self.launch.more_ports.iter();
        Numbers {
            port: self.launch.port.to_string(),
            more: more
                .map(|port| (port.name.clone(), port.usual_port.to_string()))
                .collect(),
        }
    }

    pub(super) fn which(&self) -> Runtime {
        Runtime::of(self.runtime)
    }

    /// What it runs: as the launch says, else the image.
    pub(super) fn program(&self) -> Option<&'_ str> {
        let all = self.launch.entrypoint.iter().chain(&self.image.entrypoint);
        all.map(String::as_str).next()
    }

    /// What tells the caches of this user from those of others, who could not write in them: given to
    /// one user, a directory would be taken from another's running engine.
    pub(super) fn cache_user(&self) -> &str {
        let (user, _) = self.user().split_once(':').unwrap_or((self.user(), ""));
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        match user {
            "" | "root" => "0",
            user if user.bytes().all(plain) => user,
            _ => "other",
        }
    }

    /// Who the engine is inside: as the launch says, else the image.
    pub(super) fn user(&self) -> &str {
        self.launch
            .user
            .as_deref()
            .unwrap_or(self.image.user.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_inside_have_caches_of_their_own_and_no_name_of_one_leads_elsewhere() {
        let runtime = ContainerRuntime::default();
        let of = |launched: Option<&str>, image: &str| {
            let launch = ContainerLaunch {
                user: launched.map(str::to_owned),
                ..ContainerLaunch::default()
            };
            let image = Image {
                user: image.to_owned(),
                ..Image::default()
            };
            let contained = Contained {
                launch: &launch,
                runtime: &runtime,
                image: &image,
            };
            contained.cache_user().to_owned()
        };
        assert_eq!(of(Some("2000:0"), "1000"), "2000");
        assert_eq!(of(None, "1000"), "1000");
        assert_eq!(of(None, ""), of(Some("0:0"), "x"));
        assert_eq!(of(None, "vllm:vllm"), "vllm");
        assert_eq!(of(None, "../../etc"), "other");
        assert_eq!(of(None, ".:0"), "other");
    }
}
