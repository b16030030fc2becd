//! `options{}` of a pool, checked against the schema of the provider that will read them.

use serde_json::{Map, Value};

use super::{
    document::from_value,
    problem::Problem,
    schema::{Report, conform},
};

/// Checks the options of a pool; `schema` is `ProviderInfo::options_schema`.
///
/// `null` as schema accepts no options. The problems carry field paths from the pool
/// (`options.threads`), so that the caller can add places.
pub fn check(schema: &Value, options: &Map<String, Value>) -> Result<(), Vec<Problem>> {
    let none = serde_json::json!({"type": "object", "additionalProperties": false});
    let schema = if schema.is_null() { &none } else { schema };
    let node = from_value(&Value::Object(options.clone()));
    let mut report = Report::default();
    conform(schema, &node, "options", &mut report);
    if report.problems.is_empty() {
        Ok(())
    } else {
        Err(report.problems)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn options(value: Value) -> Map<String, Value> {
        value.as_object().expect("a map").clone()
    }

    #[test]
    fn an_unknown_option_is_refused_with_the_nearest_name() {
        let schema = json!({"type": "object", "properties": {
            "threads": {"type": ["integer", "null"], "format": "uint32", "minimum": 1},
            "cache": {"$ref": "#/$defs/Cache"},
        }, "$defs": {"Cache": {"enum": ["f16", "q8_0"], "type": "string"}}});
        assert_eq!(
            check(&schema, &options(json!({"threads": 4, "cache": "f16"}))),
            Ok(())
        );
        let problems = check(
            &schema,
            &options(json!({"thread": 4, "cache": "q8", "threads": 0})),
        );
        let told: Vec<String> = problems
            .unwrap_err()
            .into_iter()
            .map(|problem| format!("{}: {}", problem.field, problem.help.unwrap_or_default()))
            .collect();
        assert_eq!(
            told,
            [
                "options.cache: did you mean `q8_0`?",
                "options.thread: did you mean `threads`?",
                "options.threads: it is 1 to 4294967295",
            ]
        );
    }

    #[test]
    fn a_provider_without_options_accepts_none() {
        assert_eq!(check(&Value::Null, &Map::new()), Ok(()));
        let problems = check(&Value::Null, &options(json!({"x": 1}))).unwrap_err();
        assert_eq!(problems[0].help.as_deref(), Some("nothing can be set here"));
    }
}
