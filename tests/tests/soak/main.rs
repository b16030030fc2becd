//! What takes too long for every change: hundreds of kills, a compiler of a gigabyte, a real vLLM, peers.

mod cuda;
mod daemon;
mod downloads;
mod peer;
mod vllm;

#[test]
fn killed_at_any_of_two_hundred_instants_the_next_run_succeeds() {
    e2e::kill_rounds(1_000..1_200);
}
