use std::{fs, time::Duration};

use jiff::SignedDuration;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::store::{Begin, Ingredients, Limits, Patience, Reason, lock};

/// A result of this number that was made, and last used, at the beginning of time.
pub(super) fn kept(kind: Kind, name: &str, number: usize) -> Kept {
    let ingredients = Ingredients::new().with("number", number);
    Kept {
        manifest: Manifest {
            key: ingredients.key(kind),
            name: name.to_owned(),
            ingredients,
            created: Timestamp::UNIX_EPOCH,
            has_tree: true,
            result: json!(null),
        },
        path: PathBuf::from("/nowhere"),
        last_used: Timestamp::UNIX_EPOCH,
        last_used_by: None,
    }
}

/// Takes the result of this number, or makes it, with a store of its own that is dropped in the end.
async fn taken(store: &Store, number: u32) -> Key {
    let ingredients = Ingredients::new().with("number", number);
    let key = ingredients.key(Kind::Build);
    let cancel = CancellationToken::new();
    let patience = Patience {
        limit: Duration::from_secs(30),
        cancel: &cancel,
        on_wait: &|_| {},
    };
    let begun = store.begin(Kind::Build, "toy/build", ingredients, "building", patience);
    if let Begin::Work(work) = begun.await.unwrap() {
        fs::write(work.tree().join("f"), "content").unwrap();
        work.publish(json!(null)).unwrap();
    }
    key
}

fn sweep(results: &Results, limits: Limits, dry: bool) -> Vec<(String, Reason)> {
    let swept = results.sweep(limits, &[], dry, &CancellationToken::new());
    let removed = swept.unwrap().removed.into_iter();
    removed.map(|one| (one.key, one.reason)).collect()
}

#[tokio::test]
async fn what_a_store_took_stays_until_its_last_copy_is_gone() {
    let home = tempfile::tempdir().unwrap();
    let open = || Store::at(home.path().join("store"));
    let results = Results::of(&open());
    let run = open().used_by("chat");
    let key = taken(&run, 1).await;
    // A hit is used as what was made is.
    let other = open();
    taken(&other, 1).await;
    let everything = Limits {
        max_size_bytes: Some(0),
        older_than: Some(SignedDuration::ZERO),
    };
    for held in [run.clone(), other] {
        assert_eq!(results.user_of(&key, &[]).unwrap(), Some(User::Run));
        assert_eq!(sweep(&results, everything, false), []);
        let one = results.select("toy/build").unwrap();
        assert_eq!(one.last_used_by.as_deref(), Some("chat"));
        let error = results.remove(&one, &[], false, &CancellationToken::new());
        let error = error.unwrap_err();
        assert!(matches!(error, ResultError::InUse { .. }), "{error}");
        drop(held);
    }
    // What an engine was given goes on.
    let uses = run.uses();
    drop(run);
    assert_eq!(results.user_of(&key, &[]).unwrap(), Some(User::Run));
    drop(uses);
    let due = [(key.hex.clone(), Reason::Unused)];
    assert_eq!(sweep(&results, everything, true), due);
    assert!(open().find(&key).unwrap().is_some(), "only said");
    assert_eq!(sweep(&results, everything, false), due);
    assert_eq!(open().find(&key).unwrap(), None);
    assert_eq!(
        fs::read_dir(home.path().join("store/tmp")).unwrap().count(),
        0
    );
    taken(&open(), 1).await;
}

#[tokio::test]
async fn an_engines_record_keeps_what_it_reads_and_no_source() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::at(home.path().join("store"));
    let key = taken(&store, 1).await;
    let results = Results::of(&store);
    let reads = |kind: Kind| InUse {
        path: store
            .path_of(&Key {
                kind,
                ..key.clone()
            })
            .join("bin/engine"),
        pool: "chat".to_owned(),
    };
    let pools = User::Pools(vec!["chat".to_owned()]);
    let engines = [reads(Kind::Build), reads(Kind::Build)];
    assert_eq!(results.user_of(&key, &engines).unwrap(), Some(pools));
    let source = Key {
        kind: Kind::Source,
        ..key.clone()
    };
    let engines = [reads(Kind::Source)];
    assert_eq!(results.user_of(&source, &engines).unwrap(), None);
}

#[tokio::test]
async fn who_takes_a_result_while_it_is_removed_waits_and_makes_it_again() {
    let home = tempfile::tempdir().unwrap();
    let open = || Store::at(home.path().join("store"));
    let key = taken(&open(), 1).await;
    let store = open();
    // As far as a clean-up is before its rename.
    let making = lock::try_lock(&store.lock_path(&key.slug()), "removing").unwrap();
    let alone = lock::try_lock_quietly(&store.use_lock(&key)).unwrap();
    assert!(making.is_some() && alone.is_some());
    let removal = async {
        tokio::task::yield_now().await;
        fs::remove_dir_all(store.directory_of(&key)).unwrap();
        drop((making, alone));
    };
    let user = open();
    let (again, ()) = tokio::join!(taken(&user, 1), removal);
    assert_eq!(again, key);
    assert!(store.find(&key).unwrap().is_some());
}

#[tokio::test]
async fn what_a_crash_left_is_counted_and_goes() {
    let home = tempfile::tempdir().unwrap();
    let store = Store::at(home.path().join("store"));
    let results = Results::of(&store);
    let left = [
        store.root().join("tmp/removed.0123/it"),
        store.root().join("build/0123"),
    ];
    fs::create_dir_all(store.root().join("locks")).unwrap();
    for path in &left {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("f"), [1; 5000]).unwrap();
    }
    let sweep = |dry| {
        let cancel = CancellationToken::new();
        results.sweep(Limits::default(), &[], dry, &cancel).unwrap()
    };
    let would = sweep(true);
    assert!(would.rubbish_bytes >= 10_000, "{would:?}");
    assert!(left.iter().all(|path| path.exists()), "only said");
    assert_eq!(sweep(false), would);
    assert!(!left.iter().any(|path| path.exists()));
    assert_eq!(sweep(true), Swept::default());
}
