//! From an engine that can be started to one that answers.

use std::{collections::BTreeMap, path::Path};

use futures_util::future::BoxFuture;

use super::{Host, Obtained};
use crate::{
    container,
    engine::{self, Outcome, StartRequest},
    fault::Failure,
    process::ProcessIdentity,
};

impl Host {
    /// Starts one replica and waits until it is ready and handed off, or says that it runs already.
    pub async fn start(
        &self,
        obtained: &Obtained,
        replica: &str,
        handoff_directory: &Path,
    ) -> Result<Outcome, Failure> {
        let policy = &obtained.chosen.policy;
        let narrator = obtained.chosen.narrator.with(|context| {
            context.replica_id = Some(replica.to_owned());
            context.engine_version = Some(obtained.engine.engine_version.clone());
        });
        let environment: BTreeMap<String, String> = self
            .environment
            .pick(policy.engine_environment.value.iter().map(String::as_str));
        let outcome = engine::start(StartRequest {
            prepared: &obtained.engine,
            artifacts: &obtained.artifacts,
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
        .await?;
        Ok(outcome)
    }

    /// Device memory that these processes hold, by the driver's word, where it has one.
    fn driver_memory(self, tree: Vec<ProcessIdentity>) -> BoxFuture<'static, Option<u64>> {
        Box::pin(async move {
            let pids: Vec<i32> = tree.iter().map(|process| process.pid).collect();
            self.collector(None).device_memory(&pids).await
        })
    }
}
