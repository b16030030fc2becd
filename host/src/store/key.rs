//! Keys: what a result is made of.

use std::{collections::BTreeMap, fmt, fmt::Write as _};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// What a result is, and the name of its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A source tree at one commit.
    Source,
    /// Outputs of a build.
    Build,
    /// What a program printed.
    Observe,
    /// An unpacked download.
    Archive,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Source, Self::Build, Self::Observe, Self::Archive];

    /// The name of its directory.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Source => "source",
            Self::Build => "build",
            Self::Observe => "observe",
            Self::Archive => "archive",
        }
    }
}

/// Names a result: its kind and the digest of its ingredients.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Key {
    /// What it is.
    pub kind: Kind,
    /// 64 hexadecimal digits.
    pub hex: String,
}

impl Key {
    /// The name of the result's directory: the first 32 digits, to keep paths short. The manifest
    /// holds all of them.
    #[must_use]
    pub fn directory(&self) -> &str {
        &self.hex[..32]
    }

    /// Whether it is one that this program computes.
    pub(super) fn is_whole(&self) -> bool {
        self.hex.len() == 64 && self.hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// Name of its lock and of its working directory.
    pub(super) fn slug(&self) -> String {
        format!("{}-{}", self.kind.as_str(), self.directory())
    }
}

/// One thing that changes the bytes of a result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ingredient {
    /// What it is, in words that fit before `changed:`, for example `cmake-configure argument`.
    pub name: String,
    /// Its value. Lists and maps are compared item by item when a change is explained.
    pub value: Value,
}

/// Everything that changes the bytes of a result, in a fixed order.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ingredients(Vec<Ingredient>);

impl Ingredients {
    /// No ingredients yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one. A name may occur several times; order counts.
    pub fn add(&mut self, name: impl Into<String>, value: impl Serialize) {
        let value = serde_json::to_value(value).expect("ingredients are plain data");
        self.0.push(Ingredient {
            name: name.into(),
            value,
        });
    }

    /// Adds one, for building in one expression.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Serialize) -> Self {
        self.add(name, value);
        self
    }

    /// The ingredients, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Ingredient> {
        self.0.iter()
    }

    /// The key of a result of this kind made of these.
    #[must_use]
    pub fn key(&self, kind: Kind) -> Key {
        let mut text = format!("{}\n", kind.as_str());
        for ingredient in &self.0 {
            canonical(&Value::from(ingredient.name.as_str()), &mut text);
            text.push(':');
            canonical(&ingredient.value, &mut text);
            text.push('\n');
        }
        Key {
            kind,
            hex: hex(&Sha256::digest(text.as_bytes())),
        }
    }

    /// What differs from `before`, in the order of these ingredients, removed ones last.
    #[must_use]
    pub fn changes_since(&self, before: &Self) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for ingredient in self.0.iter().chain(&before.0) {
            if !names.contains(&ingredient.name.as_str()) {
                names.push(&ingredient.name);
            }
        }
        for name in names {
            compare(name, &before.items(name), &self.items(name), &mut changes);
        }
        changes
    }

    /// All items under a name; lists are flattened and map entries read `key=value`.
    fn items(&self, name: &str) -> Vec<String> {
        let mut items = Vec::new();
        for ingredient in self.0.iter().filter(|ingredient| ingredient.name == name) {
            match &ingredient.value {
                Value::Array(values) => items.extend(values.iter().map(plain)),
                Value::Object(map) => {
                    items.extend(map.iter().map(|(key, value)| {
                        let sign = if key.ends_with(['=', ':']) { "" } else { "=" };
                        format!("{key}{sign}{}", plain(value))
                    }));
                }
                Value::Null => {}
                value => items.push(plain(value)),
            }
        }
        items
    }
}

/// What differs between two sets of ingredients, one item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Name of the ingredient.
    pub name: String,
    /// What it was; `None`: it was not there.
    pub was: Option<String>,
    /// What it is now; `None`: it is gone.
    pub now: Option<String>,
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match (&self.was, &self.now) {
            (Some(was), Some(now)) => write!(formatter, "{name} changed: {was} → {now}"),
            (None, Some(now)) => write!(formatter, "{name} added: {now}"),
            (Some(was), None) => write!(formatter, "{name} removed: {was}"),
            (None, None) => write!(formatter, "{name} changed"),
        }
    }
}

