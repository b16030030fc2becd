//! A pool file that is read again and again: parsed once for all who ask while it says the same.
//!
//! The pools of a file are brought up one by one, and each looks at the file as it is then. What costs is
//! not reading it but finding out what it means.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::{
    document::Source,
    pools::{Loaded, Surroundings, read_at, text_of},
    problem::ConfigError,
};

/// Reads pool files and remembers the last one. Cheap to clone; clones remember together.
#[derive(Debug, Clone, Default)]
pub struct PoolFiles {
    last: Arc<Mutex<Option<Remembered>>>,
}

#[derive(Debug)]
struct Remembered {
    path: PathBuf,
    surroundings: Surroundings,
    loaded: Arc<Loaded>,
}

impl PoolFiles {
    /// Reads a pool file. Where it says what it said last, nothing is parsed.
    pub fn load(
        &self,
        path: &Path,
        surroundings: &Surroundings,
    ) -> Result<Arc<Loaded>, ConfigError> {
        // Held while it is parsed: who asks meanwhile wants the same.
        let mut last = self.last.lock().expect("no holder panics");
        let text = text_of(path)?;
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        if let Some(known) = &*last
            && known.path == whole
            && known.loaded.source.path == path
            && known.surroundings == *surroundings
            && *known.loaded.source.text == *text
        {
            return Ok(Arc::clone(&known.loaded));
        }
        let loaded = Arc::new(read_at(&whole, &Source::new(path, text), surroundings)?);
        *last = Some(Remembered {
            path: whole,
            surroundings: surroundings.clone(),
            loaded: Arc::clone(&loaded),
        });
        Ok(loaded)
    }

    /// Lets go of what is remembered.
    pub fn forget(&self) {
        *self.last.lock().expect("no holder panics") = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_parsed_again_only_once_it_says_something_else() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pools.yaml");
        let write = |id: &str| {
            std::fs::write(&path, format!("pools:\n  - {{id: {id}, engine: toy}}\n")).unwrap();
        };
        let files = PoolFiles::default();
        let here = Surroundings::default();
        let load = || files.load(&path, &here);
        write("one");
        let first = load().unwrap();
        assert!(Arc::ptr_eq(&first, &load().unwrap()));
        // As long as before, and written in the same moment.
        write("two");
        assert_eq!(load().unwrap().pools[0].pool.id, "two");
        std::fs::write(&path, "pools: [").unwrap();
        assert!(load().is_err());
        write("two");
        let elsewhere = Surroundings {
            home: Some(PathBuf::from("/home/ann")),
            ..here.clone()
        };
        let before = load().unwrap();
        let other = files.load(&path, &elsewhere).unwrap();
        assert!(!Arc::ptr_eq(&before, &other));
        files.forget();
        assert!(!Arc::ptr_eq(
            &other,
            &files.load(&path, &elsewhere).unwrap()
        ));
    }
}
