//! The description of the API, from the table of operations and the documents' own types.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    answer::ErrorBody,
    operation::Method,
    operations::{Entry, all},
};

/// The description, `OpenAPI` 3.1.
#[must_use]
pub fn document() -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
    });
    // Each type leaves its definition behind, and those of all that it is made of.
    let mut generator = settings.into_generator();
    let mut paths = Map::new();
    for entry in all() {
        let path = paths.entry(entry.path).or_insert_with(|| json!({}));
        let method = entry.method.as_str().to_ascii_lowercase();
        path[method] = described(&entry, &mut generator);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Pools of LLM inference engines",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Served by `host serve`: on a Unix socket for its user, and on TCP, where \
                reading is open on loopback and everything else needs the token.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    })
}

fn described(entry: &Entry, generator: &mut SchemaGenerator) -> Value {
    let content = match (entry.content)(generator) {
        Some(schema) => json!({entry.kind: {"schema": schema}}),
        None => json!({}),
    };
    let error = generator.subschema_for::<ErrorBody>();
    let error = json!({"application/json": {"schema": error}});
    let mut responses = Map::new();
    for (status, meaning) in entry.done {
        let mut response = json!({"description": meaning});
        if content != json!({}) {
            response["content"] = content.clone();
        }
        responses.insert(status.to_string(), response);
    }
    let refused = json!({"description": "Not done.", "content": error});
    responses.insert("default".to_owned(), refused);
    let mut described = json!({
        "operationId": entry.id,
        "summary": entry.summary,
        "parameters": parameters(entry, generator),
        "responses": responses,
    });
    if entry.method != Method::Get {
        described["security"] = json!([{"token": []}]);
    }
    described
}

/// What fills the places of the path, and what can stand in the query.
fn parameters(entry: &Entry, generator: &mut SchemaGenerator) -> Vec<Value> {
    let places = [("id", "Pool."), ("lease", "Name of a lease.")];
    let places = places
        .iter()
        .filter(|(name, _)| entry.path.contains(&format!("{{{name}}}")));
    let mut all: Vec<Value> = places
        .map(|(name, text)| {
            json!({
                "name": name, "in": "path", "required": true,
                "description": text, "schema": {"type": "string"},
            })
        })
        .collect();
    let query = (entry.query)(generator).to_value();
    for (name, schema) in query["properties"].as_object().into_iter().flatten() {
        let mut schema = schema.as_object().cloned().unwrap_or_default();
        let text = schema.remove("description");
        // What is not said is not `null`: it is not there.
        schema.remove("default");
        all.push(json!({
            "name": name, "in": "query", "required": false,
            "description": text, "schema": schema,
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(map) => {
                if let Some(Value::String(target)) = map.get("$ref") {
                    found.insert(target.clone());
                }
                map.values().for_each(|value| references(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    #[test]
    fn everything_that_is_referred_to_is_described() {
        let document = document();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        assert!(found.len() >= 6, "{found:?}");
        for target in found {
            let pointer = target.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{target}");
        }
    }

    #[test]
    fn names_of_operations_are_unique_and_what_changes_needs_the_token() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|it| it.id).collect();
        assert_eq!(names.len(), all.len());
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        for (path, methods) in paths {
            for (method, operation) in methods.as_object().unwrap() {
                let secured = operation.get("security").is_some();
                assert_eq!(secured, method != "get", "{method} {path}");
            }
        }
    }

    #[test]
    fn what_a_query_can_say_is_described_by_its_type() {
        let document = document();
        let drain = &document["paths"]["/v1/pools/{id}/drain"]["post"];
        let deadline = json!({
            "name": "deadline_ms", "in": "query", "required": false,
            "description": "Longest time leases are waited for. Default: the pool's own.",
            "schema": {"type": "integer", "format": "uint64", "minimum": 0},
        });
        assert_eq!(drain["parameters"][1], deadline, "{drain:#}");
        let lease = &document["paths"]["/v1/pools/{id}/leases/{lease}/renew"]["post"];
        let names: Vec<&Value> = lease["parameters"].as_array().unwrap().iter().collect();
        let names: Vec<&str> = names
            .iter()
            .map(|it| it["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["id", "lease", "ttl_ms"]);
    }
}
