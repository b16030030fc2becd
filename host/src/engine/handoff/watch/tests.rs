//! Promises of the watch, on real files.

use std::{fs, net::Ipv4Addr, os::unix::fs::symlink, time::Instant};

use serde_json::{Value, json};

use super::*;
use crate::{
    engine::records::tests::instance,
    net::testing::{FreePort, close},
    process::ProcessIdentity,
};

/// Longest time anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

/// Long enough that a test that passes was told by the kernel.
const NEVER: Duration = Duration::from_secs(3600);

fn settings() -> WatchSettings {
    WatchSettings {
        poll: NEVER,
        half_written: Duration::from_millis(300),
        must_listen: false,
        ..WatchSettings::default()
    }
}

fn document(pool: &str, replica: &str, port: u16) -> Value {
    json!({
        "engine": "llamacpp", "engine_version": "b1", "provisioning_mode": "source",
        "url": format!("http://127.0.0.1:{port}"), "pool_id": pool, "replica_id": replica,
        "model": {"id": "m"}, "flags": [],
    })
}

fn started(mut document: Value, at: &str) -> Value {
    document["started_at"] = at.into();
    document
}

/// Written beside and renamed, as hosts do.
fn put(path: &Path, document: &Value) {
    let beside = path.with_extension("partial");
    fs::write(&beside, document.to_string()).unwrap();
    fs::rename(&beside, path).unwrap();
}

struct Place {
    _root: tempfile::TempDir,
    directory: PathBuf,
}

impl Place {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        Self {
            directory: root.path().join(".runtime/engines"),
            _root: root,
        }
    }

    fn made() -> Self {
        let place = Self::new();
        fs::create_dir_all(&place.directory).unwrap();
        place
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn put(&self, name: &str, document: &Value) {
        put(&self.file(name), document);
    }

    fn watch(&self) -> Watch {
        watch_with(&self.directory, settings())
    }
}

/// The next change in words, for example `bound chat/r0 :8080`.
async fn next(watch: &mut Watch) -> String {
    let event = tokio::time::timeout(LIMIT, watch.next()).await;
    let event = event
        .expect("a change within the limit")
        .expect("it goes on");
    let handoff = &event.binding().handoff;
    let port = handoff.url.rsplit(':').next().unwrap();
    let name = format!("{}/{}", handoff.pool_id, handoff.replica_id);
    format!("{} {name} :{port}", event.as_str())
}

/// Shows that nothing else was told before this: a handoff of its own comes next.
async fn nothing_until_now(place: &Place, watch: &mut Watch) {
    place.put("zz-mark.json", &document("mark", "r0", 1));
    assert_eq!(next(watch).await, "bound mark/r0 :1");
    fs::remove_file(place.file("zz-mark.json")).unwrap();
    assert_eq!(next(watch).await, "unbound mark/r0 :1");
}

#[tokio::test]
async fn what_is_there_comes_first_and_every_change_is_told() {
    let place = Place::made();
    place.put("a.json", &document("chat", "r0", 8080));
    let mut watch = place.watch();
    assert_eq!(next(&mut watch).await, "bound chat/r0 :8080");
    place.put("b.json", &document("chat", "r1", 8081));
    assert_eq!(next(&mut watch).await, "bound chat/r1 :8081");
    place.put("a.json", &document("chat", "r0", 9090));
    assert_eq!(next(&mut watch).await, "changed chat/r0 :9090");
    place.put("a.json", &document("chat", "r0", 9090));
    nothing_until_now(&place, &mut watch).await;
    fs::remove_file(place.file("b.json")).unwrap();
    assert_eq!(next(&mut watch).await, "unbound chat/r1 :8081");
    fs::rename(place.file("a.json"), place.file("a.gone")).unwrap();
    assert_eq!(next(&mut watch).await, "unbound chat/r0 :9090");
}

