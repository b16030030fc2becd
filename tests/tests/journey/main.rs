//! From a pool file to an engine that answers and back, on the fixture engine: real git, real
//! cmake, real processes.

mod building;
mod confined;
mod failing;
mod models;
mod ready;
mod running;
mod traced;

use e2e::{Machine, Repository, fixture_pool};
use serde_json::Value;

/// A machine with a repository of the fixture engine, and a pool for it that is not written yet.
fn stage() -> (Machine, Repository, Value) {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let pool = fixture_pool(&repository);
    (machine, repository, pool)
}
