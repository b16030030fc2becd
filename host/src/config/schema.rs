//! A value checked against a JSON Schema, everything that is wrong with it at once.
//!
//! Not a general validator: it knows the part of JSON Schema that `schemars` emits for plain data
//! (`type`, `properties`, `required`, `additionalProperties`, `items`, `enum`, `const`, `oneOf`,
//! `anyOf`, `allOf`, `$ref` into `$defs`, `minimum`, `maximum`, `minLength`, `minItems`,
//! `pattern`), and two rules of its own that make pool files pleasant:
//!
//! - a map whose fields are named is closed: what it does not name is refused with the nearest name;
//! - where text is wanted, an unquoted number or truth value is taken as it was written (`tag: 24.10`),
//!   and an empty value counts as not given.
//!
//! A field marked `"x-not-used": true` is accepted, left out and noted. `x-help` says what to write instead of
//! what does not fit, `x-elsewhere` where a name belongs that a map does not have.

mod scalar;
#[cfg(test)]
mod tests;

use std::cell::Cell;

use serde_json::{Map, Value};

use self::scalar::{string, within, word, wrong_type};
use super::{
    document::{Entry, Kind, Node, Place},
    problem::{Problem, list, nearest},
};

/// Mark of a field that is accepted but belongs to somebody else.
pub const NOT_USED: &str = "x-not-used";

/// Names that a map does not have, each with where it belongs.
const ELSEWHERE: &str = "x-elsewhere";

/// What came of a check.
#[derive(Debug, Default)]
pub struct Report {
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// Fields that were left out because they are marked [`NOT_USED`]: path and place.
    pub not_used: Vec<(String, Option<Place>)>,
}

/// Checks a value and gives it back in the shape the schema wants.
pub fn conform(schema: &Value, node: &Node, path: &str, report: &mut Report) -> Value {
    Checker::new(schema, Unknown::Refused).check(node, path, report)
}

/// Like [`conform`], but what a map does not name is left out in silence: the rule for documents of
/// the contract, which may come from a newer program.
pub fn conform_open(schema: &Value, node: &Node, path: &str, report: &mut Report) -> Value {
    Checker::new(schema, Unknown::LeftOut).check(node, path, report)
}

/// Closes every map with named fields, so that the schema says what the check does.
pub fn close(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.contains_key("properties") && !map.contains_key("additionalProperties") {
                map.insert("additionalProperties".to_owned(), false.into());
            }
            map.values_mut().for_each(close);
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}

/// What becomes of what a map does not name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unknown {
    Refused,
    LeftOut,
}

/// Deepest nesting of schemas that is followed, and most visits to schemas in one check. A provider
/// from elsewhere may bring a schema that leads in circles.
const DEEPEST: usize = 64;
const MOST_VISITS: usize = 200_000;

struct Checker<'a> {
    root: &'a Value,
    unknown: Unknown,
    depth: Cell<usize>,
    visits: Cell<usize>,
    lost: Cell<bool>,
}

impl<'a> Checker<'a> {
    fn new(root: &'a Value, unknown: Unknown) -> Self {
        Self {
            root,
            unknown,
            depth: Cell::new(0),
            visits: Cell::new(0),
            lost: Cell::new(false),
        }
    }

    fn check(&self, node: &Node, path: &str, report: &mut Report) -> Value {
        let value = self.value(self.root, node, path, report);
        if self.lost.get() {
            let message = "the schema for this leads in circles";
            report.problems = vec![Problem::new(path, node.place, message)];
        }
        value
    }

    /// One step deeper, or `T::default()` where that leads nowhere.
    fn deeper<T: Default>(&self, step: impl FnOnce() -> T) -> T {
        let (depth, visits) = (self.depth.get(), self.visits.get());
        if depth >= DEEPEST || visits >= MOST_VISITS {
            self.lost.set(true);
            return T::default();
        }
        self.depth.set(depth + 1);
        self.visits.set(visits + 1);
        let result = step();
        self.depth.set(depth);
        result
    }

    fn value(&self, schema: &'a Value, node: &Node, path: &str, report: &mut Report) -> Value {
        self.deeper(|| self.value_here(schema, node, path, report))
    }

    fn value_here(&self, schema: &'a Value, node: &Node, path: &str, report: &mut Report) -> Value {
        let schema = self.resolve(schema);
        if let Some(words) = self.words(schema) {
            return word(&words, node, path, report);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(choices) = schema.get(key).and_then(Value::as_array) {
                return self.choice(choices, node, path, report);
            }
        }
        if let Some(parts) = schema.get("allOf").and_then(Value::as_array) {
            let checked: Vec<Value> = parts
                .iter()
                .map(|part| self.value(part, node, path, report))
                .collect();
            return checked.into_iter().next_back().unwrap_or(Value::Null);
        }
        self.typed(schema, node, path, report)
    }

