//! From an engine that can be started to one that answers.

use std::{collections::BTreeMap, path::Path};

use engine_provider_api::PreparedEngine;
use futures_util::future::BoxFuture;

use super::{Host, Obtained};
use crate::{
    act::Artifacts,
    container,
    engine::{self, EngineError, Outcome, StartRequest},
    fault::Failure,
    process::ProcessIdentity,
};

impl Host {
    /// Starts one replica and waits until it is ready and handed off, or says that it runs already.
    ///
    /// No runtime is asked beforehand whether it still has the image, which would cost every start:
    /// where it turns out not to, the image is obtained again and the engine started once more.
    pub async fn start(
        &self,
        obtained: &Obtained,
        replica: &str,
        handoff_directory: &Path,
    ) -> Result<Outcome, Failure> {
        let (engine, artifacts) = (&obtained.engine, &obtained.artifacts);
        let started = self.start_once(obtained, engine, artifacts, replica, handoff_directory);
        match started.await {
            Err(EngineError::ImageGone { image, .. }) => {
                let (engine, artifacts) = self.obtain_again(obtained, &image).await?;
                let again =
                    self.start_once(obtained, &engine, &artifacts, replica, handoff_directory);
                Ok(again.await?)
            }
            outcome => Ok(outcome?),
        }
    }

    async fn start_once(
        &self,
        obtained: &Obtained,
        prepared: &PreparedEngine,
        artifacts: &Artifacts,
        replica: &str,
        handoff_directory: &Path,
    ) -> Result<Outcome, EngineError> {
        let policy = &obtained.chosen.policy;
        let narrator = obtained.chosen.narrator.with(|context| {
            context.replica_id = Some(replica.to_owned());
            context.engine_version = Some(prepared.engine_version.clone());
        });
        let environment: BTreeMap<String, String> = self
            .environment
            .pick(policy.engine_environment.value.iter().map(String::as_str));
        engine::start(StartRequest {
            prepared,
            artifacts,
            facts: &obtained.facts,
            pool: &obtained.chosen.wanted.pool,
            replica,
            home: &self.home,
            handoff_directory,
            identity: policy.engine_identity(),
            environment: &environment,
            runtime_environment: &container::environment(&self.environment),
            secrets: &|name| self.environment.get(name).map(str::to_owned),
            address: None,
            driver_memory: Some(&|tree| self.clone().driver_memory(tree)),
            keeper: &self.keeper,
            narrator: &narrator,
            cancel: &self.cancel,
        })
        .await
    }

    /// Device memory that these processes hold, by the driver's word, where it has one.
    fn driver_memory(self, tree: Vec<ProcessIdentity>) -> BoxFuture<'static, Option<u64>> {
        Box::pin(async move {
            let pids: Vec<i32> = tree.iter().map(|process| process.pid).collect();
            self.collector(None).device_memory(&pids).await
        })
    }
}
