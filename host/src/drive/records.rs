//! What everything that was obtained was made of, and what came out: the record of an engine.
//!
//! Results of the store bring theirs along. Images and packages are kept by their runtime and package
//! manager, models in a catalog of their own: of these it is told here what was asked for and what is
//! there.

use std::{collections::BTreeMap, path::Path};

use engine_provider_api::{Act, Artifact, ImageName, InstallPackages, StageModel, Step};
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    Obtained,
    recorded::{distribution, image_name},
};
use crate::{
    act::{ActError, WantedImage},
    fault::Failure,
    store::{Ingredients, Manifest},
};

/// The record of one step.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Record {
    /// A result of the store.
    Result(Manifest),
    /// Something that others keep.
    Kept {
        /// Kind of the step.
        kind: &'static str,
        /// What was asked for.
        ingredients: Ingredients,
        /// What is there.
        result: Value,
    },
}

impl Obtained {
    /// What each step was made of and what came out: the record of a build.
    pub fn records(&self) -> Result<BTreeMap<String, Record>, Failure> {
        let mut records = BTreeMap::new();
        for step in &self.made.resolved.steps {
            let Some(artifact) = self.artifacts.get(&step.id) else {
                continue;
            };
            if let Some(record) = self.record(step, artifact)? {
                records.insert(step.id.clone(), record);
            }
        }
        Ok(records)
    }

    fn record(&self, step: &Step, artifact: &Artifact) -> Result<Option<Record>, Failure> {
        match &step.act {
            Act::PullImage(act) => self.image(step, &act.image),
            Act::InstallPackages(act) => self.package(step, act, artifact).map(Some),
            Act::StageModel(act) => self.model(step, act, artifact).map(Some),
            _ => {
                let store = &self.context.store;
                let path = artifact.path.as_ref().map(Path::new);
                let manifest = path.map(|path| store.manifest_of(path)).transpose()?;
                Ok(manifest.flatten().map(Record::Result))
            }
        }
    }

    fn image(&self, step: &Step, name: &ImageName) -> Result<Option<Record>, Failure> {
        let wanted = WantedImage::new(&self.context, name);
        let wanted = wanted.map_err(|error| ActError::image(step, error))?;
        let Some(record) = wanted.record(&self.context, step)? else {
            return Ok(None);
        };
        let runtime = &wanted.runtime;
        let ingredients = Ingredients::new()
            .with("image", image_name(name))
            .with("platform", &record.platform)
            .with("runtime", format!("{} {}", runtime.name, runtime.version));
        Ok(Some(Record::Kept {
            kind: step.act.kind(),
            ingredients,
            result: serde_json::to_value(record).expect("a record is plain data"),
        }))
    }

    fn package(
        &self,
        step: &Step,
        act: &InstallPackages,
        artifact: &Artifact,
    ) -> Result<Record, Failure> {
        let (context, path) = (&self.context, artifact.path.as_deref().unwrap_or_default());
        let program = context.store.witness(Path::new(path))?;
        let ingredients = Ingredients::new()
            .with("system", distribution(context))
            .with("program", &act.program)
            .with("version asked for", &act.version)
            .with("repository", &act.repository);
        Ok(Record::Kept {
            kind: step.act.kind(),
            ingredients,
            result: json!({
                "package": artifact.labels.get("package"),
                "version": artifact.labels.get("version"),
                "path": path,
                "digest": format!("sha256:{}", program.sha256),
                "size_bytes": program.size_bytes,
            }),
        })
    }

    /// A user's own file may never have been hashed: then nothing is known of its content.
    fn model(&self, step: &Step, act: &StageModel, artifact: &Artifact) -> Result<Record, Failure> {
        let own = match (&artifact.digest, &artifact.path) {
            (None, Some(path)) => self.context.store.witnessed(Path::new(path))?,
            _ => None,
        };
        let sha256 = own.as_ref().map(|own| format!("sha256:{}", own.sha256));
        let ingredients = Ingredients::new()
            .with("reference", &act.reference)
            .with("quantisation", &act.quant)
            .with("include", &act.include)
            .with("exclude", &act.exclude);
        Ok(Record::Kept {
            kind: step.act.kind(),
            ingredients,
            result: json!({
                "digest": artifact.digest.clone().or(sha256),
                "size_bytes": artifact.size_bytes.or(own.map(|own| own.size_bytes)),
            }),
        })
    }
}
