//! Every operation that the served description has, asked for with success and in error.

use std::collections::BTreeSet;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Client, wire::Answer};
use crate::Stage;

/// How an operation is asked for, here.
struct Case {
    /// Its name in the description.
    id: &'static str,
    /// Targets, and the status that each is answered with.
    done: &'static [(&'static str, u16)],
    /// Targets, and status and code of the errors.
    refused: &'static [(&'static str, u16, &'static str)],
}

const fn case(
    id: &'static str,
    done: &'static [(&'static str, u16)],
    refused: &'static [(&'static str, u16, &'static str)],
) -> Case {
    Case { id, done, refused }
}

const NO: &str = "INVALID_PARAMS";

/// In an order in which each finds what it needs: a pool `chat` that is ready and has one slot, and a
/// pool `rest` that is not wanted. `{lease}` is the lease that was taken last.
const CASES: &[Case] = &[
    case("health", &[("/health", 200)], &[("/health?a=b", 400, NO)]),
    case(
        "listPools",
        &[("/v1/pools", 200)],
        &[("/v1/pools?a", 400, NO)],
    ),
    case(
        "getPool",
        &[("/v1/pools/chat", 200), ("/v1/pools/rest", 200)],
        &[("/v1/pools/chit", 404, NO), ("/v1/pools/chat?a=b", 400, NO)],
    ),
    case(
        "getPoolStatus",
        &[("/pools/chat/status", 200)],
        &[("/pools/chit/status", 404, NO)],
    ),
    case(
        "getPoolHealth",
        &[
            ("/control/pools/chat/health", 200),
            ("/control/pools/rest/health", 503),
        ],
        &[("/control/pools/chit/health", 404, NO)],
    ),
    case(
        "getCapabilities",
        &[("/v1/capabilities", 200)],
        &[("/v1/capabilities?a=b", 400, NO)],
    ),
    case(
        "getMetrics",
        &[("/metrics", 200), ("/metrics?engines=1", 200)],
        &[("/metrics?engines=all", 400, NO)],
    ),
    case(
        "getDescription",
        &[("/openapi.json", 200)],
        &[("/openapi.json?a=b", 400, NO)],
    ),
    case(
        "getPoolLogs",
        &[("/v1/pools/chat/logs?lines=3&replica=r0", 200)],
        &[
            ("/v1/pools/chit/logs", 404, NO),
            ("/v1/pools/chat/logs?replica=r9", 404, NO),
            ("/v1/pools/chat/logs?lines=-1", 400, NO),
            ("/v1/pools/rest/logs", 503, "POOL_UNREADY"),
        ],
    ),
    case(
        "followEvents",
        &[("/v1/events?pool=chat", 200)],
        &[("/v1/events?pools=chat", 400, NO)],
    ),
    case(
        "followPoolEvents",
        &[("/v1/pools/chat/events", 200)],
        &[("/v1/pools/chit/events", 404, NO)],
    ),
    case(
        "takeLease",
        &[("/v1/pools/chat/leases?ttl_ms=60000", 201)],
        &[
            ("/v1/pools/chat/leases", 503, "POOL_UNREADY"),
            ("/v1/pools/chit/leases", 404, NO),
            ("/v1/pools/chat/leases?ttl_ms=1", 400, NO),
        ],
    ),
    case(
        "listLeases",
        &[("/v1/pools/chat/leases", 200)],
        &[("/v1/pools/chit/leases", 404, NO)],
    ),
    case(
        "renewLease",
        &[
            ("/v1/pools/chat/leases/{lease}/renew", 200),
            ("/v1/pools/chat/leases/{lease}/renew?ttl_ms=600000", 200),
        ],
        &[
            ("/v1/pools/chat/leases/nonsense/renew", 404, NO),
            ("/v1/pools/rest/leases/{lease}/renew", 404, NO),
            ("/v1/pools/chat/leases/{lease}/renew?ttl_ms=x", 400, NO),
        ],
    ),
    case(
        "releaseLease",
        &[("/v1/pools/chat/leases/{lease}", 204)],
        &[("/v1/pools/chat/leases/{lease}", 404, NO)],
    ),
    case(
        "reloadPool",
        &[
            ("/v1/pools/chat/reload", 200),
            ("/v1/pools/chat/reload?wait=0", 202),
        ],
        &[("/v1/pools/chit/reload", 404, NO)],
    ),
    case(
        "restartPool",
        &[("/v1/pools/chat/restart", 200)],
        &[("/v1/pools/chat/restart?wait=no", 400, NO)],
    ),
    case(
        "drainPool",
        &[
            ("/v1/pools/chat/drain?deadline_ms=0", 200),
            ("/v1/pools/chat/drain?wait=false", 202),
        ],
        &[("/v1/pools/chat/drain?deadline_ms=soon", 400, NO)],
    ),
    case(
        "upPool",
        &[
            ("/v1/pools/chat/up?wait=1", 200),
            ("/v1/pools/chat/up?wait=0", 202),
        ],
        &[
            ("/v1/pools/chit/up", 404, NO),
            ("/v1/pools/chat/up?deadline_ms=1", 400, NO),
        ],
    ),
    case(
        "downPool",
        &[("/v1/pools/chat/down", 200)],
        &[("/v1/pools/chit/down", 404, NO)],
    ),
    case(
        "preloadPool",
        &[("/pools/chat/preload", 200)],
        &[("/pools/chit/preload", 404, NO)],
    ),
    case(
        "reloadConfig",
        &[("/v1/reload", 200)],
        &[("/v1/reload?wait=0", 400, NO)],
    ),
];

