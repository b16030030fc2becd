//! `host serve`: a manager with its doors, until it is told to end.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
};
use tokio_util::sync::CancellationToken;

use super::{notify::ServiceManager, reach};
use crate::{
    api::{Api, ApiError, Limits, Token, client::ClientError, operations::HAND_OVER},
    cli::{
        arguments::{Listen, OnTerm, PoolsArguments, ServeArguments},
        context::{Context, Observers, host_request, overlay},
    },
    config::{
        select::{Overlay, Selection},
        syntax::Base,
    },
    drive::{LockUse, Request},
    fault::{Exit, Failure},
    narrate::Actor,
    pool::{self, Ending, PoolManager},
    process,
    store::{self, Lock},
};

/// How long the daemon before this one may take to hear that it is to let go.
const REPLACE_LIMIT: Duration = Duration::from_secs(60);

/// How long it may take once it has heard it, which it cannot take back: it may be loading a model. Without
/// a successor its engines would end soon after it.
const LEAVE_LIMIT: Duration = Duration::from_secs(3600);

/// How long it may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Pause between two looks whether it has.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// How long after work it is taken to be over.
const REST_AFTER: Duration = Duration::from_secs(3);

/// How long what work and answering took is kept at most.
const REST_INTERVAL: Duration = Duration::from_secs(60);

/// How often an idle daemon looks whether it is.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// Serves until a signal, or until asked to end.
pub(in crate::cli) async fn run(
    context: &Context,
    arguments: &ServeArguments,
) -> Result<Exit, Failure> {
    let host = &context.host;
    let Observers { hub, metrics } = context.observers.as_ref().expect("this command serves");
    if arguments.idle_exit.is_some() {
        // Started by a command, in whose terminal's session it must not stay.
        let _ = rustix::process::setsid();
    }
    let _only = only_one(context, arguments.replace).await?;
    // Before anything runs that a signal would have to end.
    let mut signals = Signals::new();
    let token = token(context, arguments)?;
    let request = request(context, &arguments.pools);
    let manager = PoolManager::builder(host.clone())
        .request(request)
        .outlive(arguments.orphan_limit)
        .build()?;
    let service_manager = ServiceManager::of(&host.environment);
    pool::observe(metrics, manager.registry());
    let api = Api::new(
        manager.clone(),
        hub.clone(),
        metrics.clone(),
        token,
        Limits::default(),
    );
    let socket = reach::socket(context);
    // First what may be refused: a socket is a file, which would be left behind.
    let tcp = match arguments.listen {
        Listen::At(address) => Some(Api::bind_tcp(address).await?),
        Listen::Nowhere => None,
    };
    let unix = Api::bind_unix(&socket)?;
    let doors = CancellationToken::new();
    let at = match tcp.as_ref().map(tokio::net::TcpListener::local_addr) {
        Some(Ok(address)) => format!("serves on http://{address} and {}", socket.display()),
        _ => format!("serves on {}", socket.display()),
    };
    let serving = {
        let (api, doors) = (api.clone(), doors.clone());
        tokio::spawn(async move {
            let tcp = async {
                if let Some(tcp) = tcp {
                    api.serve_tcp(tcp, &doors).await;
                }
            };
            tokio::join!(api.serve_unix(unix, &doors), tcp);
        })
    };
    host.narrator
        .say(Actor::PoolManager, "serve", socket.to_string_lossy(), &at);
    service_manager.ready(&at);
    let watchdog = tokio::spawn(service_manager.clone().feed(doors.clone()));
    let bringing_up = {
        let manager = manager.clone();
        tokio::spawn(async move { manager.up_all().await })
    };
    let resting = tokio::spawn(rest_after_work(manager.clone()));
    let (exit, ending) = until_told(&manager, &api, arguments, &mut signals).await;
    service_manager.stopping();
    let ends = manager.shutdown(ending);
    tokio::pin!(ends);
    tokio::select! {
        () = &mut ends => {}
        // Told once more, it waits for nobody's leases.
        () = signals.told_to_end(), if ending == Ending::Stop => {
            tokio::join!(manager.down_all(), ends);
        }
    }
    resting.abort();
    bringing_up.abort();
    doors.cancel();
    let _ = serving.await;
    api.finish().await;
    watchdog.abort();
    // A successor may have made its own by now: the lock is held until here.
    let _ = std::fs::remove_file(&socket);
    Ok(exit)
}

