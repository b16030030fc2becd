//! Completions and manual pages, made from the command line's own description.

use std::{fs, io, path::Path};

use clap::CommandFactory;

use super::arguments::Cli;
use crate::fault::Exit;

/// A completion script.
pub(super) fn completions(shell: clap_complete::Shell) -> String {
    // Its writer may not fail: a pipe that is closed must not be one.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "host", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Writes `host.1` and one page per subcommand into a directory, creating it.
pub(super) fn pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let mut command = Cli::command();
    let examples = command.get_after_help().map(ToString::to_string);
    let end = format!("{}\n\n{}", examples.unwrap_or_default(), exit_codes());
    command = command.after_long_help(end);
    // Gives subcommands the names of their pages.
    command.build();
    write_pages(&command, directory)
}

fn write_pages(command: &clap::Command, directory: &Path) -> io::Result<()> {
    for subcommand in command.get_subcommands() {
        write_pages(subcommand, directory)?;
    }
    let page = clap_mangen::Man::new(command.clone());
    let mut roff = Vec::new();
    page.render(&mut roff)?;
    let text = with_sections(&String::from_utf8_lossy(&roff));
    fs::write(directory.join(page.get_filename()), text)
}

/// Makes sections of what stands behind a command's help: clap knows it as one text, which roff would
/// fill and justify.
///
/// In that text a line that ends with a colon is a heading, lines that are indented stay as they are.
fn with_sections(page: &str) -> String {
    const EXTRA: &str = ".SH EXTRA\n";
    let Some((before, extra)) = page.split_once(EXTRA) else {
        return page.to_owned();
    };
    let (extra, after) = match extra.find("\n.SH ") {
        Some(end) => extra.split_at(end + 1),
        None => (extra, ""),
    };
    let mut text = before.to_owned();
    let mut is_verbatim = false;
    for line in extra.lines() {
        let verbatim = line.starts_with(' ');
        if verbatim != is_verbatim {
            text.push_str(if verbatim { ".nf\n" } else { ".fi\n" });
            is_verbatim = verbatim;
        }
        match (line, line.strip_suffix(':')) {
            ("", _) => text.push_str(".PP\n"),
            (_, Some(heading)) => text.push_str(&format!(".SH {}\n", heading.to_uppercase())),
            _ => text.push_str(&format!("{line}\n")),
        }
    }
    if is_verbatim {
        text.push_str(".fi\n");
    }
    text + after
}

/// The table of exit codes, for the manual.
fn exit_codes() -> String {
    let rows: Vec<String> = Exit::ALL
        .iter()
        .map(|exit| format!("  {:>3}  {}", exit.code(), exit.meaning()))
        .collect();
    format!("Exit status:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page_and_the_first_lists_the_exit_codes() {
        let directory = tempfile::tempdir().unwrap();
        pages(directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("host.1")).unwrap();
        for text in [
            ".SH EXAMPLES\n.nf\n  host provision",
            ".SH ENVIRONMENT\n.nf\n  HOST_HOME",
            ".SH EXIT STATUS\n.nf\n    0  done",
            "  143  terminated (TERM), everything stopped and cleaned\n.fi\n.SH VERSION",
        ] {
            assert!(page.contains(text), "no {text:?} in {page}");
        }
        for name in ["host-provision.1", "host-plan.1", "host-provider-list.1"] {
            assert!(directory.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn completions_know_the_subcommands() {
        let script = completions(clap_complete::Shell::Bash);
        assert!(script.contains("provision"));
    }
}
