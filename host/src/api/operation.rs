//! What an operation is: how it is asked for and what it answers, in types.
//!
//! Router, description and clients all go by the same value, so that none of them can differ.

use std::marker::PhantomData;

use serde::Serialize;

/// How an operation is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Post,
    Delete,
}

impl Method {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Delete => "DELETE",
        }
    }
}

/// A way in which an operation is answered where it is done: status, and what it means.
pub(super) type Done = (u16, &'static str);

/// An operation that is asked with the query `Q` and answers `A`.
pub struct Operation<Q, A> {
    pub(super) method: Method,
    /// Its path; `{…}` are places that are filled in.
    pub(super) path: &'static str,
    /// Stable name for generated clients.
    pub(super) id: &'static str,
    pub(super) summary: &'static str,
    /// The same under another path, with a name of its own.
    pub(super) alias: Option<(&'static str, &'static str)>,
    pub(super) done: &'static [Done],
    types: PhantomData<fn(Q) -> A>,
}

impl<Q, A> Operation<Q, A> {
    const fn new(
        method: Method,
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self {
            method,
            path,
            id,
            summary,
            alias: None,
            done: &[(200, "Done.")],
            types: PhantomData,
        }
    }

    /// One that changes nothing.
    pub(super) const fn get(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Method::Get, path, id, summary)
    }

    /// One that changes something.
    pub(super) const fn post(path: &'static str, id: &'static str, summary: &'static str) -> Self {
        Self::new(Method::Post, path, id, summary)
    }

    /// One that takes something away.
    pub(super) const fn delete(
        path: &'static str,
        id: &'static str,
        summary: &'static str,
    ) -> Self {
        Self::new(Method::Delete, path, id, summary)
    }

    /// It is answered in these ways.
    pub(super) const fn answered(mut self, done: &'static [Done]) -> Self {
        self.done = done;
        self
    }

    /// It has this path as well.
    pub(super) const fn also(mut self, path: &'static str, id: &'static str) -> Self {
        self.alias = Some((path, id));
        self
    }

    /// Asks for it: the path's places are filled in their order.
    #[must_use]
    pub fn of(&self, places: &[&str]) -> Question<Q, A> {
        let mut places = places.iter();
        let parts = self
            .path
            .split('/')
            .map(|part| match part.starts_with('{') {
                true => encoded(places.next().copied().unwrap_or_default()),
                false => part.to_owned(),
            });
        Question {
            method: self.method.as_str(),
            target: parts.collect::<Vec<_>>().join("/"),
            types: PhantomData,
        }
    }
}

/// An operation, asked for.
pub struct Question<Q, A> {
    pub(super) method: &'static str,
    /// Path and query.
    pub(super) target: String,
    types: PhantomData<fn(Q) -> A>,
}

impl<Q: Serialize, A> Question<Q, A> {
    /// With this query.
    #[must_use]
    pub fn with(mut self, query: &Q) -> Self {
        let document = serde_json::to_value(query).expect("queries are plain data");
        let mut pairs = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in document.as_object().into_iter().flatten() {
            match value {
                serde_json::Value::Null => continue,
                serde_json::Value::String(text) => pairs.append_pair(name, text),
                other => pairs.append_pair(name, &other.to_string()),
            };
        }
        let query = pairs.finish();
        if !query.is_empty() {
            self.target = format!("{}?{query}", self.target);
        }
        self
    }
}

/// A part of a path, whatever is in it (RFC 3986, unreserved characters stay).
fn encoded(part: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let each = part.bytes().map(|byte| match plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::{super::documents::Draining, *};

    const DRAIN: Operation<Draining, Value> = Operation::post("/v1/pools/{id}/drain", "x", "X.");

    #[test]
    fn a_client_s_request_has_its_places_and_its_query_filled_in() {
        let plain = DRAIN.of(&["chat"]);
        assert_eq!(
            (plain.method, &*plain.target),
            ("POST", "/v1/pools/chat/drain")
        );
        let query = Draining {
            wait: Some(false),
            deadline_ms: Some(7),
        };
        let asked = DRAIN.of(&["a/b ?"]).with(&query);
        let expected = "/v1/pools/a%2Fb%20%3F/drain?deadline_ms=7&wait=false";
        assert_eq!(asked.target, expected);
        let nothing = DRAIN.of(&["chat"]).with(&Draining::default());
        assert_eq!(nothing.target, plain.target);
    }
}
