//! How `llama-server` comes onto the machine: built here, installed, downloaded, in a container.
//!
//! Whatever the way, it is then asked what it is (`--version`, `--help`, `--list-devices`), all but
//! the one in a container, whose log must tell.

use std::collections::BTreeMap;

use engine_provider_api::{Act, Mode, Observe, Pool, ProviderError, Template};
use engine_provider_kit::container;

use crate::{
    BUILD,
    backend::Backend,
    binary::{Binary, PROGRAM},
    cmake::Given,
    image::{self, Image},
    package::{INSTALL, Package},
    source::Source,
};

/// Where it comes from.
pub(crate) enum Origin {
    /// Built here.
    Source { source: Source, cmake: Given },
    /// From the distribution's packages.
    Package(Package),
    /// Downloaded, or taken out of an image.
    Binary(Binary),
    /// Inside a container.
    Image(Image),
}

impl Origin {
    pub(crate) fn read(pool: &Pool, mode: Mode) -> Result<Self, ProviderError> {
        Ok(match mode {
            Mode::Package => Self::Package(Package::read(pool)),
            Mode::Binary => Self::Binary(Binary::read(pool)?),
            Mode::Container => Self::Image(Image::read(pool)?),
            Mode::Source | Mode::External => Self::Source {
                source: Source::of(pool),
                cmake: Given::read(pool)?,
            },
        })
    }

    /// Whether it is the commit whose flags this provider knows by heart.
    pub(crate) fn pinned(&self) -> bool {
        matches!(self, Self::Source { source, .. } if source.pinned())
    }

    /// The back end that its name promises, where it promises one.
    pub(crate) fn backend(&self) -> Option<Backend> {
        match self {
            Self::Source { .. } => None,
            Self::Package(package) => package.backend(),
            Self::Binary(binary) => binary.backend(),
            Self::Image(image) => image.backend(),
        }
    }

    /// What it is called in messages.
    pub(crate) fn called(&self) -> &'static str {
        match self {
            Self::Source { .. } => "the llama-server that was built",
            Self::Package(_) => "the installed llama-server",
            Self::Binary(_) => "the downloaded llama-server",
            Self::Image(_) => "the llama-server of the image",
        }
    }

    /// What a version says before there is one.
    pub(crate) fn later(&self) -> &'static str {
        match self {
            Self::Source { .. } => "(known after build)",
            Self::Package(_) => "(known after installation)",
            Self::Binary(_) => "(known after download)",
            Self::Image(_) => container::LATER,
        }
    }

    /// The program; inside a container it has no path here.
    pub(crate) fn program(&self) -> Template {
        match self {
            Self::Source { .. } => format!("{{{BUILD}.path}}/bin/llama-server").into(),
            Self::Package(_) => format!("{{{INSTALL}.path}}").into(),
            Self::Binary(binary) => binary.path(),
            Self::Image(_) => image::PROGRAM.into(),
        }
    }

    /// What it needs in its environment to start at all.
    pub(crate) fn env(&self) -> BTreeMap<String, Template> {
        match self {
            Self::Binary(binary) => binary.env(),
            _ => BTreeMap::new(),
        }
    }

    /// The step whose result it is.
    pub(crate) fn step(&self) -> &'static str {
        match self {
            Self::Source { .. } => BUILD,
            Self::Package(_) => INSTALL,
            Self::Binary(_) => PROGRAM,
            Self::Image(_) => container::PULL,
        }
    }

    /// The step that asks the program.
    pub(crate) fn observe(&self, argument: &str, asks_devices: bool) -> Act {
        Act::Observe(Observe {
            program: self.program(),
            args: vec![argument.into()],
            env: self.env(),
            asks_devices,
            timeout_ms: 20_000,
        })
    }
}
