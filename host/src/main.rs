//! The `host` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    match engine_host::become_helper() {
        Some(code) => code,
        None => engine_host::cli::main(),
    }
}
