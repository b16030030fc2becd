//! A real proxy that wants a user and a password: `tinyproxy`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{Machine, containers::daemon::Daemon, free_port};

/// User and password.
pub const PROXY_USER: (&str, &str) = ("reader", "correct-horse-battery-proxy");

/// Runs what follows where names stand for what a file of hosts says.
const WITH_HOSTS: &str = "mount --bind \"$1\" /etc/hosts && shift && exec \"$@\"";

/// `tinyproxy`, for which names are those of its own file of hosts: servers of this machine can be reached by
/// names that nobody else knows. Ends when dropped, or when the tests are killed.
pub struct Proxy {
    directory: TempDir,
    port: u16,
    _daemon: Daemon,
}

impl Proxy {
    /// Begins to serve; this name stands for this machine.
    ///
    /// # Panics
    ///
    /// When it does not answer.
    #[must_use]
    pub fn start(name: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("host-proxy-")
            .tempdir()
            .unwrap();
        let port = free_port();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("hosts"), format!("127.0.0.1 localhost {name}\n")).unwrap();
        let (user, password) = PROXY_USER;
        let settings = format!(
            "Port {port}\nListen 127.0.0.1\nTimeout 60\nMaxClients 50\nLogLevel Connect\n\
             BasicAuth {user} {password}\n"
        );
        fs::write(at("tinyproxy.conf"), settings).unwrap();
        let hosts = at("hosts").display().to_string();
        let settings = at("tinyproxy.conf").display().to_string();
        let mut command = apart(&hosts);
        command.extend(["tinyproxy", "-d", "-c", &settings]);
        Self {
            _daemon: Daemon::listening("the proxy", &command, directory.path(), port),
            directory,
            port,
        }
    }

    /// For `HTTPS_PROXY`, with this password.
    #[must_use]
    pub fn url(&self, password: &str) -> String {
        format!("http://{}:{password}@127.0.0.1:{}", PROXY_USER.0, self.port)
    }

    /// Servers that it was asked to connect to, as `HOST:PORT`.
    #[must_use]
    pub fn asked_for(&self) -> Vec<String> {
        let said = fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let asked = said
            .lines()
            .filter_map(|line| line.split_once("): CONNECT "));
        let asked = asked.filter_map(|(_, rest)| rest.split(' ').next());
        asked.map(str::to_owned).collect()
    }

    /// The program with these arguments on this machine, where names stand for the same as at the proxy.
    #[must_use]
    pub fn beside(&self, machine: &Machine, arguments: &[&str]) -> Command {
        let host = machine.command(&[]);
        let host = host
            .get_program()
            .to_str()
            .expect("its path is a text")
            .to_owned();
        let hosts: PathBuf = self.directory.path().join("hosts");
        let hosts = hosts.display().to_string();
        let mut words = apart(&hosts);
        words.push(&host);
        words.extend(arguments);
        let (program, arguments) = words.split_first().expect("there is one");
        machine.command_of(Path::new(program), arguments)
    }
}

/// The words before a command that sees another file of hosts, and changes nothing for anybody else.
fn apart(hosts: &str) -> Vec<&str> {
    let mut words = vec!["unshare", "--mount"];
    if !rustix::process::geteuid().is_root() {
        words.push("--map-root-user");
    }
    words.extend(["sh", "-c", WITH_HOSTS, "sh", hosts]);
    words
}
