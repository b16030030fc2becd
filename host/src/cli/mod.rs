//! The terminal: arguments in, words out. The only room that knows there is one.

pub mod arguments;
mod json_lines;
mod manual;
pub mod provider;
pub mod report;
pub mod terminal;
