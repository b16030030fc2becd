//! The daemon under systemd: what it tells it, and the unit that ships.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    process::Command,
    sync::mpsc::{self, Receiver},
};

use e2e::{Built, RUN_LIMIT, repository_root};
use rustix::process::Signal;

use crate::Stage;

/// Reads what is told as it comes: a socket holds few messages, and who tells does not wait for room.
fn listen(socket: UnixDatagram) -> Receiver<String> {
    let (sender, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(length) = socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..length]).into_owned();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    told
}

/// The next thing that was told.
fn next(told: &Receiver<String>) -> String {
    told.recv_timeout(RUN_LIMIT)
        .expect("something is told in time")
}

#[test]
fn systemd_is_told_of_the_beginning_the_end_and_of_life_between() {
    let mut stage = Stage::new();
    let path = stage.machine.root().join("notify.sock");
    let told = listen(UnixDatagram::bind(&path).unwrap());
    stage.machine.lend("NOTIFY_SOCKET", path.to_str().unwrap());
    stage.machine.lend("WATCHDOG_USEC", "300000");
    stage.machine.write_pool(&stage.pool("chat", &[]));
    let daemon = stage.serve(&[]);
    let ready = next(&told);
    assert!(
        ready.contains("READY=1") && ready.contains("STATUS=serves on"),
        "{ready}"
    );
    for _ in 0..3 {
        let alive = next(&told);
        assert!(alive.contains("WATCHDOG=1"), "{alive}");
    }
    daemon.wait_state("chat", "ready");
    let _ = daemon.end(Signal::TERM, 0);
    let mut last = next(&told);
    while last.contains("WATCHDOG=1") {
        last = next(&told);
    }
    assert!(last.contains("STOPPING=1"), "{last}");
}

#[test]
fn the_unit_that_ships_is_one_that_systemd_reads() {
    let unit = repository_root().join("contrib/systemd/engine-host.service");
    let text = fs::read_to_string(unit).unwrap();
    let host = Built::debug().host();
    // Neither program nor manual are where an installation has them.
    let here = text.replace("/usr/local/bin/host", host.to_str().unwrap());
    let here = here.replace("Documentation=man:host-serve(1)\n", "");
    assert_ne!(here, text);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("engine-host.service");
    fs::write(&path, here).unwrap();
    let verified = Command::new("systemd-analyze")
        .arg("verify")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&verified.stderr);
    assert!(
        verified.status.success() && !said.contains("engine-host.service"),
        "{said}"
    );
}
