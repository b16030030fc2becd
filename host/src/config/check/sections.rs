//! The settings of each way to the engine.

use engine_provider_api::{Mode, Pool};

use super::{Checking, syntax};

impl Checking<'_> {
    pub(super) fn source(&mut self, pool: &mut Pool) {
        let Some(source) = &mut pool.provisioning.source else {
            return;
        };
        if let Some(repository) = &mut source.repo {
            self.value(
                "provisioning.source.repo",
                syntax::git_repository(repository),
            );
            if repository.starts_with(['.', '~'])
                && let Some(path) =
                    self.value("provisioning.source.repo", self.base.absolute(repository))
            {
                *repository = path;
            }
        }
        if let Some(reference) = &source.reference {
            self.value("provisioning.source.ref", syntax::git_reference(reference));
        }
        for (index, flag) in source.build.cmake_flags.iter().enumerate() {
            let field = format!("provisioning.source.build.cmake_flags[{index}]");
            if !flag.starts_with('-') {
                let message = format!("`{flag}` is no flag of cmake");
                self.problem(&field, message, "write for example `-DGGML_CUDA=ON`");
            }
        }
        let mut cache = source.build.cache_dir.take();
        self.path("provisioning.source.build.cache_dir", &mut cache);
        source.build.cache_dir = cache;
    }

    pub(super) fn container(&mut self, pool: &Pool) {
        let Some(container) = &pool.provisioning.container else {
            return;
        };
        if let Some(digest) = &container.digest {
            self.value(
                "provisioning.container.digest",
                syntax::digest(digest, &["sha256"]),
            );
            if self.given("provisioning.container.tag") {
                self.notice(
                    "provisioning.container.tag",
                    "`digest` decides which image is run; `tag` only says where it came from",
                );
            }
        }
        let image = container.image.as_deref().unwrap_or("");
        let name = image.rsplit('/').next().unwrap_or(image);
        if image.contains(char::is_whitespace) || image.starts_with('-') || image.contains("://") {
            let message = format!("`{image}` is no image");
            self.problem(
                "provisioning.container.image",
                message,
                "write for example `ghcr.io/ggml-org/llama.cpp`",
            );
        } else if name.contains(['@', ':']) {
            self.problem(
                "provisioning.container.image",
                "`image` carries a tag or digest",
                "write it under `tag` or `digest`",
            );
        }
    }

    pub(super) fn package(&mut self, pool: &Pool) {
        let Some(package) = &pool.provisioning.package else {
            return;
        };
        let name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte);
        if let Some(name) = &package.name
            && (!name.bytes().all(name_byte)
                || !name.starts_with(|c: char| c.is_ascii_alphanumeric()))
        {
            self.problem(
                "provisioning.package.name",
                format!("`{name}` is no package name"),
                "write only its name; the version stands under `version`",
            );
        }
        if let Some(version) = &package.version
            && (version.contains(['<', '>', '=', '*', '^', '~', ' ', ',']) || version.is_empty())
        {
            self.problem(
                "provisioning.package.version",
                format!("`{version}` is not an exact version"),
                "write one exact version: a range would install something else tomorrow",
            );
        }
    }

    pub(super) fn binary(&mut self, pool: &mut Pool) {
        let Some(binary) = &mut pool.provisioning.binary else {
            return;
        };
        if let Some(url) = &binary.url {
            self.value("provisioning.binary.url", syntax::url(url));
        }
        match (&binary.url, &binary.checksum) {
            (_, Some(checksum)) => {
                let checked = syntax::digest(checksum, &["sha256", "sha512"]);
                self.value("provisioning.binary.checksum", checked);
            }
            (Some(_), None) => self.problem(
                "provisioning.binary.url",
                "`url` needs a `checksum` beside it",
                "add `checksum: sha256:…`: nothing is run before its digest is compared",
            ),
            (None, None) => {}
        }
        let mut directory = binary.install_dir.take();
        self.path("provisioning.binary.install_dir", &mut directory);
        binary.install_dir = directory;
    }

    pub(super) fn external(&mut self, pool: &Pool) {
        let url = pool
            .provisioning
            .external
            .as_ref()
            .and_then(|external| external.url.as_ref());
        if let Some(url) = url {
            self.value("provisioning.external.url", syntax::url(url));
        } else if pool.provisioning.mode == Some(Mode::External) {
            self.problem(
                "provisioning.mode",
                "mode `external` needs the URL of the running engine",
                "add `external: {url: http://127.0.0.1:8080}` beside it",
            );
        }
    }
}