/// Those after which there is no daemon.
const LAST: &[Case] = &[
    case(
        "shutDown",
        &[("/v1/shutdown", 202)],
        &[("/v1/shutdown?a=b", 400, NO)],
    ),
    case(
        "handOver",
        &[("/v1/handover", 202)],
        &[("/v1/handover?a=b", 400, NO)],
    ),
];

/// A description, as it was served.
struct Description {
    document: Value,
}

/// An operation of it.
struct Described<'a> {
    method: String,
    path: &'a str,
    operation: &'a Value,
}

impl Description {
    fn of(client: &Client) -> Self {
        let answer = client.ask("GET", "/openapi.json");
        assert_eq!(answer.status, 200, "{answer:?}");
        Self {
            document: answer.json(),
        }
    }

    fn operations(&self) -> impl Iterator<Item = Described<'_>> {
        let paths = self.document["paths"].as_object().unwrap();
        paths.iter().flat_map(|(path, methods)| {
            let methods = methods.as_object().unwrap().iter();
            methods.map(move |(method, operation)| Described {
                method: method.to_ascii_uppercase(),
                path,
                operation,
            })
        })
    }

    #[track_caller]
    fn operation(&self, id: &str) -> Described<'_> {
        let mut all = self.operations();
        let found = all.find(|it| it.operation["operationId"] == id);
        found.unwrap_or_else(|| panic!("`{id}` is not described"))
    }

    /// Asserts that an answer is one that is described.
    #[track_caller]
    fn assert_described(&self, operation: &Described<'_>, answer: &Answer) {
        let responses = &operation.operation["responses"];
        let response = match &responses[answer.status.to_string()] {
            Value::Null => &responses["default"],
            own => own,
        };
        let Some(content) = response["content"].as_object() else {
            assert_eq!(answer.body, "", "{answer:?}");
            return;
        };
        let kind = answer.header("content-type").unwrap();
        let schema = &content
            .get(kind)
            .unwrap_or_else(|| panic!("{kind}: {content:?}"))["schema"];
        let body = match kind {
            "application/json" => answer.json(),
            _ => json!(answer.body),
        };
        let whole = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "components": self.document["components"],
            "allOf": [schema],
        });
        let validator = jsonschema::validator_for(&whole).unwrap();
        let errors: Vec<String> = validator
            .iter_errors(&body)
            .map(|it| format!("{}: {it}", it.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{errors:#?}\n{body:#}");
    }
}

impl Described<'_> {
    /// Asserts that a target is one of this operation.
    #[track_caller]
    fn assert_meant(&self, target: &str) {
        let (path, _) = target.split_once('?').unwrap_or((target, ""));
        let (asked, own) = (path.split('/'), self.path.split('/'));
        let fits = asked.clone().count() == own.clone().count()
            && asked
                .zip(own)
                .all(|(asked, own)| own.starts_with('{') || asked == own);
        assert!(fits, "{target} is not {}", self.path);
    }
}

