//! The conversation with a keeper: requests out, answers and exits in.

use std::{
    collections::HashMap,
    io,
    os::unix::process::ExitStatusExt,
    process::Child,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot, watch},
};

use super::{
    Ended, Exited, ProcessError, ProcessIdentity, Spec, StartFailure,
    keeper::protocol::{Ask, ChildId, KNOWS_ADOPT, Request, Tell, VERSION},
};

/// Longest time between a keeper's last word and its end.
const REAP_LIMIT: Duration = Duration::from_secs(2);

/// An open conversation. Dropping it closes this side; a host's own keeper then ends its children.
#[derive(Debug)]
pub(super) struct Link {
    keeper: ProcessIdentity,
    /// Lines to be sent; closing it closes the socket's writing side.
    outgoing: mpsc::UnboundedSender<Vec<u8>>,
    shared: Arc<Mutex<Shared>>,
    gone: watch::Receiver<Option<Option<Exited>>>,
}

#[derive(Debug, Default)]
struct Shared {
    next: u64,
    waiting: HashMap<u64, oneshot::Sender<Answer>>,
    exits: HashMap<ChildId, watch::Sender<Option<Ended>>>,
    /// Version that the keeper speaks with us, once it has said so.
    version: u32,
    over: bool,
}

#[derive(Debug)]
enum Answer {
    Started(Started),
    NotStarted(StartFailure),
    Done,
    Refused(String),
}

/// A child that runs.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) child: ChildId,
    pub(super) process: ProcessIdentity,
    pub(super) exit: watch::Receiver<Option<Ended>>,
}

impl Link {
    /// Begins a conversation with a keeper that was just started.
    pub(super) fn new(
        socket: std::os::unix::net::UnixStream,
        child: Child,
    ) -> io::Result<Arc<Self>> {
        let pid = i32::try_from(child.id()).expect("a pid is a positive i32");
        // It is not reaped yet, so it has an entry even if it has ended.
        let keeper = ProcessIdentity::of(pid).ok_or(io::ErrorKind::NotFound)?;
        let link = Self::begin(UnixStream::from_std(socket)?, keeper, reap(child));
        link.order(Ask::Hello { version: VERSION });
        Ok(link)
    }

    /// Begins a conversation with the keeper of another host.
    pub(super) async fn to(
        socket: UnixStream,
        keeper: ProcessIdentity,
    ) -> Result<Arc<Self>, ProcessError> {
        let link = Self::begin(socket, keeper, async { None });
        link.ask("hello", Ask::Hello { version: VERSION }).await?;
        Ok(link)
    }

    /// `end`: how the keeper ended, once it has said its last word.
    fn begin(
        socket: UnixStream,
        keeper: ProcessIdentity,
        end: impl Future<Output = Option<Exited>> + Send + 'static,
    ) -> Arc<Self> {
        let (reader, writer) = socket.into_split();
        let (outgoing, lines) = mpsc::unbounded_channel();
        let (tell_gone, gone) = watch::channel(None);
        let shared = Arc::new(Mutex::new(Shared::default()));
        tokio::spawn(write(writer, lines));
        let reading = read(reader, Arc::clone(&shared), outgoing.downgrade());
        tokio::spawn(async move {
            reading.await;
            let _ = tell_gone.send(Some(end.await));
        });
        Arc::new(Self {
            keeper,
            outgoing,
            shared,
            gone,
        })
    }

    pub(super) fn keeper(&self) -> ProcessIdentity {
        self.keeper
    }

    /// Whether the keeper is of a version that knows neither limits nor adopters, as far as it has said.
    pub(super) fn is_old(&self) -> bool {
        (1..KNOWS_ADOPT).contains(&lock(&self.shared).version)
    }

