//! Which result an operator means.

use super::{Kept, ResultError, Results, short};

/// Digits of a key that name a result, at the least.
const DIGITS: usize = 4;

impl Results {
    /// The result of this name, or whose key begins like this.
    pub fn select(&self, text: &str) -> Result<Kept, ResultError> {
        pick(self.all(), text)
    }
}

fn pick(all: Vec<Kept>, text: &str) -> Result<Kept, ResultError> {
    let is_meant = |kept: &&Kept| {
        let manifest = &kept.manifest;
        manifest.name == text || (text.len() >= DIGITS && manifest.key.hex.starts_with(text))
    };
    let found: Vec<&Kept> = all.iter().filter(is_meant).collect();
    match found.as_slice() {
        [one] => Ok((*one).clone()),
        [] => {
            let mut there: Vec<String> = all.into_iter().map(|kept| kept.manifest.name).collect();
            there.dedup();
            Err(ResultError::Unknown {
                name: text.to_owned(),
                there,
            })
        }
        several => Err(ResultError::Ambiguous {
            name: text.to_owned(),
            keys: several
                .iter()
                .map(|kept| short(&kept.manifest.key).to_owned())
                .collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Kind, results::tests::kept};

    #[test]
    fn a_name_of_one_result_and_the_beginning_of_a_key_name_it() {
        let all = || {
            let names = ["toy/build", "toy/build", "toy/checkout"];
            let numbered = names.iter().enumerate();
            let all = numbered.map(|(number, name)| kept(Kind::Build, name, number));
            all.collect::<Vec<Kept>>()
        };
        let source = &all()[2];
        assert_eq!(pick(all(), "toy/checkout").unwrap(), *source);
        let digits = &source.manifest.key.hex;
        for text in [&digits[..6], digits] {
            assert_eq!(pick(all(), text).unwrap(), *source, "{text}");
        }
        let error = pick(all(), "toy/build").unwrap_err();
        assert!(
            matches!(&error, ResultError::Ambiguous { keys, .. } if keys.len() == 2),
            "{error}"
        );
        let Err(ResultError::Unknown { there, .. }) = pick(all(), &digits[..3]) else {
            panic!("found");
        };
        assert_eq!(there, ["toy/build", "toy/checkout"]);
    }
}
