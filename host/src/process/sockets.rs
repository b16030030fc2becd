//! Which sockets a process holds: how it is told whose listening socket answers.
//!
//! Looking into `/proc/PID/fd` of another user takes a privilege that even root lacks in many
//! containers; then a helper that runs as that user looks (it is this program again).

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs, io,
    process::ExitCode,
    time::Duration,
};

use super::{
    Identity, Keeper, ProcessError, ProcessIdentity, Question, ask, keeper::HELP_WITH_SOCKETS,
};

/// Longest time the helper may take.
const HELPER_LIMIT: Duration = Duration::from_secs(5);

/// What a helper prints in place of what it may not see either.
const CLOSED: &str = "closed";

/// Sockets that processes hold.
#[derive(Debug, Default)]
pub struct Sockets {
    /// Their inodes.
    pub inodes: BTreeSet<u64>,
    /// Whether there may be more: a process may not be looked into.
    pub may_be_more: bool,
}

/// The sockets that these processes hold. `identity` is whose they are, where they are not this process's
/// own. Processes that have ended hold none.
pub async fn sockets_of(
    keeper: &Keeper,
    processes: &[ProcessIdentity],
    identity: Option<Identity>,
) -> Result<Sockets, ProcessError> {
    let mut sockets = Sockets::default();
    let mut closed = Vec::new();
    for process in processes {
        match inodes_of(process.pid) {
            Ok(found) => sockets.inodes.extend(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                closed.push(process.pid);
            }
            Err(_) => {}
        }
    }
    if closed.is_empty() {
        return Ok(sockets);
    }
    match identity {
        None => sockets.may_be_more = true,
        Some(_) => {
            let answer = ask_helper(keeper, &closed, identity).await?;
            let inodes = answer.lines().filter_map(|line| line.parse::<u64>().ok());
            sockets.inodes.extend(inodes);
            sockets.may_be_more = answer.lines().any(|line| line == CLOSED);
        }
    }
    Ok(sockets)
}

async fn ask_helper(
    keeper: &Keeper,
    pids: &[i32],
    identity: Option<Identity>,
) -> Result<String, ProcessError> {
    let options = keeper.options();
    let mut args = options.arguments.clone();
    args.push(HELP_WITH_SOCKETS.to_owned());
    args.extend(pids.iter().map(i32::to_string));
    let answer = ask(&Question {
        program: options.program.clone(),
        args,
        env: BTreeMap::new(),
        identity,
        limit: HELPER_LIMIT,
    })
    .await?;
    Ok(answer.stdout)
}

/// The helper: prints the inodes, one per line, and a word for each process that is closed to it as well.
pub(super) fn answer(pids: impl Iterator<Item = OsString>) -> ExitCode {
    for pid in pids.filter_map(|pid| pid.to_str()?.parse().ok()) {
        match inodes_of(pid) {
            Ok(inodes) => inodes.iter().for_each(|inode| println!("{inode}")),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => println!("{CLOSED}"),
            Err(_) => {}
        }
    }
    ExitCode::SUCCESS
}

fn inodes_of(pid: i32) -> io::Result<BTreeSet<u64>> {
    let mut inodes = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd"))? {
        // A descriptor may be closed meanwhile; one that may not be read is the caller's matter.
        match entry.and_then(|entry| fs::read_link(entry.path())) {
            Ok(target) => inodes.extend(target.to_str().and_then(parse_inode)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
            Err(_) => {}
        }
    }
    Ok(inodes)
}

/// Reads `socket:[12345]`, the form of proc_pid_fd(5).
fn parse_inode(target: &str) -> Option<u64> {
    target
        .strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sockets_have_a_number_here() {
        assert_eq!(parse_inode("socket:[4711]"), Some(4711));
        assert_eq!(parse_inode("pipe:[4711]"), None);
        assert_eq!(parse_inode("/dev/null"), None);
    }

    #[test]
    fn a_socket_of_this_process_is_found() {
        use std::os::fd::AsFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(listener.as_fd()).unwrap().st_ino;
        let own = ProcessIdentity::of_this_process().pid;
        assert!(inodes_of(own).unwrap().contains(&inode));
    }
}