    fn typed(&self, schema: &'a Value, node: &Node, path: &str, report: &mut Report) -> Value {
        let types = types(schema);
        let wants = |name: &str| types.contains(&name);
        match &node.kind {
            _ if types.is_empty() => node.to_value(),
            Kind::Null if wants("null") => Value::Null,
            Kind::Map(entries) if wants("object") => self.map(schema, node, entries, path, report),
            Kind::List(items) if wants("array") => self.list(schema, node, items, path, report),
            Kind::Bool(value) if wants("boolean") => Value::Bool(*value),
            Kind::Number(number, _) if wants("number") => {
                within(schema, node, number, path, report);
                node.to_value()
            }
            Kind::Number(number, _) if wants("integer") && !number.is_f64() => {
                within(schema, node, number, path, report);
                node.to_value()
            }
            Kind::Text(text) if wants("string") => string(schema, node, text, path, report),
            Kind::Number(_, written) if wants("string") => {
                string(schema, node, written, path, report)
            }
            Kind::Bool(value) if wants("string") => {
                string(schema, node, &value.to_string(), path, report)
            }
            _ => {
                let mut problem = wrong_type(&types, node, path);
                problem.help = help_of(schema);
                report.problems.push(problem);
                Value::Null
            }
        }
    }

    fn map(
        &self,
        schema: &'a Value,
        node: &Node,
        entries: &[Entry],
        path: &str,
        report: &mut Report,
    ) -> Value {
        let empty = Map::new();
        let named = schema
            .get("properties")
            .and_then(Value::as_object)
            .unwrap_or(&empty);
        let rest = schema.get("additionalProperties");
        let elsewhere = schema.get(ELSEWHERE);
        let mut result = Map::new();
        for entry in entries {
            let path = join(path, &entry.name);
            match (named.get(&entry.name), rest) {
                (Some(field), _)
                    if self.resolve(field).get(NOT_USED) == Some(&Value::Bool(true)) =>
                {
                    report.not_used.push((path, entry.pointer()));
                }
                (Some(field), _) => {
                    if entry.node.kind == Kind::Null && !self.takes_null(field) {
                        continue;
                    }
                    let value = self.value(field, &entry.node, &path, report);
                    result.insert(entry.name.clone(), value);
                }
                (None, rest)
                    if rest == Some(&Value::Bool(false))
                        || (rest.is_none() && !named.is_empty()) =>
                {
                    if self.unknown == Unknown::Refused {
                        let place = elsewhere.and_then(|it| it.get(&entry.name)?.as_str());
                        report.problems.push(unknown(entry, named, place, path));
                    }
                }
                (None, rest) => {
                    let any = &Value::Bool(true);
                    let value = self.value(rest.unwrap_or(any), &entry.node, &path, report);
                    result.insert(entry.name.clone(), value);
                }
            }
        }
        self.required(schema, node, path, report);
        Value::Object(result)
    }

    fn required(&self, schema: &Value, node: &Node, path: &str, report: &mut Report) {
        let required = schema.get("required").and_then(Value::as_array);
        for name in required.into_iter().flatten().filter_map(Value::as_str) {
            let given = node.get(name).is_some_and(|e| e.node.kind != Kind::Null);
            if !given {
                let place = node.get(name).and_then(|entry| entry.place).or(node.place);
                report.problems.push(Problem::new(
                    join(path, name),
                    place,
                    format!("`{name}` is missing{}", within_words(path)),
                ));
            }
        }
    }

    fn list(
        &self,
        schema: &'a Value,
        node: &Node,
        items: &[Node],
        path: &str,
        report: &mut Report,
    ) -> Value {
        let any = &Value::Bool(true);
        let each = schema.get("items").unwrap_or(any);
        if let Some(least) = schema.get("minItems").and_then(Value::as_u64)
            && (items.len() as u64) < least
        {
            let message = format!("`{}` needs at least {least}", last(path));
            report
                .problems
                .push(Problem::new(path, node.place, message));
        }
        Value::Array(
            items
                .iter()
                .enumerate()
                .map(|(index, item)| self.value(each, item, &format!("{path}[{index}]"), report))
                .collect(),
        )
    }

    /// Of several schemas the one that fits; else the complaint of the only one of the right type.
    fn choice(&self, choices: &'a [Value], node: &Node, path: &str, report: &mut Report) -> Value {
        let mut of_its_type = Vec::new();
        for choice in choices {
            let mut trial = Report::default();
            let value = self.value(choice, node, path, &mut trial);
            if trial.problems.is_empty() {
                report.not_used.append(&mut trial.not_used);
                return value;
            }
            if is_of_kind(&self.kinds(choice), node) {
                of_its_type.push(trial);
            }
        }
        if of_its_type.len() == 1 {
            report.problems.append(&mut of_its_type[0].problems);
        } else {
            let wanted: Vec<&str> = choices
                .iter()
                .flat_map(|choice| self.kinds(choice))
                .collect();
            let mut problem = wrong_type(&wanted, node, path);
            problem.help = choices
                .iter()
                .find_map(|choice| help_of(self.resolve(choice)));
            report.problems.push(problem);
        }
        Value::Null
    }

