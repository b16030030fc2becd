//! What each operation does.

pub(super) mod daemon;
mod engines;
pub(super) mod events;
pub(super) mod leases;
pub(super) mod pools;

use axum::http::StatusCode;

use super::answer::{Refusal, Reply};
use crate::pool::Code;

type Answer<A> = Result<Reply<A>, Refusal>;

/// What there is no operation for.
pub(super) async fn nothing_here() -> Refusal {
    Refusal::nothing("there is no such operation; `GET /openapi.json` lists them")
}

/// What an operation cannot be asked with.
pub(super) async fn wrong_method() -> Refusal {
    let message = "this operation has another method; `GET /openapi.json` lists them";
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, Code::InvalidParams, message)
}
