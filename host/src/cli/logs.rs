//! `host logs`: an engine's log, and what is added to it.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::MetadataExt,
    path::PathBuf,
    time::Duration,
};

use crate::{
    config::paths::Home,
    engine::{EngineError, instances, logged},
};

/// Pause between two looks for more.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(100);

/// Most bytes looked through for the last lines.
const TAIL_BYTES: u64 = 4 * 1024 * 1024;

/// Prints the last `lines` lines of a pool's newest log (of any pool's, where none is named), then,
/// with `follow`, what is added until the engine is gone. A pool is named by itself or, where it has
/// several replicas, as `<pool>-<replica>`.
pub async fn run(
    home: &Home,
    pool: Option<&str>,
    follow: bool,
    lines: usize,
    out: &mut dyn Write,
) -> Result<(), EngineError> {
    let path = find(home, pool)?;
    let failed = |source| EngineError::Output { source };
    let mut file = File::open(&path).map_err(failed)?;
    let mut position = print_tail(&mut file, lines, out).map_err(failed)?;
    if !follow {
        return Ok(());
    }
    loop {
        // Asked before reading: what it says last is then still read.
        let lives = instances(home)?.iter().any(|engine| engine.log == path);
        position = print_new(&mut file, position, out).map_err(failed)?;
        if !lives {
            return Ok(());
        }
        tokio::time::sleep(FOLLOW_INTERVAL).await;
    }
}

fn find(home: &Home, pool: Option<&str>) -> Result<PathBuf, EngineError> {
    let logs = logged(home);
    let is_meant = |name: &str| match pool {
        None => true,
        Some(pool) => {
            name == pool
                || name
                    .rsplit_once('-')
                    .is_some_and(|(known, _)| known == pool)
        }
    };
    if let Some((_, path)) = logs.iter().find(|(name, _)| is_meant(name)) {
        return Ok(path.clone());
    }
    Err(EngineError::NoLog {
        pool: pool.map(str::to_owned),
        known: logs.into_iter().map(|(name, _)| name).collect(),
    })
}

fn print_tail(file: &mut File, lines: usize, out: &mut dyn Write) -> io::Result<u64> {
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
    out.write_all(tail(&bytes, lines))?;
    out.flush()?;
    Ok(length.max(file.stream_position()?))
}

/// The last lines of a text.
fn tail(bytes: &[u8], lines: usize) -> &[u8] {
    let ends = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    let start = ends
        .iter()
        .enumerate()
        .rev()
        .filter(|(_, byte)| **byte == b'\n')
        .nth(lines.saturating_sub(1))
        .map_or(0, |(at, _)| at + 1);
    if lines == 0 { &[] } else { &bytes[start..] }
}

/// Prints what came since; starts over where the log has been cut in the middle.
fn print_new(file: &mut File, position: u64, out: &mut dyn Write) -> io::Result<u64> {
    let length = file.metadata()?.size();
    let from = if length < position {
        length / 2
    } else {
        position
    };
    file.seek(SeekFrom::Start(from))?;
    let copied = io::copy(file, out)?;
    out.flush()?;
    Ok(from + copied)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_whole() {
        let text = b"one\ntwo\nthree\n";
        assert_eq!(tail(text, 2), b"two\nthree\n");
        assert_eq!(tail(text, 9), text);
        assert_eq!(tail(text, 0), b"");
        assert_eq!(tail(b"one\nunfinished", 1), b"unfinished");
        assert_eq!(tail(b"", 3), b"");
    }

    #[tokio::test]
    async fn a_pool_is_found_by_its_name_and_another_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let logs = home.logs().join("chat-r0");
        std::fs::create_dir_all(&logs).unwrap();
        std::fs::write(logs.join("engine-1.log"), "hello\n").unwrap();
        std::os::unix::fs::symlink("engine-1.log", logs.join("latest.log")).unwrap();
        for name in [None, Some("chat"), Some("chat-r0")] {
            let mut out = Vec::new();
            run(&home, name, true, 10, &mut out).await.unwrap();
            assert_eq!(out, b"hello\n");
        }
        let error = run(&home, Some("chit"), false, 1, &mut Vec::new())
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "there is no engine log of pool `chit`");
    }
}
