//! Every operation there is, and what carries it out: routes, description and clients have this one
//! source.

use axum::{
    Router,
    handler::Handler,
    routing::{MethodFilter, MethodRouter, on},
};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;

use super::{
    answer::{Content, Description, Empty, EventStream, LogText, MetricsPage, Refusal, Reply},
    call::Call,
    documents::{
        CapabilityList, DaemonEnds, DaemonHealth, Draining, EventsOf, LeaseFor, LeaseList,
        LeaseStatus, LogPart, MetricsOf, Nothing, PoolEventsOf, PoolHealth, PoolList, Waiting,
    },
    handlers::{daemon, events, leases, pools},
    operation::{Done, Method, Operation},
    server::State,
};
use crate::pool::{ConfigChanges, PoolStatus};

/// Of what is waited for, or not.
const DONE_OR_BEGUN: &[Done] = &[(200, "Done."), (202, "Begun.")];

/// Of what goes on after the answer.
const BEGUN: &[Done] = &[(202, "Begun.")];

macro_rules! operations {
    ($($name:ident: ($query:ty) -> $answer:ty = $how:expr, by $handler:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`, as the description of the API has it.")]
            pub const $name: Operation<$query, $answer> = $how;
        )*

        /// All of them.
        pub(super) fn all() -> Vec<Entry> {
            let mut all = Vec::new();
            $(add(&mut all, &$name, $handler);)*
            all
        }
    };
}

operations! {
    HEALTH: (Nothing) -> DaemonHealth =
        Operation::get("/health", "health", "Whether the daemon lives."),
        by daemon::health;
    LIST_POOLS: (Nothing) -> PoolList =
        Operation::get("/v1/pools", "listPools", "All pools, with their replicas."),
        by pools::list;
    GET_POOL: (Nothing) -> PoolStatus =
        Operation::get("/v1/pools/{id}", "getPool", "One pool, with its replicas.")
            .also("/pools/{id}/status", "getPoolStatus"),
        by pools::get;
    POOL_HEALTH: (Nothing) -> PoolHealth =
        Operation::get(
            "/control/pools/{id}/health",
            "getPoolHealth",
            "Whether a pool lives and is ready, by the status as well.",
        )
        .answered(&[(200, "It is ready."), (503, "It is not ready.")]),
        by pools::health;
    UP_POOL: (Waiting) -> PoolStatus =
        Operation::post("/v1/pools/{id}/up", "upPool", "Brings a pool up.")
            .answered(DONE_OR_BEGUN)
            .also("/pools/{id}/preload", "preloadPool"),
        by pools::up;
    DOWN_POOL: (Waiting) -> PoolStatus =
        Operation::post(
            "/v1/pools/{id}/down",
            "downPool",
            "Stops a pool without waiting for leases.",
        )
        .answered(DONE_OR_BEGUN),
        by pools::down;
    DRAIN_POOL: (Draining) -> PoolStatus =
        Operation::post(
            "/v1/pools/{id}/drain",
            "drainPool",
            "Stops a pool once its leases have run out.",
        )
        .answered(DONE_OR_BEGUN),
        by pools::drain;
    RELOAD_POOL: (Waiting) -> PoolStatus =
        Operation::post(
            "/v1/pools/{id}/reload",
            "reloadPool",
            "Swaps a pool's engines for what the pool file has now.",
        )
        .answered(DONE_OR_BEGUN),
        by pools::reload;
    RESTART_POOL: (Waiting) -> PoolStatus =
        Operation::post(
            "/v1/pools/{id}/restart",
            "restartPool",
            "Stops and starts a pool's engines.",
        )
        .answered(DONE_OR_BEGUN),
        by pools::restart;
    TAKE_LEASE: (LeaseFor) -> LeaseStatus =
        Operation::post(
            "/v1/pools/{id}/leases",
            "takeLease",
            "Takes the right to send a pool one request; it expires unless it is renewed.",
        )
        .answered(&[(201, "Taken.")]),
        by leases::take;
    LIST_LEASES: (Nothing) -> LeaseList =
        Operation::get(
            "/v1/pools/{id}/leases",
            "listLeases",
            "The leases of a pool that were taken over this API.",
        ),
        by leases::list;
    RENEW_LEASE: (LeaseFor) -> LeaseStatus =
        Operation::post(
            "/v1/pools/{id}/leases/{lease}/renew",
            "renewLease",
            "Lets a lease hold for its time again, from now on.",
        ),
        by leases::renew;
    RELEASE_LEASE: (Nothing) -> Empty =
        Operation::delete(
            "/v1/pools/{id}/leases/{lease}",
            "releaseLease",
            "Gives a lease back.",
        )
        .answered(&[(204, "Given back.")]),
        by leases::release;
    POOL_LOGS: (LogPart) -> LogText =
        Operation::get(
            "/v1/pools/{id}/logs",
            "getPoolLogs",
            "The newest log of an engine.",
        ),
        by pools::logs;
    POOL_EVENTS: (PoolEventsOf) -> EventStream =
        Operation::get(
            "/v1/pools/{id}/events",
            "followPoolEvents",
            "What happens to one pool, as `followEvents`.",
        ),
        by events::of_pool;
    EVENTS: (EventsOf) -> EventStream =
        Operation::get(
            "/v1/events",
            "followEvents",
            "What happens, as server-sent events: first what happened lately, or what came after \
             `Last-Event-ID`. An event `missed` says that some were lost.",
        ),
        by events::of_all;
    CAPABILITIES: (Nothing) -> CapabilityList =
        Operation::get(
            "/v1/capabilities",
            "getCapabilities",
            "What the ready engines can do.",
        ),
        by daemon::capabilities;
    RELOAD_CONFIG: (Nothing) -> ConfigChanges =
        Operation::post(
            "/v1/reload",
            "reloadConfig",
            "Reads the pool file again and applies what differs.",
        ),
        by daemon::reload_config;
    SHUT_DOWN: (Nothing) -> DaemonEnds =
        Operation::post(
            "/v1/shutdown",
            "shutDown",
            "Stops every engine and ends the daemon.",
        )
        .answered(BEGUN),
        by daemon::shut_down;
    HAND_OVER: (Nothing) -> DaemonEnds =
        Operation::post(
            "/v1/handover",
            "handOver",
            "Ends the daemon; its engines run on, for the next one to adopt.",
        )
        .answered(BEGUN),
        by daemon::hand_over;
    METRICS: (MetricsOf) -> MetricsPage =
        Operation::get("/metrics", "getMetrics", "Metrics for Prometheus."),
        by daemon::metrics;
    DESCRIPTION: (Nothing) -> Description =
        Operation::get("/openapi.json", "getDescription", "This description."),
        by daemon::description;
}

/// An operation under one path, without its types.
pub(super) struct Entry {
    pub(super) method: Method,
    pub(super) path: &'static str,
    pub(super) id: &'static str,
    pub(super) summary: String,
    pub(super) done: &'static [Done],
    /// Media type of the answer.
    pub(super) kind: &'static str,
    pub(super) query: fn(&mut SchemaGenerator) -> Schema,
    pub(super) content: fn(&mut SchemaGenerator) -> Option<Schema>,
    route: MethodRouter<State>,
}

fn add<Q, A, F, W>(all: &mut Vec<Entry>, operation: &Operation<Q, A>, handler: F)
where
    Q: DeserializeOwned + JsonSchema + Send + 'static,
    A: Content + 'static,
    F: Fn(Call<Q>) -> W + Clone + Send + Sync + 'static,
    W: Future<Output = Result<Reply<A>, Refusal>> + Send + 'static,
{
    let entry = |path, id, summary| Entry {
        method: operation.method,
        path,
        id,
        summary,
        done: operation.done,
        kind: A::KIND,
        query: Q::json_schema,
        content: A::schema,
        route: route(operation.method, handler.clone()),
    };
    let own = operation.summary.to_owned();
    all.push(entry(operation.path, operation.id, own));
    if let Some((path, id)) = operation.alias {
        let same = format!("The same as `{}`.", operation.id);
        all.push(entry(path, id, same));
    }
}

fn route<T: 'static, H: Handler<T, State>>(method: Method, handler: H) -> MethodRouter<State> {
    let filter = match method {
        Method::Get => MethodFilter::GET,
        Method::Post => MethodFilter::POST,
        Method::Delete => MethodFilter::DELETE,
    };
    on(filter, handler)
}

/// The routes.
pub(super) fn router() -> Router<State> {
    all().into_iter().fold(Router::new(), |router, entry| {
        router.route(entry.path, entry.route)
    })
}
