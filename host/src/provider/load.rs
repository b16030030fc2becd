//! The only file that opens provider libraries.
//!
//! A library is opened by its already checked descriptor (`/proc/self/fd/N`), which is never closed
//! again: the loader knows libraries by name, and a reused number would silently give the first
//! one. A library is never unloaded either; code of it may run at process end.
#![expect(unsafe_code, reason = "opening a library runs foreign code by nature")]

use std::{
    fs::File,
    os::{
        fd::{AsRawFd as _, IntoRawFd as _},
        unix::fs::MetadataExt as _,
    },
    sync::{Mutex, PoisonError},
};

use engine_provider_api::{
    ProviderError,
    abi::{AbiError, ENTRY_SYMBOL, Header, Provider},
};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use serde::{Deserialize, Serialize};

use super::elf::Glibc;

/// Why a library could not be entered; crosses the worker's pipe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum LoadFailure {
    /// The loader refused, in its own words.
    #[error("the loader refused it: {0}")]
    Loader(String),
    /// It has no entry.
    #[error("it does not export the provider entry: {0}")]
    NoEntry(String),
    /// Its entry is not this contract's.
    #[error("{0}")]
    Contract(String),
    /// It could not make its provider.
    #[error("it could not be set up: {0}")]
    Create(ProviderError),
}

/// Libraries open in this process, by device and inode, kept for ever.
static OPEN: Mutex<Vec<(FileIdentity, Library)>> = Mutex::new(Vec::new());

type FileIdentity = (u64, u64);

/// Opens a library in this process, or takes it where it is already open, and makes its provider.
///
/// Runs the library's constructors: whatever they do, they do to this process.
pub(super) fn load(file: File) -> Result<Provider, LoadFailure> {
    let header = entry(file)?;
    Provider::connect(header).map_err(|error| match error {
        AbiError::Create(error) => LoadFailure::Create(error),
        other => LoadFailure::Contract(other.to_string()),
    })
}

fn entry(file: File) -> Result<Header, LoadFailure> {
    let metadata = file
        .metadata()
        .map_err(|error| LoadFailure::Loader(error.to_string()))?;
    let identity = (metadata.dev(), metadata.ino());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = open.iter().position(|(known, _)| *known == identity);
    let at = match known {
        Some(at) => at,
        None => {
            // SAFETY: constructors of the library run here; the caller chose this process for
            // them, and the headers of exactly this descriptor were checked.
            let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
                .map_err(|error| LoadFailure::Loader(own_words(&error, &path)))?;
            let _never_closed = file.into_raw_fd();
            open.push((identity, library));
            open.len() - 1
        }
    };
    // SAFETY: the entry symbol is a static of type `LibHeader`, of which `Header` is the reference;
    // `Provider::connect` checks its magic and layout before anything else of it is used.
    unsafe { open[at].1.get::<Header>(ENTRY_SYMBOL.as_bytes()) }
        .map(|symbol| *symbol)
        .map_err(|error| LoadFailure::NoEntry(own_words(&error, &path)))
}

/// What the loader said: libloading itself says only that `dlopen` failed.
fn own_words(error: &libloading::Error, path: &str) -> String {
    use std::error::Error as _;
    let words = match error.source() {
        Some(source) => source.to_string(),
        None => error.to_string(),
    };
    words.replace(&format!("{path}: "), "").replace('\n', " ")
}

/// Version of the C library this process runs on; `None` where it is not glibc.
#[must_use]
pub(super) fn glibc_version() -> Option<Glibc> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function takes nothing and returns a static string with a terminating zero.
        let text = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        Glibc::parse(text.to_str().ok()?)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loaders_own_words_are_told() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, b"no library").unwrap();
        let failure = load(file).err().unwrap().to_string();
        assert!(failure.contains("file too short"), "{failure}");
        assert!(!failure.contains("/proc/self/fd"), "{failure}");
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn this_process_knows_its_c_library() {
        assert!(glibc_version().unwrap() > Glibc(2, 17));
    }
}
