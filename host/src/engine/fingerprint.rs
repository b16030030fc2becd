//! What an engine was started with, as far as two starts are compared by it. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// A command as it is compared with another: its port left open, values of its environment as
/// digests, what the operator's own shell adds left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Program.
    pub program: String,
    /// Arguments, with `{address.port}` where the port stands.
    pub args: Vec<String>,
    /// Digest of each value of the environment, by name.
    pub env: BTreeMap<String, String>,
    /// Digest of each placed file, by path.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// What else makes a container another one: mounts, devices, limits; shown as it is.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

impl Fingerprint {
    /// What differs, as lines with `-` (this one) and `+` (the other); empty when nothing does.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        let program = |print: &Self| vec![print.program.clone()];
        compare(&mut lines, program(self), program(other));
        compare(&mut lines, flags(&self.args), flags(&other.args));
        let settings = |print: &Self| -> Vec<String> {
            let line = |(name, value): (&String, &String)| format!("{name} {value}");
            print.settings.iter().map(line).collect()
        };
        compare(&mut lines, settings(self), settings(other));
        let maps = [
            ("environment", &self.env, &other.env),
            ("file", &self.files, &other.files),
        ];
        for (what, own, others) in maps {
            let names: BTreeSet<&String> = own.keys().chain(others.keys()).collect();
            for name in names {
                match (own.get(name), others.get(name)) {
                    (Some(_), None) => lines.push(format!("- {what} {name}")),
                    (None, Some(_)) => lines.push(format!("+ {what} {name}")),
                    (a, b) if a != b => lines.push(format!("~ {what} {name} has another content")),
                    _ => {}
                }
            }
        }
        if lines.is_empty() && self != other {
            lines.push("~ the order of the arguments".to_owned());
        }
        lines
    }
}

/// Arguments in groups: a flag together with its values.
fn flags(args: &[String]) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for argument in args {
        let is_number = argument.parse::<f64>().is_ok();
        match groups.last_mut() {
            Some(group) if !argument.starts_with('-') || is_number => {
                group.push(' ');
                group.push_str(argument);
            }
            _ => groups.push(argument.clone()),
        }
    }
    groups
}

fn compare(lines: &mut Vec<String>, own: Vec<String>, mut others: Vec<String>) {
    for group in own {
        match others.iter().position(|other| *other == group) {
            Some(at) => drop(others.remove(at)),
            None => lines.push(format!("- {group}")),
        }
    }
    lines.extend(others.into_iter().map(|group| format!("+ {group}")));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_names_what_changed_and_nothing_else() {
        let print = |args: &[&str], env: &str| Fingerprint {
            program: "/p".to_owned(),
            args: args.iter().map(|text| (*text).to_owned()).collect(),
            env: BTreeMap::from([("A".to_owned(), env.to_owned())]),
            ..Fingerprint::default()
        };
        let running = print(&["--ctx-size", "2048", "--seed", "-1", "--metrics"], "1");
        let asked = print(&["--ctx-size", "4096", "--seed", "-1", "--jinja"], "2");
        assert_eq!(
            running.difference(&asked),
            [
                "- --ctx-size 2048",
                "- --metrics",
                "+ --ctx-size 4096",
                "+ --jinja",
                "~ environment A has another content"
            ]
        );
        assert!(running.difference(&running.clone()).is_empty());
        let mounted = Fingerprint {
            settings: BTreeMap::from([("mount /model".to_owned(), "/a".to_owned())]),
            ..running.clone()
        };
        assert_eq!(running.difference(&mounted), ["+ mount /model /a"]);
    }
}
