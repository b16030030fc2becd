//! GPUs in containers, on a machine without one.
