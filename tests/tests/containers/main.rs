//! Engines in containers: real podman, real docker, a real registry.

mod harness;
