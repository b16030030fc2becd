//! The operator's token, from where the hub's own tools keep it.

use std::{fmt, path::PathBuf};

use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};

use super::error::HubError;
use crate::{config::environment::Environment, narrate::Secrets};

/// Longest token accepted: more is no token but another file.
const LIMIT_BYTES: usize = 4096;

/// A token, which is never shown.
#[derive(Clone)]
pub(super) struct Token {
    header: HeaderValue,
    /// Where it was found: the name of a variable or the path of a file.
    pub(super) origin: String,
}

impl fmt::Debug for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Token({})", self.origin)
    }
}

impl Token {
    /// The token in force: `HF_TOKEN`, `HUGGING_FACE_HUB_TOKEN`, then the file that `hf auth login`
    /// writes. From here on it is a secret.
    pub(super) fn find(
        environment: &Environment,
        secrets: &Secrets,
    ) -> Result<Option<Self>, HubError> {
        if super::is_set(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN") {
            return Ok(None);
        }
        let variables = ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"];
        let variable = variables
            .into_iter()
            .find_map(|name| Some((environment.get(name)?.to_owned(), name.to_owned())));
        let found = variable.or_else(|| {
            let path = file(environment)?;
            // No file, or not this user's to read: nobody is logged in.
            let text = std::fs::read_to_string(&path).ok()?;
            Some((text, path.to_string_lossy().into_owned()))
        });
        match found {
            Some((text, origin)) => Self::new(&text, origin, secrets),
            None => Ok(None),
        }
    }

    fn new(text: &str, origin: String, secrets: &Secrets) -> Result<Option<Self>, HubError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(None);
        }
        let plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain || text.len() > LIMIT_BYTES {
            return Err(HubError::BadToken { origin });
        }
        secrets.register(text);
        let header = HeaderValue::try_from(format!("Bearer {text}"));
        let mut header = header.expect("visible ASCII is valid in a header");
        header.set_sensitive(true);
        Ok(Some(Self { header, origin }))
    }

    /// The headers that carry it; none without one.
    pub(super) fn headers(token: Option<&Self>) -> HeaderMap {
        let header = token.map(|token| (AUTHORIZATION, token.header.clone()));
        header.into_iter().collect()
    }
}

/// Where `hf auth login` leaves the token.
fn file(environment: &Environment) -> Option<PathBuf> {
    let home = || Some(super::home(environment)?.join("token"));
    environment.path("HF_TOKEN_PATH").or_else(home)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(pairs: &[(&str, &str)]) -> Option<String> {
        let environment = Environment::from_pairs(pairs.iter().copied());
        let token = Token::find(&environment, &Secrets::default()).unwrap();
        token.map(|token| token.origin)
    }

    #[test]
    fn it_is_found_where_the_hubs_own_tools_find_it() {
        let home = tempfile::tempdir().unwrap();
        let path = |name: &str| {
            let path = home.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "hf_abc\n").unwrap();
            path.to_str().unwrap().to_owned()
        };
        let of_login = path(".cache/huggingface/token");
        let of_xdg = path("xdg/huggingface/token");
        let of_home = path("hf/token");
        let named = path("named");
        let text = home.path().to_str().unwrap();
        let at = |name: &str| format!("{text}/{name}");
        let mut pairs = vec![("HOME", text)];
        assert_eq!(origin(&pairs), Some(of_login));
        let xdg = at("xdg");
        pairs.push(("XDG_CACHE_HOME", &xdg));
        assert_eq!(origin(&pairs), Some(of_xdg));
        let hf = at("hf");
        pairs.push(("HF_HOME", &hf));
        assert_eq!(origin(&pairs), Some(of_home));
        pairs.push(("HF_TOKEN_PATH", &named));
        assert_eq!(origin(&pairs), Some(named.clone()));
        pairs.push(("HUGGING_FACE_HUB_TOKEN", "hf_x"));
        assert_eq!(origin(&pairs).unwrap(), "HUGGING_FACE_HUB_TOKEN");
        pairs.push(("HF_TOKEN", "hf_y"));
        assert_eq!(origin(&pairs).unwrap(), "HF_TOKEN");
        pairs.push(("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1"));
        assert_eq!(origin(&pairs), None);
        assert_eq!(origin(&[("HF_TOKEN", " \n")]), None);
    }

    #[test]
    fn it_is_a_secret_and_what_is_none_is_refused_without_being_shown() {
        let secrets = Secrets::default();
        let environment = Environment::from_pairs([("HF_TOKEN", "hf_secretsecret")]);
        let token = Token::find(&environment, &secrets).unwrap().unwrap();
        assert!(!format!("{token:?}").contains("hf_secret"));
        assert!(
            !secrets
                .mask("x hf_secretsecret y")
                .contains("hf_secretsecret")
        );
        let environment = Environment::from_pairs([("HF_TOKEN", "hf_a b")]);
        let error = Token::find(&environment, &secrets).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hf_a"));
    }
}