#[tokio::test]
async fn the_directory_may_come_late_go_and_come_again() {
    let place = Place::new();
    let mut watch = place.watch();
    for port in [1, 2] {
        fs::create_dir_all(&place.directory).unwrap();
        place.put("a.json", &document("chat", "r0", port));
        assert_eq!(next(&mut watch).await, format!("bound chat/r0 :{port}"));
        let whole = place.directory.parent().unwrap();
        fs::remove_dir_all(whole).unwrap();
        assert_eq!(next(&mut watch).await, format!("unbound chat/r0 :{port}"));
    }
    // Moved away and another put in its place.
    fs::create_dir_all(&place.directory).unwrap();
    place.put("a.json", &document("chat", "r0", 3));
    assert_eq!(next(&mut watch).await, "bound chat/r0 :3");
    fs::rename(&place.directory, place.directory.with_extension("old")).unwrap();
    assert_eq!(next(&mut watch).await, "unbound chat/r0 :3");
    fs::create_dir(&place.directory).unwrap();
    place.put("a.json", &document("chat", "r0", 4));
    assert_eq!(next(&mut watch).await, "bound chat/r0 :4");
}

#[tokio::test]
async fn a_half_written_file_gets_a_moment_and_keeps_what_it_said() {
    let place = Place::made();
    let mut watch = place.watch();
    let (old, new) = (document("chat", "r0", 1), document("chat", "r0", 2));
    let text = old.to_string();
    fs::write(place.file("a.json"), &text[..40]).unwrap();
    nothing_until_now(&place, &mut watch).await;
    fs::write(place.file("a.json"), &text).unwrap();
    assert_eq!(next(&mut watch).await, "bound chat/r0 :1");
    // Written in place, not beside: for a moment it is half of the new one.
    fs::write(place.file("a.json"), &new.to_string()[..40]).unwrap();
    fs::write(place.file("a.json"), new.to_string()).unwrap();
    assert_eq!(next(&mut watch).await, "changed chat/r0 :2");
    // Its writer has died in the middle.
    fs::write(place.file("a.json"), &text[..40]).unwrap();
    let cut = Instant::now();
    assert_eq!(next(&mut watch).await, "unbound chat/r0 :2");
    assert!(cut.elapsed() >= settings().half_written / 2);
}

#[tokio::test]
async fn of_two_files_for_one_replica_the_engine_that_was_started_last_counts() {
    let place = Place::made();
    let at = |port, at| started(document("chat", "r0", port), at);
    place.put("b.json", &at(1, "2026-01-02T00:00:00Z"));
    place.put("c.json", &document("chat", "r0", 9));
    let mut watch = place.watch();
    assert_eq!(next(&mut watch).await, "bound chat/r0 :1");
    place.put("z.json", &at(2, "2026-01-01T00:00:00Z"));
    nothing_until_now(&place, &mut watch).await;
    place.put("a.json", &at(3, "2026-01-03T00:00:00Z"));
    assert_eq!(next(&mut watch).await, "changed chat/r0 :3");
    fs::remove_file(place.file("a.json")).unwrap();
    assert_eq!(next(&mut watch).await, "changed chat/r0 :1");
    fs::remove_file(place.file("b.json")).unwrap();
    assert_eq!(next(&mut watch).await, "changed chat/r0 :2");
    fs::remove_file(place.file("z.json")).unwrap();
    assert_eq!(next(&mut watch).await, "changed chat/r0 :9");
    fs::remove_file(place.file("c.json")).unwrap();
    assert_eq!(next(&mut watch).await, "unbound chat/r0 :9");
}

