use engine_provider_api::ModelShape;

use super::*;

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
