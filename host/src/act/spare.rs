//! Sources that are not needed: they are not here, and all that is made of them is.
//!
//! Only results of builds are looked at: what else reads a source may read any of its files.

use std::collections::BTreeMap;

use engine_provider_api::{Act, Artifact, Plan};

use super::{
    ACTOR, ActError, Artifacts, Context, Expected, Outlook, build, check::Order, checkout, expected,
};

/// Indexes of the sources that are not needed, given what every step would give.
pub(super) fn spared(
    plan: &Plan,
    order: &Order,
    expected: &BTreeMap<String, Expected>,
) -> Vec<usize> {
    let outlook = |step: usize| &expected[&plan.steps[step].id].outlook;
    let is_spared = |source: &usize| {
        let is_to_fetch = matches!(plan.steps[*source].act, Act::Checkout(_))
            && matches!(outlook(*source), Outlook::Fetch { .. });
        let mut users = order.users(*source).peekable();
        let is_made = |user: usize| {
            matches!(plan.steps[user].act, Act::Build(_)) && *outlook(user) == Outlook::Cached
        };
        is_to_fetch && users.peek().is_some() && users.all(is_made)
    };
    (0..plan.steps.len()).filter(is_spared).collect()
}

/// What sources that are not needed would have given, by index. What is made of them is in use from here
/// on, so that nobody removes it before its own step takes it.
pub(super) async fn take(
    context: &Context,
    plan: &Plan,
    order: &Order,
) -> Result<BTreeMap<usize, Artifact>, ActError> {
    let mut taken = BTreeMap::new();
    if !lacks_a_source(context, plan)? {
        return Ok(taken);
    }
    let all = expected(context, plan)?;
    let inputs: Artifacts = all
        .iter()
        .map(|(id, expected)| (id.clone(), expected.artifact.clone()))
        .collect();
    for (source, step) in plan.steps.iter().enumerate() {
        let id = &step.id;
        if all[id].outlook == Outlook::Spared
            && take_users(context, plan, order.users(source), &inputs).await?
        {
            let human = format!("{id} is not needed: what is made of it is here");
            context.narrator.say(ACTOR, "spared", id, human);
            taken.insert(source, inputs[id].clone());
        }
    }
    Ok(taken)
}

/// Whether there is anything to spare, which most runs find out by a look at one file.
fn lacks_a_source(context: &Context, plan: &Plan) -> Result<bool, ActError> {
    for step in &plan.steps {
        if let Act::Checkout(act) = &step.act
            && checkout::expected(context, step, act)?.outlook != Outlook::Cached
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the results of builds; whether all are still there.
async fn take_users(
    context: &Context,
    plan: &Plan,
    users: impl Iterator<Item = usize>,
    inputs: &Artifacts,
) -> Result<bool, ActError> {
    for user in users {
        let step = &plan.steps[user];
        let Act::Build(act) = &step.act else {
            return Ok(false);
        };
        if !build::take(context, step, act, inputs).await? {
            return Ok(false);
        }
    }
    Ok(true)
}
