use serde_json::json;

use super::*;

fn read(text: &str) -> Node {
    parse(&Source::new("pools.yaml", text)).expect("valid")
}

#[test]
fn numbers_keep_their_characters_and_words_stay_words() {
    let node = read("a: 24.10\nb: yes\nc: \"1\"\nd: 0x10\n");
    assert_eq!(
        node.to_value(),
        json!({"a": 24.1, "b": "yes", "c": "1", "d": 16})
    );
    let Kind::Number(_, written) = &node.get("a").unwrap().node.kind else {
        panic!("a number");
    };
    assert_eq!(written, "24.10");
}

#[test]
fn json_with_tabs_is_read_with_places() {
    let node = read("{\n\t\"a\": [1, \"zwei\"]\n}");
    let Kind::List(items) = &node.get("a").unwrap().node.kind else {
        panic!("a list");
    };
    assert_eq!(
        items[1].place,
        Some(Place {
            line: 2,
            column: 11,
            length: 6
        })
    );
}

#[test]
fn aliases_and_merged_maps_point_to_where_they_are_used() {
    let node = read("base: &b {x: 1}\nc:\n  <<: *b\n  y: 2\n");
    let c = &node.get("c").unwrap().node;
    assert_eq!(c.to_value(), json!({"x": 1, "y": 2}));
    assert_eq!(c.get("x").unwrap().node.place.unwrap().line, 3);
}

#[test]
fn syntax_errors_say_what_is_wrong_in_plain_words() {
    let cases = [
        ("a: 1\na: 2\n", "2:1 `a` is there twice"),
        ("{\"a\": 1, \"a\": 2}", "1:10 `a` is there twice"),
        ("a:\n\tb: 1\n", "2:1 a tab is used for indentation"),
        (
            "a:\n  - b: 1\n\tc: 2\n",
            "3:1 a tab is used for indentation",
        ),
        (
            "a:\n  - b: 1\n  \tc: 2\n",
            "3:3 a tab is used for indentation",
        ),
        ("a: 1\n---\nb: 2\n", "3:1 a second document begins here"),
        ("a: *b\n", "1:4 this alias names no anchor"),
        ("a: .inf\n", "1:4 `.inf` is no usable number"),
        ("[a]: 1\n", "1:1 a name must be text"),
        (
            "a: b: c\n",
            "1:5 this cannot be read: mapping values are not allowed in this context",
        ),
    ];
    for (text, expected) in cases {
        let problem = parse(&Source::new("x", text)).expect_err(text);
        let place = problem.place.unwrap_or(Place {
            line: 0,
            column: 0,
            length: 0,
        });
        assert_eq!(
            format!("{}:{} {}", place.line, place.column, problem.message),
            expected
        );
    }
}

#[test]
fn hostile_nesting_and_aliases_are_refused() {
    let deep = "[".repeat(100_000);
    assert!(parse(&Source::new("x", deep)).is_err());
    let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..10 {
        let before = level - 1;
        let aliases = vec![format!("*a{before}"); 10].join(", ");
        laughs.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
    }
    assert!(parse(&Source::new("x", laughs)).is_err());
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in ".*") {
        let _ = parse(&Source::new("x", text));
    }

    #[test]
    fn no_structured_text_panics(text in "[a-z:{}\\[\\],&*<\"'\\- \t\n0-9|>!.]{0,60}") {
        let _ = parse(&Source::new("x", text));
    }
}
