//! The file a provider lies in: opened without waiting, and only where its owner may be believed.
//!
//! Whoever can write a library runs code as the user who loads it. So the file must belong to root,
//! to this user or to whoever owns the host's executable, and nobody else may write it. What was
//! checked is the open descriptor; it is the descriptor that is loaded later, never the path again.

use std::{
    fs::File,
    io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

/// Largest file taken for a library.
const LARGEST_LIBRARY_BYTES: u64 = 1024 * 1024 * 1024;

/// Who may own a provider, and which of their groups are theirs alone.
#[derive(Debug, Clone, Default)]
pub struct Owners {
    users: Vec<u32>,
    private_groups: Vec<(u32, u32)>,
}

impl Owners {
    /// Root, this user, and the owner of `executable`.
    #[must_use]
    pub fn of_this_process(executable: Option<&Path>) -> Self {
        let mut users = vec![0, rustix::process::geteuid().as_raw()];
        users.extend(
            executable
                .and_then(|path| path.metadata().ok())
                .map(|metadata| metadata.uid()),
        );
        users.sort_unstable();
        users.dedup();
        let read = |path| std::fs::read_to_string(path).unwrap_or_default();
        let private_groups = private_groups(&read("/etc/passwd"), &read("/etc/group"), &users);
        Self {
            users,
            private_groups,
        }
    }

    fn check(&self, owner: u32, group: u32, mode: u32) -> Result<(), FileProblem> {
        if !self.users.contains(&owner) {
            return Err(FileProblem::ForeignOwner { owner });
        }
        if mode & 0o002 != 0 {
            return Err(FileProblem::WritableByAll {
                mode: mode & 0o7777,
            });
        }
        if mode & 0o020 != 0 && !self.private_groups.contains(&(owner, group)) {
            return Err(FileProblem::WritableByGroup {
                mode: mode & 0o7777,
                group,
            });
        }
        Ok(())
    }
}

/// Pairs of user and group where the group has the user's name and no member but that user, as the
/// user-private-group convention behind a umask of 002 makes them.
fn private_groups(passwd: &str, group: &str, users: &[u32]) -> Vec<(u32, u32)> {
    let mut pairs = Vec::new();
    for user in passwd.lines() {
        let mut fields = user.split(':');
        let (Some(name), _, Some(id)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let Some(uid) = id.parse().ok().filter(|id| users.contains(id)) else {
            continue;
        };
        pairs.extend(own_group(group, name).map(|gid| (uid, gid)));
    }
    pairs
}

fn own_group(group: &str, name: &str) -> Option<u32> {
    group.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [group_name, _, id, members] = fields[..] else {
            return None;
        };
        let only_member = members.is_empty() || members == name;
        (group_name == name && only_member)
            .then(|| id.parse().ok())
            .flatten()
    })
}

