//! What of a planned pool can be locked: its immutable values as they are now.

use std::{collections::BTreeMap, path::Path};

use engine_provider_api::{
    Act, Artifact, BuildStep, Checkout, ImageName, InstallPackages, Mirror, Plan, StageModel, Step,
};
use serde_json::Value;

use super::{Chosen, Planned, pinned::is_immutable};
use crate::{
    act::{self, Artifacts, Context, Expected, Outlook, is_full_commit, shown},
    container::Platform,
    fault::Failure,
    lock::{FileLock, ModelLock, PoolLock, ProviderLock, StepLock},
    model::{self, Lockable, LockableFile, Reference},
    net::{self, Url},
    store::{Ingredients, Kind},
};

/// A pool between its plan and what is done.
pub(super) struct State<'a> {
    pub(super) chosen: &'a Chosen,
    pub(super) context: &'a Context,
    /// The plan as its provider wrote it.
    pub(super) written: &'a Plan,
    /// The plan with what is known to be immutable in place of what was written.
    pub(super) plan: &'a Plan,
    pub(super) expected: &'a BTreeMap<String, Expected>,
    /// The lock file, so that paths beside it are written as such.
    pub(super) path: &'a Path,
    /// Which packages are locked to what would be installed now.
    pub(super) offers: Offers,
}

/// Which packages are locked to the version that would be installed now, and not to the one that is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Offers {
    /// None: what is not installed has no version.
    No,
    /// Those that are not installed.
    Missing,
    /// All that the plan leaves open.
    Newest,
}

impl Planned {
    /// What can be locked of this pool. A model whose digest nobody says is fetched where `fetch` says
    /// so, which is told.
    pub async fn lock(&self, path: &Path, fetch: bool) -> Result<PoolLock, Failure> {
        let mut lock = self.state(path).record().await?;
        let open = lock.model.as_mut().filter(|model| {
            let pin = model.pinned.as_deref();
            model.digest.is_none() && !pin.is_some_and(is_immutable)
        });
        let step = self.plan.steps.iter().find(|step| is_model(step));
        if let (Some(model), Some(step), true) = (open, step, fetch) {
            let narrator = &self.chosen.narrator;
            let human = format!("nobody says the digest of {}: fetching it", model.reference);
            narrator.warn(super::ACTOR, "lock", &model.reference, human);
            act::run(&self.context, step, &Artifacts::new()).await?;
            let here = self.fetched(step)?;
            model.digest = here.digest;
            model.size_bytes = here.size_bytes;
            // Just as the next lock finds them, which changes nothing then.
            model.files = file_locks(here.files);
        }
        Ok(lock)
    }

    /// What a model that was just fetched is.
    fn fetched(&self, step: &Step) -> Result<Lockable, Failure> {
        let Act::StageModel(act) = &step.act else {
            return Ok(Lockable::default());
        };
        let room = act::model_stage(&self.context, act);
        let here = model::lockable_here(&room, act);
        Ok(here.map_err(|source| act::model_failed(step, source))?)
    }

    fn state<'a>(&'a self, path: &'a Path) -> State<'a> {
        State {
            chosen: &self.chosen,
            context: &self.context,
            written: &self.written,
            plan: &self.plan,
            expected: &self.expected,
            path,
            offers: match self.context.refresh_images {
                true => Offers::Newest,
                false => Offers::Missing,
            },
        }
    }
}

