//! What a file tells a daemon: when engines are started again, and whom to tell.

use std::time::Duration;

use super::*;

#[test]
fn clocks_of_supervision_are_checked_with_place_and_fix() {
    insta::assert_snapshot!(
        told(pool("supervision:\n  restart: sometimes\n  backoff: {start: 1s}\n  breaker: {failures: 2000}\n  liveness: {failures: 0, interval: 5}\n  idle_stop: later")),
        @r"
    pools.yaml:5:16: `restart` cannot be `sometimes`
          |
        5 |       restart: sometimes
          |                ^^^^^^^^^ it is one of `always`, `never`
    pools.yaml:6:17: there is no `start` in `pools[0].supervision.backoff`
          |
        6 |       backoff: {start: 1s}
          |                 ^^^^^ what can stand here: `initial`, `max`, `stable_after`
    pools.yaml:7:27: `failures` cannot be 2000
          |
        7 |       breaker: {failures: 2000}
          |                           ^^^^ it is 0 to 1000
    pools.yaml:8:28: `failures` cannot be 0
          |
        8 |       liveness: {failures: 0, interval: 5}
          |                            ^ it is 1 to 1000
    pools.yaml:8:41: `interval` cannot be `5`
          |
        8 |       liveness: {failures: 0, interval: 5}
          |                                         ^ write a duration with its unit, for example `500ms`, `120s`, `1m30s` or `2h`
    pools.yaml:9:18: `idle_stop` cannot be `later`
          |
        9 |       idle_stop: later
          |                  ^^^^^ write `never`, or a duration with its unit, for example `15m` or `2h`
    "
    );
    insta::assert_snapshot!(
        told(pool("supervision:\n  backoff: {initial: 10s, max: 1s, stable_after: 0s}\n  liveness: {interval: 0ms, timeout: 99999999999999999999h}\n  drain_deadline: 25h\n  idle_stop: 721h")),
        @r"
    pools.yaml:5:36: the longest pause is shorter than the first one
          |
        5 |       backoff: {initial: 10s, max: 1s, stable_after: 0s}
          |                                    ^^ make `max` at least as long as `initial`
          |
        5 |       backoff: {initial: 10s, max: 1s, stable_after: 0s}
          |                          --- `supervision.backoff.initial` is here
    pools.yaml:5:54: `stable_after` is out of range
          |
        5 |       backoff: {initial: 10s, max: 1s, stable_after: 0s}
          |                                                      ^^ it is 10ms to 24h
    pools.yaml:6:28: `interval` is out of range
          |
        6 |       liveness: {interval: 0ms, timeout: 99999999999999999999h}
          |                            ^^^ it is 10ms to 1h
    pools.yaml:6:42: `timeout` is out of range
          |
        6 |       liveness: {interval: 0ms, timeout: 99999999999999999999h}
          |                                          ^^^^^^^^^^^^^^^^^^^^^ it is 10ms to 1h
    pools.yaml:7:23: `drain_deadline` is out of range
          |
        7 |       drain_deadline: 25h
          |                       ^^^ it is at most 24h
    pools.yaml:8:18: `idle_stop` is out of range
          |
        8 |       idle_stop: 721h
          |                  ^^^^ it is 10ms to 720h
    "
    );
    insta::assert_snapshot!(
        told(pool("supervision: {restart: never, backoff: {max: 1m}, breaker: {failures: 1}}")),
        @r"
    pools.yaml:4:35: `backoff` speaks of restarts, and `restart: never` allows none
          |
        4 |     supervision: {restart: never, backoff: {max: 1m}, breaker: {failures: 1}}
          |                                   ^^^^^^^ leave one of the two out
          |
        4 |     supervision: {restart: never, backoff: {max: 1m}, breaker: {failures: 1}}
          |                            ----- `supervision.restart` is here
    pools.yaml:4:55: `breaker` speaks of restarts, and `restart: never` allows none
          |
        4 |     supervision: {restart: never, backoff: {max: 1m}, breaker: {failures: 1}}
          |                                                       ^^^^^^^ leave one of the two out
          |
        4 |     supervision: {restart: never, backoff: {max: 1m}, breaker: {failures: 1}}
          |                            ----- `supervision.restart` is here
    "
    );
    let unused = pool("supervision: {idle_stop: 1m}").unwrap();
    assert_eq!(
        notices(&unused),
        [
            "pools[0].supervision.idle_stop: stops a pool that is started on demand: it needs `preload: false`"
        ]
    );
}

