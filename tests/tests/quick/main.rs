//! Promises that cost seconds: the command line, the documents, refusals before any work.

mod documents;