    /// Whether the keeper will say nothing more.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.shared).over
    }

    /// Asks for a child. The inner error is the keeper's word that it could not be started.
    pub(super) async fn spawn(
        &self,
        spec: Spec,
    ) -> Result<Result<Started, StartFailure>, ProcessError> {
        let spec = Box::new(spec);
        match self.answer("spawn", Ask::Spawn { spec }).await? {
            Answer::Started(started) => Ok(Ok(started)),
            Answer::NotStarted(reason) => Ok(Err(reason)),
            Answer::Refused(reason) => Err(refused("spawn", reason)),
            Answer::Done => Err(refused("spawn", "it says `done`".to_owned())),
        }
    }

    /// Takes over a child that another host has started; where its end will be told.
    pub(super) async fn adopt(
        &self,
        child: ChildId,
    ) -> Result<watch::Receiver<Option<Ended>>, ProcessError> {
        let (sender, exit) = watch::channel(None);
        // Before it is asked for: its end may be told in the same moment.
        lock(&self.shared).exits.insert(child, sender);
        let ask = match self.is_old() {
            false => Ask::Adopt { child },
            // No signal at all: only whether the child is there.
            true => Ask::Signal { child, signal: 0 },
        };
        let adopted = self.ask("adopt", ask).await;
        if adopted.is_err() {
            lock(&self.shared).exits.remove(&child);
        }
        adopted.map(|()| exit)
    }

    /// Asks for something that is done or refused.
    pub(super) async fn ask(&self, operation: &'static str, ask: Ask) -> Result<(), ProcessError> {
        match self.answer(operation, ask).await? {
            Answer::Refused(reason) => Err(refused(operation, reason)),
            _ => Ok(()),
        }
    }

    /// Sends without waiting. Nothing is lost if the keeper is gone: then so is the child.
    pub(super) fn order(&self, ask: Ask) {
        let id = self.number();
        let _ = self.outgoing.send(line(id, ask).unwrap_or_default());
    }

    /// The error of a conversation that is over, with how the keeper ended.
    pub(super) async fn gone(&self) -> ProcessError {
        let mut gone = self.gone.clone();
        let exited = match gone.wait_for(Option::is_some).await {
            Ok(exited) => exited.flatten(),
            Err(_) => None,
        };
        ProcessError::KeeperGone { exited }
    }

    async fn answer(&self, operation: &'static str, ask: Ask) -> Result<Answer, ProcessError> {
        let id = self.number();
        let line = line(id, ask).map_err(|error| refused(operation, error.to_string()))?;
        let receiver = self.expect_answer(id);
        let _ = self.outgoing.send(line);
        match receiver.await {
            Ok(answer) => Ok(answer),
            Err(_) => Err(self.gone().await),
        }
    }

    /// Where the answer to a request will come; closed at once when there will be none.
    fn expect_answer(&self, id: u64) -> oneshot::Receiver<Answer> {
        let (sender, receiver) = oneshot::channel();
        let mut shared = lock(&self.shared);
        if !shared.over {
            shared.waiting.insert(id, sender);
        }
        receiver
    }

    fn number(&self) -> u64 {
        let mut shared = lock(&self.shared);
        shared.next += 1;
        shared.next
    }
}

fn refused(operation: &'static str, reason: String) -> ProcessError {
    ProcessError::Keeper { operation, reason }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().expect("no holder panics")
}

/// One request as it is sent. Fails for paths that are no UTF-8.
fn line(id: u64, ask: Ask) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Request { id, ask })?;
    line.push(b'\n');
    Ok(line)
}

async fn write(mut writer: OwnedWriteHalf, mut lines: mpsc::UnboundedReceiver<Vec<u8>>) {
    while let Some(line) = lines.recv().await {
        if writer.write_all(&line).await.is_err() {
            return;
        }
    }
}

async fn read(
    reader: OwnedReadHalf,
    shared: Arc<Mutex<Shared>>,
    outgoing: mpsc::WeakUnboundedSender<Vec<u8>>,
) {
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(text)) = lines.next_line().await {
        // A line this version does not know is none of its business.
        if let Ok(tell) = serde_json::from_str(&text)
            && let Some(unwanted) = lock(&shared).take(tell)
            && let Some(outgoing) = outgoing.upgrade()
        {
            let kill = line(0, Ask::Kill { child: unwanted });
            let _ = outgoing.send(kill.unwrap_or_default());
        }
    }
    let mut shared = lock(&shared);
    shared.over = true;
    shared.waiting.clear();
    shared.exits.clear();
}

impl Shared {
    /// Hands on what the keeper told; returns a child that was started for nobody: its caller was
    /// cancelled meanwhile.
    fn take(&mut self, tell: Tell) -> Option<ChildId> {
        let (id, answer) = match tell {
            Tell::Started { id, child, process } => {
                let (sender, exit) = watch::channel(None);
                self.exits.insert(child, sender);
                let started = Started {
                    child,
                    process,
                    exit,
                };
                (id, Answer::Started(started))
            }
            Tell::NotStarted { id, reason } => (id, Answer::NotStarted(reason)),
            Tell::Hello { id, version } => {
                self.version = version;
                (id, Answer::Done)
            }
            Tell::Done { id } => (id, Answer::Done),
            Tell::Refused { id, reason } => (id, Answer::Refused(reason)),
            Tell::Exited { child, ended } => {
                if let Some(exit) = self.exits.remove(&child) {
                    let _ = exit.send(Some(ended));
                }
                return None;
            }
        };
        let unheard = match self.waiting.remove(&id) {
            Some(waiting) => waiting.send(answer).err(),
            None => Some(answer),
        };
        match unheard {
            Some(Answer::Started(started)) => Some(started.child),
            _ => None,
        }
    }
}

/// Waits for a keeper that has closed its side, so that it does not stay a zombie.
async fn reap(mut child: Child) -> Option<Exited> {
    let limit = tokio::time::Instant::now() + REAP_LIMIT;
    while tokio::time::Instant::now() < limit {
        match child.try_wait() {
            Ok(Some(status)) => {
                return Some(Exited::of(status.code(), status.signal()));
            }
            Ok(None) => tokio::time::sleep(Duration::from_millis(2)).await,
            Err(_) => return None,
        }
    }
    None
}
