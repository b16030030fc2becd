//! One line of a page of metrics: a sample, read strictly and written properly.
//!
//! The form is Prometheus' text format 0.0.4, of which the samples of OpenMetrics 1.0 are a superset
//! that is read too: exemplars are left out.

use std::fmt;

/// Longest line that is read. Engines' own are far below a tenth of this.
const LINE_LIMIT_BYTES: usize = 16 << 10;

/// Labels of one sample at most.
const LABEL_LIMIT: usize = 64;

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) name: String,
    pub(super) labels: Vec<(String, String)>,
    /// As it was written.
    pub(super) value: String,
    /// Milliseconds since the epoch, where it says when it was taken.
    pub(super) timestamp: Option<i64>,
}

/// Reads a sample; `None` where the line is none.
pub(super) fn parse(line: &str) -> Option<Sample> {
    if line.len() > LINE_LIMIT_BYTES {
        return None;
    }
    let line = line.trim();
    let end = line.find(|at: char| at == '{' || at.is_ascii_whitespace())?;
    let (name, rest) = line.split_at(end);
    if !is_metric_name(name) {
        return None;
    }
    let rest = rest.trim_start();
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => parse_labels(inside)?,
        None => (Vec::new(), rest),
    };
    let rest = rest.split_once(" # ").map_or(rest, |(sample, _)| sample);
    let mut words = rest.split_ascii_whitespace();
    let (value, time, more) = (words.next()?, words.next(), words.next());
    if !is_value(value) || more.is_some() {
        return None;
    }
    let timestamp = match time {
        None => None,
        Some(time) => Some(time.parse().ok()?),
    };
    Some(Sample {
        name: name.to_owned(),
        labels,
        value: value.to_owned(),
        timestamp,
    })
}

/// Labels and what follows their closing brace.
fn parse_labels(mut text: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels: Vec<(String, String)> = Vec::new();
    loop {
        text = text.trim_start();
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, rest) = text.split_once('=')?;
        let name = name.trim();
        let known = labels.iter().any(|(known, _)| known == name);
        if !is_label_name(name) || known || labels.len() == LABEL_LIMIT {
            return None;
        }
        let (value, rest) = quoted(rest.trim_start())?;
        labels.push((name.to_owned(), value));
        text = rest.trim_start();
        match text.strip_prefix(',') {
            Some(rest) => text = rest,
            None if text.starts_with('}') => {}
            None => return None,
        }
    }
}

/// A text in quotes, and what follows it.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut characters = text.strip_prefix('"')?.char_indices();
    let mut value = String::new();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 2..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                escaped @ ('\\' | '"') => value.push(escaped),
                other => value.extend(['\\', other]),
            },
            other => value.push(other),
        }
    }
    None
}

pub(super) fn is_metric_name(name: &str) -> bool {
    let first = |byte: u8| byte.is_ascii_alphabetic() || matches!(byte, b'_' | b':');
    name.bytes().next().is_some_and(first)
        && name
            .bytes()
            .all(|byte| first(byte) || byte.is_ascii_digit())
}

fn is_label_name(name: &str) -> bool {
    is_metric_name(name) && !name.contains(':')
}

fn is_value(word: &str) -> bool {
    // What Rust reads beyond Go's floats is words alone.
    let bare = word.trim_start_matches(['+', '-']);
    match bare.to_ascii_lowercase().as_str() {
        "nan" | "inf" => true,
        "infinity" => false,
        _ => word.parse::<f64>().is_ok(),
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.name)?;
        for (number, (name, value)) in self.labels.iter().enumerate() {
            let before = if number == 0 { '{' } else { ',' };
            write!(formatter, "{before}{name}=\"{}\"", Escaped(value))?;
        }
        if !self.labels.is_empty() {
            formatter.write_str("}")?;
        }
        write!(formatter, " {}", self.value)?;
        match self.timestamp {
            Some(time) => write!(formatter, " {time}"),
            None => Ok(()),
        }
    }
}

/// A text as it stands in quotes.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => formatter.write_str("\\\\")?,
                '"' => formatter.write_str("\\\"")?,
                '\n' => formatter.write_str("\\n")?,
                other => write!(formatter, "{other}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_real_engines_are_read_and_written_as_they_were() {
        let lines = [
            "llamacpp:prompt_tokens_total 12",
            "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"a\"} 1.0",
            "tgi_request_duration_bucket{le=\"+Inf\"} 3",
            "nv_inference_count{model=\"echo\",version=\"1\"} 7 1700000000000",
            "go_gc_duration_seconds{quantile=\"0.5\"} 4.1e-05",
            "x NaN",
            r#"path{dir="C:\\a",quote="\"",line="\n"} -Inf"#,
        ];
        for line in lines {
            assert_eq!(parse(line).unwrap().to_string(), line);
        }
        let spaced = parse(" a { b = \"c\" , } 1 ").unwrap();
        assert_eq!(spaced.to_string(), "a{b=\"c\"} 1");
        let exemplar = parse("a_bucket{le=\"1\"} 2 # {trace_id=\"x\"} 0.5").unwrap();
        assert_eq!(exemplar.to_string(), "a_bucket{le=\"1\"} 2");
    }

    #[test]
    fn what_is_no_sample_is_not_read() {
        let bad = [
            "",
            "a",
            "1a 2",
            "a{b=\"c\" 1",
            "a{b=c} 1",
            "a{b=\"c\"d=\"e\"} 1",
            "a{b=\"c\",b=\"d\"} 1",
            "a{b:c=\"d\"} 1",
            "a one",
            "a infinity",
            "a 1 2 3",
            "a 1 1.5",
            "<html> 1",
            "a{é=\"c\"} 1",
            "a{b=\"é} 1",
        ];
        for line in bad {
            assert_eq!(parse(line), None, "{line}");
        }
        assert_eq!(parse(&format!("a{{b=\"{}\"}} 1", "x".repeat(20_000))), None);
    }
}
