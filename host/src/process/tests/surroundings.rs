//! What is started gets what is named, and nothing of the operator's.

use super::*;

#[tokio::test]
async fn a_command_gets_exactly_what_is_named() {
    let (exited, log) = run(
        "env | grep -v '^PWD=\\|^SHLVL=\\|^_='; cat; umask; ulimit -c; ls /proc/self/fd | wc -l; \
             grep NoNewPrivs /proc/self/status; echo problem >&2; exit 3",
    )
    .await;
    assert_eq!(exited, Exited::Code(3));
    assert_eq!(
        log,
        "PATH=/usr/bin:/bin\n0022\n0\n4\nNoNewPrivs:\t1\nproblem\n"
    );
}

#[tokio::test]
async fn no_signal_is_ignored_or_blocked_in_what_is_started() {
    let (_keep, path) = place();
    // Not through a shell: it would clean up by itself.
    let spec = Spec {
        program: "/bin/grep".into(),
        args: ["-E", "SigIgn|SigBlk", "/proc/self/status"]
            .map(String::from)
            .to_vec(),
        ..shell(&path, "")
    };
    let keeper = keeper_at(&path);
    keeper.run(spec, &CancellationToken::new()).await.unwrap();
    let log = fs::read_to_string(path.join("log")).unwrap();
    for line in log.lines() {
        let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        // 32 and 33 are the C library's own; nobody can give them back.
        assert_eq!(set & !(0b11 << 31), 0, "{log}");
    }
    assert_eq!(log.lines().count(), 2);
}

#[tokio::test]
async fn set_uid_helpers_work_only_where_they_are_asked_for() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    for (privileges, told) in [(Privileges::Fixed, "1"), (Privileges::Usual, "0")] {
        let spec = Spec {
            privileges,
            ..shell(&path, "grep NoNewPrivs /proc/self/status")
        };
        keeper.run(spec, &CancellationToken::new()).await.unwrap();
        let log = fs::read_to_string(path.join("log")).unwrap();
        assert_eq!(log, format!("NoNewPrivs:\t{told}\n"));
    }
}

#[tokio::test]
async fn a_command_without_network_can_make_no_socket_but_a_unix_one() {
    let (_keep, path) = place();
    let script = "python3 -c '
import socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_UNIX):
    try:
        socket.socket(family, socket.SOCK_DGRAM)
        print(family.name, \"made\")
    except OSError as error:
        print(family.name, error.errno)
'";
    let spec = Spec {
        network: Network::None,
        ..shell(&path, script)
    };
    let keeper = keeper_at(&path);
    keeper.run(spec, &CancellationToken::new()).await.unwrap();
    let log = fs::read_to_string(path.join("log")).unwrap();
    assert_eq!(
        log,
        "AF_INET 13\nAF_INET6 13\nAF_NETLINK 13\nAF_UNIX made\n"
    );
}

#[tokio::test]
async fn another_user_is_entered_without_root_s_groups_and_dies_with_the_minder() {
    if !rustix::process::geteuid().is_root() {
        // Becoming somebody else takes root; `identity_refused` covers the rest of us.
        return;
    }
    let (_keep, path) = place();
    let spec = Spec {
        identity: Some(Identity {
            uid: 65534,
            gid: 65534,
        }),
        ..shell(&path, "id -u; id -g; id -G; exec sleep 1000")
    };
    let keeper = keeper_at(&path);
    let running = keeper.spawn(spec).await.unwrap();
    let log = path.join("log");
    until("three lines", || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text == "65534\n65534\n65534\n" {
            Ok(())
        } else {
            Err(text)
        }
    })
    .await;
    let minder = parent_of(running.process().pid);
    minder.signal(rustix::process::Signal::KILL).unwrap();
    let ended = running.wait().await.unwrap();
    assert_eq!(ended.exited, Exited::Signal(9));
    gone(running.process()).await;
}

#[tokio::test]
async fn the_keeper_and_its_minders_carry_nothing_of_the_operator_s_environment() {
    let (_keep, path) = place();
    let keeper = keeper_at(&path);
    let running = keeper.spawn(shell(&path, "exec sleep 1000")).await.unwrap();
    let minder = running.process().parent().unwrap();
    for process in [keeper.process().unwrap(), minder] {
        let environment = fs::read(format!("/proc/{}/environ", process.pid)).unwrap();
        // A setting of the allocator, and nothing else.
        let only = "GLIBC_TUNABLES=glibc.malloc.tcache_count=0\0";
        assert_eq!(String::from_utf8_lossy(&environment), only);
    }
}
