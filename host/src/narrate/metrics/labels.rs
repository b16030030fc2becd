//! Sets of labels. All values but pools come from fixed lists.

use prometheus_client::encoding::EncodeLabelSet;

macro_rules! labels {
    ($($name:ident { $($label:ident: $type:ty),+ })+) => {$(
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub(super) struct $name {
            $(pub(super) $label: $type),+
        }
    )+};
}

labels! {
    ByOutcome { outcome: &'static str }
    ByKind { kind: &'static str }
    ByStep { kind: &'static str, outcome: &'static str }
    BySource { source: &'static str }
    ByFetch { source: &'static str, outcome: &'static str }
    ByPool { pool: String }
    ByPoolOutcome { pool: String, outcome: &'static str }
    ByPoolReason { pool: String, reason: &'static str }
    ByLevel { actor: &'static str, level: &'static str }
}
