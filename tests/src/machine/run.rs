//! How a run of the program went, and what it has to have said.

/// Exit codes of a command that was killed at any instant: it may have been done by then.
pub const KILLED_OR_DONE: [i32; 2] = [0, 137];

/// How a run of the program went.
#[derive(Debug)]
pub struct Run {
    /// Exit code; 128 + number for a signal, as shells say it.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Run {
    /// Asserts the exit code, showing everything that was printed when it differs.
    #[track_caller]
    #[must_use]
    pub fn code(self, expected: i32) -> Self {
        assert_eq!(
            self.code, expected,
            "\n--- stdout\n{}\n--- stderr\n{}",
            self.stdout, self.stderr
        );
        self
    }

    /// Asserts that the exit code is one of several that are as right, showing everything that was printed
    /// when it is not.
    #[track_caller]
    #[must_use]
    pub fn code_in(self, allowed: &[i32]) -> Self {
        assert!(
            allowed.contains(&self.code),
            "{} is none of {allowed:?}\n--- stdout\n{}\n--- stderr\n{}",
            self.code,
            self.stdout,
            self.stderr
        );
        self
    }

    /// Standard output as JSON.
    #[track_caller]
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}\n{}", self.stdout, self.stderr))
    }

    /// Events of a run with `--log-format json`.
    #[must_use]
    pub fn events(&self) -> Vec<serde_json::Value> {
        events(&self.stderr)
    }

    /// Actions of the events, in order.
    #[must_use]
    pub fn actions(&self) -> Vec<String> {
        let word = |event: &serde_json::Value| event["action"].as_str().map(str::to_owned);
        self.events().iter().filter_map(word).collect()
    }

    /// Standard output has this text.
    ///
    /// # Panics
    ///
    /// When it has not.
    pub fn prints(&self, text: &str) -> &Self {
        assert!(self.stdout.contains(text), "no {text:?} in {}", self.stdout);
        self
    }

    /// Asserts that standard error says this.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(
            self.stderr.contains(text),
            "`{text}` not in:\n{}",
            self.stderr
        );
        self
    }
}

/// JSON lines that are events; other lines are not this program's.
fn events(stderr: &str) -> Vec<serde_json::Value> {
    stderr
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(|event: &serde_json::Value| event["action"].is_string())
        .collect()
}
