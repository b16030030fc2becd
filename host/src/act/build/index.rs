//! The package index, for builds that may reach it.
//!
//! Commands see no configuration of the user who runs the host. They are told the index by its URL
//! without credentials, which stand in a file that only they can read and that is gone with the
//! build: pip and uv look there (netrc(5)), whatever they are told the index by.

use std::collections::BTreeMap;

use engine_provider_api::BuildStep;

use crate::{
    act::{Context, credentials},
    net::{self, Url},
};

const NAME: &str = "PIP_INDEX_URL";

/// Tells commands the index, where they may reach it; else nothing of it.
pub(super) fn tell(context: &Context, act: &BuildStep, env: &mut BTreeMap<String, String>) {
    let Some(index) = &context.package_index else {
        return;
    };
    // It may have been passed through, with its credentials.
    env.remove(NAME);
    if is_within_reach(index, act) {
        env.insert(NAME.to_owned(), net::shown(index));
    }
}

/// Text of the file with the credentials of the index, where it has some.
pub(super) fn netrc(context: &Context, act: &BuildStep) -> Option<String> {
    let index = context.package_index.as_ref()?;
    let has_login = !index.username().is_empty() || index.password().is_some();
    if !has_login || !is_within_reach(index, act) {
        return None;
    }
    let word = |text: &str| {
        let text = credentials::decoded(text)?;
        Some(format!(
            "\"{}\"",
            text.replace('\\', "\\\\").replace('"', "\\\"")
        ))
    };
    Some(format!(
        "machine {} login {} password {}\n",
        index.host_str()?,
        word(index.username())?,
        word(index.password().unwrap_or_default())?
    ))
}

fn is_within_reach(index: &Url, act: &BuildStep) -> bool {
    let host = index.host_str();
    act.network.iter().any(|allowed| host == Some(allowed))
}
