//! Words, texts and numbers against their part of a schema.

use serde_json::Value;

use super::{Report, last, subject};
use crate::config::{
    document::{Kind, Node},
    problem::{Problem, list, nearest},
};

pub(super) fn word(words: &[&str], node: &Node, path: &str, report: &mut Report) -> Value {
    let written = match &node.kind {
        Kind::Text(text) | Kind::Number(_, text) => text.clone(),
        Kind::Bool(value) => value.to_string(),
        _ => {
            report.problems.push(wrong_type(&["string"], node, path));
            return Value::Null;
        }
    };
    if words.contains(&written.as_str()) {
        return Value::String(written);
    }
    let message = format!("`{}` cannot be `{written}`", last(path));
    let help = match nearest(&written, words.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("it is one of {}", list(words.iter().copied())),
    };
    report
        .problems
        .push(Problem::new(path, node.place, message).help(help));
    Value::Null
}

pub(super) fn string(
    schema: &Value,
    node: &Node,
    text: &str,
    path: &str,
    report: &mut Report,
) -> Value {
    let least = schema.get("minLength").and_then(Value::as_u64).unwrap_or(0);
    if (text.chars().count() as u64) < least {
        let message = format!("`{}` is empty", last(path));
        report
            .problems
            .push(Problem::new(path, node.place, message));
    } else if let Some(pattern) = schema.get("pattern").and_then(Value::as_str)
        && regex::Regex::new(pattern).is_ok_and(|pattern| !pattern.is_match(text))
    {
        let message = format!("`{}` cannot be `{text}`", last(path));
        let help = match schema.get("x-help").and_then(Value::as_str) {
            Some(help) => help.to_owned(),
            None => format!("it must match `{pattern}`"),
        };
        report
            .problems
            .push(Problem::new(path, node.place, message).help(help));
    }
    Value::String(text.to_owned())
}

pub(super) fn within(
    schema: &Value,
    node: &Node,
    number: &serde_json::Number,
    path: &str,
    report: &mut Report,
) {
    let value = number.as_f64().unwrap_or(f64::NAN);
    let bound = |key: &str| schema.get(key).and_then(Value::as_f64);
    let widest = match schema.get("format").and_then(Value::as_str) {
        Some("uint8") => Some(255.0),
        Some("uint16") => Some(65_535.0),
        Some("uint32") => Some(4_294_967_295.0),
        Some("int32") => Some(2_147_483_647.0),
        _ => None,
    };
    let least = bound("minimum");
    let most = bound("maximum").or(widest);
    let below = least.is_some_and(|least| value < least)
        || bound("exclusiveMinimum").is_some_and(|least| value <= least);
    let above = most.is_some_and(|most| value > most)
        || bound("exclusiveMaximum").is_some_and(|most| value >= most);
    if below || above {
        let help = match (least, most) {
            (Some(least), Some(most)) => format!("it is {least} to {most}"),
            (Some(least), None) => format!("it is at least {least}"),
            (None, Some(most)) => format!("it is at most {most}"),
            (None, None) => "it is out of range".to_owned(),
        };
        let message = format!("`{}` cannot be {number}", last(path));
        report
            .problems
            .push(Problem::new(path, node.place, message).help(help));
    }
}

pub(super) fn wrong_type(types: &[&str], node: &Node, path: &str) -> Problem {
    let mut wanted: Vec<&str> = Vec::new();
    for name in types.iter().filter(|name| **name != "null") {
        let noun = match *name {
            "object" => "a map",
            "array" => "a list",
            "boolean" => "true or false",
            "integer" => "a whole number",
            "number" => "a number",
            _ => "text",
        };
        if !wanted.contains(&noun) {
            wanted.push(noun);
        }
    }
    let wanted = match wanted.as_slice() {
        [] => "something else".to_owned(),
        several => several.join(" or "),
    };
    let found = match &node.kind {
        Kind::Text(text) if text.len() <= 40 => format!("the text `{text}`"),
        Kind::Number(_, written) => format!("`{written}`"),
        _ => node.noun().to_owned(),
    };
    Problem::new(
        path,
        node.place,
        format!("{} must be {wanted}, not {found}", subject(path)),
    )
}
