//! A place for tests, with what was told in it.

use engine_provider_api::ModelShape;
use tokio_util::sync::CancellationToken;

use super::{Place, Versions};
use crate::{
    config::environment::Environment,
    model::Reference,
    narrate::{Capture, Narrator},
    net::{self, Digest, Net, testing::open_net},
};

/// What a [`Place`] borrows.
pub(crate) struct Bench {
    pub(crate) net: Net,
    pub(crate) environment: Environment,
    pub(crate) narrator: Narrator,
    pub(crate) told: Capture,
    pub(crate) cancel: CancellationToken,
    pub(crate) written: String,
    pub(crate) mirrors: Vec<net::Url>,
    pub(crate) digest: Option<Digest>,
    pub(crate) quant: Option<String>,
    pub(crate) formats: Vec<String>,
    pub(crate) shape: ModelShape,
    pub(crate) include: Vec<String>,
    pub(crate) exclude: Vec<String>,
    pub(crate) versions: Versions,
}

impl Bench {
    pub(crate) fn new(written: &str) -> Self {
        let (narrator, told) = Narrator::capture();
        Self {
            net: open_net(),
            environment: Environment::default(),
            narrator,
            told,
            cancel: CancellationToken::new(),
            written: written.to_owned(),
            mirrors: Vec::new(),
            digest: None,
            quant: None,
            formats: Vec::new(),
            shape: ModelShape::File,
            include: Vec::new(),
            exclude: Vec::new(),
            versions: Versions::new(),
        }
    }

    pub(crate) fn place(&self) -> Place<'_> {
        Place {
            net: &self.net,
            environment: &self.environment,
            narrator: &self.narrator,
            cancel: &self.cancel,
            written: &self.written,
            mirrors: &self.mirrors,
            digest: self.digest.as_ref(),
            quant: self.quant.as_deref(),
            formats: &self.formats,
            shape: self.shape,
            include: &self.include,
            exclude: &self.exclude,
            versions: &self.versions,
        }
    }

    pub(crate) fn reference(&self) -> Reference {
        Reference::parse(&self.written).unwrap()
    }
}
