//! Where each value of a pool file stands.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    document::{Kind, Node, Place, Source},
    problem::Problem,
    schema::join,
};

/// Places of the values of one pool, by field path from the pool: `provisioning.flags[2]`.
///
/// Empty for a pool that stands in no file.
#[derive(Debug, Clone, Default)]
pub struct Places {
    file: Option<Arc<File>>,
    prefix: String,
}

#[derive(Debug)]
struct File {
    source: Source,
    places: BTreeMap<String, Place>,
}

impl Places {
    /// Places of a whole file.
    #[must_use]
    pub fn of_file(source: &Source, root: &Node) -> Self {
        let mut places = BTreeMap::new();
        collect(root, "", &mut places);
        Self {
            file: Some(Arc::new(File {
                source: source.clone(),
                places,
            })),
            prefix: String::new(),
        }
    }

    /// Places below a path, for example those of `pools[0]`.
    #[must_use]
    pub fn below(&self, path: &str) -> Self {
        Self {
            file: self.file.clone(),
            prefix: join(&self.prefix, path),
        }
    }

    /// The file, where the pool stands in one.
    #[must_use]
    pub fn source(&self) -> Option<&Source> {
        self.file.as_ref().map(|file| &file.source)
    }

    /// Path of a field in its file, for example `pools[0].ctx`.
    #[must_use]
    pub fn path(&self, field: &str) -> String {
        join(&self.prefix, field)
    }

    /// Place of a field that was written, or `None` where it was not.
    #[must_use]
    pub fn exact(&self, field: &str) -> Option<Place> {
        let places = &self.file.as_ref()?.places;
        let path = join(&self.prefix, field);
        places
            .get(&path)
            .or_else(|| places.get(path.strip_suffix("_ms")?))
            .copied()
    }

    /// Place of a field, or of the nearest thing around it that was written.
    #[must_use]
    pub fn near(&self, field: &str) -> Option<Place> {
        let mut field = field;
        loop {
            if let Some(place) = self.exact(field) {
                return Some(place);
            }
            let Some(end) = field.rfind(['.', '[']) else {
                break;
            };
            field = &field[..end];
        }
        let places = &self.file.as_ref()?.places;
        places.get(&self.prefix).copied()
    }

    /// A problem with a field, pointing at it.
    #[must_use]
    pub fn problem(&self, field: &str, message: impl Into<String>) -> Problem {
        Problem::new(self.path(field), self.near(field), message)
    }

    /// A problem shown with its line, for errors that come from elsewhere (a provider's `field`).
    /// `None` where the pool stands in no file.
    #[must_use]
    pub fn point(&self, field: &str, message: &str) -> Option<String> {
        let source = self.source()?;
        Some(self.problem(field, message).render(source))
    }
}

fn collect(node: &Node, path: &str, places: &mut BTreeMap<String, Place>) {
    match &node.kind {
        Kind::Map(entries) => {
            for entry in entries.iter().filter(|entry| entry.node.kind != Kind::Null) {
                let path = join(path, &entry.name);
                if let Some(place) = entry.pointer() {
                    places.insert(path.clone(), place);
                }
                collect(&entry.node, &path, places);
            }
        }
        Kind::List(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                if let Some(place) = item.place {
                    places.insert(path.clone(), place);
                }
                collect(item, &path, places);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::document::parse;

    #[test]
    fn a_field_is_found_or_what_is_around_it() {
        let source = Source::new(
            "p.yaml",
            "pools:\n  - id: a\n    readiness: {stall_timeout: 9s}\n    provisioning:\n      flags: [-x, -y]\n",
        );
        let places = Places::of_file(&source, &parse(&source).unwrap()).below("pools[0]");
        let line_column = |field: &str| places.near(field).map(|p| (p.line, p.column));
        assert_eq!(line_column("provisioning.flags[1]"), Some((5, 19)));
        assert_eq!(line_column("provisioning.flags[7]"), Some((5, 7)));
        assert_eq!(line_column("readiness.stall_timeout_ms"), Some((3, 32)));
        assert_eq!(line_column("ctx"), Some((2, 5)));
        assert_eq!(places.exact("ctx"), None);
        insta::assert_snapshot!(places.point("provisioning.flags[1]", "no").unwrap(), @r"
        p.yaml:5:19: no
              |
            5 |       flags: [-x, -y]
              |                   ^^
        ");
        assert_eq!(Places::default().point("ctx", "no"), None);
    }
}
