//! A log in whole lines: a secret that a part of it cuts in two would not be found.

/// Longest line that is waited for; of a longer one its parts are given.
const LINE_BYTES: usize = 64 * 1024;

/// Whole lines out of parts that may end anywhere.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// The lines that are whole with this part; a last one that is too long as well.
    pub fn add(&mut self, part: Vec<u8>) -> Vec<u8> {
        self.rest.extend(part);
        let end = match self.rest.iter().rposition(|byte| *byte == b'\n') {
            Some(at) => at + 1,
            None if self.rest.len() > LINE_BYTES => self.rest.len(),
            None => 0,
        };
        let after = self.rest.split_off(end);
        std::mem::replace(&mut self.rest, after)
    }

    /// What is left of a last line that has no end.
    #[must_use]
    pub fn rest(self) -> Vec<u8> {
        self.rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_given_once_it_is_whole_or_too_long() {
        let mut lines = Lines::default();
        assert!(lines.add(b"one, ".to_vec()).is_empty());
        assert_eq!(lines.add(b"two\nthr".to_vec()), b"one, two\n");
        assert_eq!(lines.add(b"ee\n".to_vec()), b"three\n");
        let long = vec![b'x'; LINE_BYTES + 1];
        assert_eq!(lines.add(long.clone()), long);
        assert!(lines.rest.is_empty());
    }
}
