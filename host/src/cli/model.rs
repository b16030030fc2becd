//! `host model`: the models that are here.

mod view;

use std::path::{Path, PathBuf};

use engine_provider_api::{ModelShape, StageModel};

use super::{
    arguments::{AddArguments, CollectArguments, ModelArguments, ModelCommand, ShapeFlag},
    context::{Context, overlay},
    signals,
};
use crate::{
    cli::arguments::PolicyFlags,
    fault::{Exit, Failure},
    model::{
        self, Again, Stage, Verify,
        catalog::{Catalog, CatalogError, Entry, InUse, Limits, Name, Origin, State, Swept},
    },
    store::Store,
};

/// Schema of the JSON forms.
const SCHEMA: u32 = 1;

pub(super) async fn run(context: &Context, arguments: &ModelArguments) -> Result<Exit, Failure> {
    let received = signals::cancel_on_signal(context.host.cancel.clone());
    let models = Models {
        context,
        directory: arguments.dir.as_deref(),
        catalog: match arguments.dir.as_deref() {
            Some(directory) => Catalog::of(&Store::at(here().join(directory))),
            None => Catalog::of_home(&context.host.home),
        },
    };
    let done = match &arguments.command {
        ModelCommand::List => models.list(),
        ModelCommand::Show { model } => models.show(model),
        ModelCommand::Add(add) => models.add(add, arguments.dir.as_deref()).await,
        ModelCommand::Verify { models: names } => models.verify(names).await,
        ModelCommand::Retire { models: names } => models.retire(names).await,
        ModelCommand::Remove { models: names } => models.remove(names).await,
        ModelCommand::Gc(limits) => models.collect(*limits).await,
    };
    match done {
        Ok(()) => Ok(Exit::Success),
        Err(failure) => received.or(failure),
    }
}

fn here() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}

struct Models<'a> {
    context: &'a Context,
    /// Where models are kept, where that is not the store.
    directory: Option<&'a Path>,
    catalog: Catalog,
}

