//! Masking of secrets: by registered value and by pattern.

use std::{
    borrow::Cow,
    sync::{Arc, LazyLock, RwLock},
};

use regex::{Captures, Regex};

const MASK: &str = "***";

/// Shortest value that is masked wherever it appears; shorter ones would mask ordinary words.
const SHORTEST_VALUE: usize = 4;

/// Values and patterns that must not be told. Cheap to clone; clones share what they know.
#[derive(Debug, Clone, Default)]
pub struct Secrets {
    values: Arc<RwLock<Vec<String>>>,
}

/// The shape of a kind of secret. Its groups `before` and `after` stay visible; what its group `told` matches
/// is none.
struct Shape {
    /// Words of which a text that holds such a secret has at least one, in lower case: compiling a
    /// pattern costs more than most runs have to spend.
    hints: &'static [&'static str],
    compiled: LazyLock<Regex>,
}

macro_rules! shape {
    ($hints:expr, $pattern:literal) => {
        Shape {
            hints: &$hints,
            compiled: LazyLock::new(|| Regex::new($pattern).expect("the patterns are constants")),
        }
    };
}

static SHAPES: [Shape; 11] = [
    // Credentials in a URL (RFC 3986 userinfo).
    shape!(
        ["@"],
        r"(?<before>[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@]+(?<after>@)"
    ),
    // Signed and token-bearing query parameters.
    shape!(
        ["sig", "token", "x-amz-", "key=", "password="],
        r"(?i)(?<before>[?&](?:x-amz-signature|x-amz-credential|x-amz-security-token|signature|sig|token|access_token|api[_-]?key|password)=)[^&\s]+"
    ),
    // Authorization headers.
    shape!(
        ["authorization", "x-api-key"],
        r"(?i)(?<before>(?:authorization|proxy-authorization|x-api-key)\s*[:=]\s*(?:bearer |basic )?)\S+"
    ),
    shape!(
        ["bearer "],
        r"(?i)(?<before>\bbearer )[A-Za-z0-9._~+/=-]{8,}"
    ),
    // Assignments whose name says that the value is secret. Engines speak of tokens all the time
    // (`MAX_INPUT_TOKENS`, `tokenizer=`): those are none. Nor is who asked, by the first digits of a digest.
    shape!(
        ["token", "secret", "passw", "key"],
        r#"(?i)(?<told>\bidentity=token:[0-9a-f]{6}(?:\s|$))|(?<before>\b[A-Z0-9_]*(?:TOKEN(?:[0-9_][A-Z0-9_]*)?|(?:SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY)[A-Z0-9_]*)["']?\s*[=:]\s*)(?:"(?:[^"\\]|\\.)*"|'[^']*'|\S+)"#
    ),
    // Tokens with a well-known beginning: Hugging Face, GitHub, OpenAI and alike, AWS, Slack.
    shape!(["hf_"], r"\bhf_[A-Za-z0-9]{10,}"),
    shape!(
        ["ghp_", "gho_", "ghu_", "ghs_", "ghr_"],
        r"\bgh[pousr]_[A-Za-z0-9]{20,}"
    ),
    shape!(["sk-"], r"\bsk-[A-Za-z0-9_-]{16,}"),
    shape!(["akia"], r"\bAKIA[A-Z0-9]{16}\b"),
    shape!(["xox"], r"\bxox[abprs]-[A-Za-z0-9-]{10,}"),
    // JSON web tokens.
    shape!(
        ["eyj"],
        r"\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*"
    ),
];

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
        let lower = text.to_ascii_lowercase();
        for shape in &SHAPES {
            let possible = shape.hints.iter().any(|hint| lower.contains(hint));
            if possible && shape.compiled.is_match(&text) {
                let masked = shape.compiled.replace_all(&text, shown);
                text = Cow::Owned(masked.into_owned());
            }
        }
        text
    }
}

/// What stays of a text that has the shape of a secret.
fn shown(found: &Captures<'_>) -> String {
    if let Some(told) = found.name("told") {
        return told.as_str().to_owned();
    }
    let group = |name: &str| found.name(name).map_or("", |it| it.as_str());
    format!("{}{MASK}{}", group("before"), group("after"))
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
            ("with BEARER abcdefgh123", "with BEARER ***"),
            ("?sig=abc", "?sig=***"),
            ("x_api_key: 123", "x_api_key: ***"),
            ("Secret = s3", "Secret = ***"),
            ("ghp_abcdefghijklmnopqrstuv", "***"),
            ("sk-abcdefghijklmnopqr", "***"),
            ("xoxb-1234567890-abc", "***"),
            ("eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig", "***"),
            ("HF_TOKEN_2=x", "HF_TOKEN_2=***"),
            (
                r#"{"DB_PASSWORD":"a \"b\" c","n":1}"#,
                r#"{"DB_PASSWORD":***,"n":1}"#,
            ),
            ("password: 'a b', n: 1", "password: ***, n: 1"),
            ("MAX_INPUT_TOKENS=4096", "MAX_INPUT_TOKENS=4096"),
            ("tokenizer=/models/a", "tokenizer=/models/a"),
            (
                "POST /x by identity=token:0a1b2c",
                "POST /x by identity=token:0a1b2c",
            ),
            ("identity=token:0a1b2c-and-more", "identity=token:***"),
            ("identity=token:notadigest", "identity=token:***"),
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
