use std::{fs, path::Path, time::Duration};

use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;

fn store(root: &Path) -> Store {
    Store::open(&Home::at(root))
}

fn made_of(argument: &str) -> Ingredients {
    Ingredients::new().with("cmake argument", [argument])
}

async fn begin(store: &Store, argument: &str) -> Begin {
    let cancel = CancellationToken::new();
    let patience = Patience {
        limit: Duration::from_secs(30),
        cancel: &cancel,
        on_wait: &|_| {},
    };
    store
        .begin(
            Kind::Build,
            "toy/build",
            made_of(argument),
            "building",
            patience,
        )
        .await
        .unwrap()
}

async fn work(store: &Store, argument: &str) -> Work {
    match begin(store, argument).await {
        Begin::Work(work) => work,
        Begin::Hit(entry) => panic!("already there: {entry:?}"),
    }
}

#[tokio::test]
async fn what_is_published_is_found_read_only_and_explains_the_next_miss() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    assert_eq!(
        store.explain(Kind::Build, "toy/build", &made_of("-DX=1")),
        Miss::First
    );
    let made = work(&store, "-DX=1").await;
    let scratch = made.scratch(None, &[]).unwrap();
    fs::create_dir_all(scratch.join("bin")).unwrap();
    fs::write(scratch.join("bin/engine"), "x").unwrap();
    made.outputs(None).take(Path::new("bin/engine")).unwrap();
    let entry = made.publish(json!({"attempt": 0})).unwrap();
    assert_eq!(fs::read(entry.path.join("bin/engine")).unwrap(), b"x");
    assert!(!entry.path.with_file_name("work").exists());
    match begin(&store, "-DX=1").await {
        Begin::Hit(hit) => assert_eq!(*hit, entry),
        Begin::Work(_) => panic!("built twice"),
    }
    let miss = store.explain(Kind::Build, "toy/build", &made_of("-DX=2"));
    assert_eq!(
        miss.reason().unwrap(),
        "cmake argument changed: -DX=1 → -DX=2"
    );
    assert_eq!(fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);
}

#[tokio::test]
async fn two_at_once_make_it_once() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let first = work(&store, "a").await;
    let second = begin(&store, "a");
    let publish = async {
        tokio::task::yield_now().await;
        fs::write(first.tree().join("f"), "x").unwrap();
        first.publish(json!(null)).unwrap();
    };
    let (second, ()) = tokio::join!(second, publish);
    assert!(matches!(second, Begin::Hit(_)));
}

#[tokio::test]
async fn abandoned_work_leaves_nothing_and_rubbish_of_a_crash_is_swept() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    drop(work(&store, "a").await);
    assert_eq!(fs::read_dir(store.root().join("tmp")).unwrap().count(), 0);

    // A crash leaves a directory that nobody holds.
    let crashed = store.root().join("tmp/build-0123.abc");
    fs::create_dir_all(crashed.join("work")).unwrap();
    let busy = work(&store, "b").await;
    assert_eq!(store.sweep().unwrap(), 1);
    assert!(!crashed.exists());
    assert!(busy.tree().exists(), "work in progress is left alone");

    // A file that was being written tells by its age that nobody writes it any more.
    fs::create_dir_all(store.blobs()).unwrap();
    let [old, new] = [".write-old", ".write-new"].map(|name| store.blobs().join(name));
    let _ = fs::File::create(&new).unwrap();
    let long_ago = std::time::SystemTime::now() - std::time::Duration::from_secs(2 * 60 * 60);
    let file = fs::File::create(&old).unwrap();
    file.set_modified(long_ago).unwrap();
    store.sweep().unwrap();
    assert!(!old.exists() && new.exists());
}

#[tokio::test]
async fn a_result_without_manifest_is_rubbish_and_is_made_again() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let path = store.path_of(&made_of("a").key(Kind::Build));
    fs::create_dir_all(&path).unwrap();
    fs::write(path.join("half"), "x").unwrap();
    let made = work(&store, "a").await;
    assert!(!path.exists());
    let entry = made.publish(json!({"output": "text"})).unwrap();
    assert!(!entry.path.exists(), "a result may be all manifest");
    assert!(matches!(begin(&store, "a").await, Begin::Hit(_)));
}

#[tokio::test]
async fn content_that_somebody_deleted_is_made_again() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let made = work(&store, "a").await;
    fs::write(made.tree().join("f"), "x").unwrap();
    let entry = made.publish(json!(null)).unwrap();
    fs::remove_dir_all(&entry.path).unwrap();
    assert_eq!(store.find(&entry.manifest.key).unwrap(), None);
    work(&store, "a").await;
}

