//! The settings of each way to the engine.

use engine_provider_api::{Container, Mode, Pool};

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
        if let Some(container) = &pool.provisioning.container {
            self.image("provisioning.container", container);
        }
    }

    /// An image and how it is run; `at`: where its settings stand.
    fn image(&mut self, at: &str, container: &Container) {
        let field = |name: &str| format!("{at}.{name}");
        if let Some(digest) = &container.digest {
            self.value(&field("digest"), syntax::digest(digest, &["sha256"]));
            if self.given(&field("tag")) {
                self.notice(
                    &field("tag"),
                    "`digest` decides which image is run; `tag` only says where it came from",
                );
            }
        }
        let image = container.image.as_deref().unwrap_or("");
        let name = image.rsplit('/').next().unwrap_or(image);
        if image.contains(char::is_whitespace) || image.starts_with('-') || image.contains("://") {
            let message = format!("`{image}` is no image");
            self.problem(
                &field("image"),
                message,
                "write for example `ghcr.io/ggml-org/llama.cpp`",
            );
        } else if name.contains(['@', ':']) {
            self.problem(
                &field("image"),
                "`image` carries a tag or digest",
                "write it under `tag` or `digest`",
            );
        }
        if let Some(runtime) = &container.runtime
            && !["podman", "docker"].contains(&runtime.as_str())
        {
            self.problem(
                &field("runtime"),
                format!("`{runtime}` is no container runtime that is known here"),
                "write `podman` or `docker`",
            );
        }
        for (name, list) in [
            ("cpus", &container.cpus),
            ("numa_nodes", &container.numa_nodes),
        ] {
            if let Some(list) = list
                && !is_list_of_numbers(list)
            {
                self.problem(
                    &field(name),
                    format!("`{list}` is no list of numbers"),
                    "write for example `0-7,16-23`",
                );
            }
        }
        if container.shm_bytes == Some(0) {
            self.problem(
                &field("shm_bytes"),
                "an engine without shared memory does not start",
                "write a number of bytes, for example `1073741824` for 1 GiB",
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
        for (index, mirror) in binary.mirrors.iter().enumerate() {
            let field = format!("provisioning.binary.mirrors[{index}]");
            self.value(&field, syntax::url(mirror));
        }
        if binary.url.is_none() && !binary.mirrors.is_empty() {
            self.problem(
                "provisioning.binary.mirrors",
                "`mirrors` are for what `url` names, and there is none",
                "write the first place under `url`",
            );
        }
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
        if let Some(program) = &binary.program
            && (program.is_empty()
                || program.ends_with('/')
                || program.split('/').any(|part| part == ".."))
        {
            self.problem(
                "provisioning.binary.program",
                format!("`{program}` is no path of a program in an archive or image"),
                "write for example `build/bin/llama-server`",
            );
        }
        let image = binary.image.clone();
        let mut directory = binary.install_dir.take();
        self.path("provisioning.binary.install_dir", &mut directory);
        binary.install_dir = directory;
        if let Some(image) = &image {
            self.binary_image(pool, image);
        }
    }

    /// An image that a program is taken out of, instead of a download.
    fn binary_image(&mut self, pool: &Pool, image: &Container) {
        let at = "provisioning.binary.image";
        self.image(at, image);
        if image.digest.is_none() {
            self.problem(
                at,
                "a program is taken out of an image only by the image's digest",
                "add `digest: sha256:…` beside its name",
            );
        }
        let binary = pool.provisioning.binary.as_ref();
        if binary.is_some_and(|binary| binary.url.is_some()) {
            self.problem(
                "provisioning.binary.url",
                "`url` and `image` are two ways to the same program",
                "leave one of them out",
            );
        }
        for (name, given) in [
            ("cpus", image.cpus.is_some()),
            ("numa_nodes", image.numa_nodes.is_some()),
            ("shm_bytes", image.shm_bytes.is_some()),
        ] {
            if given {
                let message = format!("`{name}` is not used: nothing is run in this image");
                self.notice(&format!("{at}.{name}"), &message);
            }
        }
    }

    pub(super) fn external(&mut self, pool: &Pool) {
        let url = pool
            .provisioning
            .external
            .as_ref()
            .and_then(|external| external.url.as_ref());
        if let Some(url) = url {
            self.value("provisioning.external.url", syntax::engine_url(url));
        } else if pool.provisioning.mode == Some(Mode::External) {
            self.problem(
                "provisioning.mode",
                "mode `external` needs the URL of the running engine",
                "add `external: {url: http://127.0.0.1:8080}` beside it",
            );
        }
    }
}

/// `0-7,16-23`: numbers and ranges, as the kernel's cpuset(7) reads them.
fn is_list_of_numbers(text: &str) -> bool {
    text.split(',').all(|part| {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        matches!((from.parse::<u32>(), to.parse::<u32>()), (Ok(from), Ok(to)) if from <= to)
    })
}
