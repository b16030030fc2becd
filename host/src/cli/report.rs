//! The one printer of errors: what failed, where, why, what to type next.

use std::{fmt::Write as _, io::Write};

use super::terminal::printable;
use crate::{
    fault::{Exit, Fault},
    narrate::Secrets,
    process::quote,
};

/// How this program was called, for commands to paste.
#[derive(Debug, Clone, Default)]
pub struct Called {
    /// The path it was called by.
    pub program: String,
    /// The command line as it was typed, without `--gpu`, which hints add with another value.
    pub again: String,
}

impl Called {
    /// From the arguments of a process, the program first.
    #[must_use]
    pub fn by(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut arguments = arguments.into_iter();
        let program = arguments.next().unwrap_or_else(|| "host".to_owned());
        let mut again = quote(&program);
        while let Some(argument) = arguments.next() {
            if argument == "--gpu" {
                arguments.next();
            } else if !argument.starts_with("--gpu=") {
                again.push(' ');
                again.push_str(&quote(&argument));
            }
        }
        Self { program, again }
    }

    /// A hint's command with its placeholders filled in.
    #[must_use]
    pub fn fill(&self, command: &str) -> String {
        command
            .replace("{host}", &self.program)
            .replace("{again}", &self.again)
    }
}

/// Width of the label `error`, which every error has.
const USUAL_LABEL: usize = "error".len();

/// Writes an error for people.
///
/// ```text
/// error: llama.cpp could not be configured
/// where: /home/me/.local/share/engine-host/logs/chat/cmake-configure.log
/// cause: cmake exited with code 1
///   fix: install the CUDA toolkit, then run
///          host provision --pool chat
/// ```
pub fn print(
    out: &mut dyn Write,
    error: &dyn Fault,
    called: &Called,
    secrets: &Secrets,
) -> std::io::Result<()> {
    let text = render(error, called);
    out.write_all(printable(&secrets.mask(&text)).as_bytes())
}

/// The error as JSON, for `--json`.
#[must_use]
pub fn json(error: &dyn Fault, called: &Called, secrets: &Secrets) -> serde_json::Value {
    let mask = |text: String| secrets.mask(&text).into_owned();
    serde_json::json!({
        "error": {
            "kind": error.kind(),
            "exit": error.exit().code(),
            "message": mask(error.to_string()),
            "causes": causes(error).into_iter().map(mask).collect::<Vec<_>>(),
            "details": error.details().into_iter().map(|detail| serde_json::json!({
                "label": detail.label, "text": mask(detail.text),
            })).collect::<Vec<_>>(),
            "hints": error.hints().into_iter().map(|hint| serde_json::json!({
                "text": mask(hint.text),
                "command": hint.command.map(|command| mask(called.fill(&command))),
            })).collect::<Vec<_>>(),
        }
    })
}

fn render(error: &dyn Fault, called: &Called) -> String {
    let details = error.details();
    let labels = details.iter().map(|detail| detail.label.len());
    let width = labels.chain([USUAL_LABEL]).max().unwrap_or_default();
    let mut text = format!("{:>width$}: {error}\n", "error");
    for detail in details {
        labelled(&mut text, width, detail.label, &detail.text);
    }
    for cause in causes(error) {
        labelled(&mut text, width, "cause", &cause);
    }
    for hint in error.hints() {
        labelled(&mut text, width, "fix", &hint.text);
        for line in hint.command.iter().flat_map(|command| command.lines()) {
            let line = called.fill(line);
            let _ = writeln!(text, "{:width$}    {line}", "");
        }
    }
    if error.exit() == Exit::Internal && error.hints().is_empty() {
        labelled(
            &mut text,
            width,
            "note",
            "this is a defect of this program; RUST_LOG=debug shows more",
        );
    }
    text
}

fn causes(error: &dyn Fault) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    let mut layer = std::error::Error::source(error);
    while let Some(cause) = layer {
        let words = cause.to_string();
        if causes.last() != Some(&words) && words != error.to_string() {
            causes.push(words);
        }
        layer = cause.source();
    }
    causes
}

/// One labelled block, its later lines indented under the first.
fn labelled(text: &mut String, width: usize, label: &str, body: &str) {
    let mut lines = body.trim_end().lines();
    let _ = writeln!(
        text,
        "{label:>width$}: {}",
        lines.next().unwrap_or_default()
    );
    for line in lines {
        let _ = writeln!(text, "{:width$}  {line}", "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Detail, Hint, hint};

    #[derive(Debug, thiserror::Error)]
    #[error("llama.cpp could not be configured")]
    struct Failed(#[source] std::io::Error);

    impl Fault for Failed {
        fn exit(&self) -> Exit {
            Exit::Step
        }
        fn kind(&self) -> &'static str {
            "step-failed"
        }
        fn details(&self) -> Vec<Detail> {
            vec![Detail::new("where", "/logs/chat/cmake-configure.log")]
        }
        fn hints(&self) -> Vec<Hint> {
            vec![hint(
                "install the toolkit, then run",
                Some("{host} provision --pool chat"),
            )]
        }
    }

    #[test]
    fn a_command_is_repeated_as_it_was_typed_with_another_gpu() {
        let typed = ["host", "plan", "--gpu", "require", "--config", "a b.yaml"];
        let called = Called::by(typed.map(str::to_owned));
        assert_eq!(
            called.fill("{again} --gpu prefer"),
            "host plan --config 'a b.yaml' --gpu prefer"
        );
    }

    #[test]
    fn an_error_says_what_where_why_and_what_to_type() {
        let error = Failed(std::io::Error::other(
            "cmake exited with code 1\nCMake Error at 41",
        ));
        let called = Called::by(["target/release/host", "plan"].map(str::to_owned));
        let mut out = Vec::new();
        print(&mut out, &error, &called, &Secrets::default()).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        error: llama.cpp could not be configured
        where: /logs/chat/cmake-configure.log
        cause: cmake exited with code 1
               CMake Error at 41
          fix: install the toolkit, then run
                 target/release/host provision --pool chat
        ");
    }
}
