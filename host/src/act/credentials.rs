//! User and password of a git URL: taken out of it, and given when git asks.
//!
//! In an argument they could be seen by every user of the machine. A file that only the user who
//! runs git can read holds them for as long as git runs; git asks for them, for this host alone,
//! through a credential helper (gitcredentials(7)).

use std::{collections::BTreeMap, fs, io::Write as _, os::unix::fs::OpenOptionsExt as _};

use super::{
    Context,
    git::{Scheme, scheme_of},
};
use crate::{
    net::Url,
    process::quote,
    store::{StoreError, Temporary},
};

/// Shortest user name without a password that is taken for a token, which is kept secret.
const TOKEN_LENGTH: usize = 16;

/// A user and a password.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Login {
    /// For example `https://host:8443`.
    place: String,
    user: String,
    password: String,
}

/// Splits a URL into what may be shown and its credentials.
pub(super) fn take(text: &str) -> Result<(String, Option<Login>), &'static str> {
    let web = matches!(scheme_of(text), Some(Scheme::Https | Scheme::Loopback));
    let Ok(mut url) = Url::parse(text) else {
        return Ok((text.to_owned(), None));
    };
    if !web && url.password().is_some() {
        return Err("has a password, which ssh does not take: use a key");
    }
    if !web || (url.username().is_empty() && url.password().is_none()) {
        return Ok((text.to_owned(), None));
    }
    const UNREADABLE: &str = "has credentials that cannot be read";
    let user = decoded(url.username()).ok_or(UNREADABLE)?;
    let password = decoded(url.password().unwrap_or_default()).ok_or(UNREADABLE)?;
    let cleared = url.set_username("").and_then(|()| url.set_password(None));
    cleared.map_err(|()| UNREADABLE)?;
    let login = Login {
        place: url.origin().ascii_serialization(),
        user,
        password,
    };
    Ok((url.into(), Some(login)))
}

impl Login {
    /// Writes it where only the user who runs git can read it, and says in git's environment where
    /// that is. It is gone once what this gives is dropped.
    pub(super) fn lend(
        &self,
        context: &Context,
        env: &mut BTreeMap<String, String>,
    ) -> Result<Temporary, StoreError> {
        let secrets = context.narrator.secrets();
        if !self.password.is_empty() {
            secrets.register(&self.password);
        } else if self.user.len() >= TOKEN_LENGTH {
            secrets.register(&self.user);
        }
        let directory = context.store.temporary("credentials")?;
        let path = directory.path().join("login");
        let failed = |source| StoreError::io("write", &path, source);
        let mut file = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .map_err(failed)?;
        write!(file, "username={}\npassword={}\n", self.user, self.password).map_err(failed)?;
        if let Some(owner) = context.run_as() {
            std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid)).map_err(failed)?;
        }
        let helper = format!(
            "!f() {{ test \"$1\" = get && cat {}; }}; f",
            quote(&path.to_string_lossy())
        );
        let settings = [
            ("GIT_CONFIG_COUNT", "1".to_owned()),
            (
                "GIT_CONFIG_KEY_0",
                format!("credential.{}.helper", self.place),
            ),
            ("GIT_CONFIG_VALUE_0", helper),
        ];
        env.extend(settings.map(|(name, value)| (name.to_owned(), value)));
        Ok(directory)
    }
}

/// A part of a URL without its percent signs; `None` where it is no text or has control characters,
/// which would be lines of their own to git.
pub(super) fn decoded(part: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first == b'%' {
            let digits = std::str::from_utf8(after.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &after[2..];
        } else {
            bytes.push(first);
            rest = after;
        }
    }
    let text = String::from_utf8(bytes).ok()?;
    (!text.chars().any(char::is_control)).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_taken_out_of_urls_and_belong_to_their_host() {
        let (url, login) = take("https://ada:p%40ss@host:8443/x.git").unwrap();
        assert_eq!(url, "https://host:8443/x.git");
        let login = login.unwrap();
        assert_eq!(login.place, "https://host:8443");
        assert_eq!(
            (login.user.as_str(), login.password.as_str()),
            ("ada", "p@ss")
        );
        let (url, login) = take("https://a_token_without_a_user@host/x").unwrap();
        assert_eq!(url, "https://host/x");
        assert_eq!(login.unwrap().password, "");
        for plain in [
            "https://host/x",
            "ssh://git@host/x",
            "git@host:x",
            "/srv/x",
            "file:///srv/x",
        ] {
            assert_eq!(take(plain), Ok((plain.to_owned(), None)));
        }
        assert!(take("ssh://git:pw@host/x").is_err());
        assert!(take("https://a:b%0Ahost=evil@host/x").is_err());
    }
}
