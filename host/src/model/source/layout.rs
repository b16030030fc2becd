//! How a directory is laid out: told by the names of its files alone, before any of them is fetched.

/// Whether a file of one of these names is where a layout wants one; a layout of nothing wants none.
pub(super) fn is_laid_out<'a>(layout: &[String], mut names: impl Iterator<Item = &'a str>) -> bool {
    layout.is_empty() || names.any(|name| layout.iter().any(|path| fits(path, name)))
}

/// Whether a name is that of a path, part by part: `*` is any part, `#` one of digits alone; a path that
/// ends with `/` is all that lies below it.
fn fits(path: &str, name: &str) -> bool {
    let (path, is_above) = match path.strip_suffix('/') {
        Some(path) => (path, true),
        None => (path, false),
    };
    let mut names = name.split('/');
    let mut wanted = path.split('/');
    let all = wanted.all(|part| names.next().is_some_and(|name| is(part, name)));
    all && names.next().is_some() == is_above
}

fn is(part: &str, name: &str) -> bool {
    match part {
        "*" => true,
        "#" => name.bytes().all(|byte| byte.is_ascii_digit()),
        same => same == name,
    }
}

/// The paths of a layout for people, for example `` `NAME/config.pbtxt` or `NAME/NUMBER/…` ``.
pub(super) fn in_words(layout: &[String]) -> String {
    let words = layout.iter().map(|path| {
        let parts = path.split('/').map(|part| match part {
            "*" => "NAME",
            "#" => "NUMBER",
            "" => "…",
            same => same,
        });
        format!("`{}`", parts.collect::<Vec<_>>().join("/"))
    });
    words.collect::<Vec<_>>().join(" or ")
}

/// What helps where a directory is laid out another way: often the one above or one below is meant.
pub(super) fn advice(layout: &[String], names: &[String]) -> String {
    let parents = names.iter().filter_map(|name| name.split_once('/'));
    let mut below = parents.filter(|(_, rest)| is_laid_out(layout, std::iter::once(*rest)));
    let is_from_above = |path: &String| match path.split_once('/') {
        Some((_, rest)) => names.iter().any(|name| fits(rest, name)),
        None => false,
    };
    match below.next() {
        Some((directory, _)) => format!("name the directory `{directory}` in it"),
        None if layout.iter().any(is_from_above) => {
            "this is one model: name the directory that it lies in, with this one below it"
                .to_owned()
        }
        None => "name a directory that is laid out so".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn layout() -> Vec<String> {
        ["*/config.pbtxt", "*/#/"].map(str::to_owned).into()
    }

    fn is_one(names: &[&str]) -> bool {
        is_laid_out(&layout(), names.iter().copied())
    }

    #[test]
    fn a_directory_is_told_by_where_its_files_lie() {
        assert!(is_laid_out(&[], std::iter::once("a")));
        assert!(is_one(&["README.md", "echo/config.pbtxt"]));
        assert!(is_one(&["echo/1/model.py"]) && is_one(&["a/20/b/c"]));
        for other in [
            "config.pbtxt",
            "1/model.onnx",
            "onnx/model.onnx",
            "x/1_Pooling/config.json",
            "a/b/config.pbtxt",
            "echo/1",
        ] {
            assert!(!is_one(&[other]), "{other}");
        }
    }

    #[test]
    fn it_is_said_which_other_directory_is_meant() {
        assert_eq!(
            in_words(&layout()),
            "`NAME/config.pbtxt` or `NAME/NUMBER/…`"
        );
        let advice = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            advice(&layout(), &names)
        };
        assert!(advice(&["config.pbtxt", "1/model.py"]).contains("that it lies in"));
        let below = advice(&["README.md", "repository/echo/1/model.py"]);
        assert_eq!(below, "name the directory `repository` in it");
        assert!(advice(&["model.onnx"]).contains("laid out so"));
    }

    proptest! {
        #[test]
        fn no_name_and_no_path_brings_it_down(path in "[a*#/]{0,8}", name in "[a1/]{0,8}") {
            fits(&path, &name);
            advice(&[path], &[name]);
        }
    }
}
