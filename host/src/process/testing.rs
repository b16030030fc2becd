//! A keeper for the tests of this crate, whose own binary is the test harness.
#![expect(
    unsafe_code,
    reason = "a keeper must have one thread: the harness becomes one before its main makes more"
)]

use std::{
    os::fd::OwnedFd,
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, Command, Stdio},
};

use super::{Keeper, KeeperOptions, keeper};
use crate::config::paths::Home;

/// First argument that turns the harness into a keeper; no test is named like it.
const BECOME_A_KEEPER: &str = "become-a-keeper";

/// A keeper whose home is this directory. Works in every test of this crate.
pub(crate) fn keeper_at(root: &Path) -> Keeper {
    let options = KeeperOptions {
        program: "/proc/self/exe".into(),
        arguments: vec![BECOME_A_KEEPER.to_owned()],
    };
    Keeper::new(&Home::at(root), options)
}

/// A keeper's process with this socket to its host, to be talked to by hand.
pub(crate) fn start_at(root: &Path, host: UnixStream) -> Child {
    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    Command::new("/proc/self/exe")
        .arg(BECOME_A_KEEPER)
        .current_dir(root)
        .stdin(Stdio::from(OwnedFd::from(host)))
        .spawn()
        .unwrap()
}

extern "C" fn become_a_keeper_if_asked() {
    if std::env::args().nth(1).as_deref() == Some(BECOME_A_KEEPER) {
        keeper::run();
        // SAFETY: _exit never returns and touches no memory.
        unsafe { libc::_exit(0) }
    }
}

// SAFETY: the loader calls every function of this section once, before main, in one thread. The
// standard library takes the arguments in an earlier entry of the same section.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = become_a_keeper_if_asked;
