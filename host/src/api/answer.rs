//! Answers: documents and texts of a kind, and errors that a client can act on.

use std::{marker::PhantomData, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, Response, StatusCode, header},
    response::IntoResponse,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use engine_provider_api::Hint;

use crate::{
    narrate::Secrets,
    pool::{Code, Evidence, LastError, PoolError},
};

/// An error as a client gets it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Error")]
pub struct ErrorBody {
    /// What to act on.
    pub code: Code,
    /// What went wrong, with its causes, in one sentence.
    pub message: String,
    /// Whether the same request may succeed later.
    pub retriable: bool,
    /// When to ask again, in milliseconds; also as `Retry-After`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// The pool it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_id: Option<String>,
    /// Where to look: places in files, logs, commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<Evidence>,
    /// What helps, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fixes: Vec<Hint>,
}

/// An error on its way out.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    body: Box<ErrorBody>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, code: Code, message: &str) -> Self {
        Self {
            status,
            body: Box::new(ErrorBody {
                code,
                message: message.to_owned(),
                retriable: false,
                retry_after_ms: None,
                pool_id: None,
                details: Vec::new(),
                fixes: Vec::new(),
            }),
        }
    }

    /// What was asked makes no sense.
    pub(super) fn senseless(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, Code::InvalidParams, message)
    }

    /// What was asked for is not there.
    pub(super) fn nothing(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, Code::InvalidParams, message)
    }

    /// A task of this program broke off.
    pub(super) fn broke_off() -> Self {
        let message = "the daemon's task ended early";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, message)
    }

    /// The same will do later.
    pub(super) fn later(status: StatusCode, code: Code, message: &str) -> Self {
        let mut refusal = Self::new(status, code, message);
        refusal.body.retriable = true;
        refusal.body.retry_after_ms = Some(1000);
        refusal
    }

    /// It is about this pool.
    pub(super) fn about(mut self, pool: &str) -> Self {
        self.body.pool_id = Some(pool.to_owned());
        self
    }

    /// A refusal of what a manager was asked.
    pub(super) fn of(pool: Option<&str>, error: &PoolError, secrets: &Secrets) -> Self {
        let LastError {
            message,
            details,
            fixes,
            ..
        } = LastError::of(error).masked(secrets);
        let after = error.retry_after();
        let status = match (error, error.code()) {
            (PoolError::NoSuchPool { .. }, _) => StatusCode::NOT_FOUND,
            (_, Code::InvalidParams) => StatusCode::BAD_REQUEST,
            (_, Code::PoolUnavailable | Code::PoolUnready) => StatusCode::SERVICE_UNAVAILABLE,
            (_, Code::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let millis = |after: Duration| u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
        Self {
            status,
            body: Box::new(ErrorBody {
                code: error.code(),
                message,
                retriable: after.is_some(),
                retry_after_ms: after.map(millis),
                pool_id: pool.map(str::to_owned),
                details,
                fixes,
            }),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response<Body> {
        let mut response = Reply::of(&*self.body).with(self.status).response;
        let headers = response.headers_mut();
        if let Some(millis) = self.body.retry_after_ms {
            headers.insert(header::RETRY_AFTER, millis.div_ceil(1000).max(1).into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        response
    }
}

/// Which kind of content an answer has.
pub(super) trait Content {
    /// Media type.
    const KIND: &'static str = "application/json";

    /// Its schema; `None` where there is no content.
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema>;
}

impl<T: JsonSchema + Serialize> Content for T {
    fn schema(generator: &mut SchemaGenerator) -> Option<Schema> {
        Some(generator.subschema_for::<T>())
    }
}

/// Kinds of content that are no documents of ours.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident: $kind:literal, $schema:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub enum $name {}

        impl Content for $name {
            const KIND: &'static str = $kind;

            fn schema(_: &mut SchemaGenerator) -> Option<Schema> {
                $schema
            }
        }
    )*};
}

kinds! {
    /// An engine's log.
    LogText: "text/plain; charset=utf-8", Some(json_schema!({"type": "string"}));
    /// Server-sent events.
    EventStream: "text/event-stream", Some(json_schema!({"type": "string"}));
    /// Metrics in the text format of Prometheus.
    MetricsPage: "text/plain; version=0.0.4; charset=utf-8", Some(json_schema!({"type": "string"}));
    /// A description of this API.
    Description: "application/json", Some(json_schema!({"type": "object"}));
    /// No content.
    Empty: "application/json", None;
}

/// An answer with this content.
pub(super) struct Reply<A> {
    response: Response<Body>,
    content: PhantomData<fn() -> A>,
}

impl<A: Content> Reply<A> {
    /// A body of this kind.
    pub(super) fn body(body: impl Into<Body>) -> Self {
        let mut response = Response::new(body.into());
        let kind = HeaderValue::from_static(A::KIND);
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        Self {
            response,
            content: PhantomData,
        }
    }

    /// With another status than 200.
    pub(super) fn with(mut self, status: StatusCode) -> Self {
        *self.response.status_mut() = status;
        self
    }
}

impl<A: Content + Serialize> Reply<A> {
    /// A document.
    pub(super) fn of(document: &A) -> Self {
        Self::body(serde_json::to_vec(document).expect("documents are plain data"))
    }
}

impl Reply<Empty> {
    /// Nothing but the status.
    pub(super) fn empty() -> Self {
        let mut response = Response::new(Body::empty());
        *response.status_mut() = StatusCode::NO_CONTENT;
        Self {
            response,
            content: PhantomData,
        }
    }
}

impl<A> IntoResponse for Reply<A> {
    fn into_response(self) -> Response<Body> {
        self.response
    }
}
