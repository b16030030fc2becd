//! The promise of the contract: within a major version, what was once written can always be read.
//!
//! `documents/1.0/` holds every document as contract 1.0 wrote it: `NAME.json` with all its fields,
//! `NAME.least.json` with only those that had to be there, `NAME.WORD.json` where one document cannot
//! show all its kinds. These files are never edited. A new minor version adds a directory beside them.

use std::{collections::BTreeSet, fs, path::PathBuf};

use engine_provider_api::{
    Artifact, CONTRACT_VERSION, Document, Facts, Manifest, Mode, Plan, PlanRequest, Pool,
    PrepareRequest, PreparedEngine, ProviderError, ProviderInfo, schemas,
};
use serde_json::{Map, Value, json};

/// Reads a document and writes it again.
type Rewrite = fn(&str) -> Result<Value, String>;

fn rewrite<T: Document>(text: &str) -> Result<Value, String> {
    let document = T::read(text).map_err(|error| {
        let cause = std::error::Error::source(&error).map(ToString::to_string);
        format!("{error}: {}", cause.unwrap_or_default())
    })?;
    Ok(serde_json::from_str(&document.write()).unwrap())
}

const DOCUMENTS: [(&str, Rewrite); 10] = [
    (Manifest::NAME, rewrite::<Manifest>),
    (ProviderInfo::NAME, rewrite::<ProviderInfo>),
    (Facts::NAME, rewrite::<Facts>),
    (Pool::NAME, rewrite::<Pool>),
    (PlanRequest::NAME, rewrite::<PlanRequest>),
    (Plan::NAME, rewrite::<Plan>),
    (Artifact::NAME, rewrite::<Artifact>),
    (PrepareRequest::NAME, rewrite::<PrepareRequest>),
    (PreparedEngine::NAME, rewrite::<PreparedEngine>),
    (ProviderError::NAME, rewrite::<ProviderError>),
];

fn directory(minor: &str) -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/documents");
    tests.join(minor)
}

fn recorded(minor: &str, name: &str, kind: &str) -> String {
    let path = directory(minor).join(format!("{name}{kind}.json"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Kinds of records of a document beside `least`: none, `.external` and their like.
fn kinds(minor: &str, name: &str) -> Vec<String> {
    let files = fs::read_dir(directory(minor)).unwrap();
    let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
    let kind = |file: String| {
        let kind = file.strip_prefix(name)?.strip_suffix(".json")?;
        (kind.is_empty() || kind.starts_with('.')).then(|| kind.to_owned())
    };
    let mut kinds: Vec<String> = names.filter_map(kind).collect();
    kinds.retain(|kind| kind != ".least");
    kinds.sort();
    kinds
}

/// Minor versions there are records of, oldest first.
const MINORS: [&str; 3] = ["1.0", "1.1", "1.2"];
/// The minor version that this crate writes.
const LATEST: &str = MINORS[MINORS.len() - 1];

#[test]
fn the_version_that_is_spoken_is_recorded() {
    assert!(CONTRACT_VERSION.starts_with(&format!("{LATEST}.")));
}

#[test]
fn every_document_of_the_contract_is_recorded_here() {
    let names: Vec<&str> = DOCUMENTS.iter().map(|(name, _)| *name).collect();
    let contract: Vec<&str> = schemas().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, contract);
}

/// A field that is not recorded is one whose loss nobody would notice.
#[test]
fn every_field_that_is_written_today_is_recorded() {
    for (name, schema) in schemas() {
        let mut recorded_names = BTreeSet::new();
        for kind in kinds(LATEST, name) {
            let document: Value = serde_json::from_str(&recorded(LATEST, name, &kind)).unwrap();
            names(&document, &mut recorded_names);
        }
        let mut fields = BTreeSet::new();
        properties(schema.as_value(), &mut fields);
        let missing: Vec<&String> = fields.difference(&recorded_names).collect();
        assert!(missing.is_empty(), "{LATEST} {name} lacks {missing:?}");
    }
}

/// Names of all fields of a document.
fn names(document: &Value, into: &mut BTreeSet<String>) {
    match document {
        Value::Object(map) => {
            into.extend(map.keys().cloned());
            map.values().for_each(|value| names(value, into));
        }
        Value::Array(items) => items.iter().for_each(|item| names(item, into)),
        _ => {}
    }
}

/// Names of all fields that a schema speaks of.
fn properties(schema: &Value, into: &mut BTreeSet<String>) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::Object(fields)) = map.get("properties") {
                into.extend(fields.keys().cloned());
            }
            map.values().for_each(|value| properties(value, into));
        }
        Value::Array(items) => items.iter().for_each(|item| properties(item, into)),
        _ => {}
    }
}

