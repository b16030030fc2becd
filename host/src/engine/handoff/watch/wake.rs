//! When to look: the kernel's word that something happened in the directory, or in the nearest one
//! above it that exists, until it is made.

use std::{
    mem::MaybeUninit,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use tokio::io::{Interest, unix::AsyncFd};

/// Times that the place to watch is looked for anew because it changed meanwhile; then the next look
/// does.
const TRIES: usize = 8;

/// Wakes whoever looks at a directory.
#[derive(Debug)]
pub(super) struct Wake {
    directory: PathBuf,
    armed: Option<Armed>,
}

/// A directory that is watched, as it was then: one of the same name may have taken its place.
#[derive(Debug)]
struct Armed {
    place: Place,
    events: AsyncFd<OwnedFd>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Wake {
    pub(super) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            armed: None,
        }
    }

    /// Makes sure that the right directory is watched. Where the kernel has no watches left, nothing
    /// is: then there are only looks now and then.
    pub(super) fn arm(&mut self) {
        for _ in 0..TRIES {
            let place = nearest(&self.directory);
            if self.armed.as_ref().map(|armed| &armed.place) == place.as_ref() {
                return;
            }
            // Dropped before the next one is made: a user has few of them.
            self.armed = None;
            let Some(place) = place else { return };
            let Ok(events) = events_of(&place.path, place.path == self.directory) else {
                return;
            };
            // Looked for once more: what was made before the watch began is not told.
            self.armed = Some(Armed { place, events });
        }
    }

    /// Returns once something happened; never where nothing is watched.
    pub(super) async fn woken(&mut self) {
        let Some(armed) = &self.armed else {
            return std::future::pending().await;
        };
        match armed.events.readable().await {
            Ok(mut ready) => {
                drain(armed.events.get_ref());
                ready.clear_ready();
            }
            // A look now and then is left.
            Err(_) => self.armed = None,
        }
    }
}

/// The directory, or the nearest one above it that exists.
fn nearest(directory: &Path) -> Option<Place> {
    directory.ancestors().find_map(|path| {
        let metadata = std::fs::metadata(path).ok().filter(|it| it.is_dir())?;
        Some(Place {
            path: path.to_owned(),
            device: metadata.dev(),
            inode: metadata.ino(),
        })
    })
}

fn events_of(path: &Path, is_directory: bool) -> std::io::Result<AsyncFd<OwnedFd>> {
    let itself = WatchFlags::ONLYDIR | WatchFlags::DELETE_SELF | WatchFlags::MOVE_SELF;
    let within = match is_directory {
        true => {
            WatchFlags::CLOSE_WRITE
                | WatchFlags::MOVED_FROM
                | WatchFlags::MOVED_TO
                | WatchFlags::DELETE
                | WatchFlags::ATTRIB
        }
        // Only the making of the next directory on the way matters here.
        false => WatchFlags::CREATE | WatchFlags::MOVED_TO,
    };
    let events = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    inotify::add_watch(&events, path, itself | within)?;
    #[expect(
        deprecated,
        reason = "unsound for descriptors that change hands: this one is owned here to its end"
    )]
    let events = AsyncFd::with_interest(events, Interest::READABLE);
    events
}

/// Reads all events away: that there are some is enough.
fn drain(events: &OwnedFd) {
    let mut buffer = [MaybeUninit::<u8>::uninit(); 4096];
    while rustix::io::read(events, &mut buffer).is_ok_and(|(read, _)| !read.is_empty()) {}
}
