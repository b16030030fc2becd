//! What is written is true: links lead somewhere, named tests exist.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use regex::Regex;

fn root() -> PathBuf {
    fs::canonicalize(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap()
}

/// Files of the repository with this ending, build results and hidden directories left out.
fn files(ending: &str) -> Vec<PathBuf> {
    fn walk(directory: &Path, ending: &str, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    walk(&path, ending, found);
                }
            } else if name.ends_with(ending) {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    walk(&root(), ending, &mut found);
    assert!(!found.is_empty(), "no *{ending} in {}", root().display());
    found
}

/// The anchor that a heading gets on code hosts.
fn anchor(heading: &str) -> String {
    heading
        .trim_start_matches('#')
        .trim()
        .to_lowercase()
        .chars()
        .filter_map(|character| match character {
            ' ' => Some('-'),
            '-' | '_' => Some(character),
            _ => character.is_alphanumeric().then_some(character),
        })
        .collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|line| line.starts_with('#'))
        .map(anchor)
        .collect()
}

#[test]
fn every_link_in_the_documents_leads_somewhere() {
    let link = Regex::new(r"\]\(([^)\s]+)\)").unwrap();
    let mut broken = Vec::new();
    for file in files(".md") {
        let text = fs::read_to_string(&file).unwrap();
        for target in link
            .captures_iter(&text)
            .map(|found| found.get(1).unwrap().as_str())
        {
            if target.contains("://") {
                continue;
            }
            let (path, wanted) = target.split_once('#').unwrap_or((target, ""));
            let path = if path.is_empty() {
                file.clone()
            } else {
                file.parent().unwrap().join(path)
            };
            let there = path.exists()
                && (wanted.is_empty()
                    || anchors(&fs::read_to_string(&path).unwrap()).contains(wanted));
            if !there {
                broken.push(format!("{}: {target}", file.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_test_that_the_requirements_name_exists() {
    let table = fs::read_to_string(root().join("docs/requirements.md")).unwrap();
    // A test is named in words; a field such as `engine_version` has two at most.
    let name = Regex::new(r"`([a-z0-9]+(?:_[a-z0-9]+){2,})`").unwrap();
    let sources: String = files(".rs")
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let mut named = 0;
    let missing: Vec<&str> = name
        .captures_iter(&table)
        .map(|found| found.get(1).unwrap().as_str())
        .inspect(|_| named += 1)
        .filter(|test| !sources.contains(&format!("fn {test}(")))
        .collect();
    assert!(named > 20, "only {named} tests are named");
    assert!(missing.is_empty(), "{missing:#?}");
}
