//! Steps that would bring something else onto the machine than the pool asks for.
//!
//! What the pool names decides; what it leaves open is the provider's to choose, and the plan shows
//! it. So of an image a pool that names the repository alone leaves the tag open, and one that names
//! a tag alone leaves the repository to the provider.

use engine_provider_api::{
    Act, BuildStep, Container, Download, ExtractImage, ImageName, InstallPackages, Plan, Pool,
    StageModel, Template,
};

use super::{Overreach, overreach};

/// Checks one step of a plan.
pub(super) fn step(act: &Act, plan: &Plan, pool: &Pool) -> Result<(), Overreach> {
    let provisioning = &pool.provisioning;
    match act {
        Act::StageModel(stage) => model(stage, pool),
        Act::PullImage(pull) => image(&pull.image, provisioning.container.as_ref()),
        Act::ExtractImage(extract) => {
            let binary = provisioning.binary.as_ref();
            image(&extract.image, binary.and_then(|it| it.image.as_ref()))?;
            paths(extract)
        }
        Act::Download(fetch) if fetch.program => download(fetch, pool),
        Act::InstallPackages(install) => packages(install, pool),
        Act::Observe(observe) => program(&observe.program, plan),
        Act::Build(build) => commands(build, plan),
        Act::Download(_) | Act::RequireTools(_) | Act::Checkout(_) => Ok(()),
    }
}

fn model(stage: &StageModel, pool: &Pool) -> Result<(), Overreach> {
    let is_the_pools = pool.provisioning.model.as_ref().is_some_and(|model| {
        model.reference == stage.reference
            && model.checksum == stage.digest
            && model.cache_dir == stage.cache_dir
            && stage.mirrors.iter().all(|url| model.mirrors.contains(url))
    });
    if is_the_pools || stage.reference.starts_with("builtin:") {
        return Ok(());
    }
    Err(overreach(
        format!("model `{}`", stage.reference),
        "only the pool's own model is staged, with its checksum, mirrors and directory",
    ))
}

fn image(asked: &ImageName, settings: Option<&Container>) -> Result<(), Overreach> {
    let Some(settings) = settings else {
        return Ok(());
    };
    let kept = |wanted: &Option<String>, asked: Option<&String>| {
        wanted.as_ref().is_none_or(|wanted| Some(wanted) == asked)
    };
    let is_the_pools = kept(&settings.image, Some(&asked.repository))
        && kept(&settings.digest, asked.digest.as_ref())
        // A digest decides alone: a tag beside it is a remark.
        && (settings.digest.is_some() || kept(&settings.tag, asked.tag.as_ref()));
    if is_the_pools {
        return Ok(());
    }
    let tag = asked.tag.as_ref().map(|tag| format!(":{tag}"));
    let digest = asked.digest.as_ref().map(|digest| format!("@{digest}"));
    let [tag, digest] = [tag, digest].map(Option::unwrap_or_default);
    Err(overreach(
        format!("image `{}{tag}{digest}`", asked.repository),
        "the pool names another image",
    ))
}

fn paths(extract: &ExtractImage) -> Result<(), Overreach> {
    let is_plain = |path: &&String| path.starts_with('/') && stays_below(path);
    let all = extract.paths.iter().chain(&extract.program);
    if let Some(path) = all.clone().find(|path| !is_plain(path)) {
        return Err(overreach(
            format!("the path `{path}` out of an image"),
            "paths in images are absolute and do not climb",
        ));
    }
    Ok(())
}

fn download(fetch: &Download, pool: &Pool) -> Result<(), Overreach> {
    let Some(binary) = &pool.provisioning.binary else {
        return Ok(());
    };
    let Some(url) = &binary.url else {
        return Ok(());
    };
    let is_the_pools = |asked: &&String| *asked == url || binary.mirrors.contains(asked);
    if let Some(other) = fetch.urls.iter().find(|asked| !is_the_pools(asked)) {
        return Err(overreach(
            format!("a program from `{other}`"),
            "the pool names where its program comes from",
        ));
    }
    let checksum = binary.checksum.as_ref();
    if checksum.is_some_and(|checksum| *checksum != fetch.digest) {
        return Err(overreach(
            format!("a program with digest `{}`", fetch.digest),
            "the pool names its program's checksum",
        ));
    }
    Ok(())
}

/// Package names reach a package manager run by root.
fn packages(install: &InstallPackages, pool: &Pool) -> Result<(), Overreach> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
    let is_name = |name: &&String| {
        name.starts_with(|first: char| first.is_ascii_alphanumeric()) && name.bytes().all(plain)
    };
    let mut names = install.packages.values().flatten();
    if let Some(name) = names.find(|name| !is_name(name)) {
        return Err(overreach(
            format!("package `{}`", name.escape_debug()),
            "it is no name of a package",
        ));
    }
    if !is_name(&&install.program) {
        return Err(overreach(
            format!("program `{}` of a package", install.program.escape_debug()),
            "programs of packages are looked for by bare names",
        ));
    }
    let Some(settings) = &pool.provisioning.package else {
        return Ok(());
    };
    let mut firsts = install.packages.values().filter_map(|names| names.first());
    let wanted = settings.name.as_ref();
    if let Some(other) = firsts.find(|first| wanted.is_some_and(|wanted| wanted != *first)) {
        return Err(overreach(
            format!("package `{other}`"),
            "the pool names another package",
        ));
    }
    let differs =
        |wanted: &Option<String>, asked: &Option<String>| wanted.is_some() && wanted != asked;
    if differs(&settings.version, &install.version) || differs(&settings.repo, &install.repository)
    {
        return Err(overreach(
            "another version or repository of its package".to_owned(),
            "the pool names them",
        ));
    }
    Ok(())
}

fn commands(build: &BuildStep, plan: &Plan) -> Result<(), Overreach> {
    let mut commands = build.attempts.iter().flat_map(|attempt| &attempt.commands);
    commands.try_for_each(|command| program(&command.program, plan))
}

/// Checks that a program which comes from a step was declared to be one, so that policy was asked.
pub(super) fn program(program: &Template, plan: &Plan) -> Result<(), Overreach> {
    let Some((step, below)) = result_of_step(program) else {
        // A tool, or something that is refused where it would be started.
        return Ok(());
    };
    let Some(step) = plan.steps.iter().find(|candidate| candidate.id == step) else {
        return Ok(());
    };
    let is_declared = match &step.act {
        Act::Build(_) | Act::Checkout(_) => true,
        Act::Download(download) => download.program,
        Act::ExtractImage(extract) => extract.program.as_deref() == Some(below),
        Act::InstallPackages(_) => below.is_empty(),
        Act::StageModel(_) | Act::PullImage(_) | Act::Observe(_) | Act::RequireTools(_) => false,
    };
    if is_declared {
        return Ok(());
    }
    Err(overreach(
        format!("running `{program}`"),
        "what its step brings was not declared to be a program, and policy was not asked",
    ))
}

/// Step and the path below its result, of `{STEP.path}` or `{STEP.path}/…`.
pub(super) fn result_of_step(template: &Template) -> Option<(&str, &str)> {
    let rest = template.as_str().strip_prefix('{')?;
    let (step, below) = rest.split_once(".path}")?;
    (below.is_empty() || below.starts_with('/')).then_some((step, below))
}

/// Whether a path, or what follows a placeholder, has no way up.
pub(super) fn stays_below(path: &str) -> bool {
    path.split('/').all(|part| part != "..")
}
