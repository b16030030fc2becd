//! Servers that fail in every way there is: how it ends, what is said, what is left, and what the next
//! run still has to fetch.

use std::{thread, time::Duration};

use e2e::{Asked, FileServer, Machine, RUN_LIMIT, Reply, Run, noise, sha256, wait_for};
use rustix::process::Signal;

/// Bytes of a model that comes over one connection.
const SMALL: usize = 3_000_000;

/// Of one that comes over several.
const LARGE: usize = 72 << 20;

/// Where most faults happen.
const MIDDLE: usize = 1_000_000;

/// A way to fail, and what is to come of it.
struct Row {
    name: &'static str,
    size: usize,
    /// Whether the command is told what should come.
    checksum: bool,
    /// What becomes of a right answer.
    fault: fn(&Asked, Reply) -> Reply,
    code: i32,
    says: &'static [&'static str],
    kept: Kept,
}

/// What there is afterwards.
#[derive(Debug, Clone, Copy)]
enum Kept {
    /// The model.
    All,
    /// So many bytes, which the next run does not fetch again.
    Bytes(usize),
    /// What came over the connections that worked, likewise.
    Some,
    /// What came last, of a version that is no more: the next run fetches all of it.
    Stale,
    /// No trace.
    Nothing,
}

impl Row {
    /// In the end it comes after all.
    const fn heals(name: &'static str, fault: fn(&Asked, Reply) -> Reply) -> Self {
        Self {
            name,
            size: SMALL,
            checksum: true,
            fault,
            code: 0,
            says: &[],
            kept: Kept::All,
        }
    }

    const fn fails(
        name: &'static str,
        fault: fn(&Asked, Reply) -> Reply,
        code: i32,
        says: &'static [&'static str],
        kept: Kept,
    ) -> Self {
        Self {
            code,
            says,
            kept,
            ..Self::heals(name, fault)
        }
    }

    const fn large(self) -> Self {
        Self {
            size: LARGE,
            ..self
        }
    }

    const fn without_checksum(self) -> Self {
        Self {
            checksum: false,
            ..self
        }
    }
}

/// Whether only the size is asked for, before anything is fetched.
fn is_look(asked: &Asked) -> bool {
    asked.range() == Some((0, Some(0)))
}

/// The reply to a look as it is; to all else, what is made of it.
fn fetched(asked: &Asked, reply: Reply, fault: impl FnOnce(Reply) -> Reply) -> Reply {
    if is_look(asked) { reply } else { fault(reply) }
}

/// Breaks off in the middle of what is asked for from the start; whoever comes for the rest gets `then`.
fn middle(asked: &Asked, reply: Reply, then: impl FnOnce(Reply) -> Reply) -> Reply {
    fetched(asked, reply, |reply| match asked.start() {
        0 => reply.cut_after(MIDDLE),
        _ => then(reply),
    })
}

