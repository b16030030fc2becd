//! Help, completions, manual pages, exit codes of a wrong command line.

use e2e::Machine;

const SUBCOMMANDS: [&[&str]; 21] = [
    &["provision"],
    &["plan"],
    &["prepare"],
    &["doctor"],
    &["facts"],
    &["ps"],
    &["stop"],
    &["logs"],
    &["engine"],
    &["engine", "list"],
    &["engine", "remove"],
    &["engine", "gc"],
    &["provider"],
    &["provider", "list"],
    &["provider", "inspect"],
    &["config"],
    &["config", "check"],
    &["config", "schema"],
    &["config", "policy"],
    &["completions"],
    &["man"],
];

#[test]
fn the_version_is_printed_and_nothing_else_happens() {
    let machine = Machine::new();
    let run = machine.run(&["--version"]).code(0);
    assert_eq!(
        run.stdout,
        format!("host {}\n", env!("CARGO_PKG_VERSION")),
        "one version for the whole workspace"
    );
    assert_eq!(run.stderr, "");
    assert!(!machine.home().exists());
}

#[test]
fn who_stops_reading_is_told_of_no_error_and_a_full_disk_is_one() {
    let machine = Machine::new();
    for arguments in [
        ["completions", "bash"],
        ["config", "schema"],
        ["provider", "list"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run = machine.command(&arguments).stdout(writer).output().unwrap();
        assert_eq!(run.status.code(), Some(0), "{run:?}");
        assert!(run.stderr.is_empty(), "{run:?}");
        let full = std::fs::File::options().write(true).open("/dev/full");
        let run = machine
            .command(&arguments)
            .stdout(full.unwrap())
            .output()
            .unwrap();
        assert_eq!(run.status.code(), Some(14), "{run:?}");
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(said.contains("No space left on device"), "{said}");
    }
}

#[test]
fn help_starts_with_what_it_does_and_ends_with_examples_that_parse() {
    let machine = Machine::new();
    let help = machine.run(&["--help"]).code(0).stdout;
    assert!(help.starts_with("Takes an LLM inference engine from a pool file"));
    let (_, examples) = help.split_once("Examples:\n").expect("examples");
    let examples: Vec<&str> = examples
        .lines()
        .map_while(|line| line.strip_prefix("  host "))
        .collect();
    assert!(examples.len() >= 4, "{examples:?}");
    for example in examples {
        // Words up to the explanation, which is set off by blanks; `&&` joins two commands.
        let command = example.split("  ").next().unwrap();
        for command in command.split(" && ") {
            let words: Vec<&str> = command
                .split(' ')
                .filter(|word| *word != "host")
                .chain(["--help"])
                .collect();
            let _ = machine.run(&words).code(0);
        }
    }
}

#[test]
fn every_subcommand_has_help() {
    let machine = Machine::new();
    let listed = machine.run(&["--help"]).code(0).stdout;
    for words in SUBCOMMANDS {
        assert!(listed.contains(words[0]), "{words:?} is not listed");
        let arguments: Vec<&str> = words.iter().copied().chain(["--help"]).collect();
        let help = machine.run(&arguments).code(0).stdout;
        assert!(
            help.contains(&format!("Usage: host {}", words.join(" "))),
            "{help}"
        );
    }
    assert!(!machine.home().exists(), "help needs no home");
}

#[test]
fn a_wrong_command_line_ends_with_2_and_says_what_is_meant() {
    let machine = Machine::new();
    let run = machine.run(&["provisoin"]).code(2);
    run.says("'provision'");
    let run = machine.run(&["plan", "--gpu", "maybe"]).code(2);
    run.says("require, prefer, forbid");
    let run = machine.run(&["stop"]).code(2);
    run.says("stop --all");
    run.says(" ps");
    let run = machine.run(&["logs"]).code(11);
    run.says(" ps");
    assert_eq!(run.stdout, "");
    machine.assert_untouched();
}

#[test]
fn completions_of_three_shells_know_every_subcommand() {
    let machine = Machine::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = machine.run(&["completions", shell]).code(0).stdout;
        for words in SUBCOMMANDS {
            assert!(script.contains(words[0]), "{shell}: {words:?}");
        }
    }
    // The shell that is surely there reads it.
    let script = machine.write(
        "host.bash",
        &machine.run(&["completions", "bash"]).code(0).stdout,
    );
    let status = std::process::Command::new("bash")
        .arg("-n")
        .arg(script)
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn manual_pages_are_written_for_every_subcommand() {
    let machine = Machine::new();
    let _ = machine.run(&["man", "pages"]).code(0);
    let page = |name: &str| {
        std::fs::read_to_string(machine.work().join("pages").join(name))
            .unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    for code in ["130", "143", "14"] {
        assert!(page("host.1").contains(code), "exit code {code}");
    }
    for words in SUBCOMMANDS {
        assert!(!page(&format!("host-{}.1", words.join("-"))).is_empty());
    }
}