/// Items that are in one list only, paired where they set the same thing (`-DX=1`, `-DX=2`).
fn compare(name: &str, was: &[String], now: &[String], changes: &mut Vec<Change>) {
    let mut gone = subtract(was, now);
    let mut new = subtract(now, was);
    let change = |was: Option<String>, now: Option<String>| Change {
        name: name.to_owned(),
        was,
        now,
    };
    if gone.is_empty() && new.is_empty() {
        if was != now {
            changes.push(change(Some(was.join(" ")), Some(now.join(" "))));
        }
        return;
    }
    if gone.len() == 1 && new.len() == 1 {
        changes.push(change(gone.pop(), new.pop()));
        return;
    }
    for item in new {
        let twin = gone
            .iter()
            .position(|other| subject(other) == subject(&item));
        let was = twin.map(|index| gone.remove(index));
        changes.push(change(was, Some(item)));
    }
    changes.extend(gone.into_iter().map(|item| change(Some(item), None)));
}

/// What an item sets: the part before `=`, where there is one.
fn subject(item: &str) -> &str {
    item.split_once('=').map_or(item, |(subject, _)| subject)
}

/// Items of `from` that have no partner in `other`, each counted once.
fn subtract(from: &[String], other: &[String]) -> Vec<String> {
    let mut left: BTreeMap<&str, usize> = BTreeMap::new();
    for item in other {
        *left.entry(item).or_default() += 1;
    }
    from.iter()
        .filter(|item| match left.get_mut(item.as_str()) {
            Some(count) if *count > 0 => {
                *count -= 1;
                false
            }
            _ => true,
        })
        .cloned()
        .collect()
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// JSON with sorted keys and no spaces, whatever map type serde_json was built with.
fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            text.push('{');
            let sorted: BTreeMap<_, _> = map.iter().collect();
            for (key, value) in sorted {
                canonical(&Value::from(key.as_str()), text);
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(values) => {
            text.push('[');
            for value in values {
                canonical(value, text);
                text.push(',');
            }
            text.push(']');
        }
        scalar => write!(text, "{scalar}").expect("a String takes everything"),
    }
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a String takes everything");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(arguments: &[&str]) -> Ingredients {
        Ingredients::new()
            .with("commit", "abc")
            .with("cmake argument", arguments)
    }

    #[test]
    fn every_ingredient_counts_and_order_of_map_keys_does_not() {
        let key = build(&["-DX=1"]).key(Kind::Build);
        assert_eq!(key, build(&["-DX=1"]).key(Kind::Build));
        assert_ne!(key, build(&["-DX=2"]).key(Kind::Build));
        assert_ne!(key, build(&["-DX=1"]).key(Kind::Source));
        let one = Ingredients::new().with("env", serde_json::json!({"a": 1, "b": 2}));
        let two = Ingredients::new().with("env", serde_json::json!({"b": 2, "a": 1}));
        assert_eq!(one.key(Kind::Build), two.key(Kind::Build));
    }

    #[test]
    fn a_list_does_not_collide_with_its_concatenation() {
        let one = Ingredients::new().with("a", ["x", "y"]);
        let two = Ingredients::new().with("a", ["xy"]);
        let three = Ingredients::new().with("a", ["x"]).with("a", ["y"]);
        assert_ne!(one.key(Kind::Build), two.key(Kind::Build));
        assert_ne!(one.key(Kind::Build), three.key(Kind::Build));
    }

    #[test]
    fn a_miss_says_what_changed() {
        let now = build(&["-DX=2", "-DY=1", "-DNEW=1"]);
        let before = build(&["-DX=1", "-DY=1", "--old"]);
        let told: Vec<String> = now
            .changes_since(&before)
            .iter()
            .map(Change::to_string)
            .collect();
        assert_eq!(
            told,
            [
                "cmake argument changed: -DX=1 → -DX=2",
                "cmake argument added: -DNEW=1",
                "cmake argument removed: --old"
            ]
        );
    }

    #[test]
    fn order_of_arguments_is_a_change_too() {
        let changes = build(&["a", "b"]).changes_since(&build(&["b", "a"]));
        assert_eq!(changes[0].to_string(), "cmake argument changed: b a → a b");
    }

    proptest::proptest! {
        #[test]
        fn different_keys_always_have_an_explanation(
            one in proptest::collection::vec("[a-c=]{0,3}", 0..4),
            two in proptest::collection::vec("[a-c=]{0,3}", 0..4),
        ) {
            let a = Ingredients::new().with("x", &one);
            let b = Ingredients::new().with("x", &two);
            let same = a.key(Kind::Build) == b.key(Kind::Build);
            proptest::prop_assert_eq!(same, b.changes_since(&a).is_empty());
        }
    }
}
