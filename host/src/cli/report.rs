//! The one printer of errors: what failed, where, why, what to type next.

use std::{fmt::Write as _, io::Write};

use super::terminal::printable;
use crate::{
    fault::{Detail, Exit, Fault},
    narrate::Secrets,
    process::quote,
};

/// How this program was called, for commands to paste.
#[derive(Debug, Clone, Default)]
pub struct Called {
    /// The path it was called by.
    pub program: String,
    /// What it was called with.
    arguments: Vec<String>,
    /// By root, who needs no leave, and whose machine may have no `sudo`.
    is_root: bool,
}

impl Called {
    /// From the arguments of a process, the program first.
    #[must_use]
    pub fn by(arguments: impl IntoIterator<Item = String>) -> Self {
        let mut arguments = arguments.into_iter();
        let program = arguments.next().unwrap_or_else(|| "host".to_owned());
        Self {
            program,
            arguments: arguments.collect(),
            is_root: false,
        }
    }

    /// As this user.
    #[must_use]
    pub fn as_root(self, is_root: bool) -> Self {
        Self { is_root, ..self }
    }

    /// A hint's command with its placeholders filled in.
    #[must_use]
    pub fn fill(&self, command: &str) -> String {
        let command = command.replace("{host}", &self.program);
        let command = match self.is_root {
            true => without_sudo(&command),
            false => command,
        };
        let Some((before, after)) = command.split_once("{again}") else {
            return command;
        };
        let mut words = after.split_whitespace();
        let flag = words.next().unwrap_or_default();
        let has_value = words.next().is_some();
        format!("{before}{}{after}", self.again_without(flag, has_value))
    }

    /// The command line as it was typed, without a flag that is added with another value.
    fn again_without(&self, flag: &str, has_value: bool) -> String {
        let with_value = format!("{flag}=");
        let mut again = quote(&self.program);
        let mut arguments = self.arguments.iter();
        while let Some(argument) = arguments.next() {
            if !flag.is_empty() && argument == flag {
                if has_value {
                    arguments.next();
                }
            } else if flag.is_empty() || !argument.starts_with(&with_value) {
                again.push(' ');
                again.push_str(&quote(argument));
            }
        }
        again
    }
}

/// The same command for root.
fn without_sudo(command: &str) -> String {
    let lines = command.lines().map(|line| {
        let parts = line.split(" && ");
        let own = parts.map(|part| part.strip_prefix("sudo ").unwrap_or(part));
        own.collect::<Vec<_>>().join(" && ")
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Width of the label `error`, which every error has.
const USUAL_LABEL: usize = "error".len();

/// What stands between the labels' column and a command: two columns more than before other words.
const COMMAND_MARGIN: &str = "    ";

/// Writes an error for people; `colour`: with labels and commands in colour.
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
    colour: bool,
) -> std::io::Result<()> {
    let width = label_width(&error.details());
    let text = render(error, called, width);
    let text = secrets.mask(&text);
    let text = printable(&text);
    if !colour {
        return out.write_all(text.as_bytes());
    }
    out.write_all(painted(&text, width).as_bytes())
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

fn label_width(details: &[Detail]) -> usize {
    let labels = details.iter().map(|detail| detail.label.len());
    labels.chain([USUAL_LABEL]).max().unwrap_or_default()
}

fn render(error: &dyn Fault, called: &Called, width: usize) -> String {
    let mut text = String::new();
    labelled(&mut text, width, "error", &error.to_string());
    for detail in error.details() {
        labelled(&mut text, width, detail.label, &detail.text);
    }
    for cause in causes(error) {
        labelled(&mut text, width, "cause", &cause);
    }
    for hint in error.hints() {
        labelled(&mut text, width, "fix", &hint.text);
        for line in hint.command.iter().flat_map(|command| command.lines()) {
            let line = called.fill(line);
            let _ = writeln!(text, "{:width$}{COMMAND_MARGIN}{line}", "");
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

/// The text with labels and commands in colour. They are known by their columns, where nobody else's
/// words can stand: those begin two columns behind the labels.
fn painted(text: &str, width: usize) -> String {
    const RED: &str = "1;31";
    const GREEN: &str = "1;32";
    const BOLD: &str = "1";
    const CYAN: &str = "36";
    let mut out = String::new();
    let mut in_fix = false;
    for line in text.lines() {
        let (label, words) = line.split_at_checked(width).unwrap_or(("", line));
        let code = match label.trim_start() {
            "" => {
                let is_command = in_fix && words.starts_with(COMMAND_MARGIN);
                let code = if is_command { CYAN } else { "" };
                let _ = writeln!(out, "{label}{}", in_colour(words, code));
                continue;
            }
            "error" => RED,
            "fix" => GREEN,
            _ => BOLD,
        };
        in_fix = code == GREEN;
        let _ = writeln!(out, "{}{words}", in_colour(label, code));
    }
    out
}

fn in_colour(text: &str, code: &str) -> String {
    match code {
        "" => text.to_owned(),
        code => format!("\x1b[{code}m{text}\x1b[0m"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{Hint, hint};

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
        assert_eq!(
            called.fill("{again} --verify"),
            "host plan --gpu require --config 'a b.yaml' --verify"
        );
        let typed = [
            "host",
            "plan",
            "--container-runtime=docker",
            "--gpu",
            "require",
        ];
        let called = Called::by(typed.map(str::to_owned));
        assert_eq!(
            called.fill("{again} --container-runtime podman"),
            "host plan --gpu require --container-runtime podman"
        );
        assert_eq!(
            called.fill("{again}"),
            "host plan --container-runtime=docker --gpu require"
        );
    }

    #[test]
    fn root_is_told_to_type_no_sudo() {
        let called = Called::by(["host".to_owned()]);
        let command = "sudo dnf install moby-engine && sudo systemctl start docker\n{host} doctor";
        let typed = command.replace("{host}", "host");
        assert_eq!(called.fill(command), typed);
        assert_eq!(
            called.as_root(true).fill(command),
            "dnf install moby-engine && systemctl start docker\nhost doctor"
        );
    }

    #[test]
    fn an_error_says_what_where_why_and_what_to_type() {
        let error = Failed(std::io::Error::other(
            "cmake exited with code 1\nCMake Error at 41",
        ));
        let called = Called::by(["target/release/host", "plan"].map(str::to_owned));
        let mut out = Vec::new();
        print(&mut out, &error, &called, &Secrets::default(), false).unwrap();
        insta::assert_snapshot!(String::from_utf8(out).unwrap(), @r"
        error: llama.cpp could not be configured
        where: /logs/chat/cmake-configure.log
        cause: cmake exited with code 1
               CMake Error at 41
          fix: install the toolkit, then run
                 target/release/host provision --pool chat
        ");
    }
    #[test]
    fn colour_is_for_labels_and_commands_and_nobody_elses_words_can_be_taken_for_them() {
        let error = Failed(std::io::Error::other("one\nerror: two"));
        let called = Called::by(["host".to_owned()]);
        let mut out = Vec::new();
        print(&mut out, &error, &called, &Secrets::default(), true).unwrap();
        let shown = String::from_utf8(out).unwrap().replace('\x1b', "ESC");
        insta::assert_snapshot!(shown, @r"
        ESC[1;31merrorESC[0m: llama.cpp could not be configured
        ESC[1mwhereESC[0m: /logs/chat/cmake-configure.log
        ESC[1mcauseESC[0m: one
               error: two
        ESC[1;32m  fixESC[0m: install the toolkit, then run
             ESC[36m    host provision --pool chatESC[0m
        ");
    }
}
