//! Models: what it costs to fetch one, and what one costs that is here.

#[test]
fn fetching_a_model_costs_half_of_curl_tee_and_sha256sum() {
    e2e::measure_fetching(128);
}

#[test]
fn a_verified_model_adds_next_to_nothing_however_large_it_is() {
    e2e::measure_verified(128);
}
