//! An engine's log as an answer: its last lines, then what is added, in whole lines and without secrets.

use std::{io, path::PathBuf};

use futures_util::{Stream, stream};

use crate::{
    config::paths::Home,
    engine::{EngineError, Lines, Tail},
    narrate::Secrets,
};

/// Which part of a log is asked for.
pub(super) struct Wanted {
    pub(super) home: Home,
    pub(super) path: PathBuf,
    /// Lines from its end.
    pub(super) lines: usize,
    /// Whether what is added is given too, until its engine is gone.
    pub(super) follow: bool,
}

/// What is still to be given.
#[derive(Clone, Copy)]
enum Extent {
    /// What was in it when it was asked for.
    Last,
    /// That, and what is added.
    Follow,
}

/// How far a log has been given.
enum At {
    Start(Wanted),
    Reading(Tail, Lines, Extent),
    End,
}

/// A log, as it is asked for: nothing is read before it is asked for more, so that a slow reader costs
/// one part of it. Lines are given whole, so that a secret in one is always masked.
pub(super) fn log(
    wanted: Wanted,
    secrets: &Secrets,
) -> impl Stream<Item = io::Result<Vec<u8>>> + Send + use<> {
    let secrets = secrets.clone();
    stream::unfold(At::Start(wanted), move |at| {
        let secrets = secrets.clone();
        async move {
            let given = match at {
                At::Start(wanted) => begin(wanted).await,
                At::Reading(tail, lines, extent) => go_on(tail, lines, extent).await,
                At::End => return None,
            };
            Some(match given {
                Ok((bytes, next)) => (masked(secrets, bytes).await, next),
                Err(error) => (Err(io::Error::other(error)), At::End),
            })
        }
    })
}

async fn begin(wanted: Wanted) -> Result<(Vec<u8>, At), EngineError> {
    let Wanted {
        home,
        path,
        lines,
        follow,
    } = wanted;
    let opened = tokio::task::spawn_blocking(move || Tail::open(&home, &path, lines)).await;
    let tail = opened.expect("reading does not panic")?;
    let extent = match follow {
        true => Extent::Follow,
        false => Extent::Last,
    };
    go_on(tail, Lines::default(), extent).await
}

async fn go_on(
    mut tail: Tail,
    mut lines: Lines,
    extent: Extent,
) -> Result<(Vec<u8>, At), EngineError> {
    loop {
        let part = match extent {
            Extent::Last => tail.next_of_last().await?,
            Extent::Follow => tail.next().await?,
        };
        let Some(bytes) = part else {
            return Ok((lines.rest(), At::End));
        };
        let whole = lines.add(bytes);
        if !whole.is_empty() {
            return Ok((whole, At::Reading(tail, lines, extent)));
        }
    }
}

/// The same without secrets. Much of it takes a while: not where others wait.
async fn masked(secrets: Secrets, bytes: Vec<u8>) -> io::Result<Vec<u8>> {
    let masking = tokio::task::spawn_blocking(move || {
        let text = String::from_utf8_lossy(&bytes);
        secrets.mask(&text).into_owned().into_bytes()
    });
    masking.await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt as _;

    use super::*;

    async fn given(text: &str, lines: usize, follow: bool) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("engine.log");
        std::fs::write(&path, text).unwrap();
        let wanted = Wanted {
            home: Home::at(directory.path()),
            path,
            lines,
            follow,
        };
        let log = log(wanted, &Secrets::default());
        let all: Vec<Vec<u8>> = log.map(Result::unwrap).collect().await;
        String::from_utf8(all.concat()).unwrap()
    }

    #[tokio::test]
    async fn the_last_lines_come_first_and_a_dead_engine_s_log_ends() {
        let text = "one\ntwo\nthree\nunfinished";
        for (lines, expected) in [(2, "three\nunfinished"), (9, text), (0, "")] {
            for follow in [false, true] {
                assert_eq!(given(text, lines, follow).await, expected);
            }
        }
    }

    #[tokio::test]
    async fn secrets_are_masked() {
        let text = "token hf_plantedplantedplanted\n";
        assert_eq!(given(text, 1, true).await, "token ***\n");
    }
}
