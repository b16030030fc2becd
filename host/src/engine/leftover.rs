//! What a dead engine has left, where whoever was to clear it up was killed too.
//!
//! A record that is still there after its engine and its minder are gone means that nobody has done
//! so. Handoff and record are files; a container takes its runtime's word.

use super::{EngineError, Instance, instance};
use crate::{config::paths::Home, store::try_lock};

/// Removes what is left of an engine that is dead, its container included. To be called with the
/// instance's lock held, or by whoever held the engine.
pub(super) async fn settle(home: &Home, dead: &Instance) -> Result<(), EngineError> {
    dead.withdraw();
    if let Some(container) = &dead.container
        && dead.is_recorded(home)
        && !container.farewell.carry_out_beside().await
    {
        return Err(EngineError::ContainerLeft {
            runtime: container.runtime.clone(),
            name: container.name.clone(),
        });
    }
    dead.forget(home);
    Ok(())
}

/// Removes the containers that killed hosts of this home have left. What is being started or cleared
/// up by somebody else is theirs.
pub async fn clear(home: &Home) -> Result<(), EngineError> {
    let mut first = Ok(());
    for (key, _) in instance::abandoned(home) {
        let Ok(Some(_lock)) = try_lock(&instance::lock_path(home, &key), "cleaning up") else {
            continue;
        };
        if let Ok(Some(again)) = instance::recorded(home, &key)
            && !again.is_there()
        {
            first = first.and(settle(home, &again).await);
        }
    }
    first
}
