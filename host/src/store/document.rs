//! JSON documents with a `schema` number, written atomically.

use std::{
    fs::{self, File},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::StoreError;

/// Reads a document; `None` where there is none.
///
/// A document of a schema above `known` is an error, not a guess.
pub fn read_document<T: DeserializeOwned>(
    path: &Path,
    known: u32,
) -> Result<Option<T>, StoreError> {
    let Some(value) = read_value(path, known)? else {
        return Ok(None);
    };
    serde_json::from_value(value)
        .map(Some)
        .map_err(|source| StoreError::Damaged {
            path: path.to_owned(),
            source,
        })
}

/// Writes a document beside, syncs it and renames it into place, with `schema` added.
///
/// Refuses to replace a document of a newer schema; one that is damaged is replaced.
pub fn write_document(
    path: &Path,
    schema: u32,
    mode: u32,
    document: &impl Serialize,
) -> Result<(), StoreError> {
    if let Err(error @ StoreError::Newer { .. }) = read_value(path, schema) {
        return Err(error);
    }
    let mut value = serde_json::to_value(document).expect("documents are plain data");
    if let Value::Object(map) = &mut value {
        map.insert("schema".to_owned(), Value::from(schema));
    }
    let mut text = serde_json::to_vec_pretty(&value).expect("documents are plain data");
    text.push(b'\n');
    write_file(path, mode, &text)
}

/// How the names of files begin that are being written.
pub(super) const WRITING: &str = ".write-";

/// Writes bytes beside, syncs them and renames them into place with this mode.
pub fn write_file(path: &Path, mode: u32, bytes: &[u8]) -> Result<(), StoreError> {
    let failed = |source| StoreError::io("write", path, source);
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut file = tempfile::Builder::new()
        .prefix(WRITING)
        .tempfile_in(directory)
        .map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.as_file()
        .set_permissions(fs::Permissions::from_mode(mode))
        .map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    sync_directory(directory)
}

/// Makes renames and new names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), StoreError> {
    File::open(path)
        .and_then(|directory| directory.sync_all())
        .map_err(|source| StoreError::io("sync", path, source))
}

fn read_value(path: &Path, known: u32) -> Result<Option<Value>, StoreError> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(StoreError::io("read", path, source)),
    };
    let value: Value = serde_json::from_slice(&text).map_err(|source| StoreError::Damaged {
        path: path.to_owned(),
        source,
    })?;
    let found = value.get("schema").and_then(Value::as_u64).unwrap_or(0);
    if found > u64::from(known) {
        return Err(StoreError::Newer {
            path: path.to_owned(),
            found: u32::try_from(found).unwrap_or(u32::MAX),
            known,
        });
    }
    Ok(Some(value))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_newer_document_is_neither_read_nor_rewritten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        write_document(&path, 2, 0o644, &json!({"new": true})).unwrap();
        let error = read_document::<Value>(&path, 1).unwrap_err();
        assert!(matches!(
            error,
            StoreError::Newer {
                found: 2,
                known: 1,
                ..
            }
        ));
        let error = write_document(&path, 1, 0o644, &json!({})).unwrap_err();
        assert!(matches!(error, StoreError::Newer { .. }));
        let kept: Value = read_document(&path, 2).unwrap().unwrap();
        assert_eq!(kept, json!({"new": true, "schema": 2}));
    }

    #[test]
    fn a_damaged_document_is_named_and_can_be_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x.json");
        fs::write(&path, "{\"schema\": 1, ").unwrap();
        let error = read_document::<Value>(&path, 1).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }));
        write_document(&path, 1, 0o600, &json!({"a": 1})).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
