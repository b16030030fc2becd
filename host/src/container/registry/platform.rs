//! Which of an index's images is this machine's, in the words of registries (Go's `GOARCH`).

use std::fmt;

use engine_provider_api::Facts;

use super::{
    RegistryError,
    manifest::{Configuration, Descriptor, Written},
};
use crate::container::Reference;

/// A platform that images are made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Platform {
    architecture: String,
    /// Variants that run here, best first; what names none runs too.
    variants: &'static [&'static str],
}

impl Platform {
    /// The one that facts describe.
    #[must_use]
    pub fn of(facts: &Facts) -> Self {
        Self::of_machine(&facts.os.arch)
    }

    /// From a machine name of uname(2); empty: this program's.
    #[must_use]
    pub fn of_machine(machine: &str) -> Self {
        let machine = match machine {
            "" => std::env::consts::ARCH,
            machine => machine,
        };
        let (architecture, variants): (&str, &[&str]) = match machine {
            "x86_64" => ("amd64", &["v1"]),
            "aarch64" => ("arm64", &["v8"]),
            "armv8l" | "armv7l" | "arm" => ("arm", &["v7", "v6", "v5"]),
            "armv6l" => ("arm", &["v6", "v5"]),
            "i386" | "i686" | "x86" => ("386", &[]),
            "ppc64le" | "powerpc64" => ("ppc64le", &[]),
            "loongarch64" => ("loong64", &[]),
            other => (other, &[]),
        };
        Self {
            architecture: architecture.to_owned(),
            variants,
        }
    }

    /// How well a platform suits: 0 best; `None`: it does not run here.
    fn rank(&self, written: &Written) -> Option<usize> {
        if written.os != "linux" || written.architecture != self.architecture {
            return None;
        }
        match written.variant.as_str() {
            "" => Some(self.variants.len()),
            variant => self.variants.iter().position(|known| *known == variant),
        }
    }

    /// Whether an image that says this of itself runs here; one that says nothing may.
    #[must_use]
    pub fn runs(&self, os: &str, architecture: &str, variant: &str) -> bool {
        let written = Written {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.to_owned(),
        };
        (os.is_empty() && architecture.is_empty()) || self.rank(&written).is_some()
    }

    /// The entry for this platform.
    pub(super) fn choose<'a>(
        &self,
        image: &Reference,
        entries: &'a [Descriptor],
    ) -> Result<&'a Descriptor, RegistryError> {
        let ranked = entries.iter().filter_map(|entry| {
            let rank = match &entry.platform {
                Some(written) => self.rank(written)?,
                // An entry that says nothing is what it is; its configuration tells.
                None => usize::MAX,
            };
            Some((rank, entry))
        });
        ranked
            .min_by_key(|(rank, _)| *rank)
            .map(|(_, entry)| entry)
            .ok_or_else(|| {
                let written = entries.iter().filter_map(|entry| entry.platform.as_ref());
                self.other(image, written)
            })
    }

    /// Checks what an image says of itself.
    pub(super) fn check(
        &self,
        image: &Reference,
        configuration: &Configuration,
    ) -> Result<(), RegistryError> {
        let written = &configuration.platform;
        // Images made by hand leave it out.
        if written.architecture.is_empty() && written.os.is_empty() {
            return Ok(());
        }
        match self.rank(written) {
            Some(_) => Ok(()),
            None => Err(self.other(image, [written])),
        }
    }

    fn other<'a>(
        &self,
        image: &Reference,
        has: impl IntoIterator<Item = &'a Written>,
    ) -> RegistryError {
        let mut has: Vec<String> = has
            .into_iter()
            // Attestations lie in an index beside the images.
            .filter(|written| written.os != "unknown")
            .map(Written::to_string)
            .collect();
        has.sort();
        has.dedup();
        RegistryError::OtherPlatform {
            image: image.to_string(),
            wanted: self.to_string(),
            has,
        }
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "linux/{}", self.architecture)?;
        match (self.architecture.as_str(), self.variants.first()) {
            ("arm", Some(variant)) => write!(formatter, "/{variant}"),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.os, self.architecture)?;
        match self.variant.as_str() {
            "" => Ok(()),
            variant => write!(formatter, "/{variant}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{fault::Fault as _, net::Digest};

    fn entries(platforms: &[&str]) -> Vec<Descriptor> {
        let read = |(number, text): (usize, &&str)| {
            let mut parts = text.split('/');
            let mut part = || parts.next().unwrap_or_default().to_owned();
            Descriptor {
                digest: Digest::parse(&format!("sha256:{number:064}")).unwrap(),
                size: 1,
                media_type: String::new(),
                annotations: std::collections::BTreeMap::new(),
                platform: (!text.is_empty()).then(|| Written {
                    os: part(),
                    architecture: part(),
                    variant: part(),
                }),
            }
        };
        platforms.iter().enumerate().map(read).collect()
    }

    fn chosen(machine: &str, platforms: &[&str]) -> Result<usize, RegistryError> {
        let image = Reference::parse("a/b:1").unwrap();
        let entries = entries(platforms);
        let entry = Platform::of_machine(machine).choose(&image, &entries)?;
        Ok(entries.iter().position(|other| other == entry).unwrap())
    }

    #[test]
    fn each_machine_gets_its_own_image() {
        let usual = [
            "windows/amd64",
            "linux/arm/v6",
            "linux/arm/v7",
            "linux/arm64/v8",
            "linux/amd64",
            "unknown/unknown",
        ];
        assert_eq!(chosen("x86_64", &usual).unwrap(), 4);
        assert_eq!(chosen("aarch64", &usual).unwrap(), 3);
        assert_eq!(chosen("armv7l", &usual).unwrap(), 2);
        assert_eq!(chosen("armv6l", &usual).unwrap(), 1);
        assert_eq!(
            chosen("x86_64", &["linux/amd64/v3", "linux/amd64"]).unwrap(),
            1
        );
        assert_eq!(chosen("riscv64", &["linux/riscv64"]).unwrap(), 0);
        assert_eq!(chosen("x86_64", &["linux/arm64", ""]).unwrap(), 1);
    }

    #[test]
    fn an_image_for_others_says_for_whom() {
        let error = chosen(
            "aarch64",
            &["linux/amd64", "linux/amd64/v3", "unknown/unknown"],
        )
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "docker.io/a/b:1 has no image for linux/arm64"
        );
        assert_eq!(error.details()[0].text, "linux/amd64, linux/amd64/v3");
    }
}
