//! What a step wants, on this machine: which image, from which runtime, for which platform.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use engine_provider_api::{ContainerRuntime, Image, ImageName, Step};

use super::ImageError;
use crate::{
    act::{ActError, Context},
    container::{
        self, ImageRecord, Images, Inquirer, Platform, Reference, RegistryError, RemoteImage,
        Runtime,
    },
};

/// What registries said during this run, so that what a plan showed is what is pulled. Cheap to
/// clone.
#[derive(Debug, Clone, Default)]
pub struct Registries(Arc<Mutex<BTreeMap<String, RemoteImage>>>);

impl Registries {
    /// What was said of an image, if it was asked for.
    pub(super) fn known(&self, wanted: &Wanted<'_>) -> Option<RemoteImage> {
        let known = self.0.lock().expect("no holder panics");
        known.get(&wanted.reference.to_string()).cloned()
    }

    fn remember(&self, wanted: &Wanted<'_>, remote: &RemoteImage) {
        let mut known = self.0.lock().expect("no holder panics");
        known.insert(wanted.reference.to_string(), remote.clone());
        // A tag that was resolved is asked for by both from then on.
        if let Some(tag) = wanted.reference.tag() {
            let both = format!("{}:{tag}@{}", wanted.reference.repository(), remote.digest);
            known.insert(both, remote.clone());
        }
    }
}

/// What a step wants.
pub(crate) struct Wanted<'a> {
    /// The image.
    pub(crate) reference: Reference,
    /// The runtime that gets it.
    pub(crate) runtime: &'a ContainerRuntime,
    /// The platform it is for.
    pub(crate) platform: Platform,
    /// Where the runtime keeps images.
    pub(crate) storage: String,
}

impl<'a> Wanted<'a> {
    /// Reads the name and chooses the runtime that the pool's containers run in.
    pub(crate) fn new(context: &'a Context, name: &ImageName) -> Result<Self, ImageError> {
        let reference = Reference::of(name).map_err(ImageError::Reference)?;
        let wanted = context.pool.provisioning.container.as_ref();
        let wanted = wanted.and_then(|container| container.runtime.as_deref());
        let runtime = container::choose(&context.facts, wanted).map_err(ImageError::Runtime)?;
        let storage = match runtime.storage.as_str() {
            "" => runtime.name.clone(),
            storage => storage.to_owned(),
        };
        Ok(Self {
            reference,
            runtime,
            platform: Platform::of(&context.facts),
            storage,
        })
    }

    /// What is known of it, if the runtime has it.
    pub(crate) fn record(
        &self,
        context: &Context,
        step: &Step,
    ) -> Result<Option<ImageRecord>, ActError> {
        Images::of(&context.store)
            .find(&self.reference, &self.platform, &self.storage)
            .map_err(|source| ActError::store(step, source))
    }

    /// What its registry says of it, asked once per run; it must be the one that is pinned.
    pub(crate) async fn describe(&self, context: &Context) -> Result<RemoteImage, ImageError> {
        if let Some(known) = context.registries.known(self) {
            return Ok(known);
        }
        let inquirer = Inquirer {
            net: &context.net,
            environment: &context.environment,
            secrets: context.narrator.secrets(),
            runtime: Runtime::of(self.runtime),
            cancel: &context.cancel,
        };
        let remote = inquirer
            .describe(&self.reference, &self.platform)
            .await
            .map_err(|source| self.absent(source))?;
        self.compare(&remote)?;
        context.registries.remember(self, &remote);
        Ok(remote)
    }

    /// The error for an image that its registry does not say more of.
    pub(super) fn absent(&self, source: RegistryError) -> ImageError {
        ImageError::Absent {
            image: self.reference.to_string(),
            source: Box::new(source),
        }
    }

    /// A pool may pin this platform's image or the index that lists it.
    fn compare(&self, remote: &RemoteImage) -> Result<(), ImageError> {
        let Some(pinned) = self.reference.digest() else {
            return Ok(());
        };
        if *pinned == remote.digest || remote.index.as_ref() == Some(pinned) {
            return Ok(());
        }
        Err(ImageError::Pinned {
            image: self.reference.repository(),
            tag: self.reference.tag().map(str::to_owned),
            pinned: pinned.to_string(),
            found: remote.digest.to_string(),
            index: remote.index.as_ref().map(ToString::to_string),
        })
    }

    /// What the runtime knows the image as. Podman finds mirrors itself and keeps the name; docker
    /// knows an image only by the place it was pulled from.
    pub(super) fn local(&self, remote: &RemoteImage) -> Reference {
        let name = match Runtime::of(self.runtime) {
            Runtime::Podman => &self.reference,
            Runtime::Docker => &remote.endpoint.reference,
        };
        name.with_digest(&remote.digest)
    }

    /// What providers are told of it.
    pub(super) fn image(&self, remote: &RemoteImage) -> Image {
        Image {
            reference: self.local(remote).to_string(),
            digest: remote.digest.to_string(),
            tag: self.reference.tag().map(str::to_owned),
            labels: remote.labels.clone(),
            requires_cuda: remote.variable("NVIDIA_REQUIRE_CUDA").map(str::to_owned),
            user: remote.user.clone(),
            entrypoint: remote.entrypoint.clone(),
        }
    }

    /// Every name that it can be asked for by from now on.
    pub(super) fn names(&self, remote: &RemoteImage) -> Vec<Reference> {
        let mut names = vec![self.reference.with_digest(&remote.digest)];
        names.extend(
            remote
                .index
                .iter()
                .map(|index| self.reference.with_digest(index)),
        );
        if let Some(tag) = self.reference.tag() {
            let text = format!("{}:{tag}", self.reference.repository());
            names.extend(Reference::parse(&text));
        }
        names
    }
}
