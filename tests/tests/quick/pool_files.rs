//! Wrong pool files and policies: everything that is wrong at once, with its place and what to type.

use std::fs;

use e2e::{Machine, repository_root};

/// The error for a pool file, paths of this test left out.
fn refusal(machine: &Machine, text: &str) -> String {
    machine.write("pools.yaml", text);
    let check = machine.run(&["config", "check"]).code(3);
    assert_eq!(check.stdout, "");
    // What `check` refuses, `provision` refuses in the same words before it does anything.
    let provision = machine.run(&["provision"]).code(3);
    assert_eq!(
        machine.normal(&check.stderr),
        machine.normal(&provision.stderr)
    );
    machine.assert_untouched();
    machine.normal(&check.stderr)
}

#[test]
fn every_example_is_right() {
    let machine = Machine::new();
    let examples = repository_root().join("examples");
    let mut checked = 0;
    for entry in fs::read_dir(examples).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "yaml") {
            let path = path.to_str().unwrap();
            let run = machine.run(&["config", "check", path]).code(0);
            assert!(run.stdout.contains("is right"), "{}", run.stdout);
            checked += 1;
        }
    }
    assert!(checked >= 2, "{checked} examples");
    machine.assert_untouched();
}

#[test]
fn all_mistakes_are_told_at_once_with_the_nearest_name() {
    let machine = Machine::new();
    let told = refusal(
        &machine,
        "pools:\n  - id: a\n    engine: fixture\n    provisionning: {}\n    gpu: requier\n  - id: Bad_Id\n    engine: fixture\n    ctx: lots\n",
    );
    insta::assert_snapshot!(told, @r"
    error: `pools.yaml` has 4 errors
    where: pools.yaml:4:5: there is no `provisionning` in `pools[0]`
                 |
               4 |     provisionning: {}
                 |     ^^^^^^^^^^^^^ did you mean `provisioning`?
    where: pools.yaml:5:10: `gpu` cannot be `requier`
                 |
               5 |     gpu: requier
                 |          ^^^^^^^ did you mean `require`?
    where: pools.yaml:6:9: `id` cannot be `Bad_Id`
                 |
               6 |   - id: Bad_Id
                 |         ^^^^^^ use 1 to 63 lower-case letters, digits and `-`
    where: pools.yaml:8:10: `ctx` must be a whole number, not the text `lots`
                 |
               8 |     ctx: lots
                 |          ^^^^
      fix: once it is corrected, check it with
             HOST config check pools.yaml
    ");
}

#[test]
fn a_field_that_does_not_fit_the_mode_is_refused_naming_both_places() {
    let machine = Machine::new();
    let told = refusal(
        &machine,
        "pools:\n  - id: a\n    engine: fixture\n    provisioning:\n      mode: source\n      container: {image: x}\n",
    );
    insta::assert_snapshot!(told, @r"
    error: `pools.yaml` has an error
    where: pools.yaml:6:26: `container.image` has no meaning under mode `source`
                 |
               6 |       container: {image: x}
                 |                          ^ leave one of the two out
                 |
               5 |       mode: source
                 |             ------ the mode is set here
      fix: once it is corrected, check it with
             HOST config check pools.yaml
    ");
}

#[test]
fn two_pools_of_one_name_are_refused_naming_both_places() {
    let machine = Machine::new();
    let told = refusal(
        &machine,
        "pools:\n- {id: a, engine: fixture}\n- {id: a, engine: fixture}\n",
    );
    assert!(told.contains("there are two pools `a`"), "{told}");
    assert!(told.contains("the other one is here"), "{told}");
}

#[test]
fn what_is_no_yaml_is_shown_where_it_breaks() {
    let machine = Machine::new();
    let told = refusal(&machine, "pools: [\n");
    assert!(told.contains("pools.yaml:1:8"), "{told}");
    let told = refusal(&machine, "pools: []\n");
    assert!(told.contains("`pools` needs at least 1"), "{told}");
}

#[test]
fn without_a_pool_file_or_a_provider_it_is_said_what_to_type() {
    let machine = Machine::new();
    let run = machine.run(&["plan"]).code(2);
    run.says("there is no pool file and no `--provider`");
    run.says("plan --provider llamacpp");
    let run = machine.run(&["plan", "--config", "missing.yaml"]).code(3);
    run.says("missing.yaml");
    machine.assert_untouched();
}

#[test]
fn a_misspelt_engine_is_refused_before_it_is_planned() {
    let machine = Machine::new();
    machine.write("pools.yaml", "pools:\n- {id: a, engine: lamacpp}\n");
    for file in [&[][..], &["pools.yaml"], &["-c", "pools.yaml"]] {
        let run = machine.run(&[&["config", "check"], file].concat()).code(3);
        run.says("pools.yaml:2:19: there is no provider `lamacpp` here");
        run.says("did you mean `llamacpp`?");
    }
    machine.write(
        "pools.yaml",
        "pools:\n- {id: a, engine: fixture, options: {retry_wen: x}}\n",
    );
    let run = machine.run(&["config", "check"]).code(0);
    assert!(run.stdout.contains("in `host plan`"), "{}", run.stdout);
    machine.assert_untouched();
}

#[test]
fn a_pool_is_looked_for_in_no_file_that_is_not_there() {
    let machine = Machine::new();
    let run = machine.run(&["plan", "--provider", "fixture", "--pool", "chat"]);
    let run = run.code(11);
    run.says("there is no pool file here");
    run.says("plan --provider fixture --pool default");
    machine.assert_untouched();
}

#[test]
fn a_pool_that_is_not_there_is_refused_naming_those_that_are() {
    let machine = Machine::new();
    machine.write(
        "pools.yaml",
        "pools:\n- {id: chat, engine: fixture}\n- {id: code, engine: fixture}\n",
    );
    let run = machine.run(&["plan", "--pool", "chta"]).code(11);
    run.says("chta");
    run.says("chat");
    machine.assert_untouched();
}

#[test]
fn an_option_that_the_engine_does_not_take_is_shown_where_it_stands() {
    let machine = Machine::new();
    machine.write(
        "pools.yaml",
        "pools:\n  - id: a\n    engine: fixture\n    gpu: forbid\n    options: {retry_wen: x}\n",
    );
    let run = machine.run(&["plan"]).code(3);
    run.says("pools.yaml:5:");
    run.says("retry_wen");
    run.says("retry_when");
    machine.assert_untouched();
}

/// Writes the user's policy, a ceiling like the machine's, and gives its path.
fn policy(machine: &Machine, text: &str) -> String {
    let path = machine.root().join(".config/engine-host/policy.yaml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn what_exceeds_the_policy_is_refused_with_the_line_to_change() {
    let machine = Machine::new();
    policy(
        &machine,
        "label: strict\ngpu: require\nallow_package_installs: false\nallow_binary_downloads: false\nnetwork: [example.org]\n",
    );
    for (flags, setting, line, wanted) in [
        (&["--gpu", "prefer"][..], "gpu: prefer", 2, "--gpu"),
        (
            &["--allow-package-installs"],
            "allow_package_installs: true",
            3,
            "--allow-package-installs",
        ),
        (
            &["--allow-binary-downloads"],
            "allow_binary_downloads: true",
            4,
            "--allow-binary-downloads",
        ),
    ] {
        let mut arguments = vec!["provision", "--provider", "llamacpp"];
        arguments.extend(flags);
        let run = machine.run(&arguments).code(4);
        run.says(&format!(
            "policy does not allow `{setting}`, asked for by {wanted}"
        ));
        run.says(&format!("policy.yaml:{line}"));
        run.says(&format!("change line {line} of "));
    }
    machine.assert_untouched();
}

#[test]
fn a_pool_that_asks_for_more_than_the_policy_is_refused_naming_both_lines() {
    let machine = Machine::new();
    let path = policy(&machine, "\nallow_package_installs: false\n");
    machine.write(
        "pools.yaml",
        "pools:\n  - id: a\n    engine: fixture\n    gpu: forbid\n    provisioning:\n      allow_package_installs: true\n",
    );
    let run = machine.run(&["plan"]).code(4);
    run.says("pools.yaml:6");
    run.says(&format!("{path}:2"));
    machine.assert_untouched();
}

#[test]
fn a_policy_with_a_mistake_is_refused_whole() {
    let machine = Machine::new();
    policy(&machine, "allow_package_instals: false\n");
    let run = machine.run(&["plan", "--provider", "llamacpp"]).code(3);
    run.says("policy.yaml:1:1");
    run.says("did you mean `allow_package_installs`?");
    machine.assert_untouched();
}

#[test]
fn the_policy_in_force_is_shown_with_who_set_it() {
    let machine = Machine::new();
    let path = policy(&machine, "label: strict\nnetwork: offline\n");
    let run = machine.run(&["config", "policy"]).code(0);
    assert!(run.stdout.contains("policy `strict`"), "{}", run.stdout);
    assert!(
        run.stdout.contains(&format!("set by {path}:2")),
        "{}",
        run.stdout
    );
}