#[tokio::test]
async fn commands_of_a_killed_host_never_write_into_the_next_run() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    // The host is gone, and its lock of the key with it; a compiler of it still writes.
    let killed = store
        .temporary(&made_of("a").key(Kind::Build).slug())
        .unwrap();
    let left = killed.path().join("work");
    fs::create_dir(&left).unwrap();
    let again = work(&store, "a").await;
    let scratch = again.scratch(None, &[]).unwrap();
    fs::write(left.join("late"), "x").unwrap();
    assert_ne!(left, scratch);
    assert!(fs::read_dir(&scratch).unwrap().next().is_none());
    assert_eq!(store.sweep().unwrap(), 0, "both are held");
    drop(killed);
    assert!(!left.exists() && scratch.exists());
}

#[tokio::test]
async fn places_are_handed_over_with_the_scratch_directory_and_outputs_come_back() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    let home = tempfile::tempdir().unwrap();
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let somebody = crate::process::Identity {
        uid: 64_123,
        gid: 64_123,
    };
    let made = work(&store(home.path()), "a").await;
    let scratch = made.scratch(Some(somebody), &[".home"]).unwrap();
    let owner = |path: &Path| fs::metadata(path).unwrap().uid();
    assert_eq!(owner(&scratch), somebody.uid);
    assert_eq!(owner(&scratch.join(".home")), somebody.uid);
    assert_eq!(owner(scratch.parent().unwrap()), 0);
    // What root owns was not made by the build, whatever name it has there.
    fs::write(scratch.join("out"), "x").unwrap();
    let outputs = made.outputs(Some(somebody));
    let error = outputs.take(Path::new("out")).unwrap_err();
    assert!(matches!(error, StoreError::Unsound { .. }), "{error}");
    std::os::unix::fs::chown(scratch.join("out"), Some(somebody.uid), None).unwrap();
    outputs.take(Path::new("out")).unwrap();
    assert_eq!(owner(&made.tree().join("out")), 0);
}

#[test]
fn a_blob_is_hashed_again_only_when_it_looks_different() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let partial = store.prepare_partial("x").unwrap();
    fs::write(&partial, "hello").unwrap();
    let sha256 = digest_file(&partial).unwrap();
    let blob = store.publish_blob(&partial, &sha256, "test").unwrap();
    assert_eq!(store.blob(&sha256).unwrap().unwrap(), blob);
    let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&blob.path).unwrap());
    assert_eq!(mode & 0o777, 0o444);

    // Touched but equal: verified anew.
    fs::remove_file(&blob.path).unwrap();
    fs::write(&blob.path, "hello").unwrap();
    let again = store.blob(&sha256).unwrap().unwrap();
    assert_ne!(again.identity, blob.identity);

    // Changed: no longer a blob.
    fs::write(&blob.path, "jello").unwrap();
    assert_eq!(store.blob(&sha256).unwrap(), None);

    // Killed between file and record: the file counts once it is hashed.
    fs::write(&blob.path, "hello").unwrap();
    fs::remove_file(store.blobs().join(format!("{sha256}.json"))).unwrap();
    assert_eq!(store.blob(&sha256).unwrap().unwrap().sha256, sha256);
}

#[test]
fn a_file_that_its_owner_wrote_to_since_it_was_hashed_is_not_adopted() {
    let root = tempfile::tempdir().unwrap();
    let store = store(root.path());
    let file = root.path().join("m.gguf");
    fs::write(&file, "model").unwrap();
    let witness = store.witness(&file).unwrap();
    fs::write(&file, "other").unwrap();
    let error = store.adopt_blob(&witness).unwrap_err();
    assert!(matches!(error, StoreError::Unsound { .. }), "{error}");
    assert_eq!(fs::read_dir(store.blobs()).unwrap().count(), 0);
    // Another name of it is no other content.
    let witness = store.witness(&file).unwrap();
    fs::hard_link(&file, root.path().join("again.gguf")).unwrap();
    let blob = store.adopt_blob(&witness).unwrap();
    assert_eq!(store.blob(&witness.sha256).unwrap(), Some(blob));
}

#[test]
fn a_witnessed_file_is_followed_through_its_changes() {
    let home = tempfile::tempdir().unwrap();
    let store = store(home.path());
    let file = home.path().join("model.gguf");
    fs::write(&file, "one").unwrap();
    let first = store.witness(&file).unwrap();
    assert_eq!(store.witness(&file).unwrap(), first, "not hashed again");
    fs::write(&file, "two").unwrap();
    assert_ne!(store.witness(&file).unwrap().sha256, first.sha256);
}
