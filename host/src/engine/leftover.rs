//! What a dead engine has left, where whoever was to clear it up was killed too.
//!
//! A record that is still there after its engine and its minder are gone means that nobody has done
//! so. Handoff and record are files; a container takes its runtime's word.

use super::{EngineError, Instance, records};
use crate::{config::paths::Home, store::try_lock};

/// Removes what is left of an engine that is dead, its container included. To be called with the
/// instance's lock held, or by whoever held the engine.
pub(super) async fn settle(home: &Home, dead: &Instance) -> Result<(), EngineError> {
    dead.withdraw();
    if let Some(container) = &dead.container
        && dead.is_recorded(home)
        && let Err(said) = container.farewell.carry_out_beside().await
    {
        return Err(EngineError::ContainerLeft {
            runtime: container.runtime.clone(),
            name: container.name.clone(),
            said,
        });
    }
    dead.forget(home);
    Ok(())
}

/// Removes the containers that killed hosts of this home have left. What is being started or cleared
/// up by somebody else is theirs.
pub async fn clear(home: &Home) -> Result<(), EngineError> {
    let mut cleared = clear_each(home).await.into_iter();
    cleared.try_for_each(|(_, cleared)| cleared)
}

/// The same, telling of each engine what came of it.
pub async fn clear_each(home: &Home) -> Vec<(Instance, Result<(), EngineError>)> {
    let mut all = Vec::new();
    for (key, _) in records::abandoned(home) {
        let Ok(Some(_lock)) = try_lock(&records::lock_path(home, &key), "cleaning up") else {
            continue;
        };
        if let Ok(Some(again)) = records::recorded(home, &key)
            && !again.is_there()
        {
            let cleared = settle(home, &again).await;
            all.push((again, cleared));
        }
    }
    all
}

/// Dead engines of this home whose containers may still be there: nobody has removed them yet. Asks no
/// runtime.
#[must_use]
pub fn left(home: &Home) -> Vec<Instance> {
    let abandoned = records::abandoned(home).into_iter();
    abandoned.map(|(_, instance)| instance).collect()
}
