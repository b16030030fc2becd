//! `llama-server` as a download: an archive of a release, or files out of an image.
//!
//! A release's archive for CUDA leaves CUDA's own libraries out. An image holds everything, and its
//! program is run here, without a container and without a compiler.

use std::collections::BTreeMap;

use engine_provider_api::{
    Act, Download, ExtractImage, ImageName, Narration, Pool, ProviderError, Template, Unpack,
};

use crate::{backend::Backend, image};

/// Step that obtains it.
pub(crate) const PROGRAM: &str = "download";

/// Where CUDA's libraries lie in the images of llama.cpp, which are made from NVIDIA's.
const CUDA_LIBRARIES: &str = "/usr/local/cuda/lib64";

/// A downloaded program.
pub(crate) struct Binary {
    from: From,
    /// Path of the program below the step's result.
    program: String,
    version: Option<String>,
}

enum From {
    Archive {
        urls: Vec<String>,
        digest: String,
        unpack: Option<Unpack>,
    },
    Image(ImageName),
}

impl Binary {
    pub(crate) fn read(pool: &Pool) -> Result<Self, ProviderError> {
        let given = pool.provisioning.binary.clone().unwrap_or_default();
        if given.install_dir.is_some() {
            let message = "`install_dir` is not used: what is downloaded lies in the host's store, \
                           under a name made of its content, and is never changed";
            return Err(
                ProviderError::invalid("provisioning.binary.install_dir", message)
                    .hint("remove it; `host prepare` prints where the program is"),
            );
        }
        if let Some(wanted) = &given.image {
            return Self::in_image(wanted, given.program, given.version);
        }
        let url = given.url.ok_or_else(no_url)?;
        let digest = given.checksum.ok_or_else(|| no_checksum(&url))?;
        let file = file_name(&url);
        let unpack = format(file);
        let build = build_of(file);
        let program = given
            .program
            .or_else(|| usual_program(unpack, build))
            .ok_or_else(|| {
                let message = format!("where `llama-server` lies in `{file}` is not known");
                ProviderError::invalid("provisioning.binary.program", message)
                    .hint("set it to the path in the archive, for example `bin/llama-server`")
            })?;
        Ok(Self {
            version: given.version.or_else(|| build.map(str::to_owned)),
            from: From::Archive {
                urls: std::iter::once(url.clone()).chain(given.mirrors).collect(),
                digest,
                unpack,
            },
            program: relative(&program)?,
        })
    }

    fn in_image(
        wanted: &engine_provider_api::Container,
        program: Option<String>,
        version: Option<String>,
    ) -> Result<Self, ProviderError> {
        let digest = wanted.digest.clone().ok_or_else(|| {
            let message = "an image that a program is taken out of needs its digest";
            ProviderError::invalid("provisioning.binary.image", message)
                .hint("add `digest: sha256:…`; a pull by tag in mode `container` prints it")
        })?;
        let build = wanted.tag.as_deref().and_then(build_of);
        let program = program.unwrap_or_else(|| image::PROGRAM.to_owned());
        Ok(Self {
            version: version.or_else(|| build.map(str::to_owned)),
            from: From::Image(ImageName {
                repository: wanted.image.clone().unwrap_or(image::REPOSITORY.to_owned()),
                tag: wanted.tag.clone(),
                digest: Some(digest),
            }),
            program: relative(&program)?,
        })
    }

    pub(crate) fn backend(&self) -> Option<Backend> {
        match &self.from {
            From::Archive { urls, .. } => Backend::in_name(file_name(&urls[0])),
            From::Image(image) => image.tag.as_deref().and_then(Backend::in_name),
        }
    }

    pub(crate) fn step(&self) -> Act {
        let narration = Narration::default();
        match &self.from {
            From::Archive {
                urls,
                digest,
                unpack,
            } => Act::Download(Download {
                urls: urls.clone(),
                digest: digest.clone(),
                unpack: *unpack,
                program: true,
                narration,
            }),
            From::Image(image) => Act::ExtractImage(ExtractImage {
                image: image.clone(),
                paths: self.directories().map(|path| format!("/{path}")).collect(),
                program: Some(format!("/{}", self.program)),
                narration,
            }),
        }
    }

    pub(crate) fn path(&self) -> Template {
        // A file that is not unpacked is itself the result.
        if self.program.is_empty() {
            return format!("{{{PROGRAM}.path}}").into();
        }
        let program = Template::literal(&self.program);
        format!("{{{PROGRAM}.path}}/{program}").into()
    }

    /// Its libraries lie beside it, and are not always looked for there.
    pub(crate) fn env(&self) -> BTreeMap<String, Template> {
        if self.program.is_empty() {
            return BTreeMap::new();
        }
        let directory = |path: String| {
            let path = Template::literal(&path);
            format!("{{{PROGRAM}.path}}/{path}")
        };
        let directories: Vec<String> = self.directories().map(directory).collect();
        let value = directories.join(":").trim_end_matches('/').into();
        BTreeMap::from([("LD_LIBRARY_PATH".to_owned(), value)])
    }

