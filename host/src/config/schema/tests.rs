use schemars::JsonSchema;
use serde_json::json;

use super::*;
use crate::config::document::{Source, parse};

#[derive(JsonSchema)]
#[expect(dead_code, reason = "only its schema is used")]
struct Thing {
    name: String,
    #[serde(default)]
    size: u16,
    #[serde(default)]
    flavour: Option<Flavour>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    devices: Vec<engine_provider_api::Device>,
    #[serde(default)]
    inner: Option<Box<Thing>>,
    #[serde(default)]
    free: std::collections::BTreeMap<String, u32>,
    #[serde(default)]
    #[schemars(extend("x-not-used" = true))]
    theirs: Option<u32>,
}

#[derive(JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[expect(dead_code, reason = "only its schema is used")]
enum Flavour {
    /// Sweet.
    Sweet,
    /// Sour.
    Sour,
}

fn check(text: &str) -> (Value, Vec<String>, Vec<String>) {
    let schema = schemars::schema_for!(Thing).to_value();
    let node = parse(&Source::new("x", text)).expect("yaml");
    let mut report = Report::default();
    let value = conform(&schema, &node, "", &mut report);
    let problems = report.problems.iter().map(|problem| {
        let help = problem.help.as_deref().unwrap_or("-");
        format!("{}: {} [{help}]", problem.field, problem.message)
    });
    let not_used = report.not_used.iter().map(|(path, _)| path.clone());
    (value, problems.collect(), not_used.collect())
}

#[test]
fn everything_wrong_is_told_at_once() {
    let (_, problems, _) = check(
        "size: 70000\nflavour: swet\ntags: [a, [b]]\ndevices: [1, x, {}]\nfre: 1\n\
         inner: {name: x, size: big}\nfree: {a: -1}\n",
    );
    insta::assert_snapshot!(problems.join("\n"), @r"
    size: `size` cannot be 70000 [it is 0 to 65535]
    flavour: `flavour` cannot be `swet` [did you mean `sweet`?]
    tags[1]: `tags[1]` must be text, not a list [-]
    devices[2]: `devices[2]` must be a whole number or text, not a map [-]
    fre: there is no `fre` [did you mean `free`?]
    inner.size: `size` must be a whole number, not the text `big` [-]
    free.a: `a` cannot be -1 [it is 0 to 4294967295]
    name: `name` is missing [-]
    ");
}

#[test]
fn text_is_taken_as_written_and_empty_counts_as_not_given() {
    let (value, problems, not_used) =
        check("name: 24.10\ntags: [true, 007]\nsize:\nflavour:\ntheirs: {any: thing}\n");
    assert_eq!(problems, [""; 0]);
    assert_eq!(
        value,
        json!({"name": "24.10", "tags": ["true", "007"], "flavour": null})
    );
    assert_eq!(not_used, ["theirs"]);
}

#[test]
fn a_closed_schema_says_what_the_check_does() {
    let mut schema = schemars::schema_for!(Thing).to_value();
    close(&mut schema);
    assert_eq!(schema["additionalProperties"], json!(false));
    assert_eq!(
        schema["properties"]["free"]["additionalProperties"]["type"],
        "integer"
    );
}

#[test]
fn a_schema_that_leads_in_circles_ends() {
    let circles = [
        json!({"$ref": "#"}),
        json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"oneOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        json!({"properties": {"a": {"$ref": "#"}}, "type": "object", "anyOf": [{"$ref": "#"}]}),
        json!({"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}, "type": "object"}),
    ];
    for schema in circles {
        let node = crate::config::document::from_value(&json!({"a": null, "b": 1}));
        let mut report = Report::default();
        conform(&schema, &node, "options", &mut report);
    }
    let node = crate::config::document::from_value(&json!(1));
    let mut report = Report::default();
    conform(
        &json!({"anyOf": [{"$ref": "#"}]}),
        &node,
        "options",
        &mut report,
    );
    assert!(report.problems[0].message.contains("circles"), "{report:?}");
}
