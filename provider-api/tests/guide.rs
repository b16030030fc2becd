//! The guide for writers of providers shows code that exists.

use std::{fs, path::Path};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_piece_of_rust_in_the_guide_stands_in_the_sample_provider() {
    let guide = read("docs/providers.md");
    let sample: String = ["lib", "source", "launch"]
        .map(|file| read(&format!("tests/providers/minimal/src/{file}.rs")))
        .concat();
    let pieces: Vec<&str> = guide
        .split("\n```")
        .filter_map(|block| block.strip_prefix("rust\n"))
        .collect();
    assert!(pieces.len() >= 6, "the guide has {} pieces", pieces.len());
    for piece in pieces {
        assert!(sample.contains(piece), "not in the sample:\n{piece}");
    }
}

#[test]
fn the_guide_names_every_document_and_every_kind_of_step() {
    let guide = read("docs/providers.md");
    for (name, _) in engine_provider_api::schemas() {
        assert!(guide.contains(&format!("`{name}`")), "{name}");
    }
    let plan = read("provider-api/tests/documents/1.1/Plan.json");
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    for step in plan["steps"].as_array().unwrap() {
        let kind = step["kind"].as_str().unwrap();
        assert!(guide.contains(&format!("| `{kind}` |")), "{kind}");
    }
}