const ROWS: &[Row] = &[
    Row::heals("cut in the middle, once", |asked, reply| {
        middle(asked, reply, |reply| reply)
    }),
    Row::fails(
        "cut in the middle, then nothing comes",
        |asked, reply| middle(asked, reply, |reply| reply.cut_after(0)),
        8,
        &["cause: cannot fetch {url}", "cause: ", "curl -sSIL {url}"],
        Kept::Bytes(MIDDLE),
    ),
    Row::heals(
        "several connections, each cut again and again",
        |asked, reply| fetched(asked, reply, |reply| reply.cut_after(7 << 20)),
    )
    .large(),
    Row::fails(
        "several connections, then the server breaks down",
        |asked, reply| match asked.number {
            0..=2 => fetched(asked, reply, |reply| reply.cut_after(5 << 20)),
            _ => Reply::status(503),
        },
        8,
        &[
            "cause: {url} answered 503",
            "run the same command again later",
        ],
        Kept::Some,
    )
    .large(),
    Row::fails(
        "tells a larger size than comes",
        |asked, reply| {
            fetched(asked, reply, |reply| {
                reply.telling(Some(SMALL + 1000)).cut_after(SMALL)
            })
        },
        9,
        &[
            "cause: {url} has 3001000 bytes, expected 3000000",
            "the file changed at its source",
        ],
        Kept::Nothing,
    ),
    Row::fails(
        "tells a smaller size than comes",
        |asked, reply| fetched(asked, reply, |reply| reply.telling(Some(SMALL - 1000))),
        9,
        &[
            "cause: {url} has 2999000 bytes, expected 3000000",
            "the file changed at its source",
        ],
        Kept::Nothing,
    ),
    Row::fails(
        "tells no size and breaks off",
        |_, reply| reply.whole().telling(None).cut_after(MIDDLE),
        9,
        &[
            "cause: {url} is not what it should be",
            "expected: sha256:",
            "actual: sha256:",
        ],
        Kept::Nothing,
    ),
    Row::heals(
        "names other parts than were asked for",
        |asked, reply| match asked.range() {
            Some(_) if !is_look(asked) => reply.with("Content-Range", "bytes 7-1000000/75497472"),
            _ => reply,
        },
    )
    .large(),
    Row::fails(
        "gives other bytes than it names",
        |asked, reply| fetched(asked, reply, |reply| reply.shifted(4096)),
        9,
        &[
            "cause: {url} is not what it should be",
            "expected: sha256:",
            "actual: sha256:",
        ],
        Kept::Nothing,
    )
    .large(),
    Row::heals("has no parts to give, 416", |asked, reply| {
        match asked.range() {
            Some(_) => Reply::status(416),
            None => reply,
        }
    }),
    Row::heals(
        "too many requests, come back in a second",
        |asked, reply| match asked.number {
            0 | 2 => Reply::status(429).with("Retry-After", "1"),
            _ => reply,
        },
    ),
    Row::fails(
        "too many requests, come back in an hour",
        |_, _| Reply::status(429).with("Retry-After", "3600"),
        8,
        &[
            "cause: {url} answered 429",
            "the server asks to come back in 3600 s",
        ],
        Kept::Nothing,
    ),
    Row::heals("unavailable for a moment", |asked, reply| {
        match asked.number {
            0 | 2 | 3 => Reply::status(503),
            _ => reply,
        }
    }),
    Row::fails(
        "unavailable for good, after the middle",
        |asked, reply| middle(asked, reply, |_| Reply::status(503)),
        8,
        &[
            "cause: {url} answered 503",
            "run the same command again later",
        ],
        Kept::Bytes(MIDDLE),
    ),
    Row::fails(
        "not given out",
        |_, _| Reply::status(403),
        8,
        &["cause: {url} answered 403", "the server wants credentials"],
        Kept::Nothing,
    ),
    Row::fails(
        "not there",
        |_, _| Reply::status(404),
        8,
        &["cause: {url} answered 404", "see whether it has moved"],
        Kept::Nothing,
    ),
    Row::fails(
        "redirects in a circle",
        |_, _| Reply::redirect("/m.bin"),
        8,
        &[
            "cause: {url} redirects more than 10 times",
            "see where it leads",
            "curl -sSIL {url}",
        ],
        Kept::Nothing,
    ),
    Row::fails(
        "redirects nowhere",
        |_, _| Reply::status(302),
        8,
        &["cause: {url} redirects nowhere", "curl -sSIL {url}"],
        Kept::Nothing,
    ),
    Row::fails(
        "redirects to what is no web server",
        |_, _| Reply::redirect("ftp://127.0.0.1/m.bin"),
        8,
        &[
            "cause: {url} redirects to ftp://127.0.0.1/m.bin, which is no http",
            "curl -sSIL {url}",
        ],
        Kept::Nothing,
    ),
    Row::heals(
        "is another version after the middle, once",
        |asked, reply| match asked.number {
            0 | 1 => middle(asked, reply, |reply| reply).with("ETag", "\"old\""),
            _ => reply,
        },
    )
    .without_checksum(),
    Row::fails(
        "is another version each time",
        |asked, _| {
            let seed = asked.number as u64;
            let content = noise(seed, SMALL).into();
            let reply = Reply::file(&content, asked).cut_after(MIDDLE);
            reply.with("ETag", &format!("\"{seed}\""))
        },
        8,
        &[
            "cause: {url} changed while it was fetched",
            "wait until its publisher is done",
        ],
        Kept::Stale,
    )
    .without_checksum(),
    Row::fails(
        "packed, though asked not to",
        |_, reply| reply.with("Content-Encoding", "gzip"),
        8,
        &[
            "cause: {url} sends its content packed (gzip), though it was asked not to",
            "give a sha256 checksum",
        ],
        Kept::Nothing,
    )
    .without_checksum(),
    Row::heals("packed, which the checksum is of", |_, reply| {
        reply.with("Content-Encoding", "gzip")
    }),
];

/// A model on a server, and a machine that wants it.
struct Stage {
    machine: Machine,
    server: FileServer,
    url: String,
    digest: String,
    size: usize,
    checksum: bool,
}

impl Stage {
    fn new(size: usize, checksum: bool) -> Self {
        let content = noise(size as u64, size);
        let digest = sha256(&content);
        let server = FileServer::start(content);
        Self {
            machine: Machine::new(),
            url: server.url("m.bin"),
            server,
            digest,
            size,
            checksum,
        }
    }

    fn command(&self) -> std::process::Command {
        let checksum = format!("--checksum=sha256:{}", self.digest);
        let mut words = vec!["model", "add", &self.url];
        words.extend(self.checksum.then_some(&*checksum));
        self.machine.command(&words)
    }

    fn run(&self) -> Run {
        self.machine.start(self.command()).finish(RUN_LIMIT)
    }

    /// Asserts that it is there, whole.
    #[track_caller]
    fn assert_there(&self) {
        assert_eq!(self.machine.store().blobs(), [self.digest.as_str()]);
        assert_eq!(self.machine.store().partial(), [""; 0]);
        self.machine.store().assert_sound();
        self.machine.assert_clean();
    }

