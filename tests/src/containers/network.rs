//! A network of a podman of the tests' own, and what podman leaves of one when it is killed itself.

use std::{
    collections::BTreeSet,
    fs,
    io::Write as _,
    path::Path,
    process::{Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Value, json};

use super::daemon::must;

/// Tries to remove rules that others change at the same time.
const TRIES: usize = 5;

/// A network that no other podman on this machine uses: addresses are given out per storage, so two
/// podmans on the same network give the same address twice.
pub(super) struct Network {
    /// Of the network and of its bridge.
    name: String,
    subnet: String,
    gateway: String,
}

impl Network {
    pub(super) fn next() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = std::process::id().wrapping_mul(64) + COUNT.fetch_add(1, Ordering::Relaxed);
        // 10.64.0.0/10 in blocks of 64 addresses.
        let block = number % (1 << 16);
        let (high, middle, low) = (64 + block / 1024, block / 4 % 256, block % 4 * 64);
        Self {
            name: format!("ehp{block}"),
            subnet: format!("10.{high}.{middle}.{low}/26"),
            gateway: format!("10.{high}.{middle}.{}", low + 1),
        }
    }

    /// Those whose documents are in a directory.
    pub(super) fn below(directory: &Path) -> Vec<Self> {
        let files = fs::read_dir(directory).into_iter().flatten().flatten();
        let documents = files.filter_map(|file| fs::read(file.path()).ok());
        let documents = documents.filter_map(|text| serde_json::from_slice::<Value>(&text).ok());
        let read = |document: Value| {
            let text = |value: &Value| value.as_str().map(str::to_owned);
            Some(Self {
                name: text(&document["name"])?,
                subnet: text(&document["subnets"][0]["subnet"])?,
                gateway: text(&document["subnets"][0]["gateway"])?,
            })
        };
        documents.filter_map(read).collect()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Of its document, below podman's directory.
    pub(super) fn file(&self) -> String {
        format!("networks/{}.json", self.name)
    }

    /// What podman reads of it.
    pub(super) fn document(&self) -> Value {
        let name = &self.name;
        json!({
            "name": name,
            "id": format!("{name:0>64}").replace(|digit: char| !digit.is_ascii_hexdigit(), "e"),
            "driver": "bridge",
            "network_interface": name,
            "created": "2026-01-01T00:00:00Z",
            "subnets": [{"subnet": self.subnet, "gateway": self.gateway}],
            "ipv6_enabled": false,
            "internal": false,
            "dns_enabled": false,
            "ipam_options": {"driver": "host-local"},
        })
    }

    /// Interfaces on its bridge, and rules that lead a port of this machine to one of its addresses.
    pub(super) fn left(&self) -> Vec<String> {
        let bridge = Path::new("/sys/class/net").join(&self.name).join("brif");
        let interfaces = fs::read_dir(bridge).into_iter().flatten().flatten();
        let mut left: Vec<String> = interfaces
            .map(|interface| interface.file_name().to_string_lossy().into_owned())
            .collect();
        let rules = must("iptables-save", &["--table", "nat"]);
        let ours = rules.lines().filter(|rule| rule.contains(&self.mark()));
        left.extend(ours.map(str::to_owned));
        left
    }

    /// What the comment of a rule says that leads to one of its addresses.
    fn mark(&self) -> String {
        format!("dnat name: {} ", self.name)
    }

    /// Removes all that is left of it. A rule that stays leads whoever comes to its port of this
    /// machine next, whichever program listens there by then, to an address that nobody has.
    pub(super) fn remove(&self) {
        let spaces = fs::read_dir("/run/netns").into_iter().flatten().flatten();
        for space in spaces {
            let name = space.file_name().to_string_lossy().into_owned();
            let routes = run("ip", &["-n", &name, "route"]);
            if routes.is_some_and(|routes| routes.contains(&self.subnet)) {
                run("ip", &["netns", "delete", &name]);
            }
        }
        run("ip", &["link", "delete", &self.name]);
        for table in ["nat", "filter"] {
            let removed = (0..TRIES).any(|_| self.remove_rules(table));
            if !removed {
                eprintln!("rules of {} stay in the table {table}", self.name);
            }
        }
    }

    /// Whether the table has none of its rules and chains any more.
    fn remove_rules(&self, table: &str) -> bool {
        let Some(rules) = run("iptables-save", &["--table", table]) else {
            return true;
        };
        let removal = removal(&rules, &self.subnet, &self.mark());
        let text = format!("*{table}\n{removal}COMMIT\n");
        removal.is_empty() || is_restored(&text)
    }
}

/// The lines for `iptables-restore` that remove, from these rules, those of a network and its chains.
fn removal(rules: &str, subnet: &str, mark: &str) -> String {
    let rules: Vec<&str> = rules.lines().filter(|it| it.starts_with("-A ")).collect();
    let is_named = |rule: &str| rule.contains(&format!(" {subnet} ")) || rule.contains(mark);
    let chains: BTreeSet<&str> = rules
        .iter()
        .filter(|rule| is_named(rule))
        .flat_map(|rule| rule.split(' '))
        .filter(|word| word.starts_with("NETAVARK-") && !word.starts_with("NETAVARK-HOSTPORT-"))
        .collect();
    let is_ours = |rule: &str| is_named(rule) || rule.split(' ').any(|it| chains.contains(it));
    let rules = rules.into_iter().filter(|rule| is_ours(rule));
    let deleted = rules.map(|rule| format!("-D{}\n", &rule[2..]));
    deleted
        .chain(chains.iter().map(|chain| format!("-X {chain}\n")))
        .collect()
}

/// What a command said; `None` where it failed, as for what is gone meanwhile.
fn run(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(said)
}

/// Whether the rules were changed as this text says: all of it or nothing.
fn is_restored(text: &str) -> bool {
    let child = Command::new("iptables-restore")
        .args(["--noflush", "--wait", "10"])
        .stdin(Stdio::piped())
        .spawn();
    let Ok(mut child) = child else {
        return false;
    };
    let fed = child
        .stdin
        .take()
        .expect("piped")
        .write_all(text.as_bytes());
    child.wait().is_ok_and(|status| status.success()) && fed.is_ok()
}
