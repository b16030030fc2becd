//! What an engine would be started as, and what it would see of this machine.

use std::collections::{BTreeMap, BTreeSet};

use engine_provider_api::{
    Act, ContainerLaunch, ExternalLaunch, GpuPolicy, Launch, Mode, Mount, Plan, Pool,
    PreparedEngine, Probes, Template,
};

use super::{
    Overreach, overreach, secrets,
    steps::{program, result_of_step, stays_below},
};

/// Directories inside that belong to the runtime: what is mounted there would be the kernel's.
const NOT_OURS: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Checks how an engine would be started.
pub(super) fn launch(engine: &PreparedEngine, plan: &Plan, pool: &Pool) -> Result<(), Overreach> {
    of_the_mode(engine)?;
    probes(&engine.probes)?;
    match &engine.launch {
        Launch::Process(launch) => {
            granted_secrets(&launch.env, pool)?;
            program(&launch.program, plan)
        }
        Launch::Container(launch) => {
            granted_secrets(&launch.env, pool)?;
            container(launch, plan)?;
            granted_gpus(engine, pool)
        }
        Launch::External(launch) => external(launch, pool),
    }
}

/// A pool that asks for a container gets no program that sees all of this machine instead.
fn of_the_mode(engine: &PreparedEngine) -> Result<(), Overreach> {
    let (what, fits) = match (&engine.launch, engine.provisioning_mode) {
        (Launch::Container(_), mode) => ("a container", mode == Mode::Container),
        (Launch::External(_), mode) => ("an engine of somebody else", mode == Mode::External),
        (Launch::Process(_), mode) => (
            "a program of this machine",
            !matches!(mode, Mode::Container | Mode::External),
        ),
    };
    if fits {
        return Ok(());
    }
    let mode = engine.provisioning_mode.as_str();
    Err(overreach(
        format!("{what} in mode `{mode}`"),
        "engines run as the pool's mode says",
    ))
}

/// Paths of probes stand in a request's first line, where a line break would begin another request.
fn probes(probes: &Probes) -> Result<(), Overreach> {
    let version = probes.version.as_ref().map(|probe| &probe.path);
    let all = [
        Some(&probes.readiness.path),
        version,
        probes.metrics.as_ref(),
    ];
    let is_plain = |path: &&String| {
        path.is_empty() || path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match all.into_iter().flatten().find(|path| !is_plain(path)) {
        None => Ok(()),
        Some(path) => Err(overreach(
            format!("the probe `{}`", path.escape_debug()),
            "probes ask for a plain path",
        )),
    }
}

fn granted_secrets(env: &BTreeMap<String, Template>, pool: &Pool) -> Result<(), Overreach> {
    let granted: BTreeSet<String> = pool
        .provisioning
        .env
        .values()
        .flat_map(|value| secrets(&Template::new(value.as_str())))
        .collect();
    let mut asked = env.values().flat_map(secrets);
    if let Some(secret) = asked.find(|name| !granted.contains(name)) {
        return Err(overreach(
            format!("secret `{secret}`"),
            "engines get the secrets that the pool's `provisioning.env` names",
        ));
    }
    Ok(())
}

fn granted_gpus(engine: &PreparedEngine, pool: &Pool) -> Result<(), Overreach> {
    if pool.gpu == GpuPolicy::Forbid && !engine.device_mask.is_empty() {
        return Err(overreach(
            format!("GPU `{}`", engine.device_mask[0]),
            "the pool may use none",
        ));
    }
    Ok(())
}

fn container(launch: &ContainerLaunch, plan: &Plan) -> Result<(), Overreach> {
    let pulls = |id: &str| {
        let mut steps = plan.steps.iter();
        steps.any(|step| step.id == id && matches!(step.act, Act::PullImage(_)))
    };
    if !pulls(&launch.image) {
        return Err(overreach(
            format!("the image of step `{}`", launch.image),
            "only what a step of the plan pulled is run",
        ));
    }
    if let Some(user) = launch.user.as_ref().filter(|user| !is_numeric(user)) {
        return Err(overreach(
            format!("the user `{}`", user.escape_debug()),
            "users inside containers are numbers, for example `2000:0`",
        ));
    }
    let mut targets = BTreeSet::new();
    for entry in &launch.mounts {
        mount(entry, plan)?;
        target(&entry.target)?;
        if !targets.insert(entry.target.as_str()) {
            return Err(overreach(
                format!("two mounts at `{}`", entry.target),
                "one would hide the other",
            ));
        }
    }
    launch.tmpfs.iter().try_for_each(|path| target(path))
}

/// `2000` or `2000:0`.
fn is_numeric(user: &str) -> bool {
    let (uid, gid) = user.split_once(':').unwrap_or((user, "0"));
    uid.parse::<u32>().is_ok() && gid.parse::<u32>().is_ok()
}

fn mount(mount: &Mount, plan: &Plan) -> Result<(), Overreach> {
    let source = mount.source.as_str();
    let single = mount.source.placeholders().is_ok_and(|all| all.len() == 1);
    let is_step = |id: &str| plan.steps.iter().any(|step| step.id == id);
    let below_files = source.strip_prefix("{files}");
    let is_ours = if let Some((step, below)) = result_of_step(&mount.source) {
        is_step(step) && stays_below(below)
    } else if let Some(below) = below_files {
        (below.is_empty() || below.starts_with('/')) && stays_below(below)
    } else {
        source
            .strip_prefix("{cache.")
            .and_then(|rest| rest.strip_suffix('}'))
            .is_some_and(is_cache_name)
    };
    if single && is_ours {
        return Ok(());
    }
    Err(overreach(
        format!("`{source}` inside a container"),
        "only results of steps, placed files and declared caches are mounted",
    ))
}

fn is_cache_name(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !name.is_empty() && name.bytes().all(plain)
}

/// A place inside that may be covered by something of ours.
fn target(path: &str) -> Result<(), Overreach> {
    let mut parts = path.strip_prefix('/').unwrap_or("").split('/');
    let plain = path.starts_with('/')
        && parts.all(|part| !part.is_empty() && part != "." && part != "..")
        && !path.contains(|letter: char| letter.is_control() || ",:\"".contains(letter));
    let is_the_runtimes = NOT_OURS
        .iter()
        .any(|place| path == *place || path.starts_with(&format!("{place}/")));
    if plain && !is_the_runtimes {
        return Ok(());
    }
    Err(overreach(
        format!("a mount at `{}`", path.escape_debug()),
        "mounts have a plain absolute path that is not the kernel's",
    ))
}

fn external(launch: &ExternalLaunch, pool: &Pool) -> Result<(), Overreach> {
    let external = pool.provisioning.external.as_ref();
    let wanted = external.and_then(|external| external.url.as_deref());
    // The slash after it is as good as none.
    let bare = |url: &str| url.strip_suffix('/').unwrap_or(url).to_owned();
    if wanted.map(bare) == Some(bare(&launch.url)) {
        return Ok(());
    }
    Err(overreach(
        format!("the engine at `{}`", launch.url),
        "only the engine that the pool's `provisioning.external.url` names is attached to",
    ))
}
