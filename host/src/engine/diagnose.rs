//! What an engine's last words mean. Pure: works on the text of a log.

use engine_provider_api::{Diagnosis, DiagnosisKind};
use regex::Regex;

/// Lines of a log that are shown with a failure.
const LAST_LINES: usize = 12;

/// What a provider's table says about a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// One sentence.
    pub meaning: String,
    /// What helps.
    pub fix: String,
    /// The line that says so.
    pub line: String,
    /// Whether another port may help.
    pub port_taken: bool,
    /// What it was that failed, where it was not the engine.
    pub kind: Option<DiagnosisKind>,
}

/// The first entry of the table that a line of the log matches; of its lines the last one. Entries
/// whose pattern is no regular expression are passed over: a provider's slip must not hide a crash.
pub(super) fn diagnose(table: &[Diagnosis], log: &str) -> Option<Finding> {
    table.iter().find_map(|entry| {
        let pattern = Regex::new(&entry.pattern).ok()?;
        let (line, captures) = log
            .lines()
            .rev()
            .find_map(|line| Some((line, pattern.captures(line)?)))?;
        let fill = |template: &str| {
            let mut text = String::new();
            captures.expand(template, &mut text);
            text
        };
        Some(Finding {
            meaning: fill(&entry.meaning),
            fix: fill(&entry.fix),
            line: line.trim().to_owned(),
            port_taken: entry.port_taken,
            kind: entry.kind,
        })
    })
}

/// The last lines of a log that say something.
pub(super) fn last_lines(log: &str) -> Vec<String> {
    let mut lines: Vec<String> = log
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(LAST_LINES)
        .map(|line| line.trim_end().to_owned())
        .collect();
    lines.reverse();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(pattern: &str, meaning: &str) -> Diagnosis {
        Diagnosis {
            pattern: pattern.to_owned(),
            meaning: meaning.to_owned(),
            fix: "lower ctx below $mib".to_owned(),
            ..Diagnosis::default()
        }
    }

    #[test]
    fn the_particular_entry_wins_and_its_groups_are_filled_in() {
        let table = [
            entry("(", "a slip"),
            entry(r"allocating (?P<mib>\d+) MiB", "no room for $mib MiB"),
            entry("error", "something failed"),
        ];
        let log = "error: first\nallocating 10 MiB\nallocating 99 MiB failed\nerror: last\n";
        let finding = diagnose(&table, log).unwrap();
        assert_eq!(finding.meaning, "no room for 99 MiB");
        assert_eq!(finding.fix, "lower ctx below 99");
        assert_eq!(finding.line, "allocating 99 MiB failed");
        assert_eq!(diagnose(&table, "all is well"), None);
    }

    #[test]
    fn last_lines_leave_out_empty_ones() {
        let log: String = (0..40).map(|n| format!("line {n}\n\n")).collect();
        let lines = last_lines(&log);
        assert_eq!(lines.len(), LAST_LINES);
        assert_eq!(lines.last().unwrap(), "line 39");
    }
}
