//! What a lock file pins of the steps that bring the engine.

use engine_provider_api::{Act, Checkout, ImageName, InstallPackages, Step};

use super::{Pins, Said};
use crate::{
    act::{self, Artifacts, Context, Outlook, WantedImage, is_full_commit},
    drive::{LockUse, recorded},
    fault::Failure,
    lock::{self, LockError, StepLock},
    net::Digest,
};

impl Pins {
    pub(super) fn checkout(
        &self,
        step: &Step,
        act: &mut Checkout,
        lock: &StepLock,
    ) -> Result<Option<Said>, LockError> {
        let (Some(reference), Some(commit)) = (&lock.reference, &lock.commit) else {
            return Ok(None);
        };
        if !is_full_commit(commit) {
            return Err(self.value(step, "commit", commit, "no full commit"));
        }
        if is_full_commit(&act.commit) {
            return Ok(None);
        }
        if *reference != act.commit {
            return Ok(Some(self.not_the_same(&act.commit, reference)));
        }
        let note = format!("{reference} is commit {commit}");
        act.commit.clone_from(commit);
        Ok(Some(self.note(note)))
    }

    pub(super) fn image(
        &self,
        context: &Context,
        step: &Step,
        image: &mut ImageName,
        lock: &StepLock,
    ) -> Result<Option<Said>, LockError> {
        let name = recorded::image_name(image);
        let platform = recorded::platform(context);
        let locked = lock.images.get(&name).and_then(|all| all.get(&platform));
        let Some(digest) = locked.filter(|_| image.digest.is_none()) else {
            return Ok(None);
        };
        if !matches!(Digest::parse(digest), Ok(Digest::Sha256(_))) {
            return Err(self.value(step, "images", digest, "no digest that images have"));
        }
        // The tag may move on: that does not contradict the pin.
        if let Ok(wanted) = WantedImage::new(context, image) {
            wanted.resolved_to(context, digest);
        }
        image.digest = Some(digest.clone());
        Ok(Some(self.note(format!("{name} is {digest}"))))
    }

    pub(super) fn package(
        &self,
        context: &Context,
        step: &Step,
        act: &mut InstallPackages,
        lock: &StepLock,
    ) -> Result<Option<Said>, Failure> {
        let key = recorded::distribution(context);
        let locked = lock.packages.get(&key).and_then(|all| all.iter().next());
        let Some((name, version)) = locked.filter(|_| act.version.is_none()) else {
            return Ok(None);
        };
        // A lock that is written keeps what it has, until it is asked to move.
        let is_kept = matches!(self.used, LockUse::Renew(_));
        if let (Some(installed), false) = (self.newer(context, step, version)?, is_kept) {
            return Ok(Some(Said::Warning(format!(
                "{}: {name} {version} is locked, and {installed} is installed",
                lock::FILE
            ))));
        }
        act.version = Some(version.clone());
        Ok(Some(self.note(format!("{name} is version {version}"))))
    }

    /// The version that is installed, where the locked one cannot take its place.
    fn newer(
        &self,
        context: &Context,
        step: &Step,
        version: &str,
    ) -> Result<Option<String>, Failure> {
        let now = act::expected_of(context, step, &Artifacts::new())?.artifact;
        let mut pinned = step.clone();
        if let Act::InstallPackages(act) = &mut pinned.act {
            act.version = Some(version.to_owned());
        }
        let then = act::expected_of(context, &pinned, &Artifacts::new())?;
        let cannot = matches!(then.outlook, Outlook::Unsupported { .. });
        Ok(now.labels.get("version").filter(|_| cannot).cloned())
    }
}
