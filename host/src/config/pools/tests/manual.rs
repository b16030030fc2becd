//! The schema, the examples and the manual hold to what is checked here.

use super::*;

#[test]
fn the_schema_names_every_field_and_closes_every_map() {
    let schema = schema();
    let pool = &schema["$defs"]["Pool"];
    assert_eq!(pool["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Source"]["additionalProperties"], false);
    assert_eq!(schema["$defs"]["Duration"]["pattern"], duration::PATTERN);
    assert!(pool["properties"]["ctx"]["description"].is_string());
}

#[test]
fn the_schema_in_the_manual_is_the_one_that_is_checked() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema/PoolFile.json");
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let written: Value = serde_json::from_str(&written).unwrap_or_default();
    assert!(
        written == schema(),
        "stale: write it anew with `host config schema > docs/schema/PoolFile.json`"
    );
}

#[test]
fn every_example_is_right() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples");
    let paths = std::fs::read_dir(directory).unwrap();
    let pool_files = paths.map(|entry| entry.unwrap().path()).filter(|path| {
        path.extension()
            .is_some_and(|it| it == "yaml" || it == "json")
    });
    let mut seen = 0;
    for path in pool_files {
        if let Err(error) = load(&path, &Surroundings::default()) {
            panic!("{}", told(Err(error)));
        }
        seen += 1;
    }
    assert!(seen > 0);
}

#[test]
fn every_pool_file_in_the_manual_is_right() {
    let manual = include_str!("../../../../../docs/pool-file.md");
    let mut blocks = manual
        .split("```yaml\n")
        .skip(1)
        .filter_map(|it| it.split("```").next());
    let pools = blocks.by_ref().filter(|it| it.contains("pools:"));
    let mut seen = 0;
    for text in pools {
        if let Err(error) = try_text(text) {
            panic!("{text}\n{}", told(Err(error)));
        }
        seen += 1;
    }
    assert!(seen >= 3, "{seen}");
}
