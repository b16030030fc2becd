//! The `host` program.

fn main() {
    engine_host::provider::worker::run_if_worker();
}
