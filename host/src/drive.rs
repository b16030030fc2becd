//! The journey from a pool to a running engine, readable as a table of contents.
