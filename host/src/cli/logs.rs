//! `host logs`: an engine's log, and what is added to it, without the secrets that are known here: those
//! that look like one, and what variables hold whose names say so.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use crate::{
    config::{environment::Environment, paths::Home},
    engine::{EngineError, Lines, Tail, logged},
    narrate::Secrets,
};

/// Prints the last `lines` lines of a pool's newest log (of any pool's, where none is named), then,
/// with `follow`, what is added until the engine is gone. A pool is named by itself or, where it has
/// several replicas, as `<pool>-<replica>`.
pub async fn run(
    home: &Home,
    pool: Option<&str>,
    follow: bool,
    lines: usize,
    secrets: &Secrets,
    out: &mut dyn Write,
) -> Result<(), EngineError> {
    let path = find(home, pool)?;
    let mut whole = Lines::default();
    let mut tail = Tail::open(home, &path, lines)?;
    while let Some(bytes) = tail.next_of_last().await? {
        print(whole.add(bytes), secrets, out)?;
    }
    while follow && let Some(bytes) = tail.next().await? {
        print(whole.add(bytes), secrets, out)?;
    }
    print(whole.rest(), secrets, out)
}

/// Registers what variables hold whose names say that it is secret: an engine that has it may print it.
pub(super) fn keep_secret(secrets: &Secrets, environment: &Environment) {
    for (name, value) in environment.all() {
        let assigned = format!("{name}=x");
        if secrets.mask(&assigned) != assigned {
            secrets.register(&value);
        }
    }
}

fn print(bytes: Vec<u8>, secrets: &Secrets, out: &mut dyn Write) -> Result<(), EngineError> {
    let text = String::from_utf8_lossy(&bytes);
    let told = secrets.mask(&text);
    let written = out.write_all(told.as_bytes()).and_then(|()| out.flush());
    written.map_err(|source: io::Error| EngineError::Output { source })
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

#[cfg(test)]
mod tests {
    use super::*;

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
            let secrets = Secrets::default();
            run(&home, name, true, 10, &secrets, &mut out)
                .await
                .unwrap();
            assert_eq!(out, b"hello\n");
        }
        let (secrets, mut out) = (Secrets::default(), Vec::new());
        let chit = run(&home, Some("chit"), false, 1, &secrets, &mut out);
        let error = chit.await.unwrap_err();
        assert_eq!(error.to_string(), "there is no engine log of pool `chit`");
    }

    #[tokio::test]
    async fn what_an_engine_prints_of_secrets_is_masked() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let logs = home.logs().join("chat-r0");
        std::fs::create_dir_all(&logs).unwrap();
        let text = "uses hf_plantedplantedplanted\nand plain-words of SERVICE\nlast";
        std::fs::write(logs.join("engine-1.log"), text).unwrap();
        let secrets = Secrets::default();
        let pairs = [("SERVICE_PASSWORD", "plain-words"), ("SHELL", "last")];
        keep_secret(&secrets, &Environment::from_pairs(pairs));
        let mut out = Vec::new();
        run(&home, None, true, 10, &secrets, &mut out)
            .await
            .unwrap();
        let printed = String::from_utf8(out).unwrap();
        assert_eq!(printed, "uses ***\nand *** of SERVICE\nlast");
    }
}
