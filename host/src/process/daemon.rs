//! Starting a daemon that outlives the command that needs it.

use std::{
    ffi::OsString,
    fs::OpenOptions,
    io,
    os::unix::{fs::OpenOptionsExt as _, process::CommandExt as _},
    path::Path,
    process::{Child, Command, Stdio},
};

/// Starts this program again with other arguments, in the same directory and environment, its output
/// going to a log that begins anew. It has to leave its terminal's session itself.
pub fn start_daemon(program: &Path, arguments: &[OsString], log: &Path) -> io::Result<Child> {
    if let Some(directory) = log.parent() {
        std::fs::create_dir_all(directory)?;
    }
    let output = OpenOptions::new()
        .create(true)
        .write(true)
        .truncate(true)
        .mode(0o640)
        .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed())
        .open(log)?;
    #[expect(
        clippy::disallowed_methods,
        reason = "process/ is the room that starts processes"
    )]
    Command::new(program)
        .arg0("host")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .spawn()
}
