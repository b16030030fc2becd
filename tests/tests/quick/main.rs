//! Promises that cost seconds: the command line, the documents, refusals before any work.

mod command_line;
mod documents;
mod engines;
mod plans;
mod pool_files;
mod providers;
mod secrets;
