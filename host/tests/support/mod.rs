//! Fixture providers, built beside the `host` program of this test run.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use engine_host::provider::{Isolation, Options, Search, Session, Tier, inspect, worker::Phase};
use engine_provider_api::{Facts, Mode, PlanRequest, Pool, PrepareRequest};

/// The `host` program, which is also the worker.
pub(crate) fn host() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_host"))
}

/// Directory of what cargo built.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let directory = host().parent().expect("a file has a directory").to_owned();
    let profile = match directory.file_name().and_then(|name| name.to_str()) {
        Some("debug") => "dev",
        Some(other) => other,
        None => panic!("{} is no cargo directory", directory.display()),
    };
    #[expect(clippy::disallowed_methods, reason = "a test builds what it loads")]
    let status = std::process::Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--profile", profile])
        .args(["--package", "engine-provider-fixture"])
        .args(["--package", "fixture-provider-hostile"])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .status()
        .expect("cargo starts");
    assert!(status.success(), "the fixture providers do not build");
    directory
});

/// The sample provider.
pub(crate) fn sample() -> PathBuf {
    let path = BUILT.join("libengine_provider_fixture.so");
    assert!(path.is_file(), "{} was not built", path.display());
    path
}

/// The hostile provider, and where in it the behaviour stands.
static HOSTILE: LazyLock<(Vec<u8>, usize)> = LazyLock::new(|| {
    let bytes = std::fs::read(BUILT.join("libfixture_provider_hostile.so")).unwrap();
    let marker = b"@hostile-behaviour:calm:calm\0";
    let mut places = bytes.windows(marker.len()).enumerate();
    let at = places.find(|(_, window)| window == marker).unwrap().0;
    assert!(places.all(|(_, window)| window != marker));
    (bytes, at + "@hostile-behaviour:".len())
});

/// Bytes there are for a behaviour.
const BEHAVIOUR_BYTES: usize = 40;

/// A copy of the hostile provider that does `behaviour` (`PHASE:ACTION`), named like a provider. A
/// new file each time, even where there was one.
pub(crate) fn hostile(directory: &Path, behaviour: &str) -> PathBuf {
    let (bytes, at) = &*HOSTILE;
    let mut bytes = bytes.clone();
    let slot = &mut bytes[*at..at + BEHAVIOUR_BYTES];
    slot.fill(0);
    slot[..behaviour.len()].copy_from_slice(behaviour.as_bytes());
    let path = directory.join("libengine_provider_hostile.so");
    std::fs::remove_file(&path).ok();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// A search in these directories only, for the `host` program.
pub(crate) fn search(directories: &[&Path]) -> Search {
    let mut search = Search::nowhere(Some(host()));
    for directory in directories {
        search.add(Tier::Flag, directory);
    }
    search
}

/// Options with the `host` program as the worker.
pub(crate) fn options() -> Options {
    Options {
        program: host(),
        ..Options::default()
    }
}

/// Options whose wait is short for one phase, for providers that never answer in it; whatever comes before
/// may take its time on a busy machine. Longer where that stands under the same limit: the worker's start
/// under that of opening, earlier calls under that of a call.
pub(crate) fn impatient(phase: Phase) -> Options {
    let mut options = options();
    let limits = &mut options.limits;
    match phase {
        Phase::Open => limits.open = Duration::from_secs(3),
        Phase::Info | Phase::Plan | Phase::Prepare => limits.call = Duration::from_secs(2),
        Phase::Close => limits.close = Duration::from_millis(700),
    }
    options
}

/// Opens the provider at a path.
pub(crate) async fn open(
    path: &Path,
    isolation: Isolation,
    options: &Options,
) -> Result<Session, engine_host::provider::ProviderFault> {
    let found = inspect(path, &search(&[]))?;
    Session::open(&found, isolation, options).await
}

/// A request to plan for a pool of this engine.
pub(crate) fn plan_request(engine: &str) -> PlanRequest {
    PlanRequest {
        requires: Vec::new(),
        pool: Pool::new("default", engine),
        mode: Mode::Binary,
        facts: Facts::default(),
    }
}

/// A request to prepare without any artifact.
pub(crate) fn prepare_request(engine: &str) -> PrepareRequest {
    let PlanRequest {
        requires,
        pool,
        mode,
        facts,
    } = plan_request(engine);
    PrepareRequest {
        requires,
        pool,
        mode,
        facts,
        artifacts: Default::default(),
    }
}
