//! Which model an operator means.

use super::{Catalog, CatalogError, Entry};

/// Ids that are named where nothing fits.
const NEAREST: usize = 3;

impl Catalog {
    /// The model with this id, the beginning of one, its digest, or a reference that it was asked for by.
    pub fn select(&self, text: &str) -> Result<Entry, CatalogError> {
        pick(self.entries()?, text)
    }
}

fn pick(mut entries: Vec<Entry>, text: &str) -> Result<Entry, CatalogError> {
    if let Some(index) = entries.iter().position(|entry| entry.id == text) {
        return Ok(entries.swap_remove(index));
    }
    let named = |entry: &&Entry| {
        entry
            .names
            .iter()
            .any(|name| name.reference == text || name.pinned == text)
            || entry.digest == text
            || (text.len() >= 4 && entry.id.starts_with(text))
    };
    let found: Vec<&Entry> = entries.iter().filter(named).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(CatalogError::Unknown {
            name: text.to_owned(),
            nearest: nearest(&entries, text),
        }),
        several => Err(CatalogError::Ambiguous {
            name: text.to_owned(),
            ids: several.iter().map(|entry| entry.id.clone()).collect(),
        }),
    }
}

/// Ids that are not far from what was typed, nearest first.
fn nearest(entries: &[Entry], text: &str) -> Vec<String> {
    let text = super::super::names::slug(text);
    let mut ranked: Vec<(usize, &str)> = entries
        .iter()
        .filter_map(|entry| {
            // Nobody types the digits of the digest wrongly: the name before them counts.
            let name = entry
                .id
                .rsplit_once('-')
                .map_or(&*entry.id, |(name, _)| name);
            let far = distance(name, &text).min(distance(&entry.id, &text));
            let alike = far * 2 <= name.len().max(text.len()) || name.contains(&text);
            alike.then_some((far, entry.id.as_str()))
        })
        .collect();
    ranked.sort_unstable();
    ranked
        .into_iter()
        .take(NEAREST)
        .map(|(_, id)| id.to_owned())
        .collect()
}

/// Letters to insert, remove or replace until one text is the other (Levenshtein).
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (index, letter) in one.bytes().enumerate() {
        let mut corner = index;
        row[0] = index + 1;
        for (column, against) in other.bytes().enumerate() {
            let replaced = corner + usize::from(letter != against);
            corner = row[column + 1];
            row[column + 1] = replaced.min(corner + 1).min(row[column] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalog::tests::entry;

    #[test]
    fn an_id_its_beginning_and_a_reference_name_a_model() {
        let all = || vec![entry("haiku-0123456789ab"), entry("hail-aaaaaaaaaaaa")];
        for text in ["haiku-0123456789ab", "haik", "ref:haiku-0123456789ab"] {
            assert_eq!(
                pick(all(), text).unwrap().id,
                "haiku-0123456789ab",
                "{text}"
            );
        }
        let several = vec![entry("haiku-0"), entry("haiku-1")];
        let error = pick(several, "haiku").unwrap_err();
        assert!(matches!(error, CatalogError::Ambiguous { .. }), "{error}");
    }

    #[test]
    fn what_is_mistyped_is_answered_with_what_is_near() {
        let all = vec![
            entry("haiku-0123456789ab"),
            entry("qwen2.5-7b-aaaaaaaaaaaa"),
        ];
        let Err(CatalogError::Unknown { nearest, .. }) = pick(all, "hakiu") else {
            panic!("found");
        };
        assert_eq!(nearest, ["haiku-0123456789ab"]);
    }
}
