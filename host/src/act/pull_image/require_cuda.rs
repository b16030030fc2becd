//! `NVIDIA_REQUIRE_CUDA`: what an image asks of the driver, as NVIDIA's container toolkit reads it.
//!
//! `cuda>=12.9 brand=tesla,driver>=535,driver<536`: a space is *or*, a comma *and*. Only what is
//! known can refuse: a brand, which facts do not have, is neither met nor missed.

use std::cmp::Ordering;

/// What is known of this machine's driver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine<'a> {
    /// Newest CUDA version that the driver serves.
    pub(super) cuda: Option<&'a str>,
    /// Version of the driver.
    pub(super) driver: Option<&'a str>,
}

/// What comes of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing known speaks against it.
    Passed,
    /// No alternative can be met.
    Refused {
        /// What it needs at least, for people: the alternative that names CUDA, else the first.
        needs: String,
        /// What there is, of what it speaks of.
        has: String,
    },
}

/// Judges a requirement.
pub(super) fn judge(requires: &str, machine: &Machine<'_>) -> Verdict {
    let alternatives: Vec<&str> = requires.split_whitespace().collect();
    let missed = |alternative: &str| {
        alternative
            .split(',')
            .any(|constraint| holds(constraint, machine) == Some(false))
    };
    if alternatives.is_empty() || !alternatives.iter().all(|one| missed(one)) {
        return Verdict::Passed;
    }
    let by_cuda = alternatives.iter().find(|one| one.contains("cuda"));
    let mut has = Vec::new();
    has.extend(machine.cuda.map(|version| format!("CUDA {version}")));
    has.extend(machine.driver.map(|version| format!("driver {version}")));
    Verdict::Refused {
        needs: (*by_cuda.unwrap_or(&alternatives[0])).to_owned(),
        has: has.join(", "),
    }
}

/// Whether one constraint holds; `None`: that is not known.
fn holds(constraint: &str, machine: &Machine<'_>) -> Option<bool> {
    let start = constraint.find(['<', '>', '=', '!'])?;
    let (name, rest) = constraint.split_at(start);
    let operators = [">=", "<=", "!=", "==", ">", "<", "="];
    let operator = operators.into_iter().find(|sign| rest.starts_with(sign))?;
    let wanted = numbers(&rest[operator.len()..])?;
    let actual = numbers(match name.trim() {
        "cuda" => machine.cuda?,
        "driver" => machine.driver?,
        _ => return None,
    })?;
    let order = compare(&actual, &wanted);
    Some(match operator {
        ">=" => order != Ordering::Less,
        "<=" => order != Ordering::Greater,
        ">" => order == Ordering::Greater,
        "<" => order == Ordering::Less,
        "!=" => order != Ordering::Equal,
        _ => order == Ordering::Equal,
    })
}

fn numbers(version: &str) -> Option<Vec<u64>> {
    let parts = version.trim().split('.').map(str::parse);
    parts.collect::<Result<Vec<u64>, _>>().ok()
}

/// Compares as far as both go, missing parts being 0.
fn compare(one: &[u64], other: &[u64]) -> Ordering {
    let length = one.len().max(other.len());
    let part = |parts: &[u64], at: usize| parts.get(at).copied().unwrap_or(0);
    (0..length)
        .map(|at| part(one, at).cmp(&part(other, at)))
        .find(|order| *order != Ordering::Equal)
        .unwrap_or(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: &str = "cuda>=12.9 brand=unknown,driver>=535,driver<536 \
                         brand=grid,driver>=535,driver<536 brand=tesla,driver>=570,driver<571";

    fn passes(requires: &str, cuda: Option<&str>, driver: Option<&str>) -> bool {
        judge(requires, &Machine { cuda, driver }) == Verdict::Passed
    }

    #[test]
    fn a_space_is_or_and_a_comma_is_and() {
        assert!(passes(USUAL, Some("12.9"), Some("575.51")));
        assert!(passes(USUAL, Some("13.0"), Some("580.65.06")));
        assert!(!passes(USUAL, Some("12.4"), Some("550.54.14")));
        // Forward compatibility, perhaps: the brand is not known.
        assert!(passes(USUAL, Some("12.2"), Some("535.183.01")));
        assert!(passes("cuda==12.4.0", Some("12.4"), None));
        assert!(!passes("cuda!=12.4", Some("12.4"), None));
        assert!(!passes("cuda>=12.9,driver>=500", Some("12.4"), Some("550")));
    }

    #[test]
    fn what_is_not_known_does_not_refuse() {
        assert!(passes(USUAL, None, None));
        assert!(passes(USUAL, Some("12.4"), None));
        for strange in [
            "",
            "cuda",
            "cuda>=new",
            "arch=ampere",
            "cuda>=",
            ",",
            "driver",
        ] {
            assert!(passes(strange, Some("1.0"), Some("1")), "{strange}");
        }
    }

    #[test]
    fn a_refusal_names_both_numbers() {
        let machine = Machine {
            cuda: Some("12.4"),
            driver: Some("550.54.14"),
        };
        assert_eq!(
            judge(USUAL, &machine),
            Verdict::Refused {
                needs: "cuda>=12.9".to_owned(),
                has: "CUDA 12.4, driver 550.54.14".to_owned(),
            }
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_judged(text in ".{0,60}") {
            let _ = judge(&text, &Machine { cuda: Some("12.4"), driver: Some("550.54") });
        }
    }
}
