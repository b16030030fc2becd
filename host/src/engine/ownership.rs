//! Whether it is our own engine that answers on a port.
//!
//! An answer alone proves nothing: another process may have taken the port a moment earlier and
//! answer just as an engine does. The listening socket must be held by a process of the engine's own
//! tree.

use std::{collections::BTreeSet, net::SocketAddr};

use super::sockets::Listeners;
use crate::process::{Identity, Keeper, ProcessError, ProcessIdentity, sockets_of};

/// Who listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Listener {
    /// A process of the tree.
    Ours,
    /// Somebody else.
    Foreign,
    /// Somebody: not every process of the tree may be looked into.
    Unseen,
    /// Nobody, as far as can be seen.
    Nobody,
}

/// Looks who listens there. `own` are looked at before the whole `tree`; `identity` is whose they are,
/// where that is not this process's own user.
pub(super) async fn listener(
    address: SocketAddr,
    own: &[ProcessIdentity],
    tree: impl FnOnce() -> Vec<ProcessIdentity>,
    keeper: &Keeper,
    identity: Option<Identity>,
) -> Result<Listener, ProcessError> {
    let listening = Listeners::now().at(address);
    whose(&listening, own, tree, keeper, identity).await
}

/// Whose these listening sockets are.
pub(super) async fn whose(
    listening: &BTreeSet<u64>,
    own: &[ProcessIdentity],
    tree: impl FnOnce() -> Vec<ProcessIdentity>,
    keeper: &Keeper,
    identity: Option<Identity>,
) -> Result<Listener, ProcessError> {
    if listening.is_empty() {
        return Ok(Listener::Nobody);
    }
    let own = sockets_of(keeper, own, identity).await?;
    if listening.is_subset(&own.inodes) {
        return Ok(Listener::Ours);
    }
    let tree = sockets_of(keeper, &tree(), identity).await?;
    Ok(match listening.is_subset(&tree.inodes) {
        true => Listener::Ours,
        false if tree.may_be_more => Listener::Unseen,
        false => Listener::Foreign,
    })
}
