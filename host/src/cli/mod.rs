//! The terminal: arguments in, words out. The only room that knows there is one.

pub mod arguments;
mod json_lines;
pub mod logs;
mod manual;
pub mod ps;
pub mod report;
pub mod stop;
pub mod terminal;