    /// Directories of the program and its libraries, below the step's result.
    fn directories(&self) -> impl Iterator<Item = String> {
        let own = self.program.rsplit_once('/').map_or("", |(path, _)| path);
        let cuda = matches!(self.from, From::Image(_)) && self.backend() == Some(Backend::Cuda);
        let cuda = cuda.then(|| CUDA_LIBRARIES.trim_start_matches('/').to_owned());
        std::iter::once(own.to_owned()).chain(cuda)
    }

    /// `<version>+sha256:<12 digits>`.
    pub(crate) fn version(&self, said: Option<&str>) -> String {
        let digest = match &self.from {
            From::Archive { digest, .. } => digest.as_str(),
            From::Image(image) => image.digest.as_deref().unwrap_or_default(),
        };
        let (algorithm, digits) = digest.split_once(':').unwrap_or(("sha256", digest));
        let short = &digits[..digits.len().min(12)];
        let version = self.version.as_deref().or(said).unwrap_or("unknown");
        format!("{version}+{algorithm}:{short}")
    }

    /// The same where the program need not be asked.
    pub(crate) fn known_version(&self) -> Option<String> {
        self.version.is_some().then(|| self.version(None))
    }

    /// The long form, for the record.
    pub(crate) fn origin(&self) -> String {
        match &self.from {
            From::Archive { urls, digest, .. } => format!("{} {digest}", urls[0]),
            From::Image(image) => {
                let digest = image.digest.as_deref().unwrap_or_default();
                format!("{}@{digest}", image.repository)
            }
        }
    }
}

fn no_url() -> ProviderError {
    let message = "the pool does not say where llama-server is downloaded from";
    ProviderError::invalid("provisioning.binary", message).hint(
        "set `url` and `checksum` to those of an archive at \
         https://github.com/ggml-org/llama.cpp/releases, or `image` to an image by digest",
    )
}

fn no_checksum(url: &str) -> ProviderError {
    let message = "a program is only downloaded with its checksum";
    ProviderError::invalid("provisioning.binary", message)
        .hint(
            "add the digest that its publisher names: `checksum: sha256:` and 64 digits, under \
             `provisioning.binary`",
        )
        .fix(
            "or the digest of a copy that you trust",
            format!("curl -fsSL {url} | sha256sum"),
        )
}

fn file_name(url: &str) -> &str {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    url[..end].rsplit('/').next().unwrap_or_default()
}

fn format(file: &str) -> Option<Unpack> {
    let formats = [
        (".tar.gz", Unpack::TarGz),
        (".tgz", Unpack::TarGz),
        (".tar.zst", Unpack::TarZst),
        (".tar.xz", Unpack::TarXz),
        (".zip", Unpack::Zip),
    ];
    let found = formats.iter().find(|(suffix, _)| file.ends_with(suffix));
    found.map(|(_, format)| *format)
}

/// The build in a name: `b7000` of `llama-b7000-bin-ubuntu-x64.zip` and `server-cuda-b7000`.
pub(crate) fn build_of(name: &str) -> Option<&str> {
    name.split(['-', '.']).find(|part| {
        let digits = part.strip_prefix('b').unwrap_or_default();
        digits.len() >= 3 && digits.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Where llama.cpp's releases have it: those packed with zip in cmake's directory, the later ones in
/// one named after the build.
fn usual_program(unpack: Option<Unpack>, build: Option<&str>) -> Option<String> {
    match (unpack, build) {
        (None, _) => Some(String::new()),
        (Some(Unpack::Zip), Some(_)) => Some("build/bin/llama-server".to_owned()),
        (Some(_), Some(build)) => Some(format!("llama-{build}/llama-server")),
        (Some(_), None) => None,
    }
}

/// A path below a step's result.
fn relative(program: &str) -> Result<String, ProviderError> {
    let path = program.trim_start_matches('/');
    let plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    if !path.is_empty() && !path.split('/').all(plain) {
        let message = format!("`{program}` is no path in an archive or image");
        return Err(
            ProviderError::invalid("provisioning.binary.program", message)
                .hint("write it like `bin/llama-server`"),
        );
    }
    Ok(path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_is_read_out_of_names() {
        for (name, build) in [
            ("llama-b7000-bin-ubuntu-x64.zip", Some("b7000")),
            ("server-cuda-b11243", Some("b11243")),
            ("server-cuda", None),
            ("llama-bin.tar.gz", None),
        ] {
            assert_eq!(build_of(name), build, "{name}");
        }
    }

    #[test]
    fn programs_stay_inside_what_was_unpacked() {
        assert_eq!(relative("/app/llama-server").unwrap(), "app/llama-server");
        for bad in ["../x", "a//b", "a/./b", "a/../../b"] {
            assert!(relative(bad).is_err(), "{bad}");
        }
    }
}
