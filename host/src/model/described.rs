//! What a model is, told beside what a step is given: read where it lies, else asked of its source once
//! per run.
//!
//! It is for estimates: where it cannot be told, that is said and nothing fails, because only its engine
//! knows what it can read.

use std::path::{Path, PathBuf};

use engine_provider_api::{Artifact, ArtifactState, ModelFacts, StageModel};

use super::{
    ACTOR, Reference, Request, Stage, builtin,
    facts::{self, FactsError},
    names::Key,
    source::{RemoteFile, Resolved},
};
use crate::{narrate::chain, net::Source};

/// Asks a source for the first bytes of a model, once per run.
pub(super) async fn ask(stage: &Stage, key: &Key, step: &StageModel, resolved: &Resolved) {
    if stage.models.facts(key).is_some() {
        return;
    }
    let mut failure = None;
    for place in places(resolved) {
        match facts::of_remote(&stage.net, &place, &stage.cancel).await {
            Ok(Some(facts)) => return stage.models.learn(key, facts),
            Ok(None) => {}
            // Whatever comes next says so too.
            Err(error) if error.is_cancelled() => return,
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    if let Some(error) = failure {
        warn(stage, step, &error);
    }
}

/// A model by the places that it can be had at: what one of several has may be something else.
fn places(resolved: &Resolved) -> Vec<Resolved> {
    let [file] = &*resolved.files else {
        return vec![resolved.clone()];
    };
    let of = |source: &Source| Resolved {
        files: vec![RemoteFile {
            sources: vec![source.clone()],
            size_bytes: file.sure_size_bytes(),
            ..file.clone()
        }],
        ..resolved.clone()
    };
    file.sources.iter().map(of).collect()
}

fn warn(stage: &Stage, step: &StageModel, error: &FactsError) {
    let human = format!("what model this is cannot be told: {}", chain(error));
    stage
        .narrator
        .warn(ACTOR, "describe", &step.reference, human);
}

/// Adds to an artifact what is known of its model, unless the catalog has said it.
pub(super) fn add(stage: &Stage, request: &Request, step: &StageModel, artifact: &mut Artifact) {
    if artifact.model.is_some() {
        return;
    }
    artifact.model = match (&request.reference, place(stage, request, artifact)) {
        (Reference::Builtin(name), _) => of_builtin(name),
        // A file that cannot be read as a model is told by the engine that reads it.
        (_, Some(path)) => facts::of_path(&path).ok().flatten(),
        (_, None) => stage.models.facts(&Key::new(stage, request, step)),
    };
}

fn of_builtin(name: &str) -> Option<ModelFacts> {
    facts::of_bytes(builtin::find(name).ok()?.bytes).ok()
}

/// Where the model lies, if it is on this machine.
fn place(stage: &Stage, request: &Request, artifact: &Artifact) -> Option<PathBuf> {
    match (&artifact.path, &request.reference) {
        (Some(path), _) if artifact.state == ArtifactState::Obtained => {
            Some(Path::new(path).to_owned())
        }
        (_, Reference::File(path)) => Some(stage.base.join(path)),
        _ => None,
    }
}
