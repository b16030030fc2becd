//! The daemon as a whole.

use axum::http::StatusCode;

use super::{Answer, engines};
use crate::{
    api::{
        answer::{Description, MetricsPage, Refusal, Reply},
        call::Call,
        documents::{Capabilities, CapabilityList, DaemonEnds, DaemonHealth, MetricsOf, Nothing},
        openapi,
    },
    pool::{ConfigChanges, Ending, PoolStatus, Want},
};

pub(in crate::api) async fn health(call: Call<Nothing>) -> Answer<DaemonHealth> {
    let pools = call.manager.list();
    let mut wanted = pools.iter().filter(|it| it.want == Want::Up);
    Ok(Reply::of(&DaemonHealth {
        live: true,
        ready: wanted.all(|pool| pool.health.ready),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }))
}

pub(in crate::api) async fn capabilities(call: Call<Nothing>) -> Answer<CapabilityList> {
    let pools = call.manager.list().into_iter().map(Capabilities::of);
    Ok(Reply::of(&CapabilityList {
        pools: pools.collect(),
    }))
}

impl Capabilities {
    fn of(pool: PoolStatus) -> Self {
        let mut replicas = pool.replicas.iter();
        let ready = replicas.find(|it| it.health.ready);
        let replica = ready.or(pool.replicas.first());
        Self {
            engine_version: replica.and_then(|it| it.engine_version.clone()),
            model: replica.and_then(|it| it.model.clone()),
            workloads: replica.map(|it| it.workloads.clone()).unwrap_or_default(),
            dialect: replica.and_then(|it| it.dialect.clone()),
            concurrency: pool.slots.total,
            health: pool.health,
            engine: pool.engine,
            pool_id: pool.pool_id,
        }
    }
}

/// A client that goes away stops nothing half-way.
pub(in crate::api) async fn reload_config(call: Call<Nothing>) -> Answer<ConfigChanges> {
    let secrets = call.manager.host().narrator.secrets().clone();
    let manager = call.manager;
    let task = tokio::spawn(async move { manager.reload_config().await });
    let changes = task.await.map_err(|_| Refusal::broke_off())?;
    let changes = changes.map_err(|error| Refusal::of(None, &error, &secrets))?;
    Ok(Reply::of(&changes))
}

pub(in crate::api) async fn shut_down(call: Call<Nothing>) -> Answer<DaemonEnds> {
    Ok(end(&call, Ending::Stop))
}

pub(in crate::api) async fn hand_over(call: Call<Nothing>) -> Answer<DaemonEnds> {
    Ok(end(&call, Ending::Keep))
}

fn end(call: &Call<Nothing>, ending: Ending) -> Reply<DaemonEnds> {
    call.state.told_to_end.send_replace(Some(ending));
    let ends = DaemonEnds {
        engines_run_on: ending == Ending::Keep,
    };
    Reply::of(&ends).with(StatusCode::ACCEPTED)
}

pub(in crate::api) async fn metrics(call: Call<MetricsOf>) -> Answer<MetricsPage> {
    let page = match call.query.engines {
        Some(true) => engines::page(&call.manager, &call.state.metrics).await,
        _ => call.state.metrics.encode(),
    };
    Ok(Reply::body(page))
}

pub(in crate::api) async fn description(_: Call<Nothing>) -> Answer<Description> {
    Ok(Reply::body(openapi::document().to_string()))
}
