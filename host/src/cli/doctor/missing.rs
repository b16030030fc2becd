//! What no provider sees when it plans: a home that cannot be used, a model or a package that is not here.

use engine_provider_api::{Act, Facts, Hint, Mode, Plan, ProviderError};

use super::{Row, State};
use crate::{
    act::Family,
    fault::{Fault, hint},
    policy::Policy,
};

/// Adds that the home cannot be used, whatever else is ready: nothing would run before that is mended.
pub fn add_home_problem(rows: &mut [Row], problem: &dyn Fault) {
    for row in rows {
        if row.state == State::Ready {
            row.state = State::CanBeMade;
        }
        row.would_run = false;
        row.reasons.push(crate::narrate::chain(problem));
        row.fixes.extend(problem.hints());
    }
}

/// What of a model a default pool lacks: the machine may be ready for one, the pool alone runs nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingModel {
    why: String,
    fixes: Vec<Hint>,
}

impl MissingModel {
    /// The model that the pool names is not where it says.
    #[must_use]
    pub fn not_here(reference: &str) -> Self {
        let advice = "put it there, or write a pool file with `provisioning.model.ref`";
        Self {
            why: format!("the default pool's model `{reference}` is not here"),
            fixes: vec![hint(advice, None)],
        }
    }

    /// The provider refuses the pool for want of a model; `None`: for something else.
    #[must_use]
    pub fn refused(error: &ProviderError) -> Option<Self> {
        let field = error.field.as_deref()?;
        field.starts_with("provisioning.model").then(|| Self {
            why: "the default pool names no model: it needs a pool file with `provisioning.model.ref`"
                .to_owned(),
            fixes: error.hints.clone(),
        })
    }
}

/// Adds that the default pool has no model. Commands that would run it again fail all the same, and are
/// not offered.
pub fn add_missing_model(row: &mut Row, missing: MissingModel) {
    if row.state == State::Ready {
        row.state = State::CanBeMade;
    }
    row.would_run = false;
    for fix in &mut row.fixes {
        let runs_it = |command: &String| command.contains("{again}");
        fix.command = fix.command.take().filter(|command| !runs_it(command));
    }
    row.reasons.push(missing.why);
    row.fixes.extend(missing.fixes);
}

/// Adds programs of packages that are not installed, which no provider can see. `has`: whether a
/// program of this name is here; `plans`: those that the rows were judged by.
pub fn add_missing_packages(
    rows: &mut [Row],
    plans: &[(Mode, Result<Plan, ProviderError>)],
    facts: &Facts,
    policy: &Policy,
    root: bool,
    has: impl Fn(&str) -> bool,
) {
    let family = facts.package_manager.as_ref().map_or("", |it| &it.family);
    for (row, (_, plan)) in rows.iter_mut().zip(plans) {
        let steps = plan.iter().flat_map(|plan| &plan.steps);
        for step in steps {
            let Act::InstallPackages(act) = &step.act else {
                continue;
            };
            if has(&act.program) {
                continue;
            }
            row.reasons
                .push(format!("`{}` is not installed", act.program));
            let names = act.packages.get(family).filter(|names| !names.is_empty());
            let (Some(names), Some(family)) = (names, Family::of(family)) else {
                row.state = State::Cannot;
                row.would_run = false;
                row.fixes.push(hint(
                    "no package of this system is known to carry it: choose another mode",
                    None,
                ));
                continue;
            };
            if row.state == State::Ready {
                row.state = State::CanBeMade;
            }
            let command = family.paste(names, root);
            row.fixes.push(hint("install it", Some(&command)));
            match policy.allow_package_install(names) {
                Ok(()) => row
                    .fixes
                    .push(hint("`host provision` installs it itself", None)),
                Err(refusal) => {
                    row.would_run = false;
                    row.fixes.extend(refusal.hints());
                }
            }
        }
    }
}
