//! What a step wants, on this machine: which image, from which runtime, for which platform.

use std::{
    collections::{BTreeMap, BTreeSet},
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
pub struct Registries(Arc<Mutex<Said>>);

#[derive(Debug, Default)]
struct Said {
    /// What was said, by what was asked for.
    images: BTreeMap<String, RemoteImage>,
    /// Tags with the digests that they were resolved to: those are no pins of an operator's, and a tag
    /// that moves on does not contradict them.
    resolved: BTreeSet<String>,
}

impl Registries {
    /// What was said of an image, if it was asked for.
    pub(super) fn known(&self, wanted: &Wanted<'_>) -> Option<RemoteImage> {
        let said = self.0.lock().expect("no holder panics");
        said.images.get(&wanted.reference.to_string()).cloned()
    }

    fn is_resolved(&self, wanted: &Wanted<'_>) -> bool {
        let said = self.0.lock().expect("no holder panics");
        said.resolved.contains(&wanted.reference.to_string())
    }

    fn remember(&self, wanted: &Wanted<'_>, remote: &RemoteImage) {
        let mut said = self.0.lock().expect("no holder panics");
        said.images
            .insert(wanted.reference.to_string(), remote.clone());
        // A tag that was resolved is asked for by both from then on.
        if let Some(both) = wanted.with_both(&remote.digest.to_string()) {
            said.images.insert(both, remote.clone());
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
        let settings = &context.pool.provisioning;
        let of_binary = settings
            .binary
            .as_ref()
            .and_then(|binary| binary.image.as_ref());
        let all = [settings.container.as_ref(), of_binary];
        let wanted = all
            .into_iter()
            .flatten()
            .find_map(|container| container.runtime.as_deref());
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

    /// Notes that the tag was resolved to this digest, which the plan names from here on.
    pub(crate) fn resolved_to(&self, context: &Context, digest: &str) {
        let mut said = context.registries.0.lock().expect("no holder panics");
        said.resolved.extend(self.with_both(digest));
    }

    fn with_both(&self, digest: &str) -> Option<String> {
        let tag = self.reference.tag()?;
        Some(format!("{}:{tag}@{digest}", self.reference.repository()))
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
        let remote = self
            .inquirer(context)
            .describe(&self.question(context), &self.platform)
            .await
            .map_err(|source| self.absent(source))?;
        self.compare(&remote)?;
        context.registries.remember(self, &remote);
        Ok(remote)
    }

    /// The same image in the next place that has it, where docker is the runtime: it is told one place,
    /// while podman tries them all by itself. `tried`: repositories that did not give it.
    pub(super) async fn elsewhere(
        &self,
        context: &Context,
        remote: &RemoteImage,
        tried: &[String],
    ) -> Option<RemoteImage> {
        if Runtime::of(self.runtime) == Runtime::Podman {
            return None;
        }
        let image = self.reference.with_digest(&remote.digest);
        let inquirer = self.inquirer(context);
        let asked = inquirer.describe_elsewhere(&image, &self.platform, tried);
        let found = asked.await.ok()??;
        // What lists it is still known from before.
        Some(RemoteImage {
            index: remote.index.clone(),
            ..found
        })
    }

    fn inquirer<'c>(&self, context: &'c Context) -> Inquirer<'c> {
        Inquirer {
            net: &context.net,
            environment: &context.environment,
            secrets: context.narrator.secrets(),
            runtime: Runtime::of(self.runtime),
            cancel: &context.cancel,
        }
    }

    /// What the registry is asked for: the tag, so that it can be compared with what is pinned, but the
    /// digest alone where that is all that the tag is needed for.
    fn question(&self, context: &Context) -> Reference {
        match self.reference.digest() {
            Some(digest) if context.registries.is_resolved(self) => {
                self.reference.with_digest(digest)
            }
            _ => self.reference.clone(),
        }
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
