//! One pool, and the list of them.

use std::time::Duration;

use axum::{body::Body, http::StatusCode};
use futures_util::StreamExt as _;

use super::Answer;
use crate::{
    api::{
        answer::{LogText, Refusal, Reply},
        call::Call,
        documents::{Draining, LogPart, Nothing, PoolHealth, PoolList, Waiting},
        follow,
    },
    engine,
    pool::{Code, PoolError, PoolStatus},
};

/// Lines of a log where nothing is said.
const USUAL_LINES: u64 = 100;

/// Most lines of a log that are given before following.
const MOST_LINES: u64 = 100_000;

pub(in crate::api) async fn list(call: Call<Nothing>) -> Answer<PoolList> {
    Ok(Reply::of(&PoolList {
        pools: call.manager.list(),
    }))
}

pub(in crate::api) async fn get(call: Call<Nothing>) -> Answer<PoolStatus> {
    Ok(Reply::of(&call.status()?))
}

/// Answers 200 where it is ready and 503 where not, so that a load balancer needs no JSON.
pub(in crate::api) async fn health(call: Call<Nothing>) -> Answer<PoolHealth> {
    let status = call.status()?;
    let code = match status.health.ready {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    Ok(Reply::of(&PoolHealth::of(status)).with(code))
}

impl PoolHealth {
    fn of(pool: PoolStatus) -> Self {
        let mut replicas = pool.replicas.iter();
        let of_replica = replicas.find_map(|it| it.last_error.as_ref());
        let error = pool.last_error.as_ref().or(of_replica);
        let mut replicas = pool.replicas.iter();
        Self {
            live: pool.health.live,
            ready: pool.health.ready,
            last_error: error.map(|it| it.message.clone()),
            engine_version: replicas.find_map(|it| it.engine_version.clone()),
            pool_id: pool.pool_id,
        }
    }
}

pub(in crate::api) async fn up(call: Call<Waiting>) -> Answer<PoolStatus> {
    let (manager, pool) = (call.manager.clone(), call.pool().to_owned());
    let task = async move { manager.up(&pool).await };
    carry_out(&call, call.query.wait, task).await
}

pub(in crate::api) async fn down(call: Call<Waiting>) -> Answer<PoolStatus> {
    let (manager, pool) = (call.manager.clone(), call.pool().to_owned());
    let task = async move { manager.down(&pool).await };
    carry_out(&call, call.query.wait, task).await
}

pub(in crate::api) async fn drain(call: Call<Draining>) -> Answer<PoolStatus> {
    let (manager, pool) = (call.manager.clone(), call.pool().to_owned());
    let deadline = call.query.deadline_ms.map(Duration::from_millis);
    let task = async move { manager.drain(&pool, deadline).await };
    carry_out(&call, call.query.wait, task).await
}

pub(in crate::api) async fn reload(call: Call<Waiting>) -> Answer<PoolStatus> {
    let (manager, pool) = (call.manager.clone(), call.pool().to_owned());
    let task = async move { manager.reload(&pool).await };
    carry_out(&call, call.query.wait, task).await
}

pub(in crate::api) async fn restart(call: Call<Waiting>) -> Answer<PoolStatus> {
    let (manager, pool) = (call.manager.clone(), call.pool().to_owned());
    let task = async move { manager.restart(&pool).await };
    carry_out(&call, call.query.wait, task).await
}

/// Does it, or begins it where the client does not wait. A client that goes away stops nothing.
async fn carry_out<Q>(
    call: &Call<Q>,
    wait: Option<bool>,
    task: impl Future<Output = Result<PoolStatus, PoolError>> + Send + 'static,
) -> Answer<PoolStatus> {
    let before = call.status()?;
    let task = tokio::spawn(task);
    if wait == Some(false) {
        return Ok(Reply::of(&before).with(StatusCode::ACCEPTED));
    }
    let done = task.await.map_err(|_| Refusal::broke_off())?;
    Ok(Reply::of(&call.found(done)?))
}

pub(in crate::api) async fn logs(call: Call<LogPart>) -> Answer<LogText> {
    let replica = replica(&call)?;
    let host = call.manager.host();
    let Some(path) = engine::log_path(&host.home, call.pool(), &replica) else {
        let message = format!("replica {replica} of pool {} has no log yet", call.pool());
        let refusal = Refusal::later(StatusCode::SERVICE_UNAVAILABLE, Code::PoolUnready, &message);
        return Err(refusal.about(call.pool()));
    };
    let lines = call.query.lines.unwrap_or(USUAL_LINES).min(MOST_LINES);
    let wanted = follow::Wanted {
        home: host.home.clone(),
        path,
        lines: usize::try_from(lines).expect("it is at most a hundred thousand"),
        follow: call.query.follow.unwrap_or(false),
    };
    let log = follow::log(wanted, host.narrator.secrets());
    let end = call.state.end.clone();
    let log = log.take_until(async move { end.cancelled().await });
    Ok(Reply::body(Body::from_stream(log)))
}

/// The replica that is asked for, or the first one.
fn replica(call: &Call<LogPart>) -> Result<String, Refusal> {
    let status = call.status()?;
    let mut names = status.replicas.into_iter().map(|it| it.replica_id);
    let Some(wanted) = &call.query.replica else {
        return Ok(names.next().unwrap_or_else(|| "r0".to_owned()));
    };
    names.find(|name| name == wanted).ok_or_else(|| {
        let message = format!("pool {} has no replica `{wanted}`", call.pool());
        Refusal::nothing(&message).about(call.pool())
    })
}
