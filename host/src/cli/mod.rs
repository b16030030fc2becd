//! The terminal: arguments in, words out. The only room that knows there is one.

pub mod arguments;
pub mod config;
mod context;
mod json_lines;
mod manual;
pub mod provider;
pub mod report;
mod signals;
pub mod terminal;

use std::process::ExitCode;

use clap::Parser;

use self::{arguments::Cli, context::Context};
use crate::fault::{Exit, Failure};

/// Runs the program: parses the command line, does what it says, prints what went wrong.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are errors to clap, but not to a shell. Nobody may be reading.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() {
                Exit::Usage.code()
            } else {
                Exit::Success.code()
            });
        }
    };
    let context = Context::new(cli.output.clone());
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the program could not set itself up\n cause: {error}");
            return ExitCode::from(Exit::Internal.code());
        }
    };
    let outcome = runtime.block_on(run(&context, cli));
    // Threads that wait for a hung disk must not keep the program.
    runtime.shutdown_background();
    let exit = match outcome {
        Ok(exit) => exit,
        Err(failure) => context.report(&*failure),
    };
    ExitCode::from(exit.code())
}

async fn run(context: &Context, cli: Cli) -> Result<Exit, Failure> {
    let _ = (context, cli);
    Ok(Exit::Success)
}
