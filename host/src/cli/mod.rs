//! The terminal: arguments in, words out. The only room that knows there is one.

pub mod arguments;
mod columns;
pub mod config;
mod context;
mod daemon;
mod disk;
pub mod doctor;
mod engines;
pub mod facts;
mod json_lines;
mod lock;
pub mod logs;
mod manual;
mod model;
mod plan;
mod prepare;
pub mod provider;
mod provision;
pub mod ps;
pub mod report;
mod signals;
pub mod stop;
mod survey;
pub mod terminal;
mod traces;

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;

use self::{
    arguments::{Cli, Command, ConfigCommand, ProviderCommand, StopArguments},
    context::Context,
};
use crate::{
    act,
    config::{pools::Surroundings, problem::ConfigError, select::Overlay},
    engine,
    fault::{Exit, Failure},
    narrate::Actor,
    process::share_one_heap,
    provider::Search,
};

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
    let mut context = Context::new(cli.output.clone(), cli.command.serves());
    if let Err(error) = context.use_authfile(cli.command.authfile()) {
        return ExitCode::from(context.report(&error).code());
    }
    let runtime = match runtime(&cli.command) {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the program could not set itself up\n cause: {error}");
            return ExitCode::from(Exit::Internal.code());
        }
    };
    let outcome = runtime.block_on(context.traces.during(&context.host, run(&context, cli)));
    // Threads that wait for a hung disk must not keep the program.
    runtime.shutdown_background();
    let exit = match outcome {
        Ok(exit) => context.end(exit),
        Err(failure) => context.report(&*failure),
    };
    ExitCode::from(exit.code())
}

/// A command does one thing after the other; a daemon must answer while an engine's log is read.
fn runtime(command: &Command) -> std::io::Result<tokio::runtime::Runtime> {
    const THREADS: usize = 2;
    let mut builder = match command.serves() {
        true => {
            share_one_heap();
            tokio::runtime::Builder::new_multi_thread()
        }
        false => tokio::runtime::Builder::new_current_thread(),
    };
    builder.worker_threads(THREADS).enable_all().build()
}

async fn run(context: &Context, cli: Cli) -> Result<Exit, Failure> {
    match cli.command {
        Command::Plan(arguments) => plan::run(context, &arguments).await,
        Command::Prepare(arguments) => prepare::run(context, &arguments).await,
        Command::Lock(arguments) => lock::run(context, &arguments).await,
        Command::Provider(command) => provider_command(context, command),
        Command::Config(command) => config_command(context, command),
        Command::Completions { shell } => {
            context.print(&manual::completions(shell));
            Ok(Exit::Success)
        }
        Command::Man { directory } => {
            manual::pages(&directory).map_err(config::output)?;
            Ok(Exit::Success)
        }
        Command::Provision(arguments) => provision::run(context, &arguments).await,
        Command::Doctor(arguments) => survey::run_doctor(context, &arguments).await,
        Command::Facts(arguments) => survey::show_facts(context, &arguments).await,
        Command::Ps => {
            clear_up(context).await;
            ps::run(
                &context.host.home,
                context.output.json,
                &mut std::io::stdout(),
            )?;
            Ok(Exit::Success)
        }
        Command::Stop(arguments) => stop_command(context, &arguments).await,
        Command::Serve(arguments) => daemon::serve(context, &arguments).await,
        Command::Up(arguments) => daemon::up(context, &arguments).await,
        Command::Down(arguments) => daemon::down(context, &arguments).await,
        Command::Drain(arguments) => daemon::drain(context, &arguments).await,
        Command::Reload(arguments) => daemon::reload(context, &arguments).await,
        Command::Restart(arguments) => daemon::restart(context, &arguments).await,
        Command::Status(arguments) => daemon::status(context, &arguments).await,
        Command::Events(arguments) => daemon::events(context, &arguments).await,
        Command::Model(arguments) => model::run(context, &arguments).await,
        Command::Engine(arguments) => engines::run(context, &arguments).await,
        Command::Disk => disk::run(context).await,
        Command::Logs(arguments) => {
            let (home, pool) = (&context.host.home, arguments.pool.as_deref());
            let secrets = context.host.narrator.secrets();
            logs::keep_secret(secrets, &context.host.environment);
            let (follow, lines) = (arguments.follow, arguments.lines);
            let out = &mut std::io::stdout();
            logs::run(home, pool, follow, lines, secrets, out).await?;
            Ok(Exit::Success)
        }
    }
}

/// Removes containers that killed hosts have left. What cannot be removed now is told, and tried again
/// by whoever looks next.
async fn clear_up(context: &Context) {
    let host = &context.host;
    act::clear_extractions(&host.home).await;
    if let Err(error) = engine::clear(&host.home).await {
        let narrator = &host.narrator;
        narrator.fail(Actor::EngineProvisioner, "stop", "leftovers", &error);
    }
}

async fn stop_command(context: &Context, arguments: &StopArguments) -> Result<Exit, Failure> {
    if !arguments.all && arguments.pools.is_empty() {
        return Err(ConfigError::NothingToStop.into());
    }
    let hurry = context.host.cancel.clone();
    let received = signals::cancel_on_signal(hurry.clone());
    let which = if arguments.all {
        stop::Which::All
    } else {
        stop::Which::Pools(&arguments.pools)
    };
    let (home, narrator) = (&context.host.home, &context.host.narrator);
    let (form, out) = (context.form(), &mut std::io::stdout());
    clear_up(context).await;
    stop::run(home, which, narrator, &hurry, form, out).await?;
    Ok(received.exit().unwrap_or(Exit::Success))
}

fn search(context: &Context, flags: &[PathBuf]) -> Search {
    Search::usual(flags, &context.host.environment, &context.host.home)
}

fn provider_command(context: &Context, command: ProviderCommand) -> Result<Exit, Failure> {
    match command {
        ProviderCommand::List { provider_path } => {
            let list = provider::list(&search(context, &provider_path));
            context.show(&list, |out| list.write(out))?;
        }
        ProviderCommand::Inspect {
            name,
            provider_path,
        } => {
            let report = provider::inspect(&name, &search(context, &provider_path))?;
            context.show(&report, |out| report.write(out))?;
        }
    }
    Ok(Exit::Success)
}

fn config_command(context: &Context, command: ConfigCommand) -> Result<Exit, Failure> {
    let out = &mut std::io::stdout();
    let surroundings = Surroundings::of(&context.host.environment);
    match command {
        ConfigCommand::Check {
            file,
            config,
            provider_path,
        } => {
            let engines = provider::names(&search(context, &provider_path));
            let file = file.or(config);
            config::check(
                out,
                file.as_deref(),
                context.form(),
                &surroundings,
                &engines,
            )?;
        }
        ConfigCommand::Schema => config::schema(out)?,
        ConfigCommand::Policy { config: file } => config::show_policy(
            out,
            file.as_deref(),
            context.form(),
            &context.host.home,
            &context.host.environment,
            &Overlay::default(),
        )?,
    }
    Ok(Exit::Success)
}
