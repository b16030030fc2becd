//! Completions and manual pages, made from the command line's own description.

use std::{fs, io, path::Path};

use clap::CommandFactory;

use super::arguments::Cli;
use crate::fault::Exit;

/// Writes a completion script.
pub(super) fn completions(shell: clap_complete::Shell, out: &mut dyn io::Write) {
    clap_complete::generate(shell, &mut Cli::command(), "host", &mut { out });
}

/// Writes `host.1` and one page per subcommand into a directory, creating it.
pub(super) fn pages(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let command = Cli::command().after_long_help(exit_codes());
    clap_mangen::generate_to(command, directory)
}

/// The table of exit codes, for the manual.
fn exit_codes() -> String {
    let rows: Vec<String> = Exit::ALL
        .iter()
        .map(|exit| format!("{:>3}  {}", exit.code(), exit.meaning()))
        .collect();
    format!("Exit codes:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_subcommand_has_a_page_and_the_first_lists_the_exit_codes() {
        let directory = tempfile::tempdir().unwrap();
        pages(directory.path()).unwrap();
        let page = fs::read_to_string(directory.path().join("host.1")).unwrap();
        assert!(page.contains("143"), "{page}");
        for name in ["host-provision.1", "host-plan.1", "host-provider-list.1"] {
            assert!(directory.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn completions_know_the_subcommands() {
        let mut out = Vec::new();
        completions(clap_complete::Shell::Bash, &mut out);
        assert!(String::from_utf8(out).unwrap().contains("provision"));
    }
}