    /// Follows `$ref` into this schema's definitions; an unknown one accepts everything.
    fn resolve(&self, mut schema: &'a Value) -> &'a Value {
        for _ in 0..DEEPEST {
            let Some(reference) = schema.get("$ref").and_then(Value::as_str) else {
                break;
            };
            let target = reference
                .strip_prefix('#')
                .and_then(|pointer| self.root.pointer(pointer));
            schema = target.unwrap_or(&Value::Bool(true));
        }
        schema
    }

    fn takes_null(&self, schema: &'a Value) -> bool {
        let schema = self.resolve(schema);
        let any_of = schema.get("anyOf").and_then(Value::as_array);
        types(schema).contains(&"null")
            || any_of.is_some_and(|choices| {
                choices
                    .iter()
                    .any(|choice| self.deeper(|| self.takes_null(choice)))
            })
    }

    /// Types of what a schema accepts.
    fn kinds(&self, schema: &'a Value) -> Vec<&'a str> {
        let schema = self.resolve(schema);
        if self.words(schema).is_some() {
            return vec!["string"];
        }
        let choices = ["anyOf", "oneOf"]
            .iter()
            .find_map(|key| schema.get(*key)?.as_array());
        match choices {
            Some(choices) => choices
                .iter()
                .flat_map(|choice| self.deeper(|| self.kinds(choice)))
                .collect(),
            None => types(schema),
        }
    }

    /// The words a schema enumerates, if that is all it does.
    fn words(&self, schema: &'a Value) -> Option<Vec<&'a str>> {
        let texts =
            |values: &'a [Value]| values.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
        if let Some(word) = schema.get("const") {
            return Some(vec![word.as_str()?]);
        }
        if let Some(words) = schema.get("enum").and_then(Value::as_array) {
            return texts(words);
        }
        let choices = schema.get("oneOf").and_then(Value::as_array)?;
        let mut all = Vec::new();
        for choice in choices {
            all.extend(self.deeper(|| self.words(self.resolve(choice)))?);
        }
        Some(all)
    }
}

fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Whether a value is of one of these types.
fn is_of_kind(kinds: &[&str], node: &Node) -> bool {
    let of_kind: &[&str] = match node.kind {
        Kind::Null => &["null"],
        // Text may be written without quotes.
        Kind::Bool(_) => &["boolean", "string"],
        Kind::Number(..) => &["number", "integer", "string"],
        Kind::Text(_) => &["string"],
        Kind::List(_) => &["array"],
        Kind::Map(_) => &["object"],
    };
    kinds.iter().any(|name| of_kind.contains(name))
}

/// What to write instead of a value of another type, where the schema says it.
fn help_of(schema: &Value) -> Option<Box<str>> {
    schema.get("x-help")?.as_str().map(Into::into)
}

/// `elsewhere`: where a field of that name belongs.
fn unknown(
    entry: &Entry,
    named: &Map<String, Value>,
    elsewhere: Option<&str>,
    path: String,
) -> Problem {
    let names = || named.keys().map(String::as_str);
    let is_used = |name: &&str| named[*name].get(NOT_USED) != Some(&Value::Bool(true));
    let help = match (elsewhere, nearest(&entry.name, names())) {
        (Some(place), _) => format!("write it as {place}"),
        (None, Some(near)) => format!("did you mean `{near}`?"),
        (None, None) if named.is_empty() => "nothing can be set here".to_owned(),
        (None, None) => format!("what can stand here: {}", list(names().filter(is_used))),
    };
    let parent = path
        .strip_suffix(&entry.name)
        .map(|parent| parent.trim_end_matches('.').to_owned())
        .unwrap_or_default();
    let message = format!("there is no `{}`{}", entry.name, within_words(&parent));
    Problem::new(path, entry.place, message).help(help)
}

fn within_words(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!(" in `{path}`")
    }
}

/// `a.b[0]` and `c` give `a.b[0].c`.
#[must_use]
pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// What a path names, for messages.
fn subject(path: &str) -> String {
    match path {
        "" => "the file".to_owned(),
        path => format!("`{}`", last(path)),
    }
}

/// The last name of a path with its index: `devices[0]` of `pools[1].devices[0]`.
fn last(path: &str) -> &str {
    path.rsplit('.').next().unwrap_or(path)
}
