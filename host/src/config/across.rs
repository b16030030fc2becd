//! Rules between the pools of a file.

use std::collections::BTreeMap;

use super::{document::Place, places::Places, pools::PoolEntry, problem::Problem};

/// Two pools share neither id nor port.
pub(super) fn check(pools: &[PoolEntry], places: &Places, problems: &mut Vec<Problem>) {
    let mut ids: BTreeMap<&str, Option<Place>> = BTreeMap::new();
    let mut ports: BTreeMap<u16, (&str, Option<Place>)> = BTreeMap::new();
    for (index, entry) in pools.iter().enumerate() {
        let of_pool = places.below(&format!("pools[{index}]"));
        let id = entry.pool.id.as_str();
        match ids.get(id) {
            Some(first) => problems.push(
                of_pool
                    .problem("id", format!("there are two pools `{id}`"))
                    .help("give each pool its own id")
                    .also(*first, "the other one is here"),
            ),
            None => {
                ids.insert(id, of_pool.exact("id"));
            }
        }
        for (index, port) in entry.pool.provisioning.ports.iter().enumerate() {
            let field = format!("provisioning.ports[{index}]");
            match ports.get(port) {
                Some((other, first)) if *other != id => problems.push(
                    of_pool
                        .problem(
                            &field,
                            format!("pools `{other}` and `{id}` both want port {port}"),
                        )
                        .help("give each pool its own ports")
                        .also(*first, format!("`{other}` wants it here")),
                ),
                Some(_) => {}
                None => {
                    ports.insert(*port, (id, of_pool.exact(&field)));
                }
            }
        }
    }
}
