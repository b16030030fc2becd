//! One does it, the others wait: results that are made once, and whatever else only one may do at a time.
//! Whoever waits is told for whom.

use std::time::Duration;

use engine_provider_api::Step;

use super::{ACTOR, ActError, Context};
use crate::{
    narrate::Waits,
    store::{self, Begin, FixedWork, Ingredients, Kind, Lock, Patience, StoreError},
};

/// Longest wait for another thread or process that makes the same result.
pub(super) const FLIGHT_LIMIT: Duration = Duration::from_secs(6 * 60 * 60);

/// What only one may do at a time, that is no result of the store.
pub(super) struct Turn<'a> {
    /// What others may hold, as metrics name it.
    pub(super) of: &'static str,
    /// Name of its lock.
    pub(super) lock: &'a str,
    /// What is done with it, for those who wait meanwhile.
    pub(super) doing: &'a str,
    /// Longest wait.
    pub(super) limit: Duration,
    /// What is said while somebody else holds it.
    pub(super) waiting: &'a (dyn Fn(&str) -> String + Send + Sync),
}

/// Waits until nobody else does it, telling so.
pub(super) async fn take_turn(
    context: &Context,
    step: &Step,
    turn: Turn<'_>,
) -> Result<Lock, ActError> {
    let waits = Waits::new(&context.narrator, turn.of);
    let on_wait = |who: &str| {
        let human = (turn.waiting)(who);
        context.narrator.say(ACTOR, "wait", &step.id, human);
        waits.begin(&step.id);
    };
    let patience = Patience {
        limit: turn.limit,
        cancel: &context.cancel,
        on_wait: &on_wait,
    };
    let path = context.store.lock_path(turn.lock);
    store::lock(&path, turn.doing, patience)
        .await
        .map_err(|source| ActError::store(step, source))
}

/// Gives a result or the right to make it, telling whoever has to wait.
pub(super) async fn begin(
    context: &Context,
    kind: Kind,
    step: &Step,
    ingredients: Ingredients,
    doing: &str,
) -> Result<Begin, ActError> {
    let waits = Waits::new(&context.narrator, "result");
    let on_wait = |who: &str| tell_wait(context, step, who, &waits);
    let name = context.name_of(step);
    let begun = context
        .store
        .begin(kind, &name, ingredients, doing, patience(context, &on_wait))
        .await;
    granted(context, step, begun)
}

/// The same for a result that is made in its final place.
pub(super) async fn begin_in_place(
    context: &Context,
    kind: Kind,
    step: &Step,
    ingredients: Ingredients,
    doing: &str,
) -> Result<Begin<FixedWork>, ActError> {
    let waits = Waits::new(&context.narrator, "result");
    let on_wait = |who: &str| tell_wait(context, step, who, &waits);
    let name = context.name_of(step);
    let begun = context
        .store
        .begin_in_place(kind, &name, ingredients, doing, patience(context, &on_wait))
        .await;
    granted(context, step, begun)
}

fn granted<W>(
    context: &Context,
    step: &Step,
    begun: Result<Begin<W>, StoreError>,
) -> Result<Begin<W>, ActError> {
    if let Ok(Begin::Work(_)) = &begun {
        context.narrator.makes();
    }
    begun.map_err(|source| ActError::store(step, source))
}

fn tell_wait(context: &Context, step: &Step, who: &str, waits: &Waits<'_>) {
    let human = format!(
        "{}: waiting for {who}, which makes the same result",
        step.id
    );
    context.narrator.say(ACTOR, "wait", &step.id, human);
    waits.begin(&step.id);
}

fn patience<'a>(context: &'a Context, on_wait: &'a (dyn Fn(&str) + Send + Sync)) -> Patience<'a> {
    Patience {
        limit: FLIGHT_LIMIT,
        cancel: &context.cancel,
        on_wait,
    }
}