#[test]
fn an_orchestrator_is_told_over_https_with_a_token_that_is_no_part_of_the_file() {
    let file = |notify: &str| {
        try_text(&format!(
            "pools: [{{id: a, engine: x}}]\nnotify: {notify}\n"
        ))
    };
    assert_eq!(
        try_text("pools: [{id: a, engine: x}]").unwrap().notify,
        None
    );
    let least = file("{url: 'http://127.0.0.1:9/h'}")
        .unwrap()
        .notify
        .unwrap();
    let (ms, seconds) = (Duration::from_millis, Duration::from_secs);
    let usual = Notify {
        url: "http://127.0.0.1:9/h".to_owned(),
        secret: None,
        timeout: seconds(10),
        retry_initial: seconds(1),
        retry_max: seconds(60),
    };
    assert_eq!(least, usual);
    let all = "{url: 'https://o.test/h', token: '{secret.TOKEN}', timeout: 2s, retry: {initial: 50ms, max: 3s}}";
    let expected = Notify {
        url: "https://o.test/h".to_owned(),
        secret: Some("TOKEN".to_owned()),
        timeout: seconds(2),
        retry_initial: ms(50),
        retry_max: seconds(3),
    };
    assert_eq!(file(all).unwrap().notify, Some(expected));
    insta::assert_snapshot!(
        told(file(
            "\n  url: http://o.test/h\n  token: abcdef\n  timeout: 0s\n  retry: {initial: 2h, max: 1ms}"
        )),
        @r"
    pools.yaml:3:8: what is posted over plain `http` can be read on the way
          |
        3 |   url: http://o.test/h
          |        ^^^^^^^^^^^^^^^ write `https://…`; `http://` is for this machine
    pools.yaml:4:10: a token does not stand in the file, its name does
          |
        4 |   token: ***
          | write `{secret.NAME}`, and put it into the environment as `NAME`
    pools.yaml:5:12: `timeout` is out of range
          |
        5 |   timeout: 0s
          |            ^^ it is 10ms to 1h
    pools.yaml:6:20: `initial` is out of range
          |
        6 |   retry: {initial: 2h, max: 1ms}
          |                    ^^ it is 10ms to 1h
    pools.yaml:6:29: `max` is out of range
          |
        6 |   retry: {initial: 2h, max: 1ms}
          |                             ^^^ it is 10ms to 1h
    "
    );
    insta::assert_snapshot!(
        told(file("{url: 'ftp://o.test/h', retry: {initial: 2m, max: 1m}}")),
        @r"
    pools.yaml:2:15: documents are posted over `https` only
          |
        2 | notify: {url: 'ftp://o.test/h', retry: {initial: 2m, max: 1m}}
          |               ^^^^^^^^^^^^^^^^ write `https://…`
    pools.yaml:2:59: the longest pause is shorter than the first one
          |
        2 | notify: {url: 'ftp://o.test/h', retry: {initial: 2m, max: 1m}}
          |                                                           ^^ make `max` at least as long as `initial`
    "
    );
    insta::assert_snapshot!(told(file("\n  token: '{secret.A}'\n  bearer: x")), @r"
    pools.yaml:3:3: `url` is missing in `notify`
          |
        3 |   token: ***
          |
    pools.yaml:4:3: there is no `bearer` in `notify`
          |
        4 |   bearer: x
          |   ^^^^^^ what can stand here: `retry`, `timeout`, `token`, `url`
    ");
}
