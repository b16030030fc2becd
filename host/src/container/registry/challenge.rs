//! `WWW-Authenticate` (RFC 9110, 11.6.1): what a registry asks for when it refuses.

/// What a registry asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Challenge {
    /// User and password.
    Basic,
    /// A token, from somewhere else.
    Bearer {
        /// Where it is to be had.
        realm: String,
        /// For which service.
        service: Option<String>,
        /// To do what.
        scope: Option<String>,
    },
}

/// Reads the values of all such headers; a token is preferred where both are offered.
pub(super) fn parse<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Challenge> {
    let all: Vec<Challenge> = headers.into_iter().filter_map(parse_one).collect();
    let bearer = all
        .iter()
        .find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
    bearer.or(all.first()).cloned()
}

fn parse_one(text: &str) -> Option<Challenge> {
    let text = text.trim_start();
    let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
    if scheme.eq_ignore_ascii_case("basic") {
        return Some(Challenge::Basic);
    }
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let parameters = parameters(rest);
    let get = |name: &str| {
        let mut all = parameters.iter();
        all.find(|(key, _)| key.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.clone())
    };
    Some(Challenge::Bearer {
        realm: get("realm")?,
        service: get("service"),
        scope: get("scope"),
    })
}

/// `name="value",name=value`, with `\` before a character that stands for itself.
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut characters = text.chars().peekable();
    loop {
        while characters
            .next_if(|next| matches!(next, ' ' | '\t' | ','))
            .is_some()
        {}
        let mut name = String::new();
        while let Some(next) = characters.next_if(|next| !matches!(next, '=' | ',' | ' ')) {
            name.push(next);
        }
        if characters.next_if_eq(&'=').is_none() {
            if name.is_empty() && characters.peek().is_none() {
                return all;
            }
            // A word without a value, for example the next scheme: what follows it is read on.
            if characters.peek().is_none() {
                return all;
            }
            continue;
        }
        let mut value = String::new();
        if characters.next_if_eq(&'"').is_some() {
            while let Some(next) = characters.next() {
                match next {
                    '"' => break,
                    '\\' => value.extend(characters.next()),
                    other => value.push(other),
                }
            }
        } else {
            while let Some(next) = characters.next_if(|next| !matches!(next, ',' | ' ')) {
                value.push(next);
            }
        }
        all.push((name, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Option<Challenge> {
        Some(Challenge::Bearer {
            realm: realm.to_owned(),
            service: service.map(str::to_owned),
            scope: scope.map(str::to_owned),
        })
    }

    #[test]
    fn challenges_are_read_as_registries_write_them() {
        assert_eq!(
            parse([
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:library/busybox:pull,push""#
            ]),
            bearer(
                "https://auth.docker.io/token",
                Some("registry.docker.io"),
                Some("repository:library/busybox:pull,push")
            )
        );
        assert_eq!(
            parse([r#"bearer realm="https://a/\"t\"", service=x"#]),
            bearer("https://a/\"t\"", Some("x"), None)
        );
        assert_eq!(parse([r#"Basic realm="Registry""#]), Some(Challenge::Basic));
        let both = [r#"Basic realm="x""#, r#"Bearer realm="https://t""#];
        assert_eq!(parse(both), bearer("https://t", None, None));
        for nothing in [
            "",
            "Negotiate",
            "Bearer",
            "Bearer service=x",
            "Bearer realm",
        ] {
            assert_eq!(parse([nothing]), None, "{nothing}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_header_is_read_to_its_end(text in "[Bb]earer [a-z=\",\\\\ ]{0,40}|.{0,40}") {
            let _ = parse([text.as_str()]);
        }
    }
}
