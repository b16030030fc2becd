//! Engines that outlive their host, for a while or for ever, and whoever takes them over.

use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
};

use super::*;

/// How long kept engines stay here that nobody comes for any more.
const STAY: Duration = Duration::from_millis(300);

/// How long those stay that somebody comes for: longer than anything here may take.
const LONG: Duration = Duration::from_secs(60);

fn engine(directory: &Path, script: &str) -> Spec {
    let document = directory.join("handoff.json");
    fs::write(&document, r#"{"url": "a"}"#).unwrap();
    Spec {
        child: Child::Engine {
            grace_ms: 5_000,
            withdraw: vec![Removal {
                path: document,
                says: BTreeMap::from([("url".to_owned(), "a".into())]),
            }],
            farewell: None,
            remove: Vec::new(),
            holds: Vec::new(),
        },
        ..shell(directory, script)
    }
}

/// An engine whose host is gone, kept like this.
async fn left_behind(directory: &Path, limit: Option<Duration>) -> (ChildAddress, ProcessIdentity) {
    let keeper = keeper_at(directory);
    let spec = engine(directory, "exec sleep 1000");
    let mut running = keeper.spawn(spec).await.unwrap();
    running.keep(limit).await.unwrap();
    (running.address(), running.process())
}

async fn adopt(keeper: &Keeper, left: (ChildAddress, ProcessIdentity)) -> Running {
    let (address, process) = left;
    let sleep = Path::new("/bin/sleep");
    keeper.adopt(address, process, sleep).await.unwrap()
}

/// Watches for a while that a process goes on.
async fn goes_on(process: ProcessIdentity, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        assert!(process.is_alive(), "it ended after {:?}", start.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn what_nobody_comes_for_is_withdrawn_and_ended_when_its_time_is_over() {
    let (_keep, path) = place();
    let start = Instant::now();
    let (address, process) = left_behind(&path, Some(STAY)).await;
    gone(process).await;
    assert!(start.elapsed() >= STAY, "{:?}", start.elapsed());
    assert!(!path.join("handoff.json").exists());
    gone(address.keeper).await;
}

#[tokio::test]
async fn an_adopted_engine_stays_and_its_end_is_its_adopter_s_own() {
    let (_keep, path) = place();
    let left = left_behind(&path, Some(LONG)).await;
    let keeper = keeper_at(&path);
    let mut running = adopt(&keeper, left).await;
    assert!(keeper.process().is_none(), "it needs no keeper of its own");
    running.keep(Some(STAY)).await.unwrap();
    goes_on(left.1, STAY * 2).await;
    running.end();
    let ended = running.wait().await.unwrap();
    assert_eq!(ended.exited, Exited::Signal(15));
    assert!(!ended.asked_elsewhere);
    gone(left.0.keeper).await;
}

#[tokio::test]
async fn when_its_adopter_is_gone_its_time_runs_again() {
    let (_keep, path) = place();
    let left = left_behind(&path, Some(LONG)).await;
    let mut alone = Instant::now();
    for stay in [LONG, LONG, STAY] {
        let keeper = keeper_at(&path);
        let mut running = adopt(&keeper, left).await;
        running.keep(Some(stay)).await.unwrap();
        goes_on(left.1, STAY * 2).await;
        alone = Instant::now();
        drop((running, keeper));
    }
    gone(left.1).await;
    assert!(alone.elapsed() >= STAY, "{:?}", alone.elapsed());
}

#[tokio::test]
async fn an_adopter_hears_of_a_crash_and_of_a_stop_from_elsewhere() {
    for stopped in [false, true] {
        let (_keep, path) = place();
        let left = left_behind(&path, None).await;
        let keeper = keeper_at(&path);
        let running = adopt(&keeper, left).await;
        if stopped {
            let home = crate::config::paths::Home::at(&path);
            let mut control = Control::connect(&home, left.0).await.unwrap();
            control.end().await.unwrap();
        } else {
            left.1.signal(rustix::process::Signal::SEGV).unwrap();
        }
        let ended = running.wait().await.unwrap();
        let signal = if stopped { 15 } else { 11 };
        assert_eq!(ended.exited, Exited::Signal(signal));
        assert_eq!(ended.asked_elsewhere, stopped);
    }
}

#[tokio::test]
async fn an_adopter_is_told_when_the_keeper_is_killed() {
    let (_keep, path) = place();
    let left = left_behind(&path, None).await;
    let keeper = keeper_at(&path);
    let running = adopt(&keeper, left).await;
    left.0.keeper.signal(rustix::process::Signal::KILL).unwrap();
    let error = running.wait().await.unwrap_err();
    assert!(matches!(error, ProcessError::KeeperGone { .. }), "{error}");
    gone(left.1).await;
}

#[tokio::test]
async fn an_adopter_may_give_it_another_time() {
    let (_keep, path) = place();
    let left = left_behind(&path, None).await;
    let keeper = keeper_at(&path);
    let mut running = adopt(&keeper, left).await;
    running.keep(Some(STAY)).await.unwrap();
    drop((running, keeper));
    gone(left.1).await;
}

#[tokio::test]
async fn what_is_bound_to_its_host_or_has_ended_cannot_be_adopted() {
    let (_keep, path) = place();
    let owner = keeper_at(&path);
    let spec = engine(&path, "exec sleep 1000");
    let running = owner.spawn(spec).await.unwrap();
    let other = keeper_at(&path);
    for (ended, why) in [(false, "it is bound to its host"), (true, "it has ended")] {
        if ended {
            running.kill_tree();
            running.wait().await.unwrap();
        }
        let sleep = Path::new("/bin/sleep");
        let refused = other.adopt(running.address(), running.process(), sleep);
        let error = refused.await.unwrap_err();
        assert!(
            matches!(&error, ProcessError::Keeper { reason, .. } if reason == why),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn many_engines_of_one_keeper_share_one_connection() {
    // More than a keeper lets in at a time.
    const ENGINES: usize = 40;
    let (_keep, path) = place();
    let first = keeper_at(&path);
    let mut left = Vec::new();
    for number in 0..ENGINES {
        let own = path.join(number.to_string());
        fs::create_dir(&own).unwrap();
        let mut running = first.spawn(engine(&own, "exec sleep 1000")).await.unwrap();
        running.keep(Some(LIMIT)).await.unwrap();
        left.push((running.address(), running.process()));
    }
    drop(first);
    let second = keeper_at(&path);
    let adopted = left.iter().map(|left| adopt(&second, *left));
    let adopted = futures_util::future::join_all(adopted).await;
    for running in &adopted {
        running.kill_tree();
    }
    for running in &adopted {
        running.wait().await.unwrap();
    }
}

#[tokio::test]
async fn older_programs_are_answered_in_their_own_version() {
    let (_keep, path) = place();
    let left = left_behind(&path, Some(LIMIT)).await;
    let socket = path.join(format!("state/keepers/{}.sock", left.0.keeper.pid));
    let mut stream = UnixStream::connect(socket).unwrap();
    let child = left.0.child;
    writeln!(stream, r#"{{"id":1,"ask":"hello","version":1}}"#).unwrap();
    writeln!(stream, r#"{{"id":2,"ask":"kill","child":{child}}}"#).unwrap();
    let mut lines = BufReader::new(stream).lines().map(Result::unwrap);
    assert_eq!(
        lines.next().unwrap(),
        r#"{"tell":"hello","id":1,"version":1}"#
    );
    assert_eq!(lines.next().unwrap(), r#"{"tell":"done","id":2}"#);
    let told = lines.next().unwrap();
    assert!(told.starts_with(r#"{"tell":"exited""#), "{told}");
}

/// A keeper of the first version, in a thread: tells what it was asked.
fn old_keeper(path: &Path) -> std::thread::JoinHandle<Vec<String>> {
    let directory = path.join("state/keepers");
    fs::create_dir_all(&directory).unwrap();
    let own = ProcessIdentity::of_this_process().pid;
    let door = UnixListener::bind(directory.join(format!("{own}.sock"))).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = door.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut asked = Vec::new();
        for line in lines.map_while(Result::ok) {
            let request: serde_json::Value = serde_json::from_str(&line).unwrap();
            let (id, ask) = (&request["id"], request["ask"].as_str().unwrap());
            asked.push(ask.to_owned());
            match ask {
                "hello" => writeln!(stream, r#"{{"tell":"hello","id":{id},"version":1}}"#),
                "signal" => writeln!(
                    stream,
                    "{{\"tell\":\"done\",\"id\":{id}}}\n\
                     {{\"tell\":\"exited\",\"child\":7,\"exited\":{{\"code\":3}}}}"
                ),
                // What it does not know it passes over.
                _ => Ok(()),
            }
            .unwrap();
        }
        asked
    })
}

#[tokio::test]
async fn an_engine_of_an_older_keeper_is_watched_all_the_same() {
    let (_keep, path) = place();
    let old = old_keeper(&path);
    let keeper = keeper_at(&path);
    let this = ProcessIdentity::of_this_process();
    let address = ChildAddress {
        keeper: this,
        child: 7,
    };
    let mut running = adopt(&keeper, (address, this)).await;
    let limit = running.keep(Some(LIMIT)).await.unwrap();
    assert_eq!(limit, None, "it is kept for ever, and not asked");
    let ended = running.wait().await.unwrap();
    assert_eq!(ended.exited, Exited::Code(3));
    drop((running, keeper));
    // Not in this thread, which has yet to close the connection.
    let asked = tokio::task::spawn_blocking(|| old.join().unwrap()).await;
    assert_eq!(asked.unwrap(), ["hello", "signal"]);
}

#[tokio::test]
async fn the_socket_of_a_killed_keeper_goes_with_the_next_one_and_no_other_does() {
    let (_keep, path) = place();
    let keepers = [keeper_at(&path), keeper_at(&path)];
    let mut running = Vec::new();
    for keeper in &keepers {
        let spec = engine(&path, "exec sleep 1000");
        running.push(keeper.spawn(spec).await.unwrap());
    }
    let [living, killed] = keepers.each_ref().map(|it| it.process().unwrap());
    let socket = |keeper: ProcessIdentity| path.join(format!("state/keepers/{}.sock", keeper.pid));
    let stand = || match [living, killed].map(|it| socket(it).exists()) {
        [true, true] => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until("both doors", stand).await;
    let pid = rustix::process::Pid::from_raw(killed.pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    gone(killed).await;
    let next = keeper_at(&path);
    let spec = engine(&path, "exec sleep 1000");
    running.push(next.spawn(spec).await.unwrap());
    let removed = || match socket(killed).exists() {
        false => Ok(()),
        true => Err("it is still there".to_owned()),
    };
    until("the old door to go", removed).await;
    assert!(socket(living).exists());
}
