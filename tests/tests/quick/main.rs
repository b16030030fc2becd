//! Promises that cost seconds: the command line, the documents, refusals before any work.

mod command_line;
mod commands;
mod containers;
mod documents;
mod engines;
mod more_commands;
mod plans;
mod pool_files;
mod providers;
mod secrets;
