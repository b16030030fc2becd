//! How just this model is asked for once more.

use std::fmt;

use engine_provider_api::ModelShape;

use crate::process::quote;

/// The words that follow `host model add`, as a shell reads them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Again<'a> {
    /// The reference, without secrets; a path is absolute.
    pub(crate) reference: &'a str,
    /// Whether the engine reads a file or a directory.
    pub(crate) shape: ModelShape,
    /// Quantisation to pick.
    pub(crate) quant: Option<&'a str>,
    /// Patterns of files to take.
    pub(crate) include: &'a [String],
    /// Patterns of files to leave.
    pub(crate) exclude: &'a [String],
    /// The directory that it is kept in, where that is not the store.
    pub(crate) directory: Option<&'a str>,
}

impl fmt::Display for Again<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shape == ModelShape::Directory {
            formatter.write_str("--as directory ")?;
        }
        let one = |name, value: Option<&str>| value.map(|value| (name, value.to_owned()));
        let all = |name, values: &[String]| {
            let values = values.iter().map(|value| (name, value.clone()));
            values.collect::<Vec<_>>()
        };
        let options = one("--quant", self.quant).into_iter();
        let options = options
            .chain(all("--include", self.include))
            .chain(all("--exclude", self.exclude))
            .chain(one("--dir", self.directory));
        for (name, value) in options {
            write!(formatter, "{name} {} ", quote(&value))?;
        }
        write!(formatter, "{}", quote(self.reference))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_decides_which_model_it_is_is_said_again() {
        let mut again = Again {
            reference: "hf:o/n",
            shape: ModelShape::File,
            quant: None,
            include: &[],
            exclude: &[],
            directory: None,
        };
        assert_eq!(again.to_string(), "hf:o/n");
        let (include, exclude) = (["*.json".to_owned()], ["a b".to_owned()]);
        again.shape = ModelShape::Directory;
        again.quant = Some("Q4_0");
        again.include = &include;
        again.exclude = &exclude;
        again.directory = Some("/models");
        assert_eq!(
            again.to_string(),
            "--as directory --quant Q4_0 --include '*.json' --exclude 'a b' --dir /models hf:o/n"
        );
    }
}
