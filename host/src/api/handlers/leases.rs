//! Leases of those who are not in this process.

use std::time::Duration;

use axum::http::StatusCode;

use super::Answer;
use crate::api::{
    answer::{Empty, Refusal, Reply},
    call::Call,
    documents::{LONGEST_LEASE_MS, LeaseFor, LeaseList, LeaseStatus, Nothing, SHORTEST_LEASE_MS},
};

/// How long a lease holds where nothing is said.
const USUAL_TIME: Duration = Duration::from_secs(60);

pub(in crate::api) async fn take(call: Call<LeaseFor>) -> Answer<LeaseStatus> {
    let time = time(&call)?.unwrap_or(USUAL_TIME);
    let lease = call.found(call.manager.lease(call.pool()))?;
    let status = call.state.leases.keep(lease, time, &call.identity.0);
    Ok(Reply::of(&status).with(StatusCode::CREATED))
}

pub(in crate::api) async fn list(call: Call<Nothing>) -> Answer<LeaseList> {
    call.status()?;
    Ok(Reply::of(&LeaseList {
        leases: call.state.leases.of(call.pool()),
    }))
}

pub(in crate::api) async fn renew(call: Call<LeaseFor>) -> Answer<LeaseStatus> {
    let time = time(&call)?;
    call.status()?;
    let leases = &call.state.leases;
    let renewed = leases.renew(call.pool(), call.lease(), time);
    Ok(Reply::of(&renewed.ok_or_else(|| unknown(&call))?))
}

pub(in crate::api) async fn release(call: Call<Nothing>) -> Answer<Empty> {
    call.status()?;
    match call.state.leases.release(call.pool(), call.lease()) {
        true => Ok(Reply::empty()),
        false => Err(unknown(&call)),
    }
}

fn time(call: &Call<LeaseFor>) -> Result<Option<Duration>, Refusal> {
    let Some(millis) = call.query.ttl_ms else {
        return Ok(None);
    };
    match (SHORTEST_LEASE_MS..=LONGEST_LEASE_MS).contains(&millis) {
        true => Ok(Some(Duration::from_millis(millis))),
        false => {
            let range = format!("{SHORTEST_LEASE_MS} to {LONGEST_LEASE_MS}");
            let message = format!("`ttl_ms` is {millis}; it can be {range}");
            Err(Refusal::senseless(&message).about(call.pool()))
        }
    }
}

fn unknown<Q>(call: &Call<Q>) -> Refusal {
    let message = format!(
        "pool {} has no such lease: it was given back, its time is over, or its engine is gone",
        call.pool()
    );
    Refusal::nothing(&message).about(call.pool())
}
