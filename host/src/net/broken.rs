//! Why a connection failed, in the words of the layer that knows.

use std::{error::Error, fmt};

/// What layers say that only pass on what another one says.
const PASSED_ON: [&str; 8] = [
    "error sending request",
    "client error (Connect)",
    "client error (SendRequest)",
    "dns error",
    "error resolving DNS",
    "tcp connect error",
    "request or response body error",
    "error reading a body from connection",
];

/// How the client's word begins where a proxy opens no connection to the server, and how it goes on where that
/// is for want of a password, or for any other answer.
const TUNNEL: &str = "tunnel error: ";
const UNAUTHORIZED: &str = "proxy authorization required";
const UNSUCCESSFUL: &str = "unsuccessful";

/// Why there was no connection, or why it broke; without the URL, which may hold secrets.
#[derive(Debug)]
pub struct Broken {
    reason: String,
    /// Whether it would be no different the next time: the request itself cannot be sent to anybody, or is
    /// refused on its way.
    pub(super) is_final: bool,
}

impl Broken {
    pub(super) fn of(error: reqwest::Error) -> Self {
        let error = error.without_url();
        let mut said = Vec::new();
        let mut next: Option<&dyn Error> = Some(&error);
        while let Some(error) = next {
            said.push(error.to_string());
            next = error.source();
        }
        Self {
            reason: brief(&said),
            is_final: error.is_builder(),
        }
    }

    /// The same with the proxy that it was, where one was asked for a way to the server and gave none.
    /// `proxy`: its URL and who named it, in words without a password.
    pub(super) fn with_proxy(self, proxy: &str) -> Self {
        match self.reason.strip_prefix(TUNNEL) {
            None => self,
            Some(UNAUTHORIZED) => Self {
                reason: format!("{proxy} wants another user or password"),
                is_final: true,
            },
            // Some say so in another way, and the client does not tell which.
            Some(UNSUCCESSFUL) => Self {
                reason: format!(
                    "{proxy} refuses to connect to the server, or refuses the user or password"
                ),
                ..self
            },
            Some(other) => Self {
                reason: format!("{proxy} gives no way to the server: {other}"),
                ..self
            },
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.reason)
    }
}

impl Error for Broken {}

/// What layers said, the outermost first, without what says nothing; of that at least the last.
fn brief(said: &[String]) -> String {
    let mut telling: Vec<&str> = Vec::new();
    for text in said.iter().map(String::as_str) {
        let is_repeated = telling.last().is_some_and(|last| last.contains(text));
        if !PASSED_ON.contains(&text) && !is_repeated {
            telling.push(text);
        }
    }
    match (&telling[..], said.last()) {
        ([], Some(last)) => last.clone(),
        (telling, _) => telling.join(": "),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn of_many_layers_those_are_shown_that_say_something() {
        let brief = |said: &[&str]| {
            let said: Vec<String> = said.iter().map(|it| (*it).to_owned()).collect();
            super::brief(&said)
        };
        let refused = "Connection refused (os error 111)";
        assert_eq!(
            brief(&[
                "error sending request",
                "client error (Connect)",
                "tcp connect error",
                refused
            ]),
            refused
        );
        assert_eq!(
            brief(&[
                "error sending request",
                "connection closed before message completed"
            ]),
            "connection closed before message completed"
        );
        assert_eq!(brief(&["a: b", "b", "c"]), "a: b: c");
        assert_eq!(brief(&["dns error"]), "dns error");
    }

    #[test]
    fn a_proxy_that_gives_no_way_is_named() {
        let with_proxy = |reason: &str| {
            let broken = super::Broken {
                reason: reason.to_owned(),
                is_final: false,
            };
            let broken = broken.with_proxy("the proxy http://p/ (HTTPS_PROXY)");
            (broken.reason, broken.is_final)
        };
        let (told, is_final) = with_proxy("tunnel error: proxy authorization required");
        assert!(told.ends_with("(HTTPS_PROXY) wants another user or password") && is_final);
        let (told, is_final) = with_proxy("tunnel error: unsuccessful");
        assert!(told.contains("refuses to connect") && !is_final);
        let (told, _) = with_proxy("tunnel error: unexpected end of file");
        assert!(told.ends_with("to the server: unexpected end of file"));
        assert_eq!(with_proxy("refused").0, "refused");
    }
}
