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

/// Inodes of the sockets that these processes hold. `identity` is whose they are, where they are not
/// this process's own. Processes that have ended hold none.
pub async fn sockets_of(
    keeper: &Keeper,
    processes: &[ProcessIdentity],
    identity: Option<Identity>,
) -> Result<BTreeSet<u64>, ProcessError> {
    let mut inodes = BTreeSet::new();
    let mut closed = Vec::new();
    for process in processes {
        match inodes_of(process.pid) {
            Ok(found) => inodes.extend(found),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                closed.push(process.pid);
            }
            Err(_) => {}
        }
    }
    if !closed.is_empty() && identity.is_some() {
        inodes.extend(ask_helper(keeper, &closed, identity).await?);
    }
    Ok(inodes)
}

async fn ask_helper(
    keeper: &Keeper,
    pids: &[i32],
    identity: Option<Identity>,
) -> Result<BTreeSet<u64>, ProcessError> {
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
    Ok(answer
        .stdout
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect())
}

/// The helper: prints the inodes, one per line.
pub(super) fn answer(pids: impl Iterator<Item = OsString>) -> ExitCode {
    let pids = pids.filter_map(|pid| pid.to_str()?.parse().ok());
    for inode in pids.filter_map(|pid| inodes_of(pid).ok()).flatten() {
        println!("{inode}");
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
