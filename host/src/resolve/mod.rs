//! Mutable references become immutable ones: a branch or tag is a commit, a tag of an image a digest, and
//! a model what its source says that it is, from here on.
//!
//! What was resolved is the plan's from then on: keys, versions and records name the commit, and a
//! branch that advances is another build.

mod image;
mod model;

pub use image::look_here;

use std::time::Duration;

use engine_provider_api::{Act, Checkout, ExtractImage, Mirror, Plan, PullImage, Step};
use futures_util::future::{join_all, try_join_all};
use serde::Serialize;
use tokio::time::timeout;

use crate::{
    act::{
        ActError, Context, Git, MirrorFailure, Scheme, is_full_commit, list_command, scheme_of,
        shown,
    },
    fault::hint,
    narrate::Actor,
    process::Network,
};

/// Longest time for the question which commit a branch or tag is.
const QUESTION_LIMIT: Duration = Duration::from_secs(60);

/// A reference and what it was when it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Resolved {
    /// The step.
    pub step: String,
    /// The branch, tag or other name in the plan.
    pub reference: String,
    /// Its commit, in full.
    pub commit: String,
    /// The mirror that said so.
    pub from: String,
}

/// What an answer changes in a plan.
enum Answer {
    /// The commit of a branch or tag.
    Commit(Resolved),
    /// The digest of an image's tag, and the advice to pin it.
    Image { digest: String, advice: String },
}

/// Gives the plan with every reference replaced by a commit or digest, and the commits. A plan that
/// names commits only, and images that are here, is given back without asking anybody. All sources are
/// asked at the same time.
pub async fn plan(context: &Context, plan: &Plan) -> Result<(Plan, Vec<Resolved>), ActError> {
    let asked = plan.steps.iter().map(|step| ask_about(context, step));
    Ok(answered(plan, try_join_all(asked).await?))
}

/// The same, an error where a source has not answered within `limit`. For commits that holds of each mirror,
/// and the limit is their own.
pub async fn plan_in_time(
    context: &Context,
    plan: &Plan,
    limit: Duration,
) -> Result<(Plan, Vec<Resolved>), ActError> {
    let asked = plan.steps.iter().map(async |step| match &step.act {
        Act::Checkout(_) => ask_about(context, step).await,
        _ => timeout(limit, ask_about(context, step))
            .await
            .unwrap_or_else(|_| {
                Err(ActError::NoAnswer {
                    step: step.id.clone(),
                    what: asked_about(step),
                    limit,
                })
            }),
    });
    Ok(answered(plan, try_join_all(asked).await?))
}

/// What a step's source is asked about, fit to be shown.
fn asked_about(step: &Step) -> String {
    match &step.act {
        Act::StageModel(act) => crate::model::Reference::parse(&act.reference).map_or_else(
            |_| "its model".to_owned(),
            |reference| reference.to_string(),
        ),
        Act::PullImage(PullImage { image, .. }) | Act::ExtractImage(ExtractImage { image, .. }) => {
            image.repository.clone()
        }
        _ => step.act.kind().to_owned(),
    }
}

fn answered(plan: &Plan, answers: Vec<Option<Answer>>) -> (Plan, Vec<Resolved>) {
    let mut resolved = plan.clone();
    let commits = answers
        .into_iter()
        .enumerate()
        .filter_map(|(index, answer)| write(&mut resolved, index, answer?));
    let commits = commits.collect();
    (resolved, commits)
}

/// The same as far as sources answer within `limit`, and why others are left as they are: for a plan that
/// is shown.
pub async fn plan_within(
    context: &Context,
    plan: &Plan,
    limit: Duration,
) -> (Plan, Vec<Unanswered>) {
    let asked = plan
        .steps
        .iter()
        .map(|step| timeout(limit, ask_about(context, step)));
    let mut resolved = plan.clone();
    let mut open = Vec::new();
    for (index, answer) in join_all(asked).await.into_iter().enumerate() {
        match answer {
            Ok(Ok(answer)) => drop(answer.and_then(|answer| write(&mut resolved, index, answer))),
            Ok(Err(error)) => open.push(Unanswered::Failed(Box::new(error))),
            Err(_) => open.push(Unanswered::Late {
                step: plan.steps[index].id.clone(),
                limit,
            }),
        }
    }
    (resolved, open)
}

/// Why a reference is still what was written.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// Its source cannot say, or not be asked.
    #[error(transparent)]
    Failed(Box<ActError>),
    /// Its source takes its time.
    #[error(
        "step `{step}`: no answer within {} s; it is asked again, and waited for, once it is fetched",
        limit.as_secs()
    )]
    Late {
        /// The step.
        step: String,
        /// How long was waited.
        limit: Duration,
    },
}

