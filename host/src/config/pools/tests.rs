//! Pool files, read. What the tests share is here, and that no text panics.

mod asked;
mod daemon;
mod manual;
mod read;
mod refused;
mod together;

use super::*;
use crate::fault::Fault as _;

fn base() -> Base {
    Base {
        directory: "/srv".into(),
        home: Some("/home/ada".into()),
    }
}

fn try_text(text: &str) -> Result<Loaded, ConfigError> {
    read(
        &Source::new("pools.yaml", text),
        &base(),
        &Caller::test_root(),
    )
}

/// A file with one pool; the lines given are those of the pool.
fn pool(lines: &str) -> Result<Loaded, ConfigError> {
    let mut text = "pools:\n  - id: chat\n    engine: llamacpp\n".to_owned();
    for line in lines.lines() {
        text.push_str("    ");
        text.push_str(line);
        text.push('\n');
    }
    try_text(&text)
}

fn told(result: Result<Loaded, ConfigError>) -> String {
    let error = result.expect_err("refused");
    assert_eq!(error.exit(), crate::fault::Exit::Config);
    let details: Vec<String> = error
        .details()
        .into_iter()
        .map(|detail| detail.text)
        .collect();
    details.join("\n")
}

fn notices(loaded: &Loaded) -> Vec<String> {
    loaded
        .notices
        .iter()
        .map(|notice| format!("{}: {}", notice.field, notice.message))
        .collect()
}

proptest::proptest! {
    #[test]
    fn no_file_panics(lines in proptest::collection::vec("(id|engine|ctx|devices|gpu|provisioning|model|quant|flags|ports): ?[a-z0-9{}\\[\\], :.\"-]{0,16}", 0..6)) {
        let _ = pool(&lines.join("\n"));
    }
}