/// Asks for an operation in every way of its case.
fn exercise(description: &Description, client: &Client, case: &Case, lease: &mut String) {
    let operation = description.operation(case.id);
    let changes = operation.operation.get("security").is_some();
    let ask = |target: &str, lease: &str| {
        operation.assert_meant(target);
        let target = target.replace("{lease}", lease);
        println!("{} {target} by {client:?}", operation.method);
        let answer = match case.id {
            "followEvents" | "followPoolEvents" => {
                let mut following = client.follow(&target, &[]);
                if following.answer.status == 200 {
                    assert!(following.event().is_some());
                    following.answer
                } else {
                    assert!(following.answer.header("content-length").is_some());
                    following.whole()
                }
            }
            _ => client.ask(&operation.method, &target),
        };
        assert!(answer.header("x-correlation-id").is_some(), "{answer:?}");
        description.assert_described(&operation, &answer);
        answer
    };
    if changes && !client.may_change() {
        for (target, _) in case.done {
            ask(target, lease).refused(401, NO);
        }
        return;
    }
    for (target, status) in case.done {
        let answer = ask(target, lease);
        assert_eq!(answer.status, *status, "{target}: {answer:?}");
        if case.id == "takeLease" {
            let document = answer.json();
            document["lease_id"].as_str().unwrap().clone_into(lease);
        }
    }
    for (target, status, code) in case.refused {
        ask(target, lease).refused(*status, code);
    }
}

fn stage() -> Stage {
    let stage = Stage::new();
    let mut rest = stage.pool("rest", &[]);
    rest["preload"] = json!(false);
    let pools = [stage.pool("chat", &["--print-line", "hello"]), rest];
    stage.machine.write_pools(&pools);
    stage
}

#[test]
fn every_operation_that_is_described_is_done_and_refused_as_described() {
    let stage = stage();
    let daemon = stage.serve(&[]);
    daemon.wait_state("chat", "ready");
    let clients = [
        Client::local(&stage),
        Client::trusted(&stage, &daemon),
        Client::stranger(&daemon),
    ];
    let description = Description::of(&clients[2]);
    let described: BTreeSet<&str> = description
        .operations()
        .map(|it| it.operation["operationId"].as_str().unwrap())
        .collect();
    let cases = CASES.iter().chain(LAST).map(|case| {
        let enough = !case.done.is_empty() && !case.refused.is_empty();
        assert!(enough, "{} has no success or no error", case.id);
        case.id
    });
    assert_eq!(
        cases.collect::<BTreeSet<_>>(),
        described,
        "cases, described"
    );
    for client in &clients {
        let mut lease = "none".to_owned();
        for case in CASES {
            exercise(&description, client, case, &mut lease);
        }
    }
    for case in LAST {
        exercise(&description, &clients[2], case, &mut String::new());
    }
    let _ = daemon.end(Signal::TERM, 0);
}

#[test]
fn what_ends_the_daemon_is_answered_before_it_ends() {
    let stage = stage();
    for case in LAST {
        for local in [true, false] {
            let daemon = stage.serve(&["--orphan-limit", "1s"]);
            daemon.wait_state("chat", "ready");
            let client = match local {
                true => Client::local(&stage),
                false => Client::trusted(&stage, &daemon),
            };
            let description = Description::of(&client);
            // What is refused must not end it, so it comes first.
            for (target, status, code) in case.refused {
                client.ask("POST", target).refused(*status, code);
            }
            let only_done = Case {
                refused: &[],
                ..*case
            };
            exercise(&description, &client, &only_done, &mut String::new());
            let _ = daemon.running.finish(e2e::RUN_LIMIT).code(0);
        }
    }
    e2e::wait_for("engines to end", e2e::RUN_LIMIT, || {
        let left = stage.machine.handoffs();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
    stage.machine.assert_clean();
}
