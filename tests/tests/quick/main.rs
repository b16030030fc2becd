//! Promises that cost seconds: the command line, the documents, refusals before any work.

mod command_line;
mod commands;
mod container_commands;
mod containers;
mod doctor;
mod documents;
mod engines;
mod kept_engines;
mod more_commands;
mod plans;
mod pool_files;
mod providers;
mod secrets;
