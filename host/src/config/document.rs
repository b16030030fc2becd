//! A YAML or JSON text as a tree in which every value knows where it stands.
//!
//! JSON is read by the same parser: it is a subset of YAML, and so one kind of error message serves
//! both. What the values mean is checked elsewhere ([`super::schema`]).

use std::{fmt, path::PathBuf, sync::Arc};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::{Error as YamlError, Location, Spanned};

use super::problem::Problem;

/// A text and the name it is shown under.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// File it came from, as the operator named it.
    pub path: PathBuf,
    /// All of it.
    pub text: Arc<str>,
}

impl Source {
    /// A source from its parts.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<Arc<str>>) -> Self {
        Self {
            path: path.into(),
            text: text.into(),
        }
    }
}

/// A place in a text. Lines and columns count characters from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line.
    pub line: usize,
    /// Column.
    pub column: usize,
    /// Characters to underline, at least 1.
    pub length: usize,
}

/// A value and its place; `None` where it did not come from a text.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where it starts.
    pub place: Option<Place>,
    /// What it is.
    pub kind: Kind,
}

/// What a value is.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// Nothing, `~` or `null`.
    Null,
    /// `true` or `false`, unquoted.
    Bool(bool),
    /// A number and the characters that stand in the text, so that `24.10` is still a tag.
    Number(Number, String),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Node>),
    /// Named values in the order of the text.
    Map(Vec<Entry>),
}

/// A named value.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Where the name stands.
    pub place: Option<Place>,
    /// The value.
    pub node: Node,
}

impl Entry {
    /// Where to point for this value: at a scalar itself, at the name of a list or map.
    #[must_use]
    pub fn pointer(&self) -> Option<Place> {
        match self.node.kind {
            Kind::List(_) | Kind::Map(_) | Kind::Null => self.place.or(self.node.place),
            _ => self.node.place.or(self.place),
        }
    }
}

/// Reads a text. An empty one is `null`.
pub fn parse(source: &Source) -> Result<Node, Problem> {
    let options = serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
    };
    serde_saphyr::from_str_with_options::<Spanned<Raw>>(&source.text, options)
        .map(|raw| raw_to_node(raw, &source.text))
        .map_err(|error| syntax_problem(&error, &source.text))
}

/// A tree for a value that did not come from a text.
#[must_use]
pub fn from_value(value: &Value) -> Node {
    let kind = match value {
        Value::Null => Kind::Null,
        Value::Bool(value) => Kind::Bool(*value),
        Value::Number(number) => Kind::Number(number.clone(), number.to_string()),
        Value::String(text) => Kind::Text(text.clone()),
        Value::Array(items) => Kind::List(items.iter().map(from_value).collect()),
        Value::Object(map) => Kind::Map(
            map.iter()
                .map(|(name, value)| Entry {
                    name: name.clone(),
                    place: None,
                    node: from_value(value),
                })
                .collect(),
        ),
    };
    Node { place: None, kind }
}

impl Node {
    /// The value without its places.
    #[must_use]
    pub fn to_value(&self) -> Value {
        match &self.kind {
            Kind::Null => Value::Null,
            Kind::Bool(value) => Value::Bool(*value),
            Kind::Number(number, _) => Value::Number(number.clone()),
            Kind::Text(text) => Value::String(text.clone()),
            Kind::List(items) => Value::Array(items.iter().map(Self::to_value).collect()),
            Kind::Map(entries) => Value::Object(
                entries
                    .iter()
                    .map(|entry| (entry.name.clone(), entry.node.to_value()))
                    .collect::<Map<_, _>>(),
            ),
        }
    }

    /// The value of a name in a map.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Entry> {
        match &self.kind {
            Kind::Map(entries) => entries.iter().find(|entry| entry.name == name),
            _ => None,
        }
    }

    /// What kind of thing it is, for messages: "a list", "text", …
    #[must_use]
    pub fn noun(&self) -> &'static str {
        match self.kind {
            Kind::Null => "nothing",
            Kind::Bool(_) => "true or false",
            Kind::Number(..) => "a number",
            Kind::Text(_) => "text",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a map",
        }
    }
}

