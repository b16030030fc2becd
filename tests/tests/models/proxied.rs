//! Models behind a proxy that wants a user and a password, over https: the proxy sees where to, and no more.

use std::{fs, path::PathBuf};

use e2e::{Machine, PROXY_USER, Proxy, RUN_LIMIT, Run};

use crate::transfer::{Nginx, certify, files};

/// A name that only the proxy knows.
const NAME: &str = "models.test";

struct Stage {
    machine: Machine,
    proxy: Proxy,
    nginx: Nginx,
    digest: String,
}

impl Stage {
    /// A real web server with TLS, whose name only the proxy knows.
    fn new(seed: u64) -> Self {
        let mut machine = Machine::new();
        let (directory, digest) = files(&machine, seed);
        certify(&directory, NAME);
        let path = |name: &str| -> String { directory.join(name).display().to_string() };
        let more = format!(
            " ssl; ssl_certificate {}; ssl_certificate_key {};",
            path("cert.pem"),
            path("cert-key.pem")
        );
        let nginx = Nginx::start(&directory, &more);
        machine.lend("SSL_CERT_FILE", &path("ca.pem"));
        Self {
            proxy: Proxy::start(NAME),
            machine,
            nginx,
            digest,
        }
    }

    fn server(&self) -> String {
        format!("{NAME}:{}", self.nginx.port)
    }

    fn arguments(&self) -> [String; 4] {
        [
            "model".to_owned(),
            "add".to_owned(),
            format!("https://{}/m.gguf", self.server()),
            format!("--checksum=sha256:{}", self.digest),
        ]
    }

    fn add(&self) -> Run {
        self.machine
            .run(&self.arguments().each_ref().map(|it| &**it))
    }

    /// Ends the servers, and asserts that nothing is left of the program.
    fn end(self) {
        drop((self.nginx, self.proxy));
        self.machine.assert_clean();
    }

    /// Asserts that a password is in nothing that was said or written.
    fn assert_hidden(&self, password: &str, run: &Run) {
        for text in [&run.stdout, &run.stderr] {
            assert!(!text.contains(password), "{text}");
        }
        for name in self.machine.files_below(&self.machine.home()) {
            let path: PathBuf = self.machine.home().join(&name);
            let content = fs::read(path).unwrap_or_default();
            let found = content
                .windows(password.len())
                .any(|it| it == password.as_bytes());
            assert!(!found, "{name}");
        }
    }
}

#[test]
fn a_model_comes_through_a_proxy_to_whom_user_and_password_are_told() {
    let mut stage = Stage::new(6000);
    let password = PROXY_USER.1;
    stage
        .machine
        .lend("HTTPS_PROXY", &stage.proxy.url(password));
    let run = stage.add().code(0);
    stage.assert_hidden(password, &run);
    assert_eq!(stage.machine.store().blobs(), [stage.digest.clone()]);
    stage.machine.store().assert_sound();
    let asked = stage.proxy.asked_for();
    assert!(!asked.is_empty(), "the proxy was not asked");
    assert!(asked.iter().all(|to| *to == stage.server()), "{asked:?}");
    stage.end();
}

#[test]
fn a_proxy_that_refuses_the_password_is_named_without_it() {
    let mut stage = Stage::new(6001);
    let wrong = "planted-wrong-password";
    stage.machine.lend("HTTPS_PROXY", &stage.proxy.url(wrong));
    let run = stage.add().code(8);
    run.says("(HTTPS_PROXY) refuses to connect to the server, or refuses the user or password");
    stage.assert_hidden(wrong, &run);
    assert_eq!(stage.machine.store().blobs(), [""; 0]);
    stage.end();
}

#[test]
fn a_host_that_is_excepted_is_asked_without_the_proxy() {
    let mut stage = Stage::new(6002);
    stage
        .machine
        .lend("HTTPS_PROXY", &stage.proxy.url(PROXY_USER.1));
    stage.machine.lend("NO_PROXY", "elsewhere.test,.test");
    // Here, where its name stands for nothing, nobody is asked.
    let _ = stage.add().code(8);
    assert_eq!(stage.proxy.asked_for(), [""; 0]);
    let arguments = stage.arguments();
    let arguments = arguments.each_ref().map(|word| &**word);
    let beside = stage.proxy.beside(&stage.machine, &arguments);
    let _ = stage.machine.start(beside).finish(RUN_LIMIT).code(0);
    assert_eq!(stage.proxy.asked_for(), [""; 0]);
    assert_eq!(stage.machine.store().blobs(), [stage.digest.clone()]);
    stage.end();
}