impl State<'_> {
    /// Everything of the pool that can be locked and is known.
    pub(super) async fn record(&self) -> Result<PoolLock, Failure> {
        let mut steps = BTreeMap::new();
        let mut model = None;
        for (written, step) in self.written.steps.iter().zip(&self.plan.steps) {
            let artifact = &self.expected[&step.id].artifact;
            if let (Act::StageModel(stage), Act::StageModel(act)) = (&written.act, &step.act) {
                model.get_or_insert(self.model(written, stage, act).await?);
            } else if let Act::InstallPackages(act) = &step.act {
                let lock = self.package(step, act, artifact).await?;
                steps.insert(step.id.clone(), lock);
            } else if let Some(lock) = self.step(written, step) {
                steps.insert(step.id.clone(), lock);
            }
        }
        Ok(PoolLock {
            provider: self.provider()?,
            engine: BTreeMap::from([(self.chosen.mode.to_string(), steps)]),
            model,
            ..PoolLock::default()
        })
    }

    fn provider(&self) -> Result<ProviderLock, Failure> {
        let found = &self.chosen.found;
        let digest = format!("sha256:{}", found.sha256()?);
        Ok(ProviderLock {
            name: found.manifest.name.clone(),
            version: found.manifest.version.clone(),
            contract: found.manifest.contract.clone(),
            targets: BTreeMap::from([(target(self.context), digest)]),
            ..ProviderLock::default()
        })
    }

    fn step(&self, written: &Step, step: &Step) -> Option<StepLock> {
        let artifact = &self.expected[&step.id].artifact;
        let kind = step.act.kind().to_owned();
        let lock = match (&written.act, &step.act) {
            (Act::Checkout(written), Act::Checkout(act)) => checkout(written, act, artifact),
            (Act::Build(_), Act::Build(act)) => StepLock {
                commands: BTreeMap::from([(self.variant(act), commands(act))]),
                ..StepLock::default()
            },
            (Act::PullImage(written), Act::PullImage(act)) => {
                self.image(&written.image, &act.image)
            }
            (Act::ExtractImage(written), Act::ExtractImage(act)) => {
                self.image(&written.image, &act.image)
            }
            (_, Act::Download(act)) => {
                let urls = act.urls.iter().map(|url| shown_url(url));
                StepLock {
                    downloads: urls.map(|url| (url, act.digest.clone())).collect(),
                    ..StepLock::default()
                }
            }
            _ => return None,
        };
        Some(StepLock { kind, ..lock })
    }

    fn image(&self, written: &ImageName, image: &ImageName) -> StepLock {
        let digest = written.digest.as_ref().or(image.digest.as_ref());
        let platforms = digest.map(|digest| (platform(self.context), digest.clone()));
        StepLock {
            images: BTreeMap::from([(image_name(written), platforms.into_iter().collect())]),
            ..StepLock::default()
        }
    }

    async fn package(
        &self,
        step: &Step,
        act: &InstallPackages,
        artifact: &Artifact,
    ) -> Result<StepLock, Failure> {
        let label = |name: &str| artifact.labels.get(name).cloned();
        let installed = label("package").zip(label("version"));
        let expected = &self.expected[&step.id];
        let cannot = matches!(expected.outlook, Outlook::Unsupported { .. });
        let offered = match (self.offers, &act.version) {
            (Offers::Newest, None) => self.offered(step, act).await?,
            (Offers::Missing, None) if installed.is_none() => self.offered(step, act).await?,
            // What is offered in its place is what it has drifted to.
            (Offers::No, Some(_)) if cannot => {
                act::package_candidate(self.context, step, act).await?
            }
            _ => None,
        };
        let family = self.context.facts.package_manager.as_ref();
        let named = family.and_then(|manager| act.packages.get(&manager.family)?.first());
        let wanted = named.cloned().zip(act.version.clone());
        let version = offered.or(installed).or(wanted);
        let packages = version.map(|pin| (distribution(self.context), BTreeMap::from([pin])));
        Ok(StepLock {
            kind: step.act.kind().to_owned(),
            packages: packages.into_iter().collect(),
            ..StepLock::default()
        })
    }

    /// What would be installed now; that nothing here tells is said.
    async fn offered(
        &self,
        step: &Step,
        act: &InstallPackages,
    ) -> Result<Option<(String, String)>, Failure> {
        let found = act::package_candidate(self.context, step, act).await?;
        if found.is_none() {
            let human = format!(
                "no list of packages here tells which version of {} would be installed: it is locked \
                 once it is installed, or after `{}`",
                act.program,
                act::refresh_command(self.context)
            );
            let narrator = &self.chosen.narrator;
            narrator.warn(super::ACTOR, "lock", &act.program, human);
        }
        Ok(found)
    }

    async fn model(
        &self,
        written: &Step,
        stage: &StageModel,
        act: &StageModel,
    ) -> Result<ModelLock, Failure> {
        let room = act::model_stage(self.context, act);
        let now = model::lockable(&room, act).await;
        let now = now.map_err(|source| act::model_failed(written, source))?;
        // What is in the catalog under its pin need not be there under the reference as well.
        let by_pin = (act.reference != stage.reference).then(|| act.reference.clone());
        Ok(ModelLock {
            reference: model_reference(&stage.reference, self.path),
            mirrors: stage.mirrors.iter().map(|url| shown_url(url)).collect(),
            quant: stage.quant.clone(),
            include: stage.include.clone(),
            exclude: stage.exclude.clone(),
            pinned: by_pin.or(now.pinned).filter(|pin| is_immutable(pin)),
            revision: now.revision,
            digest: now.digest,
            size_bytes: now.size_bytes,
            files: self.locked_versions(file_locks(now.files)),
            ..ModelLock::default()
        })
    }

    /// What is here by its digest alone is known to be the locked versions.
    fn locked_versions(&self, mut files: BTreeMap<String, FileLock>) -> BTreeMap<String, FileLock> {
        for (name, version) in &*self.context.model_versions {
            if let (Some(file), Some(version)) = (files.get_mut(name), version) {
                file.version = Some(version.clone());
            }
        }
        files
    }

    /// What commands depend on beside the pool: the machine's kind, and what the provider chose for it.
    fn variant(&self, act: &BuildStep) -> String {
        let mut words = vec![target(self.context)];
        words.extend(
            act.labels
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        words.join(" ")
    }
}

