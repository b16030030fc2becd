//! The published schemas are those of the code.
//!
//! To write them anew: `UPDATE_SCHEMAS=1 cargo test -p engine-provider-api --test schema`.

use std::{fs, path::PathBuf};

use engine_provider_api::schemas;

#[test]
fn published_schemas_are_those_of_the_code() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");
    let update = std::env::var_os("UPDATE_SCHEMAS").is_some();
    let mut stale = Vec::new();
    for (name, schema) in schemas() {
        let path = directory.join(format!("{name}.json"));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if fs::read_to_string(&path).ok().as_deref() == Some(&text) {
            continue;
        }
        if update {
            fs::create_dir_all(&directory).unwrap();
            fs::write(&path, text).unwrap();
        } else {
            stale.push(name);
        }
    }
    assert!(
        stale.is_empty(),
        "stale in docs/schema: {stale:?}; write them anew with\n  \
         UPDATE_SCHEMAS=1 cargo test -p engine-provider-api --test schema"
    );
}
