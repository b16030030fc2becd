//! Durations as people write them: `500ms`, `120s`, `1m30s`, `2h`.

/// What a duration looks like, for the schema.
pub const PATTERN: &str = r"^([0-9]+(ms|s|m|h))+$";

/// Reads a duration into milliseconds; `None` where it is not one or does not fit.
#[must_use]
pub fn milliseconds(text: &str) -> Option<u64> {
    let mut total: u64 = 0;
    let mut rest = text;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let end = rest
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(rest.len());
        let scale = match &rest[..end] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        total = total.checked_add(number.checked_mul(scale)?)?;
        rest = &rest[end..];
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_their_unit() {
        for (text, expected) in [
            ("120s", Some(120_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("2h", Some(7_200_000)),
            ("120", None),
            ("", None),
            ("s", None),
            ("5 s", None),
            ("-5s", None),
            ("1d", None),
            ("99999999999999999999h", None),
            ("9999999999999999h", None),
        ] {
            assert_eq!(milliseconds(text), expected, "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn the_pattern_accepts_what_is_read(text in "[0-9smh]{0,8}") {
            let pattern = regex::Regex::new(PATTERN).unwrap();
            proptest::prop_assert_eq!(pattern.is_match(&text), milliseconds(&text).is_some());
        }
    }
}
