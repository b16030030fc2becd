//! The lock file of a machine: what stands in it, and every way to edit one line.

use std::fs;

use toml::{Table, Value};

use crate::{Machine, Run};

/// Exit code of what is not as it is locked.
const DRIFTED: i32 = 15;

/// A lock file as it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct LockFile {
    document: Table,
}

impl LockFile {
    /// The one of a machine.
    ///
    /// # Panics
    ///
    /// When there is none, or it is no TOML.
    #[must_use]
    pub fn of(machine: &Machine) -> Self {
        let text = fs::read_to_string(machine.work().join("host.lock")).unwrap();
        Self {
            document: text.parse().unwrap(),
        }
    }

    /// The text of a value; `path` begins at the pool, for example `["default", "model", "digest"]`.
    ///
    /// # Panics
    ///
    /// When there is no such value.
    #[must_use]
    pub fn text(&self, path: &[&str]) -> String {
        let mut value = &self.document["pools"];
        for name in path {
            value = value
                .get(name)
                .unwrap_or_else(|| panic!("no {name} of {path:?} in {:#}", self.document));
        }
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    }

    /// A part of a pool, for comparisons.
    #[must_use]
    pub fn part(&self, pool: &str, part: &str) -> Option<Value> {
        self.document["pools"].get(pool)?.get(part).cloned()
    }

    /// Edits every value of a pool in turn, then removes it, and asserts that each time the program
    /// refuses, naming the line. Gives the number of values.
    ///
    /// # Panics
    ///
    /// When an edit is not refused like this.
    pub fn assert_every_edit_is_refused(
        &self,
        machine: &Machine,
        pool: &str,
        run: impl Fn() -> Run,
    ) -> usize {
        let Value::Table(table) = &self.document["pools"][pool] else {
            panic!("no pool {pool}");
        };
        let mut paths = Vec::new();
        leaves(table, &mut Vec::new(), &mut paths);
        for path in &paths {
            for edit in [edited, removed] {
                let mut document = self.document.clone();
                let table = document["pools"][pool].as_table_mut().unwrap();
                if !edit(table, path) {
                    continue;
                }
                machine.write("host.lock", &document.to_string());
                let (run, line) = (run(), path.join("."));
                assert_eq!(run.code, DRIFTED, "{line}: {run:?}\n{document}");
                // A line that is gone has no name, but its table's check digits have. Of edited digits
                // it is said which lines they do not fit.
                let table = table_of(path);
                let (seal, any) = (format!("{table}.seal\n"), format!(": {table}."));
                let is_named = run.stderr.contains(&format!(": {line}\n"))
                    || run.stderr.contains(&seal)
                    || line.ends_with(".seal") && run.stderr.contains(&any);
                assert!(is_named, "{line}: {}", run.stderr);
                for word in ["locked  ", "now     ", " --update"] {
                    run.says(word);
                }
            }
        }
        machine.write("host.lock", &self.document.to_string());
        paths.len()
    }
}

/// The table that has a line's check digits.
fn table_of(path: &[String]) -> String {
    let depth = if path[0] == "engine" { 3 } else { 1 };
    path[..depth].join(".")
}

fn leaves(table: &Table, path: &mut Vec<String>, all: &mut Vec<Vec<String>>) {
    for (name, value) in table {
        path.push(name.clone());
        match value {
            Value::Table(table) => leaves(table, path, all),
            _ => all.push(path.clone()),
        }
        path.pop();
    }
}

fn holder<'t>(table: &'t mut Table, path: &[String]) -> &'t mut Table {
    path[..path.len() - 1]
        .iter()
        .fold(table, |table, name| table[name].as_table_mut().unwrap())
}

/// Another value of the same kind: a digest stays one, a commit stays one.
fn edited(table: &mut Table, path: &[String]) -> bool {
    let value = &mut holder(table, path)[path.last().unwrap()];
    *value = match value.clone() {
        Value::String(text) => Value::String(other_text(&text)),
        Value::Integer(number) => Value::Integer(number + 1),
        Value::Boolean(is) => Value::Boolean(!is),
        Value::Array(mut values) => {
            values.push(Value::String("https://edited.invalid/x".to_owned()));
            Value::Array(values)
        }
        other => panic!("{path:?}: {other}"),
    };
    true
}

/// Takes the line out; check digits that are missing are an older file, which has none.
fn removed(table: &mut Table, path: &[String]) -> bool {
    let name = path.last().unwrap();
    name != "seal" && holder(table, path).remove(name).is_some()
}

fn other_text(text: &str) -> String {
    let is_hex = text.len() >= 40 && text.ends_with(|last: char| last.is_ascii_hexdigit());
    match (is_hex, text.chars().last()) {
        (true, Some('0')) => format!("{}1", &text[..text.len() - 1]),
        (true, Some(_)) => format!("{}0", &text[..text.len() - 1]),
        _ => format!("{text}x"),
    }
}
