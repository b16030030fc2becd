//! The images of llama.cpp: `ghcr.io/ggml-org/llama.cpp`, one tag per back end and build.

use engine_provider_api::{ContainerLaunch, Facts, ImageName, Pool, ProviderError, Template};
use engine_provider_kit::container;

use crate::{
    MODEL,
    backend::{Backend, Target},
    binary::build_of,
};

/// Where they are published.
pub(crate) const REPOSITORY: &str = "ghcr.io/ggml-org/llama.cpp";
/// The program inside.
pub(crate) const PROGRAM: &str = "/app/llama-server";
/// Build that is taken where a pool names none; it knows the flags that this provider passes.
const BUILD: &str = "b11243";
/// A user with no rights and no home; the image's own is root.
const USER: &str = "65532:65532";
/// Port inside.
const PORT: u16 = 8080;

/// What a pool says about its image.
pub(crate) struct Image {
    given: ImageName,
    /// Whether the pool leaves the choice to the provider.
    usual: bool,
}

impl Image {
    pub(crate) fn read(pool: &Pool) -> Result<Self, ProviderError> {
        Ok(Self {
            given: container::image(pool, &usual(Backend::Cpu))?,
            usual: container::is_usual(pool),
        })
    }

    /// What it computes on: a container is given GPUs by NVIDIA's names only.
    pub(crate) fn target<'a>(
        &self,
        pool: &Pool,
        facts: &'a Facts,
    ) -> Result<(Target<'a>, Vec<String>), ProviderError> {
        let found = Target::found(pool, facts, self.backend())?;
        match found.0.gpus.first() {
            Some(gpu) if gpu.vendor != "nvidia" => Target::without(
                pool,
                format!(
                    "a container can be given NVIDIA's GPUs, and this is {}",
                    gpu.name
                ),
                "set `provisioning.mode: source`",
            ),
            _ => Ok(found),
        }
    }

    /// The back end that the tag promises.
    pub(crate) fn backend(&self) -> Option<Backend> {
        if self.usual {
            return None;
        }
        let tag = self.given.tag.as_deref()?;
        let official = self.given.repository == REPOSITORY;
        Backend::in_name(tag).or(official.then_some(Backend::Cpu))
    }

    pub(crate) fn name(&self, backend: Backend) -> ImageName {
        if self.usual {
            return usual(backend);
        }
        self.given.clone()
    }

    /// What to warn of where the tag names no build.
    pub(crate) fn warning(&self) -> Option<String> {
        // Who publishes other images has other tags.
        if self.given.repository != REPOSITORY {
            return None;
        }
        let tag = self
            .given
            .tag
            .as_deref()
            .filter(|_| self.given.digest.is_none())?;
        build_of(tag).is_none().then(|| {
            format!(
                "tag `{tag}` moves with every build: flags come and go with it; \
                 `{tag}-{BUILD}` does not move"
            )
        })
    }
}

fn usual(backend: Backend) -> ImageName {
    let kind = match backend {
        Backend::Cpu => "server".to_owned(),
        Backend::Hip => "server-rocm".to_owned(),
        other => format!("server-{}", other.name()),
    };
    ImageName {
        repository: REPOSITORY.to_owned(),
        tag: Some(format!("{kind}-{BUILD}")),
        digest: None,
    }
}

/// Where the model lies inside: a name that says in `ps` what is served. Parts of a split model keep the
/// names by which llama.cpp finds them from the first: `path` is where that lies, as far as it is known.
pub(crate) fn model_path(id: &str, path: Option<&str>) -> String {
    let first = path.and_then(|path| path.rsplit('/').next());
    let name = match first.and_then(part) {
        Some((stem, number)) => format!("{}{number}", plain(stem)),
        None => format!("{}.gguf", plain(id)),
    };
    format!("/models/{name}")
}

fn plain(name: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "._-".contains(letter);
    let name: String = name
        .chars()
        .map(|letter| if plain(letter) { letter } else { '-' })
        .collect();
    match name.trim_start_matches('.') {
        "" => "model".to_owned(),
        name => name.to_owned(),
    }
}

/// The name of a part, `NAME-00001-of-00003.gguf` (`llama_split_path` of llama.cpp): name and the rest.
fn part(name: &str) -> Option<(&str, &str)> {
    const LENGTH: usize = "-00001-of-00003.gguf".len();
    let (stem, rest) = name.split_at_checked(name.len().checked_sub(LENGTH)?)?;
    let numbers = rest.strip_prefix('-')?.strip_suffix(".gguf")?;
    let (number, total) = numbers.split_once("-of-")?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    (digits(number) && digits(total)).then_some((stem, rest))
}

/// The container, but for its arguments and environment; `model`: where the model lies inside.
pub(crate) fn launch(model: &str, args: Vec<Template>) -> ContainerLaunch {
    ContainerLaunch {
        image: container::PULL.to_owned(),
        entrypoint: vec![PROGRAM.to_owned()],
        args,
        mounts: vec![container::mount(MODEL, model)],
        port: PORT,
        user: Some(USER.to_owned()),
        read_only_root: true,
        ..ContainerLaunch::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_s_name_never_leaves_its_directory() {
        for (id, path) in [
            ("haiku", "/models/haiku.gguf"),
            ("org/name:v1", "/models/org-name-v1.gguf"),
            ("../x", "/models/-x.gguf"),
            ("", "/models/model.gguf"),
        ] {
            assert_eq!(model_path(id, None), path, "{id}");
            assert_eq!(model_path(id, Some("/s/m.gguf")), path, "{id}");
        }
    }

    #[test]
    fn parts_keep_the_names_by_which_they_are_found() {
        for (path, inside) in [
            ("/s/m-00001-of-00002.gguf", "/models/m-00001-of-00002.gguf"),
            (
                "/s/a b-00001-of-00002.gguf",
                "/models/a-b-00001-of-00002.gguf",
            ),
            ("/s/m-1-of-2.gguf", "/models/x.gguf"),
        ] {
            assert_eq!(model_path("x", Some(path)), inside, "{path}");
        }
    }
}
