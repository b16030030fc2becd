use std::fs;

use engine_provider_api::ModelShape;

use super::*;

#[tokio::test]
async fn what_a_crash_left_without_a_record_goes_where_nobody_else_keeps_anything() {
    let root = tempfile::tempdir().unwrap();
    let home = Home::at(root.path());
    let blobs = home.store().join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let left = blobs.join("ab".repeat(32));
    fs::write(&left, "model").unwrap();
    let sweep = async |catalog: Catalog, dry: bool| {
        let cancel = CancellationToken::new();
        let swept = catalog.sweep(Limits::default(), &[], dry, &cancel).await;
        swept.unwrap().blobs_bytes
    };
    let own = || Catalog::of_home(&home);
    assert_eq!(sweep(own(), true).await, 5);
    assert_eq!(sweep(Catalog::of(own().store()), false).await, 0);
    let staging = own().staging(&CancellationToken::new()).await.unwrap();
    assert_eq!(sweep(own(), false).await, 0);
    drop(staging);
    assert!(left.exists());
    assert_eq!(sweep(own(), false).await, 5);
    assert!(!left.exists());
}

/// A model of this id.
pub(super) fn entry(id: &str) -> Entry {
    Entry {
        id: id.to_owned(),
        names: vec![Name {
            reference: format!("ref:{id}"),
            pinned: format!("pinned:{id}"),
            versions: std::collections::BTreeMap::new(),
            resolved: Timestamp::UNIX_EPOCH,
            quant: None,
            include: Vec::new(),
            exclude: Vec::new(),
            key: id.to_owned(),
        }],
        shape: ModelShape::File,
        path: PathBuf::from("/nowhere"),
        digest: "sha256:00".to_owned(),
        also: None,
        size_bytes: 0,
        files: Vec::new(),
        revision: None,
        licence: None,
        facts: None,
        state: State::Active,
        added: Timestamp::UNIX_EPOCH,
        provenance: Provenance {
            origin: Origin::Url,
            from: Vec::new(),
            trust: Trust::Checksum,
        },
    }
}
