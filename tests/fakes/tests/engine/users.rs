//! Engines of another user.

use std::fs;

use tokio_util::sync::CancellationToken;

use crate::room::{Host, Room};

/// Fails where what a test promises can only be seen as root: becoming somebody else.
#[track_caller]
fn needs_root() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test needs root: run it as root or in a container"
    );
}

#[tokio::test]
async fn another_user_s_engine_is_recognised_by_its_socket() {
    needs_root();
    let room = Room::new();
    let job = room.job_of_another_user();
    let engine = room.start(&job).await;
    let status = fs::read_to_string(format!("/proc/{}/status", engine.instance().process.pid));
    assert!(status.unwrap().contains("Uid:\t65534\t65534\t65534\t65534"));
}

#[tokio::test]
async fn what_another_user_could_write_is_not_inherited() {
    use std::os::unix::fs::MetadataExt;
    needs_root();
    let room = Room::new();
    let mut job = room.job_of_another_user();
    let record = room.root.join("record");
    job.env.insert("CACHE".into(), "{cache.torch}".into());
    let engine = room.start(&job).await;
    let places = [
        fs::read_link(format!("/proc/{}/cwd", engine.instance().process.pid)).unwrap(),
        room.home.cache("torch"),
    ];
    for place in &places {
        assert_eq!(fs::metadata(place).unwrap().uid(), 65_534);
        fs::write(place.join("sitecustomize.py"), "evil").unwrap();
    }
    engine.stop(&CancellationToken::new()).await.unwrap();
    // The same user finds what it left.
    let engine = room.start(&job).await;
    assert!(
        places
            .iter()
            .all(|place| place.join("sitecustomize.py").exists())
    );
    engine.stop(&CancellationToken::new()).await.unwrap();
    // Now as this user, root.
    job.uid = None;
    job.faults = vec!["--record".into(), record.to_str().unwrap().into()];
    let _engine = room.start(&job).await;
    for place in &places {
        assert_eq!(fs::metadata(place).unwrap().uid(), 0);
        assert_eq!(fs::read_dir(place).unwrap().count(), 0, "{place:?}");
    }
}

#[tokio::test]
async fn a_root_that_may_not_look_into_other_processes_asks_a_helper_of_their_user() {
    needs_root();
    let room = Room::new();
    let mut host = Host::start_by(
        &room,
        &room.job_of_another_user(),
        &["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-all"],
    );
    let line = host.line();
    assert!(line.starts_with("ready http"), "{line}");
}
