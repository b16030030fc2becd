//! Promises of the callback, against a small server.

use std::{collections::BTreeSet, path::PathBuf, sync::Mutex};

use futures_util::stream;

use super::*;
use crate::{
    engine::Handoff,
    handoff::Binding,
    narrate::{Capture, Level},
    net::testing::{Reply, Request, Server},
    policy::{NetworkPolicy, Setting},
};

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

fn settings(url: &Url) -> Notify {
    Notify {
        url: url.to_string(),
        secret: Some("ORCHESTRATOR_TOKEN".to_owned()),
        timeout: Duration::from_secs(10),
        retry_initial: Duration::from_millis(10),
        retry_max: Duration::from_millis(40),
    }
}

fn environment() -> Environment {
    Environment::from_pairs([("ORCHESTRATOR_TOKEN", "hunter2-is-secret")])
}

fn network(network: NetworkPolicy) -> Arc<Policy> {
    Arc::new(Policy {
        network: Setting::default_of(network),
        ..Policy::default()
    })
}

fn callback(settings: &Notify) -> (Callback, Capture) {
    let (narrator, capture) = Narrator::capture();
    let policy = network(NetworkPolicy::AsPlanned);
    let callback = Callback::new(settings, &environment(), policy, &narrator).unwrap();
    (callback, capture)
}

fn binding(replica: &str, port: u16) -> Box<Binding> {
    let handoff: Handoff = serde_json::from_value(serde_json::json!({
        "engine": "llamacpp", "engine_version": "b1", "provisioning_mode": "source",
        "url": format!("http://127.0.0.1:{port}"), "pool_id": "chat", "replica_id": replica,
        "model": {"id": "m"}, "flags": [],
    }))
    .unwrap();
    Box::new(Binding {
        path: PathBuf::from("/x.json"),
        handoff,
    })
}

fn notice(request: &Request) -> Notice {
    serde_json::from_slice(&request.body).unwrap()
}

/// What arrived, in words: event, replica, port.
fn told(requests: &[Request]) -> Vec<String> {
    let words = |request: &Request| {
        let notice = notice(request);
        let port = notice.handoff.url.rsplit(':').next().unwrap().to_owned();
        format!("{} {} {port}", notice.event, notice.handoff.replica_id)
    };
    requests.iter().map(words).collect()
}

async fn run(callback: &Callback, changes: Vec<HandoffEvent>) {
    let running = callback.run(stream::iter(changes), CancellationToken::new());
    timeout(LIMIT, running)
        .await
        .expect("it ends with the stream");
}