/// Asks the sources of a plan's models alone what they are: they are the same for every machine.
pub async fn models_within(context: &Context, plan: &Plan, limit: Duration) -> Vec<Unanswered> {
    let is_model = |step: &&Step| matches!(step.act, Act::StageModel(_));
    let models = Plan {
        steps: plan.steps.iter().filter(is_model).cloned().collect(),
        ..Plan::default()
    };
    plan_within(context, &models, limit).await.1
}

async fn ask_about(context: &Context, step: &Step) -> Result<Option<Answer>, ActError> {
    Ok(match &step.act {
        Act::Checkout(act) if !is_full_commit(&act.commit) => {
            Some(Answer::Commit(checkout(context, step, act).await?))
        }
        Act::PullImage(PullImage { image, .. }) | Act::ExtractImage(ExtractImage { image, .. })
            if image.digest.is_some() || matches!(step.act, Act::PullImage(_)) =>
        {
            image::image(context, step, image).await?
        }
        Act::StageModel(act) => {
            model::model(context, step, act).await?;
            None
        }
        _ => None,
    })
}

/// Puts an answer into a plan; gives the commit, where it is one.
fn write(plan: &mut Plan, index: usize, answer: Answer) -> Option<Resolved> {
    match (answer, &mut plan.steps[index].act) {
        (Answer::Commit(resolved), Act::Checkout(act)) => {
            act.commit.clone_from(&resolved.commit);
            return Some(resolved);
        }
        (Answer::Image { digest, advice }, act) => {
            if let Act::PullImage(act) = act {
                act.image.digest = Some(digest);
            }
            plan.warnings.push(advice);
        }
        (Answer::Commit(_), _) => {}
    }
    None
}

async fn checkout(context: &Context, step: &Step, act: &Checkout) -> Result<Resolved, ActError> {
    let reference = act.commit.as_str();
    check_name(step, reference)?;
    let mut failures = Vec::new();
    for mirror in &act.mirrors {
        // An index has commits, but no names for them.
        let Mirror::Git { url } = mirror else {
            continue;
        };
        match ask(context, step, url, reference).await {
            Ok(commit) => {
                let from = shown(url);
                let human = format!("{reference} is commit {commit} at {from}");
                let narrator = &context.narrator;
                narrator.say(Actor::EngineProvisioner, "resolve", reference, human);
                return Ok(Resolved {
                    step: step.id.clone(),
                    reference: reference.to_owned(),
                    commit,
                    from,
                });
            }
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error) => failures.push(MirrorFailure {
                place: shown(url),
                error: Box::new(error),
            }),
        }
    }
    Err(match failures.pop() {
        Some(only) if failures.is_empty() => *only.error,
        None => bad(
            step,
            format!("`{reference}` is no full commit, and no git mirror can say which it is"),
        ),
        last => ActError::Mirrors {
            what: format!("the commit of `{reference}`"),
            failures: failures.into_iter().chain(last).collect(),
        },
    })
}

fn bad(step: &Step, reason: String) -> ActError {
    ActError::Reference {
        step: step.id.clone(),
        reason,
        hints: vec![hint("give all 40 digits of a commit", None)],
    }
}

async fn ask(
    context: &Context,
    step: &Step,
    url: &str,
    reference: &str,
) -> Result<String, ActError> {
    let git = Git::new(context, step, url)?;
    let patterns = patterns(reference);
    let mut args = vec!["ls-remote", "--quiet", "--", git.url()];
    args.extend(patterns.iter().map(String::as_str));
    let network = match scheme_of(url) {
        Some(Scheme::File) => Network::None,
        _ => Network::Host,
    };
    let root = std::path::Path::new("/");
    let answer = git
        .output("git-ls-remote", root, &args, network, QUESTION_LIMIT)
        .await?;
    choose(&answer, reference).ok_or_else(|| {
        let short = reference.len() >= 7 && reference.bytes().all(|byte| byte.is_ascii_hexdigit());
        let kind = if short {
            "branch or tag, and commits are named by all 40 digits"
        } else {
            "branch or tag"
        };
        ActError::Reference {
            step: step.id.clone(),
            reason: format!("{} has no `{reference}`: no such {kind}", shown(url)),
            hints: vec![hint("see which there are", Some(&list_command(url)))],
        }
    })
}

/// Names asked for: exactly these, where git would match every name that ends alike.
fn patterns(reference: &str) -> Vec<String> {
    if reference == "HEAD" || reference.starts_with("refs/") {
        return vec![reference.to_owned(), format!("{reference}^{{}}")];
    }
    vec![
        format!("refs/tags/{reference}^{{}}"),
        format!("refs/tags/{reference}"),
        format!("refs/heads/{reference}"),
    ]
}

