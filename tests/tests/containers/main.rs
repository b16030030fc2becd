//! Engines in containers: real podman, real docker, a real registry on the loopback address.
//!
//! The engine inside is the fake one of this repository, in an image made by hand, so that no test
//! needs a network. What is promised of one runtime is promised of both.

mod credentials;
mod external;
mod extracting;
mod failing;
mod flags;
mod gpus;
mod harness;
mod killed;
mod pulling;
mod rootless;
mod running;
mod stage;
mod standins;
mod triton;

pub(crate) use stage::Stage;

/// A promise that holds under podman and under docker: one test for each.
macro_rules! under_both {
    ($(fn $name:ident($kind:ident) $body:block)+) => {$(
        mod $name {
            use super::*;

            #[test]
            fn podman() {
                promise(e2e::ContainerKind::Podman);
            }

            #[test]
            fn docker() {
                promise(e2e::ContainerKind::Docker);
            }

            fn promise($kind: e2e::ContainerKind) $body
        }
    )+};
}
pub(crate) use under_both;
