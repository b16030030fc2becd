//! A daemon in a storm; `scripts/test soak` has a longer one.

use std::time::Duration;

use e2e::Storm;

#[test]
fn a_minute_of_kills_among_ten_pools_loses_leaves_and_leaks_nothing() {
    let storm = Storm {
        seed: 5,
        lasts: Duration::from_secs(60),
        pools: 10,
    };
    storm.blow();
}