/// The commit in what `git ls-remote` printed: of a tag's target before the tag, of a tag before a
/// branch, as git itself prefers.
fn choose(answer: &str, reference: &str) -> Option<String> {
    let lines: Vec<(&str, &str)> = answer
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter(|(commit, _)| is_full_commit(commit))
        .collect();
    let mut wanted = patterns(reference);
    // The target of a tag is listed after it; for full names too it comes first.
    wanted.sort_by_key(|name| !name.ends_with("^{}"));
    wanted
        .iter()
        .find_map(|name| lines.iter().find(|(_, other)| other == name))
        .map(|(commit, _)| (*commit).to_owned())
}

/// Refuses what is no name (git-check-ref-format(1)) before git sees it.
fn check_name(step: &Step, reference: &str) -> Result<(), ActError> {
    let forbidden = |byte: u8| byte.is_ascii_control() || b" ~^:?*[\\".contains(&byte);
    let sound = !reference.is_empty()
        && !reference.starts_with(['-', '/', '.'])
        && !reference.ends_with(['/', '.'])
        && !reference.ends_with(".lock")
        && !["..", "//", "@{", "/."]
            .iter()
            .any(|part| reference.contains(part))
        && !reference.bytes().any(forbidden);
    if sound {
        Ok(())
    } else {
        Err(bad(
            step,
            format!("`{reference}` is no commit, branch or tag"),
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::act::tests::{bench, git, plan as plan_of, repository};
    use crate::fault::{Exit, Fault as _};

    const ONE: &str = "1111111111111111111111111111111111111111";
    const TWO: &str = "2222222222222222222222222222222222222222";

    #[test]
    fn the_target_of_a_tag_comes_before_the_tag_and_tags_before_branches() {
        let answer =
            format!("{ONE}\trefs/heads/v1\n{ONE}\trefs/tags/v1\n{TWO}\trefs/tags/v1^{{}}\n");
        assert_eq!(choose(&answer, "v1").as_deref(), Some(TWO));
        let answer = format!("{ONE}\trefs/heads/x/main\n{TWO}\trefs/heads/main\n");
        assert_eq!(choose(&answer, "main").as_deref(), Some(TWO));
        assert_eq!(choose(&answer, "other"), None);
        assert_eq!(choose(&answer, "refs/heads/x/main").as_deref(), Some(ONE));
    }

    #[test]
    fn what_is_no_name_never_reaches_git() {
        let step = plan_of(json!([{"id": "s", "kind": "checkout", "mirrors": [], "commit": "x"}]));
        for bad in [
            "",
            "--upload-pack=x",
            "a b",
            "a..b",
            "x^{}",
            "@{-1}",
            "a\n",
            "x.lock",
            "/x",
        ] {
            assert!(check_name(&step.steps[0], bad).is_err(), "{bad}");
        }
        for good in ["main", "release/1.0", "v1.2", "HEAD", "refs/pull/1/head"] {
            assert!(check_name(&step.steps[0], good).is_ok(), "{good}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_branch_that_advances_is_another_commit() {
        let bench = bench(&["git"]);
        let origin = bench.home.path().join("origin");
        let (first, second) = repository(&origin);
        let with = |commit: &str| {
            plan_of(
                json!([{"id": "source", "kind": "checkout", "commit": commit, "mirrors": [
                {"kind": "git", "url": "/nowhere"},
                {"kind": "git", "url": origin}]}]),
            )
        };
        let resolve = async |reference: &str| {
            let (_, resolved) = plan(&bench.context, &with(reference)).await.unwrap();
            resolved[0].commit.clone()
        };
        assert_eq!(resolve("main").await, second);
        assert_eq!(resolve("v1").await, first);
        git(
            &origin,
            &["commit", "--quiet", "--allow-empty", "-m", "three"],
        );
        assert_eq!(resolve("main").await, git(&origin, &["rev-parse", "HEAD"]));

        let (same, resolved) = plan(&bench.context, &with(&first)).await.unwrap();
        assert_eq!((same, resolved), (with(&first), Vec::new()));
        let error = plan(&bench.context, &with("nothing")).await.unwrap_err();
        assert!(matches!(error, ActError::Mirrors { .. }), "{error}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_silent_source_is_waited_for_only_as_long_as_is_said() {
        let bench = bench(&[]);
        // Whoever connects waits to be accepted, which never happens.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let place = silent.local_addr().unwrap();
        let model = plan_of(json!([{"id": "model", "kind": "stage-model",
            "reference": format!("http://user:secret@{place}/m.gguf")}]));
        let limit = Duration::from_millis(200);
        let asked = plan_in_time(&bench.context, &model, limit).await;
        let error = asked.unwrap_err();
        assert!(matches!(error, ActError::NoAnswer { .. }), "{error}");
        let said = error.to_string();
        assert!(
            said.contains("/m.gguf") && !said.contains("secret"),
            "{said}"
        );
        assert_eq!(error.exit(), Exit::Network);
        let (_, open) = plan_within(&bench.context, &model, limit).await;
        assert!(matches!(open[..], [Unanswered::Late { .. }]), "{open:?}");
    }
}
