//! What the operator says: directories, environment, pool files.

pub mod environment;
pub mod paths;
