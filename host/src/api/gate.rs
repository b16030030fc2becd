//! What every request goes through before anything is done for it.

use axum::{Router, body::Body, extract::Request, http::Response, response::IntoResponse as _};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;

use super::{
    Limits, Peer, Token, access,
    answer::Refusal,
    call::Identity,
    correlation,
    handlers::{self, events},
    operations::router,
    server::State,
};
use crate::{narrate::Actor, pool::Caller};

/// Most characters of a request's method and path that are told.
const LONGEST_TOLD: usize = 200;

/// Lets requests through, or refuses them. Cheap to clone.
#[derive(Clone)]
pub(super) struct Gate {
    token: Token,
    limits: Limits,
    state: State,
    router: TowerToHyperService<Router>,
}

impl Gate {
    pub(super) fn new(state: &State, token: Token, limits: Limits) -> Self {
        let router = router()
            .fallback(handlers::nothing_here)
            .method_not_allowed_fallback(handlers::wrong_method);
        Self {
            token,
            limits,
            state: state.clone(),
            router: TowerToHyperService::new(router.with_state(state.clone())),
        }
    }

    /// Answers a request.
    pub(super) async fn pass(&self, peer: Peer, mut request: Request) -> Response<Body> {
        let caller = correlation::caller(request.headers());
        request.extensions_mut().insert(caller.clone());
        let mut answer = match self.admit(peer, &caller, request).await {
            Ok(request) => match self.router.call(request).await {
                Ok(mut answer) => {
                    let last = events::last_told(&self.state);
                    answer
                        .headers_mut()
                        .extend(last.map(|id| (events::LAST, id)));
                    answer
                }
                Err(never) => match never {},
            },
            Err(refusal) => refusal.into_response(),
        };
        if let Some(name) = correlation::named(&caller) {
            answer.headers_mut().insert(correlation::HEADER, name);
        }
        answer
    }

    /// Lets a request through that may be made, and tells of it where it changes something.
    async fn admit(
        &self,
        peer: Peer,
        caller: &Caller,
        request: Request,
    ) -> Result<Request, Refusal> {
        // What is neither reading nor known counts as a change: it is refused before it is looked up.
        let changes = !matches!(request.method().as_str(), "GET" | "HEAD");
        let asked = told(&format!("{} {}", request.method(), request.uri().path()));
        let narrator = self.state.manager.host().narrator.with(|context| {
            context.correlation_id.clone_from(&caller.correlation_id);
        });
        let identity = self.limits.check_head(&request).and_then(|()| {
            let called = request.uri().authority().map(|it| it.as_str());
            access::decide(peer, called, request.headers(), changes, &self.token)
        });
        let identity = identity.inspect_err(|refusal| {
            let human = format!("{asked} was refused with {}", refusal.status.as_u16());
            narrator.warn(Actor::PoolManager, "request-refused", &asked, human);
        })?;
        let mut request = self.limits.take_body(request).await?;
        if changes {
            let human = format!("{asked} by identity={identity}");
            narrator.say(Actor::PoolManager, "request", asked, human);
        }
        request.extensions_mut().insert(Identity(identity));
        Ok(request)
    }
}

/// As much of what was asked as is worth a line in a log.
fn told(asked: &str) -> String {
    match asked.char_indices().nth(LONGEST_TOLD) {
        Some((end, _)) => format!("{}…", &asked[..end]),
        None => asked.to_owned(),
    }
}