fn file_locks(files: Vec<LockableFile>) -> BTreeMap<String, FileLock> {
    let lock = |file: LockableFile| {
        let lock = FileLock {
            size_bytes: file.size_bytes,
            digest: file.digest,
            version: file.version,
            ..FileLock::default()
        };
        (file.name, lock)
    };
    files.into_iter().map(lock).collect()
}

fn is_model(step: &Step) -> bool {
    matches!(step.act, Act::StageModel(_))
}

fn checkout(written: &Checkout, act: &Checkout, artifact: &Artifact) -> StepLock {
    StepLock {
        reference: Some(written.commit.clone()),
        mirrors: act.mirrors.iter().map(mirror).collect(),
        commit: is_full_commit(&act.commit).then(|| act.commit.to_ascii_lowercase()),
        tree: artifact.labels.get("tree").cloned(),
        submodules: act.submodules,
        ..StepLock::default()
    }
}

fn mirror(mirror: &Mirror) -> String {
    match mirror {
        Mirror::Git { url } => shown(url),
        Mirror::Index {
            project,
            version,
            sha256,
            ..
        } => format!("index {project}=={version} sha256:{sha256}"),
    }
}

/// Digest of what a build runs, as the plan has it: placeholders are not filled in, words for people
/// left out.
fn commands(act: &BuildStep) -> String {
    let mut value = serde_json::to_value(act).expect("a step is plain data");
    strip(&mut value);
    let key = Ingredients::new().with("build", value).key(Kind::Build);
    format!("sha256:{}", key.hex)
}

fn strip(value: &mut Value) {
    match value {
        Value::Object(map) => {
            for name in ["narration", "progress", "title"] {
                map.remove(name);
            }
            map.values_mut().for_each(strip);
        }
        Value::Array(values) => values.iter_mut().for_each(strip),
        _ => {}
    }
}

/// Target triple of the machine.
pub(super) fn target(context: &Context) -> String {
    let arch = match context.facts.os.arch.as_str() {
        "" => std::env::consts::ARCH,
        arch => arch,
    };
    format!("{arch}-unknown-linux-gnu")
}

/// Platform in the words of registries, for example `linux/amd64`.
pub(super) fn platform(context: &Context) -> String {
    Platform::of(&context.facts).to_string()
}

/// Package family and distribution, for example `apt debian 12`.
pub(super) fn distribution(context: &Context) -> String {
    let facts = &context.facts;
    let manager = facts.package_manager.as_ref();
    let family = manager.map_or("", |manager| manager.family.as_str());
    format!("{family} {} {}", facts.os.id, facts.os.version)
        .trim()
        .to_owned()
}

/// An image as it was written.
pub(super) fn image_name(image: &ImageName) -> String {
    let tag = image.tag.as_ref().map(|tag| format!(":{tag}"));
    let digest = image.digest.as_ref().map(|digest| format!("@{digest}"));
    let [tag, digest] = [tag, digest].map(Option::unwrap_or_default);
    format!("{}{tag}{digest}", image.repository)
}

/// A model's reference as it stands in a lock file: without passwords, and relative to the file where
/// the model lies beside it.
pub(super) fn model_reference(reference: &str, lock: &Path) -> String {
    match Reference::parse(reference) {
        Ok(Reference::File(path)) => {
            let beside = std::path::absolute(lock).ok();
            let directory = beside.as_deref().and_then(Path::parent);
            match directory.and_then(|directory| path.strip_prefix(directory).ok()) {
                Some(inside) => format!("./{}", inside.display()),
                None => format!("file:{}", path.display()),
            }
        }
        Ok(reference) => reference.to_string(),
        Err(_) => reference.to_owned(),
    }
}

fn shown_url(url: &str) -> String {
    Url::parse(url).map_or_else(|_| url.to_owned(), |url| net::shown(&url))
}
