//! Texts with placeholders that the host fills in.
//!
//! A provider does not know where things will lie or which port will be free; it writes
//! `{checkout.path}/CMakeLists.txt` or `{address.port}` instead. `{{` and `}}` stand for braces.
//!
//! | placeholder | filled with | where |
//! |---|---|---|
//! | `{STEP.path}` | directory or file that step `STEP` obtained | later steps, launch |
//! | `{tool.NAME}` | absolute path of a tool from the facts | build |
//! | `{work}` | the build's working directory | build |
//! | `{jobs}` | number of parallel jobs; not part of a cache key | build |
//! | `{files}` | the directory of the engine's placed files | launch |
//! | `{cache.NAME}` | a writable directory that outlives the run | build, launch |
//! | `{address.host}`, `{address.port}` | where the engine must listen | launch |
//! | `{port.NAME}` | where it must listen for something else, for example metrics | launch |
//! | `{secret.NAME}` | a secret, by name | launch environment only |

use std::{borrow::Cow, fmt};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A text with placeholders; see the module for which ones there are.
#[derive(
    Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct Template(String);

/// One piece of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Literal text.
    Text(Cow<'a, str>),
    /// What stands between braces, for example `checkout.path`.
    Placeholder(&'a str),
}

/// A template that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("template `{template}`: {reason}")]
pub struct TemplateError {
    /// The template as written.
    pub template: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Template {
    /// A template from its written form, in which braces mean placeholders.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// A template that stands for exactly this text: braces are escaped. For values that come from
    /// an operator.
    #[must_use]
    pub fn literal(text: &str) -> Self {
        Self(text.replace('{', "{{").replace('}', "}}"))
    }

    /// The written form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits the template into literal text and placeholders.
    pub fn pieces(&self) -> Result<Vec<Piece<'_>>, TemplateError> {
        let mut pieces = Vec::new();
        let mut rest = self.0.as_str();
        while let Some(at) = rest.find(['{', '}']) {
            if at > 0 {
                pieces.push(Piece::Text(Cow::Borrowed(&rest[..at])));
            }
            let tail = &rest[at..];
            if tail.starts_with("{{") || tail.starts_with("}}") {
                pieces.push(Piece::Text(Cow::Borrowed(&tail[..1])));
                rest = &tail[2..];
            } else if tail.starts_with('}') {
                return Err(self.error("a `}` without `{`; write `}}` for the brace itself"));
            } else {
                let end = tail
                    .find('}')
                    .ok_or_else(|| self.error("a `{` is never closed"))?;
                let name = &tail[1..end];
                if !is_name(name) {
                    return Err(self.error(&format!("`{{{name}}}` is no placeholder")));
                }
                pieces.push(Piece::Placeholder(name));
                rest = &tail[end + 1..];
            }
        }
        if !rest.is_empty() {
            pieces.push(Piece::Text(Cow::Borrowed(rest)));
        }
        Ok(pieces)
    }

    /// Names of the placeholders, in order of appearance.
    pub fn placeholders(&self) -> Result<Vec<&str>, TemplateError> {
        Ok(self
            .pieces()?
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Placeholder(name) => Some(name),
                Piece::Text(_) => None,
            })
            .collect())
    }

    /// Fills the template in; `value` gives the text of a placeholder, or `None` for one that does
    /// not exist here.
    pub fn render(
        &self,
        mut value: impl FnMut(&str) -> Option<String>,
    ) -> Result<String, TemplateError> {
        let mut text = String::with_capacity(self.0.len());
        for piece in self.pieces()? {
            match piece {
                Piece::Text(literal) => text.push_str(&literal),
                Piece::Placeholder(name) => text.push_str(
                    &value(name)
                        .ok_or_else(|| self.error(&format!("nothing here is called `{name}`")))?,
                ),
            }
        }
        Ok(text)
    }

    fn error(&self, reason: &str) -> TemplateError {
        TemplateError {
            template: self.0.clone(),
            reason: reason.to_owned(),
        }
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(is_name_byte))
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

impl fmt::Display for Template {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl From<&str> for Template {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Template {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_placeholders_and_keeps_escaped_braces() {
        let template = Template::new("-S{checkout.path} {{x}} {address.port}");
        let text = template.render(|name| Some(format!("<{name}>")));
        assert_eq!(text.unwrap(), "-S<checkout.path> {x} <address.port>");
    }

    #[test]
    fn unknown_and_malformed_placeholders_are_named() {
        let error = Template::new("a{b}").render(|_| None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "template `a{b}`: nothing here is called `b`"
        );
        for bad in ["{", "}", "{}", "{a b}", "{a..b}", "{../x}"] {
            assert!(Template::new(bad).pieces().is_err(), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_literal_renders_to_itself(text in ".*") {
            let rendered = Template::literal(&text).render(|_| None).unwrap();
            proptest::prop_assert_eq!(rendered, text);
        }

        #[test]
        fn no_text_panics(text in ".*") {
            let _ = Template::new(text).render(|_| Some(String::new()));
        }
    }
}
