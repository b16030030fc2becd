//! Which work belongs to which: names of traces and spans, as they cross between programs.
//!
//! The form is the `traceparent` header of the W3C's Trace Context (level 1):
//! `00-<trace, 32 hexadecimal digits>-<span, 16 digits>-<flags>`.

use std::{fmt, num::NonZero, str::FromStr};

use ring::rand::{SecureRandom, SystemRandom};

/// The place of a piece of work in a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// The trace: all work that one request caused, whichever programs did it.
    pub trace: NonZero<u128>,
    /// The piece of work.
    pub span: NonZero<u64>,
    /// Whether whoever began the trace wants it recorded.
    pub sampled: bool,
}

impl TraceContext {
    /// The beginning of a new trace.
    #[must_use]
    pub fn root() -> Self {
        let trace = (u128::from(random().get()) << 64) | u128::from(random().get());
        Self {
            trace: NonZero::new(trace).expect("both halves are not zero"),
            span: random(),
            sampled: true,
        }
    }

    /// A new piece of work of the same trace.
    #[must_use]
    pub fn child(&self) -> Self {
        Self {
            span: random(),
            ..*self
        }
    }

    /// The name of the trace, as it is written in events: 32 hexadecimal digits.
    #[must_use]
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }
}

/// A number that nobody else has, never zero: zero names nothing.
fn random() -> NonZero<u64> {
    let mut bytes = [0; 8];
    loop {
        let filled = SystemRandom::new().fill(&mut bytes);
        filled.expect("the kernel gives random numbers once it has booted");
        if let Some(number) = NonZero::new(u64::from_ne_bytes(bytes)) {
            return number;
        }
    }
}

/// A text is not a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a traceparent of the form 00-<32 digits>-<16 digits>-<2 digits>")]
pub struct NoTraceContext;

impl FromStr for TraceContext {
    type Err = NoTraceContext;

    /// Reads a `traceparent`. Of later versions of the form, what this one knows is read.
    fn from_str(text: &str) -> Result<Self, NoTraceContext> {
        let mut parts = text.trim().split('-');
        let mut next = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits);
            let lower = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            part.filter(|part| part.bytes().all(lower))
                .ok_or(NoTraceContext)
        };
        let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return Err(NoTraceContext);
        }
        let trace = u128::from_str_radix(trace, 16).map_err(|_| NoTraceContext)?;
        let span = u64::from_str_radix(span, 16).map_err(|_| NoTraceContext)?;
        let flags = u8::from_str_radix(flags, 16).map_err(|_| NoTraceContext)?;
        Ok(Self {
            trace: NonZero::new(trace).ok_or(NoTraceContext)?,
            span: NonZero::new(span).ok_or(NoTraceContext)?,
            sampled: flags & 1 == 1,
        })
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.sampled);
        write!(
            formatter,
            "00-{:032x}-{:016x}-{flags:02x}",
            self.trace, self.span
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_is_read_and_written_as_the_w3c_says() {
        let read: TraceContext = GIVEN.parse().unwrap();
        assert!(read.sampled);
        assert_eq!(read.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
        assert_eq!(read.to_string(), GIVEN);
        let later: TraceContext = GIVEN
            .replacen("00-", "01-", 1)
            .add("-more")
            .parse()
            .unwrap();
        assert_eq!(later, read);
        let unsampled: TraceContext = GIVEN.replace("-01", "-00").parse().unwrap();
        assert!(!unsampled.sampled);
    }

    use std::ops::Add as _;

    #[test]
    fn what_is_no_traceparent_is_refused() {
        let bad = [
            String::new(),
            "00".to_owned(),
            GIVEN.to_uppercase(),
            GIVEN.replacen("00-", "ff-", 1),
            format!("{GIVEN}-more"),
            GIVEN.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GIVEN.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GIVEN.replace("4bf9", "4bé"),
        ];
        for text in bad {
            assert_eq!(text.parse::<TraceContext>(), Err(NoTraceContext), "{text}");
        }
    }

    #[test]
    fn a_child_is_another_span_of_the_same_trace() {
        let (root, other) = (TraceContext::root(), TraceContext::root());
        assert_ne!(root.trace, other.trace);
        let child = root.child();
        assert_eq!(child.trace, root.trace);
        assert_ne!(child.span, root.span);
    }
}