#[test]
fn every_recorded_document_loads_and_nothing_of_it_is_lost() {
    for minor in MINORS {
        for (name, rewrite) in DOCUMENTS {
            for kind in kinds(minor, name) {
                let text = recorded(minor, name, &kind);
                let written =
                    rewrite(&text).unwrap_or_else(|error| panic!("{minor} {name}{kind}: {error}"));
                let before: Value = serde_json::from_str(&text).unwrap();
                let lost = lost(&before, &written, name);
                assert!(
                    lost.is_empty(),
                    "{minor}{kind}: ignored or changed: {lost:?}"
                );
            }
        }
    }
}

#[test]
fn a_document_with_only_what_its_version_demanded_loads() {
    for minor in MINORS {
        for (name, rewrite) in DOCUMENTS {
            let text = recorded(minor, name, ".least");
            rewrite(&text).unwrap_or_else(|error| panic!("{minor} {name}: {error}"));
        }
    }
}

#[test]
fn fields_of_later_versions_are_ignored_wherever_they_stand() {
    for (name, rewrite) in DOCUMENTS {
        let plain: Value = serde_json::from_str(&recorded(LATEST, name, "")).unwrap();
        let mut grown = plain.clone();
        let places = grow(&mut grown, "");
        assert!(places > 0, "{name}");
        let read = rewrite(&grown.to_string());
        let read = read.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(read, rewrite(&plain.to_string()).unwrap(), "{name}");
    }
}

#[test]
fn an_unknown_requirement_is_refused_in_one_line_that_names_its_version() {
    for (name, rewrite) in DOCUMENTS {
        let mut document: Value = serde_json::from_str(&recorded(LATEST, name, ".least")).unwrap();
        document["requires"] = json!(["build.attempts", "teleport@1.9.0"]);
        let refusal = rewrite(&document.to_string()).unwrap_err();
        assert_eq!(
            refusal,
            format!(
                "{name} requires feature `teleport`, which contract {CONTRACT_VERSION} does not have; it came \
                 with contract 1.9.0: use a host that speaks it: "
            )
        );
        assert!(!refusal.contains('\n'));
    }
}

#[test]
fn requirements_are_looked_at_before_the_shape() {
    let text = r#"{"requires": ["teleport@1.9.0"], "steps": {"in": "another shape"}}"#;
    let refusal = rewrite::<Plan>(text).unwrap_err();
    assert!(
        refusal.starts_with("Plan requires feature `teleport`"),
        "{refusal}"
    );
}

#[test]
fn words_of_later_versions_do_not_hide_the_words_that_are_known() {
    let mut manifest: Value = serde_json::from_str(&recorded("1.0", "Manifest", "")).unwrap();
    manifest["modes"] = json!(["wasm", "source"]);
    assert_eq!(
        Manifest::read(&manifest.to_string()).unwrap().modes,
        [Mode::Source]
    );

    let mut error: Value = serde_json::from_str(&recorded("1.0", "ProviderError", "")).unwrap();
    error["code"] = json!("QUOTA_EXCEEDED");
    assert_eq!(
        ProviderError::read(&error.to_string()).unwrap().message,
        "no such flag"
    );
}

#[test]
fn what_cannot_be_ignored_is_refused_and_named() {
    let text = r#"{"steps": [{"id": "x", "kind": "teleport"}]}"#;
    let refusal = rewrite::<Plan>(text).unwrap_err();
    assert!(refusal.contains("unknown variant `teleport`"), "{refusal}");
}

/// Paths of what stands in `before` and not, or differently, in `after`.
fn lost(before: &Value, after: &Value, path: &str) -> Vec<String> {
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => before
            .iter()
            .flat_map(|(key, value)| {
                let path = format!("{path}.{key}");
                match after.get(key) {
                    Some(other) => lost(value, other, &path),
                    None => vec![path],
                }
            })
            .collect(),
        (Value::Array(before), Value::Array(after)) if before.len() == after.len() => before
            .iter()
            .zip(after)
            .enumerate()
            .flat_map(|(index, (value, other))| lost(value, other, &format!("{path}[{index}]")))
            .collect(),
        _ if before == after => Vec::new(),
        _ => vec![path.to_owned()],
    }
}

/// Fields that hold free names, where one more would be content.
const MAPS: [&str; 10] = [
    "tools",
    "packages",
    "options",
    "options_schema",
    "env",
    "inputs",
    "labels",
    "artifacts",
    "build_record",
    "requires",
];

/// Adds an unknown field to every object; gives their number.
fn grow(value: &mut Value, field: &str) -> usize {
    match value {
        Value::Object(map) => {
            let is_map = MAPS.contains(&field);
            let mut places = 0;
            for (key, inner) in map.iter_mut() {
                // Below a map its values are objects of the contract again, except for free JSON.
                if !(is_map && field.starts_with("options")) {
                    places += grow(inner, if is_map { "" } else { key });
                }
            }
            if !is_map {
                let later = Map::from_iter([("deep".to_owned(), json!([1, "two"]))]);
                map.insert("of_a_later_version".to_owned(), Value::Object(later));
                places += 1;
            }
            places
        }
        Value::Array(items) => items.iter_mut().map(|item| grow(item, "")).sum(),
        _ => 0,
    }
}