impl Models<'_> {
    fn list(&self) -> Result<(), Failure> {
        let engines = self.context.host.paths_in_use()?;
        let mut models = Vec::new();
        for entry in self.entries()? {
            models.push(self.view(&entry, &engines)?);
        }
        let list = view::List {
            schema: SCHEMA,
            models,
        };
        self.context.show(&list, |out| list.write(out))
    }

    fn show(&self, name: &str) -> Result<(), Failure> {
        let entry = self.catalog.select(name)?;
        let engines = self.context.host.paths_in_use()?;
        let shown = view::One {
            schema: SCHEMA,
            model: self.view(&entry, &engines)?,
        };
        self.context.show(&shown, |out| shown.write(out))
    }

    async fn add(&self, add: &AddArguments, directory: Option<&Path>) -> Result<(), Failure> {
        let step = StageModel {
            reference: add.reference.clone(),
            mirrors: add.mirrors.clone(),
            quant: add.quant.clone(),
            include: add.include.clone(),
            exclude: add.exclude.clone(),
            digest: add.checksum.clone(),
            cache_dir: directory.map(|path| here().join(path).to_string_lossy().into_owned()),
            shape: match add.shape {
                ShapeFlag::File => ModelShape::File,
                ShapeFlag::Directory => ModelShape::Directory,
            },
            ..StageModel::default()
        };
        let asked = overlay(&PolicyFlags {
            offline: add.offline,
            ..PolicyFlags::default()
        });
        let policy = self.context.host.policy(&[asked.layer()])?;
        let stage = Stage {
            verify: match add.verify {
                true => Verify::All,
                false => Verify::Changed,
            },
            refresh: add.refresh,
            ..self.context.host.model_stage(policy, &step, &here())
        };
        let entry = model::add(&stage, &step).await?;
        let added = view::Added::of(SCHEMA, &entry);
        self.context.show(&added, |out| added.write(out))
    }

    async fn verify(&self, names: &[String]) -> Result<(), Failure> {
        let chosen = match names {
            [] => self.entries()?,
            names => self.select(names)?,
        };
        let mut verified = Vec::new();
        for entry in chosen {
            let host = &self.context.host;
            let damaged = model::verify(&self.catalog, &entry, &host.narrator, &host.cancel).await;
            verified.push((entry, damaged.map_err(CatalogError::from)?));
        }
        let report = view::Verified::of(SCHEMA, &verified);
        self.context.show(&report, |out| report.write(out))?;
        let damaged: Vec<&(Entry, Vec<String>)> = verified
            .iter()
            .filter(|(_, damaged)| !damaged.is_empty())
            .collect();
        let Some((first, _)) = damaged.first() else {
            return Ok(());
        };
        let again = first.names.first().map(|name| self.again(first, name));
        let of_each = damaged
            .iter()
            .flat_map(|(entry, files)| files.iter().map(|file| format!("{}: {file}", entry.id)));
        Err(CatalogError::Damaged {
            damaged: of_each.collect(),
            checked: verified.len(),
            again: again.map(|again| format!("{{host}} model add {again}")),
        }
        .into())
    }

    /// How a model is had again, by one of its names.
    fn again(&self, entry: &Entry, name: &Name) -> String {
        // A user's own, wherever the command is run.
        let own = entry.provenance.from.first();
        let own = own.filter(|_| entry.provenance.origin == Origin::File);
        let directory = self.directory.map(|path| here().join(path));
        let directory = directory.as_deref().map(Path::to_string_lossy);
        Again {
            reference: own.unwrap_or(&name.reference),
            shape: entry.shape,
            quant: name.quant.as_deref(),
            include: &name.include,
            exclude: &name.exclude,
            directory: directory.as_deref(),
        }
        .to_string()
    }

    async fn retire(&self, names: &[String]) -> Result<(), Failure> {
        let mut retired = Vec::new();
        for entry in self.select(names)? {
            let cancel = &self.context.host.cancel;
            self.catalog
                .set_state(&entry.id, State::Retired, cancel)
                .await
                .map_err(CatalogError::from)?;
            retired.push(entry.id);
        }
        let ids = view::Ids {
            schema: SCHEMA,
            retired,
        };
        self.context.show(&ids, |out| ids.write(out))
    }

    async fn remove(&self, names: &[String]) -> Result<(), Failure> {
        let engines = self.context.host.paths_in_use()?;
        let mut all = Swept::default();
        for entry in self.select(names)? {
            let cancel = &self.context.host.cancel;
            let swept = self.catalog.remove(&entry.id, &engines, cancel).await?;
            all.removed.extend(swept.removed);
            all.blobs_bytes += swept.blobs_bytes;
            all.postponed |= swept.postponed;
        }
        self.show_swept(all, false)
    }

    async fn collect(&self, arguments: CollectArguments) -> Result<(), Failure> {
        let limits = Limits::from(arguments);
        let engines = self.context.host.paths_in_use()?;
        let cancel = &self.context.host.cancel;
        let swept = self
            .catalog
            .sweep(limits, &engines, arguments.dry_run, cancel)
            .await?;
        self.show_swept(swept, arguments.dry_run)
    }

    fn show_swept(&self, swept: Swept, dry_run: bool) -> Result<(), Failure> {
        let report = view::Collected::of(SCHEMA, swept, dry_run);
        self.context.show(&report, |out| report.write(out))
    }

    fn entries(&self) -> Result<Vec<Entry>, CatalogError> {
        Ok(self.catalog.entries()?)
    }

    fn select(&self, names: &[String]) -> Result<Vec<Entry>, CatalogError> {
        names.iter().map(|name| self.catalog.select(name)).collect()
    }

    fn view(&self, entry: &Entry, engines: &[InUse]) -> Result<view::Model, Failure> {
        let user = self.catalog.user_of(entry, engines);
        let user = user.map_err(CatalogError::from)?;
        Ok(view::Model::of(
            &self.catalog,
            entry,
            user.map(|(by, _)| by),
        ))
    }
}