    /// Asserts that it is not there, and gives how much of it is kept for the next run.
    #[track_caller]
    fn assert_kept(&self) -> usize {
        let store = self.machine.store();
        assert_eq!(store.blobs(), [""; 0]);
        assert_eq!(store.work(), [""; 0]);
        self.machine.assert_clean();
        let kept = usize::try_from(store.kept()).unwrap();
        let names = store.partial();
        match kept {
            0 => assert_eq!(names, [""; 0]),
            _ => assert!(
                matches!(&names[..], [file, journal] if *journal == format!("{file}.json")),
                "{names:?}"
            ),
        }
        kept
    }

    /// With the server in order again it comes, and nothing of it twice.
    #[track_caller]
    fn assert_goes_on(&self, kept: usize) {
        self.server.mend();
        // A server that drips notices that a client has gone one byte later, on each connection.
        let (sent, asked) = (self.server.sent_in_all(), self.server.requests());
        let _ = self.run().code(0);
        self.assert_there();
        let looks = self.server.asked()[asked..]
            .iter()
            .filter(|it| is_look(it))
            .count();
        // A byte tells a look the size.
        let fetched = usize::try_from(self.server.sent_in_all() - sent).unwrap();
        let needed = self.size - kept + looks;
        assert_eq!(fetched, needed, "{kept} were kept, {looks} looks");
    }
}

fn run_row(row: &Row) {
    let stage = Stage::new(row.size, row.checksum);
    stage.server.spoil(row.fault);
    let run = stage.run().code(row.code);
    if row.code != 0 {
        run.says(&format!(
            "error: model `{}` could not be fetched",
            stage.url
        ));
        run.says("  fix: ");
    }
    for text in row.says {
        run.says(&text.replace("{url}", &stage.url));
    }
    if let Kept::All = row.kept {
        return stage.assert_there();
    }
    let kept = stage.assert_kept();
    match row.kept {
        Kept::Bytes(bytes) => assert_eq!(kept, bytes),
        Kept::Some => assert!(0 < kept && kept < row.size, "{kept}"),
        Kept::Stale => return stage.assert_goes_on(0),
        Kept::Nothing | Kept::All => assert_eq!(kept, 0),
    }
    stage.assert_goes_on(kept);
}

#[test]
fn each_fault_of_a_server_ends_as_it_should_and_the_next_run_goes_on() {
    let _ = e2e::Built::debug();
    // Most of their time they wait for the server: all at once.
    let failed: Vec<&str> = thread::scope(|scope| {
        let running: Vec<_> = ROWS
            .iter()
            .map(|row| {
                let thread = thread::Builder::new().name(row.name.to_owned());
                (
                    row.name,
                    thread.spawn_scoped(scope, || run_row(row)).unwrap(),
                )
            })
            .collect();
        let failed = running
            .into_iter()
            .filter_map(|(name, row)| row.join().err().map(|_| name));
        failed.collect()
    });
    assert_eq!(failed, [""; 0]);
}

#[test]
fn a_redirect_to_a_host_that_policy_forbids_is_refused_and_that_host_never_asked() {
    let stage = Stage::new(SMALL, true);
    stage.machine.write(
        "../.config/engine-host/policy.yaml",
        "network: [127.0.0.1]\n",
    );
    let other = FileServer::start(noise(1, 10));
    let to = other.url("m.bin").replace("127.0.0.1", "localhost");
    let forbidden = to.clone();
    stage.server.spoil(move |_, _| Reply::redirect(&forbidden));
    let run = stage.run().code(4);
    run.says(&format!("cause: {to} may not be reached"));
    run.says("policy.yaml:1");
    assert_eq!(other.requests(), 0);
    stage.assert_goes_on(stage.assert_kept());
}

/// A server that sends next to nothing after the middle: the command is ended meanwhile.
fn end_in_the_middle(signal: Signal, code: i32, fault: fn(&Asked, Reply) -> Reply) {
    let stage = Stage::new(SMALL, true);
    stage.server.spoil(fault);
    let running = stage.machine.start(stage.command());
    wait_for(
        "what came to be kept",
        Duration::from_secs(30),
        || match stage.machine.store().kept() {
            kept if kept >= MIDDLE as u64 => Ok(()),
            kept => Err(kept),
        },
    );
    let _ = running.end(signal).code(code);
    let kept = stage.assert_kept();
    assert!((MIDDLE..MIDDLE + 1000).contains(&kept), "{kept}");
    stage.assert_goes_on(kept);
}

#[test]
fn killed_while_a_server_is_silent_a_command_loses_nothing_of_what_came() {
    end_in_the_middle(Signal::KILL, 137, |asked, reply| {
        fetched(asked, reply, |reply| reply.silent_after(MIDDLE))
    });
}

#[test]
fn interrupted_while_a_server_drips_a_command_keeps_each_drop() {
    end_in_the_middle(Signal::INT, 130, |asked, reply| {
        let interval = Duration::from_millis(50);
        fetched(asked, reply, |reply| reply.dripping_after(MIDDLE, interval))
    });
}
