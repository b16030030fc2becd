//! Mutable references become immutable ones: a branch or tag is a commit, and a tag of an image a
//! digest, from here on.
//!
//! What was resolved is the plan's from then on: keys, versions and records name the commit, and a
//! branch that advances is another build.

mod image;

use std::time::Duration;

use engine_provider_api::{Act, Checkout, ExtractImage, Mirror, Plan, PullImage, Step};
use serde::Serialize;

use crate::{
    act::{ActError, Context, Git, MirrorFailure, Scheme, is_full_commit, scheme_of, shown},
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

/// Gives the plan with every reference replaced by a commit or digest, and the commits. A plan that
/// names commits only, and images that are here, is given back without asking anybody.
pub async fn plan(context: &Context, plan: &Plan) -> Result<(Plan, Vec<Resolved>), ActError> {
    let mut resolved = plan.clone();
    let mut all = Vec::new();
    for (index, step) in plan.steps.iter().enumerate() {
        match &step.act {
            Act::Checkout(act) if !is_full_commit(&act.commit) => {
                let commit = checkout(context, step, act).await?;
                if let Act::Checkout(act) = &mut resolved.steps[index].act {
                    act.commit.clone_from(&commit.commit);
                }
                all.push(commit);
            }
            Act::PullImage(PullImage { image, .. })
            | Act::ExtractImage(ExtractImage { image, .. })
                if image.digest.is_some() || matches!(step.act, Act::PullImage(_)) =>
            {
                let digest = image::image(context, step, image, &mut resolved).await?;
                if let (Some(digest), Act::PullImage(act)) =
                    (digest, &mut resolved.steps[index].act)
                {
                    act.image.digest = Some(digest);
                }
            }
            _ => {}
        }
    }
    Ok((resolved, all))
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
            hints: vec![hint(
                "see which there are",
                Some(&format!("git ls-remote -- {}", shown(url))),
            )],
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
}