/// Gives back what work took once it is done, and what answering took now and then: most of its time a
/// daemon waits. One whose engines fall again and again never does, and gives back all the same.
async fn rest_after_work(manager: PoolManager) {
    let mut worked = manager.worked();
    loop {
        let _ = tokio::time::timeout(REST_INTERVAL, worked.changed()).await;
        let _ = tokio::time::timeout(REST_INTERVAL, quiet(&mut worked)).await;
        manager.rest();
        process::rest();
    }
}

/// Resolves once there was no work for a while.
async fn quiet(worked: &mut watch::Receiver<()>) {
    while let Ok(Ok(())) = tokio::time::timeout(REST_AFTER, worked.changed()).await {}
}

/// What a daemon is told by signals.
struct Signals {
    hangup: Signal,
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Self {
        let of = |kind| signal(kind).expect("these signals may be handled");
        Self {
            hangup: of(SignalKind::hangup()),
            terminate: of(SignalKind::terminate()),
            interrupt: of(SignalKind::interrupt()),
        }
    }

    /// Resolves when it is told to end.
    async fn told_to_end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits for what ends the daemon; a HUP reads the pool file again.
async fn until_told(
    manager: &PoolManager,
    api: &Api,
    arguments: &ServeArguments,
    signals: &mut Signals,
) -> (Exit, Ending) {
    let told = match arguments.on_term {
        OnTerm::Stop => Ending::Stop,
        OnTerm::Keep => Ending::Keep,
    };
    loop {
        tokio::select! {
            _ = signals.terminate.recv() => return (Exit::Success, told),
            _ = signals.interrupt.recv() => return (Exit::Interrupted, told),
            ending = api.told_to_end() => return (Exit::Success, ending),
            () = idle(manager, arguments.idle_exit) => return (Exit::Success, Ending::Stop),
            _ = signals.hangup.recv() => {
                let manager = manager.clone();
                tokio::spawn(async move {
                    if let Err(error) = manager.reload_config().await {
                        let narrator = &manager.host().narrator;
                        narrator.fail(Actor::PoolManager, "reload", "pool file", &error);
                    }
                });
            }
        }
    }
}

/// Resolves once nothing has run for so long.
async fn idle(manager: &PoolManager, limit: Option<Duration>) {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    let mut since = Instant::now();
    while since.elapsed() < limit {
        tokio::time::sleep(IDLE_INTERVAL.min(limit)).await;
        if !manager.is_idle() {
            since = Instant::now();
        }
    }
}

/// Makes sure that no other daemon serves this home.
async fn only_one(context: &Context, replace: bool) -> Result<Lock, Failure> {
    let path: PathBuf = context.host.home.state().join("daemon.lock");
    let start = Instant::now();
    let mut asked = false;
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory)
            .map_err(|source| store::StoreError::io("create", directory, source))?;
    }
    loop {
        if let Some(lock) = store::try_lock(&path, "serving")? {
            return Ok(lock);
        }
        let limit = match asked {
            true => LEAVE_LIMIT,
            false => REPLACE_LIMIT,
        };
        if !replace || start.elapsed() > limit {
            let path = reach::socket(context);
            return Err(ApiError::AlreadyServed { path }.into());
        }
        if !asked {
            let (client, question) = (reach::client(context), HAND_OVER.of(&[]));
            let answer = tokio::time::timeout(ASK_LIMIT, client.ask(&question)).await;
            asked = match answer {
                Ok(Ok(_)) => true,
                // It opens or closes its doors just now, or answers nobody.
                Ok(Err(ClientError::NoDaemon { .. })) | Err(_) => false,
                Ok(Err(error)) => return Err(error.into()),
            };
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

fn token(context: &Context, arguments: &ServeArguments) -> Result<Token, ApiError> {
    if let Some(file) = &arguments.token_file {
        return Token::of_file(file);
    }
    match context.host.environment.get("HOST_API_TOKEN") {
        Some(text) => Token::new(text),
        None => Token::of_file(&Token::usual_path(&context.host.home)),
    }
}

/// What a daemon's arguments ask of every pool.
pub(super) fn request(context: &Context, pools: &PoolsArguments) -> Request {
    Request {
        selection: Selection {
            config: pools.config.clone(),
            pool: None,
            provider: pools.provider.clone(),
            directory: PathBuf::new(),
        },
        overlay: Overlay {
            base: Base {
                directory: std::env::current_dir().unwrap_or_default(),
                home: context.host.environment.path("HOME"),
            },
            container_runtime: pools.container_runtime.map(|it| it.as_str().to_owned()),
            ..overlay(&pools.policy)
        },
        handoff_dir: pools.handoff_dir.clone(),
        lock: match pools.locked {
            true => LockUse::Exact,
            false => LockUse::Pins,
        },
        ..host_request(&pools.host)
    }
}
