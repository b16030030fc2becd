//! Who asks, and whether they may.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, StatusCode, header};

use super::{Token, answer::Refusal};
use crate::pool::Code;

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Over the Unix socket: the same user, or root.
    Local {
        /// User id.
        uid: u32,
    },
    /// Over TCP.
    Tcp {
        /// Where our side is.
        here: SocketAddr,
    },
}

/// Decides about a request; gives who asked, for logs. `called` is what its target itself says about
/// where it goes, as requests through a proxy do.
pub(super) fn decide(
    peer: Peer,
    called: Option<&str>,
    headers: &HeaderMap,
    changes: bool,
    token: &Token,
) -> Result<String, Refusal> {
    let here = match peer {
        Peer::Local { uid } => return Ok(format!("uid:{uid}")),
        Peer::Tcp { here } => here,
    };
    check_host(called, headers, here)?;
    check_origin(headers, here)?;
    match bearer(headers) {
        Some(offered) if token.is(offered) => Ok(token.identity()),
        Some(_) => Err(unauthorized("the token is not this daemon's")),
        None if changes => Err(unauthorized(
            "this needs the token: `Authorization: Bearer …`",
        )),
        None if !here.ip().to_canonical().is_loopback() => {
            Err(unauthorized("beyond loopback everything needs the token"))
        }
        None => Ok("anonymous".to_owned()),
    }
}

/// Over loopback a name must be one of this machine's own: a page of a site whose name was made to
/// point here sends the site's name.
fn check_host(called: Option<&str>, headers: &HeaderMap, here: SocketAddr) -> Result<(), Refusal> {
    let mut named = headers.get_all(header::HOST).iter();
    let host = named.next().and_then(|host| host.to_str().ok());
    let host = host.unwrap_or_default();
    if named.next().is_some() {
        return Err(Refusal::senseless("a request has one `Host` header"));
    }
    let other = [Some(host), called].into_iter().flatten();
    match other.into_iter().find(|name| !is_here(name, here)) {
        None => Ok(()),
        Some(name) => Err(forbidden(&format!(
            "`{name}` is not how this daemon is called"
        ))),
    }
}

/// A browser says which site asks; only our own may.
fn check_origin(headers: &HeaderMap, here: SocketAddr) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().unwrap_or_default();
    let site = origin.strip_prefix("http://").unwrap_or_default();
    match is_here(site, here) {
        true => Ok(()),
        false => Err(forbidden("pages of other sites may not ask this daemon")),
    }
}

/// Whether `HOST[:PORT]` names this end of the connection.
fn is_here(authority: &str, here: SocketAddr) -> bool {
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()),
        _ => (authority, Some(80)),
    };
    if port != Some(here.port()) {
        return false;
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<IpAddr>().ok();
    match here.ip().to_canonical().is_loopback() {
        true => {
            host.eq_ignore_ascii_case("localhost")
                || address.is_some_and(|it| it.to_canonical().is_loopback())
        }
        // Every name may lead here; the token decides.
        false => !host.is_empty(),
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?;
    let text = value.to_str().unwrap_or_default();
    let (scheme, token) = text.split_once(' ').unwrap_or((text, ""));
    Some(match scheme.eq_ignore_ascii_case("bearer") {
        true => token.trim(),
        // Offered something else: never as good as nothing.
        false => "",
    })
}

fn unauthorized(message: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, Code::InvalidParams, message)
}

fn forbidden(message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, Code::InvalidParams, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: &str = "0123456789abcdef";

    fn asked(
        here: &str,
        changes: bool,
        headers: &[(header::HeaderName, &str)],
    ) -> Result<String, u16> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name.clone(), value.parse().unwrap());
        }
        let peer = Peer::Tcp {
            here: here.parse().unwrap(),
        };
        let token = Token::new(TOKEN).unwrap();
        decide(peer, None, &map, changes, &token).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn reading_on_loopback_is_open_and_changing_needs_the_token() {
        let here = "127.0.0.1:9200";
        let host = (header::HOST, "localhost:9200");
        let bearer = format!("Bearer {TOKEN}");
        let good = (header::AUTHORIZATION, bearer.as_str());
        let bad = (header::AUTHORIZATION, "Bearer 0123456789abcdeg");
        let basic = (header::AUTHORIZATION, "Basic MDEyMw==");
        assert_eq!(
            asked(here, false, std::slice::from_ref(&host)),
            Ok("anonymous".to_owned())
        );
        assert_eq!(asked(here, true, std::slice::from_ref(&host)), Err(401));
        assert_eq!(
            asked(here, true, &[host.clone(), good]),
            Ok("token:9f9f51".to_owned())
        );
        assert_eq!(asked(here, true, &[host.clone(), bad.clone()]), Err(401));
        assert_eq!(asked(here, false, &[host.clone(), bad]), Err(401));
        assert_eq!(asked(here, false, &[host, basic]), Err(401));
    }

    #[test]
    fn a_name_that_was_made_to_point_here_and_other_sites_are_refused() {
        let here = "127.0.0.1:9200";
        for host in [
            "evil.example:9200",
            "127.0.0.1",
            "127.0.0.1:80",
            "",
            "localhost.evil:9200",
        ] {
            assert_eq!(
                asked(here, false, &[(header::HOST, host)]),
                Err(403),
                "{host}"
            );
        }
        assert_eq!(asked(here, false, &[]), Err(403));
        for host in ["127.0.0.1:9200", "LOCALHOST:9200", "[::1]:9200"] {
            assert!(
                asked(here, false, &[(header::HOST, host)]).is_ok(),
                "{host}"
            );
        }
        let host = (header::HOST, "127.0.0.1:9200");
        let mut map = HeaderMap::new();
        map.insert(header::HOST, "127.0.0.1:9200".parse().unwrap());
        let (peer, token) = (
            Peer::Tcp {
                here: here.parse().unwrap(),
            },
            Token::new(TOKEN).unwrap(),
        );
        let called = |name| decide(peer, Some(name), &map, false, &token).is_ok();
        assert!(called("localhost:9200") && !called("evil.example:9200"));
        map.append(header::HOST, "127.0.0.1:9200".parse().unwrap());
        assert!(decide(peer, None, &map, false, &token).is_err());
        for (origin, expected) in [
            ("http://127.0.0.1:9200", true),
            ("http://evil.example", false),
            ("https://127.0.0.1:9200", false),
            ("null", false),
        ] {
            let headers = [host.clone(), (header::ORIGIN, origin)];
            assert_eq!(asked(here, false, &headers).is_ok(), expected, "{origin}");
        }
    }

    #[test]
    fn beyond_loopback_everything_needs_the_token() {
        let here = "192.0.2.7:9200";
        let host = (header::HOST, "gpu-1.example:9200");
        let bearer = format!("bearer {TOKEN}");
        assert_eq!(asked(here, false, std::slice::from_ref(&host)), Err(401));
        assert!(asked(here, false, &[host, (header::AUTHORIZATION, &bearer)]).is_ok());
    }

    #[test]
    fn the_socket_s_users_may_do_everything() {
        let token = Token::new(TOKEN).unwrap();
        let local = Peer::Local { uid: 7 };
        let decided = decide(local, None, &HeaderMap::new(), true, &token);
        assert_eq!(decided.ok().as_deref(), Some("uid:7"));
    }
}
