//! Git's name of a file's content: the SHA-1 of `blob SIZE\0` and the content.
//!
//! It tells accidents apart, not attacks: what it vouches for came over TLS from the one that says it.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use sha1::{Digest as _, Sha1};

use crate::store;

/// Git's name of a file's content, where that is not the expected one. Blocks: it reads the file.
pub(crate) fn differs(path: &Path, expected: &str) -> io::Result<Option<String>> {
    let actual = of(path)?;
    Ok((actual != expected).then_some(actual))
}

/// Git's name of a file's content. Blocks.
fn of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let size_bytes = file.metadata()?.len();
    let mut hash = Sha1::new_with_prefix(format!("blob {size_bytes}\0"));
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(store::hex(&hash.finalize())),
            count => hash.update(&buffer[..count]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_git_says() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x");
        std::fs::write(&path, "hello\n").unwrap();
        // `git hash-object x`
        let name = "ce013625030ba8dba906f756967f9e9ca394464a";
        assert_eq!(differs(&path, name).unwrap(), None);
        let other = differs(&path, &"0".repeat(40)).unwrap();
        assert_eq!(other.as_deref(), Some(name));
    }
}
