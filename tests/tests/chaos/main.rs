//! Several at once, and everything killed at the worst moment.

mod at_once;
mod daemon;
mod killed;

use e2e::{Machine, Repository, fixture_pool};
use serde_json::Value;

/// A machine with a repository of the fixture engine, and a pool for it that is not written yet.
fn stage() -> (Machine, Repository, Value) {
    let machine = Machine::new();
    let repository = Repository::create(machine.root());
    let pool = fixture_pool(&repository);
    (machine, repository, pool)
}
