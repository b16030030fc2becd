//! What cargo built and the tests drive.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::OnceLock,
};

use serde_json::Value;

use crate::repository_root;

/// Why cargo can be run.
const CARGO: &str = "cargo runs the tests, so it is there";

/// Where a build left its results.
#[derive(Debug)]
pub struct Built {
    /// Directory with the program and the providers beside it.
    pub directory: PathBuf,
}

impl Built {
    /// The development build of the whole workspace, made now where it is stale.
    ///
    /// # Panics
    ///
    /// When cargo fails.
    pub fn debug() -> &'static Self {
        static BUILT: OnceLock<Option<Built>> = OnceLock::new();
        let built =
            BUILT.get_or_init(|| Self::build(&["build", "--workspace", "--quiet"], "debug"));
        built.as_ref().expect("what is tested is built")
    }

    /// What README's first command builds: the program and the providers that ship with it.
    ///
    /// # Panics
    ///
    /// When cargo fails.
    pub fn release() -> &'static Self {
        static BUILT: OnceLock<Option<Built>> = OnceLock::new();
        let build = ["run", "--release", "--quiet", "--", "--version"];
        let built = BUILT.get_or_init(|| Self::build(&build, "release"));
        built.as_ref().expect("what is tested is built")
    }

    /// What cargo says, a JSON object in each line, of everything that README's first command builds or
    /// finds built.
    ///
    /// # Panics
    ///
    /// When cargo fails.
    #[must_use]
    pub fn told_by_release() -> Vec<Value> {
        let arguments = [
            "run",
            "--release",
            "--quiet",
            "--message-format=json",
            "--",
            "--version",
        ];
        let output = cargo(&arguments).output().expect(CARGO);
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = lines.lines().filter(|line| line.starts_with('{'));
        lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The daemon of `examples/`, with nothing of the library that it could do without.
    ///
    /// # Panics
    ///
    /// When cargo fails.
    #[must_use]
    pub fn embedder() -> PathBuf {
        static BUILT: OnceLock<Option<Built>> = OnceLock::new();
        let build = [
            "build",
            "--quiet",
            "--package=engine-host",
            "--no-default-features",
            "--example=pool-managerd",
        ];
        let built = BUILT.get_or_init(|| Self::build(&build, "debug/examples"));
        let built = built.as_ref().expect("what is tested is built");
        built.directory.join("pool-managerd")
    }

    /// `None` when cargo fails: that is told once, not by every test.
    fn build(arguments: &[&str], profile: &str) -> Option<Self> {
        let status = cargo(arguments).stdout(Stdio::null()).status();
        if !status.expect(CARGO).success() {
            return None;
        }
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map_or_else(|| repository_root().join("target"), PathBuf::from);
        Some(Self {
            directory: fs::canonicalize(target.join(profile)).unwrap(),
        })
    }

    /// The program.
    #[must_use]
    pub fn host(&self) -> PathBuf {
        self.directory.join("host")
    }
}

/// Cargo, in the repository.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(repository_root()).args(arguments);
    for (name, _) in std::env::vars_os() {
        if is_of_the_tests(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether this is a variable by which cargo describes the package whose tests it runs. Build scripts
/// among our dependencies look at them: with ours, all that rests on TLS would be built anew, and once
/// more by whoever builds next without them.
fn is_of_the_tests(variable: &str) -> bool {
    ["CARGO_MANIFEST_", "CARGO_PKG_"]
        .iter()
        .any(|prefix| variable.starts_with(prefix))
}
