//! Providers from outside: found, refused, crashing, hanging; the host lives.

use std::fs;

use e2e::{Built, Machine, Run};

/// A pool of the hostile provider that misbehaves like this.
fn hostile(machine: &Machine, behaviour: &str) -> Run {
    machine.write(
        "pools.yaml",
        &format!(
            "pools:\n  - id: a\n    engine: hostile\n    gpu: forbid\n    options: {{behaviour: \"plan:{behaviour}\"}}\n"
        ),
    );
    let run = machine.run(&["plan", "--provider-path", &machine.hostile_provider()]);
    machine.assert_untouched();
    run
}

#[test]
fn an_unknown_provider_is_answered_with_where_was_searched_and_the_nearest_name() {
    let machine = Machine::new();
    let run = machine.run(&["plan", "--provider", "llamcpp"]).code(6);
    run.says("no provider `llamcpp` found");
    run.says("did you mean `llamacpp`?");
    run.says("(beside the executable)");
    run.says("provider list");
    machine.assert_untouched();
}

#[test]
fn a_provider_that_crashes_is_an_error_that_names_phase_and_signal() {
    let machine = Machine::new();
    hostile(&machine, "abort")
        .code(6)
        .says("provider `hostile` crashed during plan: signal 6 (ABRT)");
    hostile(&machine, "segv")
        .code(6)
        .says("crashed during plan: signal 11 (SEGV)");
    // Ending with success is no answer either.
    hostile(&machine, "exit")
        .code(6)
        .says("crashed during plan: exit code 0");
    hostile(&machine, "last-words")
        .code(6)
        .says("these are the last words");
    hostile(&machine, "babble")
        .code(6)
        .says("broke the protocol during plan");
    hostile(&machine, "panic")
        .code(6)
        .says("the hostile provider panics as asked");
}

#[test]
fn a_provider_that_hangs_ends_at_its_limit_and_leaves_no_process() {
    let machine = Machine::new();
    hostile(&machine, "hang")
        .code(6)
        .says("provider `hostile` did not answer plan within");
}

#[test]
fn a_good_provider_plans_the_same_in_a_worker_and_in_process() {
    let machine = Machine::new();
    let plan = |isolation: &str| {
        let facts = e2e::facts("debian-cpu");
        let run = machine.run(&[
            "plan",
            "--provider=llamacpp",
            "--gpu=prefer",
            "--json",
            "--isolation",
            isolation,
            "--facts",
            &facts,
        ]);
        run.code(0).json()
    };
    assert_eq!(plan("worker"), plan("in-process"));
    machine.assert_untouched();
}

#[test]
fn listing_executes_nothing_and_names_what_is_wrong_with_a_file() {
    let machine = Machine::new();
    let directory = machine.work().join("providers");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("libengine_provider_text.so"), "no library").unwrap();
    let whole = fs::read(
        Built::debug()
            .directory
            .join("libengine_provider_fixture.so"),
    )
    .unwrap();
    fs::write(
        directory.join("libengine_provider_cut.so"),
        &whole[..whole.len() / 2],
    )
    .unwrap();
    let run = machine
        .run(&["provider", "list", "--provider-path", "providers", "--json"])
        .code(0);
    let text = run.stdout.as_str();
    for name in ["llamacpp", "fixture", "provider_text", "provider_cut"] {
        assert!(text.contains(name), "{name} in {text}");
    }
    let shown = machine
        .run(&["provider", "list", "--provider-path", "providers"])
        .code(0);
    assert!(shown.stdout.contains("libengine_provider_text.so"));
    machine.assert_untouched();
}

#[test]
fn a_provider_is_inspected_without_running_it() {
    let machine = Machine::new();
    let inspected = machine
        .run(&["provider", "inspect", "llamacpp", "--json"])
        .code(0)
        .json();
    let text = inspected.to_string();
    assert!(text.contains("\"llamacpp\"") && text.contains("source"));
    machine.assert_untouched();
}
