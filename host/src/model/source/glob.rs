//! Patterns of file names, as the Hugging Face hub's own tools read them.

/// Whether a path fits a pattern: `*` any text, `/` included; `?` one character; `[ab]`, `[a-c]`, `[!a]`
/// one of these or none of them. A pattern that ends with `/` means all that lies below.
pub(super) fn fits(pattern: &str, path: &str) -> bool {
    let mut pattern: Vec<char> = pattern.chars().collect();
    if pattern.last() == Some(&'/') {
        pattern.push('*');
    }
    let path: Vec<char> = path.chars().collect();
    matches(&pattern, &path)
}

/// Whether a path fits any of these.
pub(super) fn fits_any(patterns: &[String], path: &str) -> bool {
    patterns.iter().any(|pattern| fits(pattern, path))
}

/// Greedy, going back to the last star alone: linear in most cases, never exponential.
fn matches(pattern: &[char], text: &[char]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut star = None;
    while read < text.len() {
        if pattern.get(at) == Some(&'*') {
            star = Some((at, read));
            at += 1;
            continue;
        }
        match one(&pattern[at..], text[read]) {
            Some(length) => {
                at += length;
                read += 1;
            }
            None => match &mut star {
                Some((back, from)) => {
                    *from += 1;
                    (at, read) = (*back + 1, *from);
                }
                None => return false,
            },
        }
    }
    pattern[at..].iter().all(|char| *char == '*')
}

/// The length of what stands for this character at the start of a pattern.
fn one(pattern: &[char], char: char) -> Option<usize> {
    match pattern.first()? {
        '?' => Some(1),
        '[' => match class(pattern) {
            Some((length, not, members)) => (is_member(members, char) != not).then_some(length),
            None => (char == '[').then_some(1),
        },
        same => (*same == char).then_some(1),
    }
}

/// A class at the start of a pattern: its length, whether it is turned around, its members.
fn class(pattern: &[char]) -> Option<(usize, bool, &[char])> {
    let not = pattern.get(1) == Some(&'!');
    let start = if not { 2 } else { 1 };
    // A bracket that comes first is a member.
    let close = pattern.iter().skip(start + 1).position(|c| *c == ']')? + start + 1;
    Some((close + 1, not, &pattern[start..close]))
}

fn is_member(members: &[char], char: char) -> bool {
    let mut at = 0;
    while at < members.len() {
        if members.len() > at + 2 && members[at + 1] == '-' {
            if (members[at]..=members[at + 2]).contains(&char) {
                return true;
            }
            at += 3;
        } else if members[at] == char {
            return true;
        } else {
            at += 1;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_the_hubs_own_tools_read_them() {
        for (pattern, path) in [
            ("*", "a/b"),
            ("*.json", "sub/config.json"),
            ("sub/", "sub/deep/x"),
            (
                "model-0000?-of-*.safetensors",
                "model-00001-of-00002.safetensors",
            ),
            ("[a-c]x", "bx"),
            ("[!a]x", "bx"),
            ("[]]", "]"),
            ("a[", "a["),
            ("", ""),
        ] {
            assert!(fits(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.json", "config.json.bak"),
            ("sub/", "sub"),
            ("[!b]x", "bx"),
            ("", "a"),
            ("?", ""),
        ] {
            assert!(!fits(pattern, path), "{pattern} {path}");
        }
    }

    #[test]
    fn many_stars_take_no_longer_than_few() {
        let pattern = "*a".repeat(200) + "b";
        assert!(!fits(&pattern, &"a".repeat(2000)));
    }

    proptest::proptest! {
        #[test]
        fn plain_names_fit_themselves_and_no_pattern_panics(
            name in "[a-z./-]{0,12}", pattern in "[a-c*?!\\[\\]/-]{0,12}"
        ) {
            proptest::prop_assert!(fits(&name, &name) || name.ends_with('/'));
            fits(&pattern, &name);
        }
    }
}
