//! Those who use the pools while the storm blows: each takes leases and gives them back, or goes away with
//! them.

use std::{
    io::{Read as _, Write as _},
    ops::Add,
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use serde_json::Value;

use super::{Dice, PAUSE};

/// How many there are.
const COUNT: u64 = 3;

/// Shortest time that a lease is asked for, and how much longer it may be. A pool drains for longer.
const TIME_MS: (usize, usize) = (150, 1000);

/// Longest time a daemon may take for an answer; one that was stopped gives none.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// Clients that are at it.
pub(super) struct Clients {
    over: Arc<AtomicBool>,
    all: Vec<JoinHandle<Leases>>,
}

/// What became of leases.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Leases {
    pub(super) taken: usize,
    pub(super) given_back: usize,
    /// By a client that has never come back.
    pub(super) left: usize,
}

impl Add for Leases {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            taken: self.taken + other.taken,
            given_back: self.given_back + other.given_back,
            left: self.left + other.left,
        }
    }
}

impl Clients {
    /// Begins to lease these pools from whatever daemon answers on this socket.
    pub(super) fn begin(seed: u64, socket: &Path, pools: &[String]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let all = (0..COUNT).map(|number| {
            let client = Client {
                dice: Dice::of(seed.wrapping_mul(COUNT).wrapping_add(number)),
                socket: socket.to_owned(),
                pools: pools.to_vec(),
            };
            let over = Arc::clone(&over);
            std::thread::spawn(move || client.lease_until(&over))
        });
        Self {
            all: all.collect(),
            over,
        }
    }

    /// Lets each finish what it is at.
    pub(super) fn finish(mut self) -> Leases {
        self.over.store(true, Ordering::Relaxed);
        let all = std::mem::take(&mut self.all).into_iter();
        let counts = all.map(|client| {
            client
                .join()
                .expect("every answer was one of those allowed")
        });
        counts.fold(Leases::default(), Leases::add)
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

struct Client {
    dice: Dice,
    socket: PathBuf,
    pools: Vec<String>,
}

impl Client {
    fn lease_until(mut self, over: &AtomicBool) -> Leases {
        let mut leases = Leases::default();
        while !over.load(Ordering::Relaxed) {
            leases = leases + self.lease();
            self.pause(PAUSE);
        }
        leases
    }

    /// Takes a lease, where there is one to have, and does one thing or another with it.
    fn lease(&mut self) -> Leases {
        let pool = self.pools[self.dice.below(self.pools.len())].clone();
        let time = TIME_MS.0 + self.dice.below(TIME_MS.1);
        let leases = format!("/v1/pools/{pool}/leases");
        let lease = match self.ask("POST", &format!("{leases}?ttl_ms={time}")) {
            Some((201, lease)) => lease,
            // Not ready, all taken, or nobody is there.
            Some((503, _)) | None => return Leases::default(),
            Some(other) => panic!("{pool}: {other:?}"),
        };
        let own = format!("{leases}/{}", lease["lease_id"].as_str().expect("a name"));
        self.pause(Duration::from_millis(time as u64));
        if self.dice.below(2) == 0 {
            self.expect_known("POST", &format!("{own}/renew"), 200);
            self.pause(Duration::from_millis(time as u64));
        }
        // One in three dies with it.
        let given_back = self.dice.below(3) > 0 && self.expect_known("DELETE", &own, 204);
        Leases {
            taken: 1,
            given_back: usize::from(given_back),
            left: usize::from(!given_back),
        }
    }

    /// Asks for something that succeeds, unless the lease is over: expired, its engine's or its daemon's
    /// end; whether it did.
    fn expect_known(&self, method: &str, target: &str, status: u16) -> bool {
        match self.ask(method, target) {
            Some((answered, _)) if answered == status => true,
            Some((404, _)) | None => false,
            Some(other) => panic!("{method} {target}: {other:?}"),
        }
    }

    /// Status and document of the answer; `None` where no daemon gave one.
    fn ask(&self, method: &str, target: &str) -> Option<(u16, Value)> {
        let mut stream = UnixStream::connect(&self.socket).ok()?;
        stream.set_read_timeout(Some(ANSWER_LIMIT)).ok()?;
        let head = format!("{method} {target} HTTP/1.1\r\nHost: localhost\r\n");
        stream.write_all(head.as_bytes()).ok()?;
        stream.write_all(b"Connection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or_default()))
    }

    /// Pauses are part of what the seed decides: no condition stands for them.
    fn pause(&mut self, longest: Duration) {
        std::thread::sleep(longest.mul_f64(self.dice.share()));
    }
}
