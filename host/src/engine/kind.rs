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

    /// Who the engine is inside: as the launch says, else the image.
    pub(super) fn user(&self) -> &str {
        self.launch
            .user
            .as_deref()
            .unwrap_or(self.image.user.as_str())
    }
}