#[tokio::test]
async fn what_is_no_handoff_is_passed_over() {
    let place = Place::made();
    let elsewhere = place.directory.with_file_name("elsewhere.json");
    put(&elsewhere, &document("linked", "r0", 1));
    symlink(&elsewhere, place.file("link.json")).unwrap();
    symlink("nowhere", place.file("dangling.json")).unwrap();
    fs::create_dir(place.file("directory.json")).unwrap();
    let pipe = std::ffi::CString::new(place.file("pipe.json").to_str().unwrap()).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &pipe,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let sparse = fs::File::create(place.file("huge.json")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    let padded = format!("{}{}", document("large", "r0", 1), " ".repeat(1 << 20));
    fs::write(place.file("large.json"), padded).unwrap();
    for (name, text) in [
        ("other.json", "{\"pid\": 7}"),
        ("list.json", "[1, 2]"),
        ("empty.json", ""),
        ("bytes.json", "\u{0}\u{1}"),
    ] {
        fs::write(place.file(name), text).unwrap();
    }
    place.put(".hidden.json", &document("hidden", "r0", 1));
    place.put("note.txt", &document("text", "r0", 1));
    if rustix::process::geteuid().is_root() {
        // Somebody else's, in a directory that is not theirs.
        place.put("stranger.json", &document("stranger", "r0", 1));
        std::os::unix::fs::chown(place.file("stranger.json"), Some(65_534), None).unwrap();
    }
    let mut watch = place.watch();
    nothing_until_now(&place, &mut watch).await;
    place.put("other.json", &document("chat", "r0", 5));
    assert_eq!(next(&mut watch).await, "bound chat/r0 :5");
}

#[tokio::test]
async fn a_handoff_is_stale_while_nobody_listens_at_its_address() {
    let place = Place::made();
    let free = FreePort::at(Ipv4Addr::LOCALHOST);
    let (listener, port) = (free.listen(), free.address().port());
    place.put("a.json", &document("chat", "r0", port));
    let mut far = document("far", "r0", 1);
    far["url"] = "http://10.255.255.1:1".into();
    place.put("far.json", &far);
    let mut watch = watch_with(
        &place.directory,
        WatchSettings {
            must_listen: true,
            poll: Duration::from_millis(50),
            ..settings()
        },
    );
    let bound = format!("bound chat/r0 :{port}");
    assert_eq!(next(&mut watch).await, bound);
    assert_eq!(next(&mut watch).await, "bound far/r0 :1");
    close(listener);
    assert_eq!(next(&mut watch).await, format!("unbound chat/r0 :{port}"));
    let _again = free.listen();
    assert_eq!(next(&mut watch).await, bound);
}

#[tokio::test]
async fn a_handoff_of_an_engine_that_is_recorded_as_another_process_is_stale() {
    let place = Place::made();
    let root = place.directory.parent().unwrap().to_owned();
    let home = Home::at(root.join("home"));
    fs::create_dir_all(home.state().join("instances")).unwrap();
    let mut process = ProcessIdentity::of_this_process();
    process.start_time_ticks += 1;
    let mut record = instance(&root, process);
    record.handoff_directory = place.directory.clone();
    record.save(&home).unwrap();
    let mut dead = document("chat", "r0", 1);
    dead["started_at"] = serde_json::to_value(record.started_at).unwrap();
    place.put("a.json", &dead);
    // Names that would lead elsewhere are looked up nowhere.
    place.put("b.json", &document("../x", "r0", 7));
    let settings = WatchSettings {
        home: Some(home),
        ..settings()
    };
    let mut watch = watch_with(&place.directory, settings);
    assert_eq!(next(&mut watch).await, "bound ../x/r0 :7");
    nothing_until_now(&place, &mut watch).await;
    // Of the next engine nothing is recorded yet.
    place.put("a.json", &document("chat", "r0", 1));
    assert_eq!(next(&mut watch).await, "bound chat/r0 :1");
}

#[tokio::test]
async fn where_the_kernel_tells_nothing_a_look_now_and_then_finds_it() {
    let place = Place::made();
    let mut looked = Looked::default();
    let patience = settings().half_written;
    let mut found = |place: &Place| {
        looked.again(&place.directory, patience);
        let ports = looked.handoffs().into_iter().map(|it| it.handoff.url);
        ports.collect::<Vec<_>>()
    };
    assert!(found(&place).is_empty());
    place.put("a.json", &document("chat", "r0", 1));
    assert_eq!(found(&place), ["http://127.0.0.1:1"]);
    // The same length within one tick of the clock.
    fs::write(place.file("a.json"), document("chat", "r0", 2).to_string()).unwrap();
    assert_eq!(found(&place), ["http://127.0.0.1:2"]);
    fs::remove_file(place.file("a.json")).unwrap();
    assert!(found(&place).is_empty());
}

#[tokio::test]
async fn a_slow_consumer_finds_the_newest_state() {
    let place = Place::made();
    let mut watch = place.watch();
    for port in 1..=200 {
        place.put("a.json", &document("chat", "r0", port));
    }
    let start = Instant::now();
    let mut last = String::new();
    while last.rsplit(':').next() != Some("200") {
        assert!(start.elapsed() < LIMIT, "last seen: {last}");
        last = next(&mut watch).await;
    }
    nothing_until_now(&place, &mut watch).await;
}

#[tokio::test]
async fn a_watch_that_was_dropped_ends() {
    let place = Place::made();
    let mut watch = place.watch();
    nothing_until_now(&place, &mut watch).await;
    let task = watch.task.abort_handle();
    drop(watch);
    let start = Instant::now();
    while !task.is_finished() {
        assert!(start.elapsed() < LIMIT, "it is still there");
        tokio::task::yield_now().await;
    }
}