/// Why a file is not opened, one line each.
#[derive(Debug, thiserror::Error)]
pub enum FileProblem {
    /// It cannot be opened or read.
    #[error("cannot be read: {0}")]
    Unreadable(#[source] io::Error),
    /// It is no ordinary file.
    #[error("not a regular file but {0}")]
    NotRegular(&'static str),
    /// It belongs to somebody else.
    #[error("owned by user {owner}, who is neither root, nor you, nor the owner of this program")]
    ForeignOwner {
        /// Its owner's id.
        owner: u32,
    },
    /// Everybody may write it.
    #[error("everybody may write it (mode {mode:04o})")]
    WritableByAll {
        /// Permission bits.
        mode: u32,
    },
    /// A group that is not its owner's alone may write it.
    #[error("group {group} may write it (mode {mode:04o})")]
    WritableByGroup {
        /// Permission bits.
        mode: u32,
        /// Group id.
        group: u32,
    },
    /// No library is that large.
    #[error("too large for a provider ({bytes} bytes)")]
    TooLarge {
        /// Its size.
        bytes: u64,
    },
}

/// An open file that passed.
#[derive(Debug)]
pub struct Opened {
    /// The descriptor, close-on-exec.
    pub file: File,
    /// Path without symbolic links.
    pub canonical: PathBuf,
    /// Its owner's id.
    pub owner: u32,
    /// Permission bits.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
}

/// Opens a file that may become a library. Never blocks, whatever lies at the path.
pub fn open(path: &Path, owners: &Owners) -> Result<Opened, FileProblem> {
    // Looked at before opening, because opening a device can have effects of its own; looked at
    // again afterwards, because something else may lie there by then.
    check_regular(&path.metadata().map_err(FileProblem::Unreadable)?)?;
    let file = File::options()
        .read(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed())
        .open(path)
        .map_err(FileProblem::Unreadable)?;
    let metadata = file.metadata().map_err(FileProblem::Unreadable)?;
    check_regular(&metadata)?;
    owners.check(metadata.uid(), metadata.gid(), metadata.mode())?;
    if metadata.len() > LARGEST_LIBRARY_BYTES {
        return Err(FileProblem::TooLarge {
            bytes: metadata.len(),
        });
    }
    Ok(Opened {
        canonical: path.canonicalize().map_err(FileProblem::Unreadable)?,
        owner: metadata.uid(),
        mode: metadata.mode() & 0o7777,
        size: metadata.len(),
        file,
    })
}

fn check_regular(metadata: &std::fs::Metadata) -> Result<(), FileProblem> {
    let kind = metadata.file_type();
    let what = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else {
        "a device"
    };
    Err(FileProblem::NotRegular(what))
}

/// SHA-256 of an open file, from its beginning, as 64 hexadecimal digits.
pub fn sha256(file: &File) -> io::Result<String> {
    use std::os::unix::fs::FileExt as _;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    let mut at = 0;
    loop {
        let read = file.read_at(&mut buffer, at)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        at += read as u64;
    }
    Ok(hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners() -> Owners {
        Owners {
            users: vec![0, 1000],
            private_groups: vec![(1000, 1000)],
        }
    }

    #[test]
    fn only_root_this_user_and_the_executables_owner_are_believed() {
        assert!(owners().check(0, 0, 0o644).is_ok());
        assert!(owners().check(1000, 5, 0o755).is_ok());
        let refusal = owners().check(1001, 1001, 0o644).unwrap_err();
        assert!(refusal.to_string().starts_with("owned by user 1001"));
    }

    #[test]
    fn a_group_may_write_only_where_it_is_the_owners_alone() {
        assert!(owners().check(1000, 1000, 0o664).is_ok());
        assert!(owners().check(1000, 100, 0o664).is_err());
        assert!(owners().check(0, 1000, 0o664).is_err());
        let refusal = owners().check(1000, 1000, 0o666).unwrap_err();
        assert_eq!(refusal.to_string(), "everybody may write it (mode 0666)");
    }

    #[test]
    fn a_private_group_has_its_users_name_and_nobody_else() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:100::/:/bin/sh\nbob:x:1001:1001::/:/x";
        let group = "root:x:0:\nann:x:1000:ann\nbob:x:1001:ann\nusers:x:100:ann,bob";
        assert_eq!(
            private_groups(passwd, group, &[0, 1000, 1001]),
            [(0, 0), (1000, 1000)]
        );
    }

    #[test]
    fn a_fifo_named_like_a_library_neither_blocks_nor_passes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libengine_provider_pipe.so");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &path,
            rustix::fs::FileType::Fifo,
            0o600.into(),
            0,
        )
        .unwrap();
        let refusal = open(&path, &Owners::of_this_process(None)).unwrap_err();
        assert_eq!(refusal.to_string(), "not a regular file but a FIFO");
    }

    #[test]
    fn the_digest_is_of_the_whole_file_wherever_it_was_read_before() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"abc").unwrap();
        assert!(sha256(&file).unwrap().starts_with("ba7816bf8f01cfea"));
    }
}
