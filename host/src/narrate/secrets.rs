//! Masking of secrets: by registered value and by pattern.

use std::{
    borrow::Cow,
    sync::{LazyLock, RwLock},
};

use regex::Regex;

const MASK: &str = "***";

/// Shortest value that is masked wherever it appears; shorter ones would mask ordinary words.
const SHORTEST_VALUE: usize = 4;

/// Values and patterns that must not be told.
#[derive(Debug, Default)]
pub struct Secrets {
    values: RwLock<Vec<String>>,
}

/// Shapes of secrets, each with what stays visible as its first group.
static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    [
        // Credentials in a URL (RFC 3986 userinfo); a second group stays visible too.
        r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@]+(@)",
        // Signed and token-bearing query parameters.
        r"(?i)([?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|signature|sig|token|access_token|api[_-]?key|password)=)[^&\s]+",
        // Authorization headers.
        r"(?i)((?:authorization|proxy-authorization|x-api-key)\s*[:=]\s*(?:bearer |basic )?)\S+",
        r"(?i)(\bbearer )[A-Za-z0-9._~+/=-]{8,}",
        // Assignments whose name says that the value is secret.
        r"(?i)(\b[A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)[A-Z0-9_]*\s*[=:]\s*)\S+",
        // Tokens with a well-known beginning: Hugging Face, GitHub, OpenAI and alike, AWS, Slack.
        r"()\bhf_[A-Za-z0-9]{10,}",
        r"()\bgh[pousr]_[A-Za-z0-9]{20,}",
        r"()\bsk-[A-Za-z0-9_-]{16,}",
        r"()\bAKIA[A-Z0-9]{16}\b",
        r"()\bxox[abprs]-[A-Za-z0-9-]{10,}",
        // JSON web tokens.
        r"()\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",
    ]
    .iter()
    .map(|pattern| Regex::new(pattern).expect("the patterns are constants"))
    .collect()
});

impl Secrets {
    /// Registers a value that must not be told from now on.
    pub fn register(&self, value: &str) {
        if value.len() >= SHORTEST_VALUE {
            let mut values = self.values.write().expect("no holder panics");
            if !values.iter().any(|known| known == value) {
                values.push(value.to_owned());
                // Longest first: a value that contains another is masked whole.
                values.sort_by_key(|value| std::cmp::Reverse(value.len()));
            }
        }
    }

    /// The text with every secret replaced by `***`.
    #[must_use]
    pub fn mask<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for value in self.values.read().expect("no holder panics").iter() {
            if text.contains(value.as_str()) {
                text = Cow::Owned(text.replace(value.as_str(), MASK));
            }
        }
        // Most texts hold nothing a pattern could start at.
        if !text.contains([':', '=', '_', '-']) && !text.contains("AKIA") && !text.contains("eyJ") {
            return text;
        }
        for pattern in PATTERNS.iter() {
            if pattern.is_match(&text) {
                text = Cow::Owned(
                    pattern
                        .replace_all(&text, format!("${{1}}{MASK}${{2}}"))
                        .into_owned(),
                );
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_values_are_masked_longest_first() {
        let secrets = Secrets::default();
        secrets.register("hunter2");
        secrets.register("hunter2-and-more");
        assert_eq!(secrets.mask("a hunter2-and-more b hunter2"), "a *** b ***");
    }

    #[test]
    fn shapes_of_secrets_are_masked_and_the_rest_stays() {
        let secrets = Secrets::default();
        let cases = [
            ("https://user:pw@host/x", "https://***@host/x"),
            (
                "GET /m?X-Amz-Signature=abc&y=1",
                "GET /m?X-Amz-Signature=***&y=1",
            ),
            ("Authorization: Bearer abcdef", "Authorization: Bearer ***"),
            ("HF_TOKEN=hf_abcdefghijkl", "HF_TOKEN=***"),
            ("use hf_abcdefghijklmnop now", "use *** now"),
            ("AKIAABCDEFGHIJKLMNOP", "***"),
            ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig", "***"),
            (
                "/opt/cuda-12.4/bin/nvcc --version",
                "/opt/cuda-12.4/bin/nvcc --version",
            ),
        ];
        for (text, masked) in cases {
            assert_eq!(secrets.mask(text), masked, "{text}");
        }
    }

    #[test]
    fn tokens_are_not_confused_with_token_counts() {
        let secrets = Secrets::default();
        assert_eq!(secrets.mask("512 tokens in 3 s"), "512 tokens in 3 s");
    }
}