/// What the parser hands over, before numbers are joined with their characters.
enum Raw {
    Null,
    Bool(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
        Ok(Raw::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
        Ok(Raw::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
        Ok(Raw::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
        Ok(Raw::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
        Ok(Raw::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Raw::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = access.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

fn raw_to_node(raw: Spanned<Raw>, text: &str) -> Node {
    let written = slice(text, raw.defined);
    let kind = match raw.value {
        Raw::Null => Kind::Null,
        Raw::Bool(value) => Kind::Bool(value),
        Raw::Integer(value) => Kind::Number(value.into(), written.to_owned()),
        Raw::Unsigned(value) => Kind::Number(value.into(), written.to_owned()),
        Raw::Float(value) => match Number::from_f64(value) {
            Some(number) => Kind::Number(number, written.to_owned()),
            None => Kind::Text(written.to_owned()),
        },
        Raw::Text(value) => Kind::Text(value),
        Raw::List(items) => Kind::List(
            items
                .into_iter()
                .map(|item| raw_to_node(item, text))
                .collect(),
        ),
        Raw::Map(entries) => Kind::Map(
            entries
                .into_iter()
                .map(|(name, value)| Entry {
                    place: place(name.referenced, &name.value),
                    name: name.value,
                    node: raw_to_node(value, text),
                })
                .collect(),
        ),
    };
    Node {
        place: place(raw.referenced, slice(text, raw.referenced)),
        kind,
    }
}

/// The characters a location covers; empty where the parser does not say.
fn slice(text: &str, location: Location) -> &str {
    let span = location.span();
    let (Some(start), Some(length)) = (span.byte_offset(), span.byte_len()) else {
        return "";
    };
    let start = usize::try_from(start).unwrap_or(usize::MAX);
    let length = usize::try_from(length).unwrap_or(0);
    text.get(start..start.saturating_add(length)).unwrap_or("")
}

fn place(location: Location, covered: &str) -> Option<Place> {
    let line = usize::try_from(location.line()).ok()?;
    let first_line = covered.lines().next().unwrap_or("");
    (line > 0).then(|| Place {
        line,
        column: usize::try_from(location.column()).unwrap_or(1).max(1),
        length: first_line.trim_end().chars().count().max(1),
    })
}

/// The parser's complaint in the words of this program.
fn syntax_problem(error: &YamlError, written: &str) -> Problem {
    let place = error.location().and_then(|location| place(location, ""));
    let text = error.to_string();
    let text = text.split(" at line ").next().unwrap_or(&text);
    let tab = indenting_tab(text, written, place);
    let (message, help) = match error.without_snippet() {
        YamlError::DuplicateMappingKey { key, .. } => (
            match key {
                Some(key) => format!("`{key}` is there twice"),
                None => "a name is there twice".to_owned(),
            },
            Some("keep one of the two"),
        ),
        YamlError::MultipleDocuments { .. } => (
            "a second document begins here".to_owned(),
            Some("one file holds one document: remove the `---`"),
        ),
        YamlError::UnknownAnchor { .. } => (
            "this alias names no anchor".to_owned(),
            Some("define it first, as in `name: &anchor value`"),
        ),
        YamlError::NonFiniteFloat { value, .. } => (format!("`{value}` is no usable number"), None),
        _ if tab.is_some() => (
            "a tab is used for indentation".to_owned(),
            Some("YAML is indented with blanks"),
        ),
        _ if text.contains("expected string scalar") => {
            ("a name must be text".to_owned(), Some("put it in quotes"))
        }
        _ => (format!("this cannot be read: {text}"), None),
    };
    Problem {
        place: tab.or(place),
        message,
        help: help.map(Into::into),
        ..Problem::default()
    }
}

/// The tab that a line is indented with, where that is what the parser complains of: it stops there, or
/// at the value before.
fn indenting_tab(complaint: &str, text: &str, place: Option<Place>) -> Option<Place> {
    let words = ["tabs disallowed", "found a tab"];
    let here = place.filter(|_| words.iter().any(|words| complaint.contains(words)))?;
    let tab = |(index, line): (usize, &str)| {
        let indent = line.chars().take_while(|c| c.is_whitespace());
        let before = indent.take_while(|c| *c != '\t').count();
        (line.chars().nth(before) == Some('\t')).then_some(Place {
            line: index + 1,
            column: before + 1,
            length: 1,
        })
    };
    let lines = text.lines().enumerate().skip(here.line - 1);
    lines.filter_map(tab).next()
}

#[cfg(test)]
mod tests;
