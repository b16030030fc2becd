//! The HTTP API of a daemon, over both of its doors.

mod broken;
mod described;
mod followed;
mod leased;
mod limited;
mod wire;

use wire::Client;

use crate::Stage;

/// A stage whose only pool does not run.
fn resting() -> Stage {
    let stage = Stage::new();
    let mut pool = stage.pool("rest", &[]);
    pool["preload"] = serde_json::json!(false);
    stage.machine.write_pool(&pool);
    stage
}
