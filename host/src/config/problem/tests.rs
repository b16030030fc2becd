use super::*;

fn at(line: usize, column: usize, length: usize) -> Option<Place> {
    Some(Place {
        line,
        column,
        length,
    })
}

#[test]
fn a_problem_shows_both_of_its_places() {
    let source = Source::new("p.yaml", "a:\n\tb: [1, 2]\nc: 3\n");
    let problem = Problem::new("a.b", at(2, 5, 6), "`b` and `c` differ")
        .help("make them equal")
        .also(at(3, 4, 1), "`c` is 3 here");
    insta::assert_snapshot!(problem.render(&source).replace('\t', "→"), @r"
    p.yaml:2:5: `b` and `c` differ
          |
        2 | →b: [1, 2]
          | →   ^^^^^^ make them equal
          |
        3 | c: 3
          |    - `c` is 3 here
    ");
}

#[test]
fn long_lines_are_cut_around_the_place_and_secrets_are_masked() {
    let long = format!("{{\"x\": \"{}\", \"mode\": \"sorce\"}}", "y".repeat(300));
    let column = long.find("sorce").unwrap();
    let text = Problem::new("mode", at(1, column, 7), "no").render(&Source::new("p", long));
    let lines: Vec<&str> = text.lines().collect();
    let caret = lines[3].find('^').unwrap();
    assert_eq!(&lines[2][caret..caret + 7], "\"sorce\"");
    assert!(lines[2].len() < SHOWN_COLUMNS + 20);

    let source = Source::new("p", "HF_TOKEN: hf_abcdefghijklmnop\n");
    let text = Problem::new("", at(1, 11, 20), "no").render(&source);
    assert!(!text.contains("hf_abc"), "{text}");
}

#[test]
fn a_secret_that_a_cut_goes_through_is_masked_whole() {
    let values = format!("{}PLANTED", "x".repeat(120));
    let line = format!("{{\"DB_PASSWORD\": \"{values}\", \"mode\": \"sorce\"}}");
    for column in 1..=line.len() {
        let source = Source::new("p", line.clone());
        let text = Problem::new("mode", at(1, column, 7), "no").render(&source);
        assert!(
            !text.contains("xxxx") && !text.contains("PLANTED"),
            "{column}: {text}"
        );
    }
}

#[test]
fn the_nearest_name_is_near() {
    let names = ["source", "container", "package"];
    assert_eq!(nearest("sorce", names), Some("source"));
    assert_eq!(nearest("llama.cpp", ["llamacpp", "vllm"]), Some("llamacpp"));
    assert_eq!(nearest("docker", names), None);
}
