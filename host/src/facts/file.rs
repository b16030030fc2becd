//! Facts from a file: the machine of somebody else.

use std::path::Path;

use engine_provider_api::{Document as _, Facts};

use crate::config::{
    document::{Source, parse},
    problem::{ConfigError, FileKind, Problem},
    schema::{Report, conform_open},
};

/// Reads facts that `host facts --json` wrote. What it does not know is ignored, as in every
/// document of the contract; what has the wrong shape is told with its place.
pub fn read(path: &Path) -> Result<Facts, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        kind: FileKind::Facts,
        source,
    })?;
    parse_facts(&Source::new(path, text))
}

fn parse_facts(source: &Source) -> Result<Facts, ConfigError> {
    let invalid = |problems| ConfigError::invalid(FileKind::Facts, source, problems);
    let node = parse(source).map_err(|problem| invalid(vec![problem]))?;
    let mut report = Report::default();
    let value = conform_open(&Facts::schema().to_value(), &node, "", &mut report);
    if !report.problems.is_empty() {
        return Err(invalid(report.problems));
    }
    Facts::read(&value.to_string()).map_err(|error| {
        let text = crate::narrate::chain(&error);
        invalid(vec![Problem::new("", node.place, text)])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::Fault as _;

    fn facts(text: &str) -> Result<Facts, ConfigError> {
        parse_facts(&Source::new("facts.json", text))
    }

    #[test]
    fn recorded_facts_are_read_and_unknown_fields_ignored() {
        let facts = facts("{\"os\": {\"id\": \"arch\", \"new\": 1}, \"later\": [], \"gpus\": {\"status\": \"driver-broken\"}}").unwrap();
        assert_eq!(facts.os.id, "arch");
        assert_eq!(
            facts.gpus.status,
            engine_provider_api::GpuStatus::DriverBroken
        );
    }

    #[test]
    fn wrong_facts_are_told_with_their_line() {
        let error = facts("{\n  \"cpu\": {\"threads\": \"many\"},\n  \"gpus\": []\n}").unwrap_err();
        let told: Vec<String> = error.details().into_iter().map(|it| it.text).collect();
        insta::assert_snapshot!(told.join("\n"), @r#"
        facts.json:2:22: `threads` must be a whole number, not the text `many`
              |
            2 |   "cpu": {"threads": "many"},
              |                      ^^^^^^
        facts.json:3:11: `gpus` must be a map, not a list
              |
            3 |   "gpus": []
              |           ^
        "#);
        assert_eq!(error.hints()[0].command.as_deref(), Some("{again}"));
        let error = facts("{\"requires\": [\"time-travel\"]}").unwrap_err();
        assert!(error.details()[0].text.contains("time-travel"));
    }

    #[test]
    fn every_recorded_machine_of_the_repository_is_read() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/facts");
        let mut read_any = false;
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            read_any = true;
        }
        assert!(read_any);
    }
}