#[tokio::test]
async fn a_server_that_fails_first_is_told_the_same_document_again() {
    let server = Server::start(|number, _| match number {
        0 => Reply::status(503),
        1 => Reply::status(401),
        2 => Reply::default().cut_after(0),
        _ => Reply::status(204),
    });
    let (callback, capture) = callback(&settings(&server.url("handoffs?tenant=7")));
    run(&callback, vec![HandoffEvent::Bound(binding("r0", 8080))]).await;
    let requests = server.requests();
    assert_eq!(told(&requests), ["bound r0 8080"; 4]);
    let distinct = |of: fn(&Request) -> Vec<u8>| requests.iter().map(of).collect::<BTreeSet<_>>();
    assert_eq!(distinct(|it| it.body.clone()).len(), 1);
    let keys = distinct(|it| it.headers["idempotency-key"].clone().into_bytes());
    assert_eq!(keys.len(), 1);
    assert_eq!(keys.first().unwrap().len(), 64);
    for request in &requests {
        assert_eq!(request.path, "/handoffs?tenant=7");
        assert_eq!(request.headers["authorization"], "Bearer hunter2-is-secret");
        assert_eq!(request.headers["content-type"], "application/json");
        assert_eq!(notice(request).schema, NOTICE_SCHEMA);
    }
    // One worry for a row of failures, then the good news; the token in neither.
    let levels: Vec<Level> = capture.events().into_iter().map(|it| it.level).collect();
    assert_eq!(levels, [Level::Warning, Level::Info]);
    let text = serde_json::to_string(&capture.events()).unwrap();
    assert!(!text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn of_a_replica_that_changed_meanwhile_only_its_newest_state_is_told() {
    // `None`: it is away; else what it has taken.
    let taken: Arc<Mutex<Option<Vec<Request>>>> = Arc::default();
    let server = {
        let taken = Arc::clone(&taken);
        Server::start(move |_, request| match &mut *taken.lock().unwrap() {
            Some(taken) => {
                taken.push(request.clone());
                Reply::status(200)
            }
            None => Reply::status(503),
        })
    };
    let (callback, _) = callback(&settings(&server.url("")));
    let (sender, changes) = tokio::sync::mpsc::channel(16);
    let changes = stream::unfold(changes, |mut changes| async {
        changes.recv().await.map(|change| (change, changes))
    });
    let telling = tokio::spawn(async move {
        let changes = std::pin::pin!(changes);
        callback.run(changes, CancellationToken::new()).await;
    });
    for change in [
        HandoffEvent::Bound(binding("r0", 1)),
        HandoffEvent::Bound(binding("r1", 2)),
        HandoffEvent::Changed(binding("r0", 3)),
        HandoffEvent::Unbound(binding("r1", 2)),
        HandoffEvent::Bound(binding("r2", 4)),
    ] {
        sender.send(change).await.unwrap();
    }
    let start = Instant::now();
    while sender.capacity() < sender.max_capacity() || server.requests().len() < 3 {
        assert!(start.elapsed() < LIMIT);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    *taken.lock().unwrap() = Some(Vec::new());
    drop(sender);
    timeout(LIMIT, telling).await.unwrap().unwrap();
    let taken = taken.lock().unwrap().take().unwrap();
    assert_eq!(told(&taken), ["bound r0 3", "unbound r1 2", "bound r2 4"]);
}

#[tokio::test]
async fn what_is_refused_for_good_is_said_and_does_not_hold_up_the_rest() {
    let server = Server::start(|number, _| match number {
        0 => Reply::status(422),
        1 => Reply::redirect("http://127.0.0.1:1/elsewhere"),
        _ => Reply::status(200),
    });
    let (callback, capture) = callback(&settings(&server.url("")));
    let changes = (0..3).map(|port| HandoffEvent::Bound(binding(&format!("r{port}"), port)));
    run(&callback, changes.collect()).await;
    assert_eq!(
        told(&server.requests()),
        ["bound r0 0", "bound r1 1", "bound r2 2"]
    );
    let kinds: Vec<Option<String>> = capture
        .events()
        .into_iter()
        .map(|it| it.error_kind)
        .collect();
    assert_eq!(kinds.iter().flatten().count(), 2);
}

#[tokio::test]
async fn at_the_end_the_last_changes_are_told_and_a_dead_server_does_not_hold_it_up() {
    let server = Server::start(|_, _| Reply::status(200));
    let (callback, _) = callback(&settings(&server.url("")));
    let cancel = CancellationToken::new();
    cancel.cancel();
    let last = stream::iter([HandoffEvent::Unbound(binding("r0", 1))]).chain(stream::pending());
    timeout(LIMIT, callback.run(last, cancel.clone()))
        .await
        .unwrap();
    assert_eq!(told(&server.requests()), ["unbound r0 1"]);
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    let (callback, _) = super::tests::callback(&settings(&Url::parse(&url).unwrap()));
    let start = Instant::now();
    let last = stream::iter([HandoffEvent::Unbound(binding("r0", 1))]).chain(stream::pending());
    callback.run(last, cancel).await;
    assert!(start.elapsed() < FAREWELL_LIMIT * 2);
}

#[test]
fn what_policy_forbids_and_a_token_that_is_not_there_are_told_before_anything_is_sent() {
    let url = Url::parse("https://orchestrator.test/handoffs").unwrap();
    let settings = settings(&url);
    let make = |settings: &Notify, environment: &Environment, policy| {
        Callback::new(settings, environment, network(policy), &Narrator::silent())
    };
    let only = |host: &str| NetworkPolicy::Only(vec![host.to_owned()]);
    assert!(make(&settings, &environment(), NetworkPolicy::AsPlanned).is_ok());
    assert!(make(&settings, &environment(), only("*.test")).is_ok());
    for policy in [NetworkPolicy::Offline, only("github.com")] {
        let error = make(&settings, &environment(), policy).unwrap_err();
        assert_eq!(error.exit(), Exit::Refused);
    }
    let error = make(&settings, &Environment::default(), NetworkPolicy::AsPlanned).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the secret `ORCHESTRATOR_TOKEN` that `notify.token` names is not set"
    );
    let broken = Environment::from_pairs([("ORCHESTRATOR_TOKEN", "a\nb")]);
    let error = make(&settings, &broken, NetworkPolicy::AsPlanned).unwrap_err();
    assert_eq!((error.kind(), error.exit()), ("bad-secret", Exit::Config));
    let callback = make(&settings, &environment(), NetworkPolicy::AsPlanned).unwrap();
    assert!(!format!("{callback:?}").contains("hunter2"));
}
