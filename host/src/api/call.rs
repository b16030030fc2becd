//! One request, as a handler sees it: what it is about, its query, and who asks.

use axum::{
    extract::{FromRequestParts, Path, Query},
    http::{HeaderMap, request::Parts},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{answer::Refusal, server::State};
use crate::pool::{Caller, PoolError, PoolManager, PoolStatus};

/// A request. What is wrong with its path or query has been refused before.
pub(super) struct Call<Q> {
    /// What handlers share.
    pub(super) state: State,
    /// Works on behalf of who asks.
    pub(super) manager: PoolManager,
    pub(super) query: Q,
    pub(super) headers: HeaderMap,
    /// Who asks, as logs name it.
    pub(super) identity: Identity,
    places: Places,
}

/// Who asks, as logs name it: `uid:1000`, `token:9f9f51`, `anonymous`.
#[derive(Debug, Clone)]
pub(super) struct Identity(pub(super) String);

/// What fills the places of a path.
#[derive(Debug, Default, Deserialize)]
struct Places {
    #[serde(default)]
    id: String,
    #[serde(default)]
    lease: String,
}

impl<Q> Call<Q> {
    /// The pool that the path names.
    pub(super) fn pool(&self) -> &str {
        &self.places.id
    }

    /// The lease that the path names.
    pub(super) fn lease(&self) -> &str {
        &self.places.lease
    }

    /// What is known of the pool that the path names.
    pub(super) fn status(&self) -> Result<PoolStatus, Refusal> {
        self.found(self.manager.status(self.pool()))
    }

    /// What the manager says about the pool that the path names.
    pub(super) fn found<T>(&self, answer: Result<T, PoolError>) -> Result<T, Refusal> {
        let secrets = self.manager.host().narrator.secrets();
        answer.map_err(|error| Refusal::of(Some(self.pool()), &error, secrets))
    }
}

impl<Q: DeserializeOwned> FromRequestParts<State> for Call<Q> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<Self, Refusal> {
        let places = Path::<Places>::from_request_parts(parts, state).await;
        let Path(places) = places.map_err(|error| Refusal::senseless(&error.body_text()))?;
        let query = Query::<Q>::try_from_uri(&parts.uri);
        let Query(query) = query.map_err(|error| Refusal::senseless(&error.body_text()))?;
        let caller = parts.extensions.get::<Caller>().cloned();
        let identity = parts.extensions.get::<Identity>().cloned();
        Ok(Self {
            manager: state.manager.on_behalf_of(caller.unwrap_or_default()),
            state: state.clone(),
            query,
            headers: parts.headers.clone(),
            identity: identity.unwrap_or_else(|| Identity("anonymous".to_owned())),
            places,
        })
    }
}
