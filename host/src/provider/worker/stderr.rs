//! The last lines a worker printed, however much it prints.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::{io::AsyncReadExt as _, process::ChildStderr};

/// Bytes kept of what was printed.
const KEPT_BYTES: usize = 16 * 1024;

/// Lines shown.
const SHOWN_LINES: usize = 20;

/// Characters shown of a line.
const SHOWN_CHARACTERS: usize = 400;

/// The end of a text that may be endless.
#[derive(Debug, Clone, Default)]
pub(super) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    /// Reads to the end, keeping the last bytes only.
    pub(super) async fn drain(self, mut stderr: ChildStderr) {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
            self.push(&buffer[..read]);
        }
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        let surplus = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..surplus);
    }

    /// The last lines, without what could steer a terminal.
    pub(super) fn lines(&self) -> Vec<String> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept);
        let lines: Vec<String> = text
            .lines()
            .map(|line| {
                line.chars()
                    .filter(|character| !character.is_control())
                    .take(SHOWN_CHARACTERS)
                    .collect::<String>()
            })
            .filter(|line| !line.trim().is_empty())
            .collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_text_costs_bounded_memory_and_its_end_is_kept() {
        let tail = Tail::default();
        for number in 0..100_000 {
            tail.push(format!("line {number}\n").as_bytes());
        }
        assert!(tail.0.lock().unwrap().len() <= KEPT_BYTES);
        let lines = tail.lines();
        assert_eq!(lines.len(), SHOWN_LINES);
        assert_eq!(lines.last().unwrap(), "line 99999");
    }

    #[test]
    fn printed_text_cannot_steer_a_terminal() {
        let tail = Tail::default();
        tail.push(b"a\x1b[31mred\x07\n\n");
        assert_eq!(tail.lines(), ["a[31mred"]);
    }
}
