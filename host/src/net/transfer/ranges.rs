//! Which bytes of a file are there: sorted parts that neither overlap nor touch.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// A set of bytes, by offset.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub(super) struct Ranges(Vec<Range<u64>>);

impl Ranges {
    /// The first `bytes` bytes.
    pub(super) fn up_to(bytes: u64) -> Self {
        let mut ranges = Self::default();
        ranges.insert(0..bytes);
        ranges
    }

    /// Adds bytes, those that are there included.
    pub(super) fn insert(&mut self, new: Range<u64>) {
        if new.is_empty() {
            return;
        }
        let first = self.0.partition_point(|range| range.end < new.start);
        let last = self.0.partition_point(|range| range.start <= new.end);
        let mut merged = new;
        if let [one, ..] = &self.0[first..last] {
            merged.start = merged.start.min(one.start);
        }
        if let [.., one] = &self.0[first..last] {
            merged.end = merged.end.max(one.end);
        }
        self.0.splice(first..last, [merged]);
    }

    /// Bytes from the start of the file without a hole.
    pub(super) fn front(&self) -> u64 {
        match self.0.first() {
            Some(first) if first.start == 0 => first.end,
            _ => 0,
        }
    }

    /// Where the last part ends.
    pub(super) fn end(&self) -> u64 {
        self.0.last().map_or(0, |range| range.end)
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.0.iter().map(|range| range.end - range.start).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is not there of the first `size` bytes, in order, in parts of at most `part` bytes.
    pub(super) fn missing(&self, size: u64, part: u64) -> Vec<Range<u64>> {
        let mut holes = Vec::new();
        let mut at = 0;
        for range in self.0.iter().chain([&(size..size)]) {
            while at < range.start.min(size) {
                let end = at.saturating_add(part).min(range.start).min(size);
                holes.push(at..end);
                at = end;
            }
            at = at.max(range.end);
        }
        holes
    }
}

impl From<Vec<(u64, u64)>> for Ranges {
    /// Takes pairs of start and end in whatever order; empty and reversed ones say nothing.
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut ranges = Self::default();
        for (start, end) in pairs {
            ranges.insert(start..end);
        }
        ranges
    }
}

impl From<Ranges> for Vec<(u64, u64)> {
    fn from(ranges: Ranges) -> Self {
        let pairs = ranges.0.into_iter().map(|range| (range.start, range.end));
        pairs.collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn holes_are_given_in_order_and_in_parts() {
        let ranges = Ranges::from(vec![(10, 20), (30, 35), (20, 22), (7, 7), (9, 3)]);
        assert_eq!(ranges.missing(40, 8), [0..8, 8..10, 22..30, 35..40]);
        assert_eq!(ranges.missing(15, 100).first(), Some(&(0..10)));
        assert_eq!((ranges.front(), ranges.end(), ranges.count()), (0, 35, 17));
        assert_eq!(Ranges::up_to(7).front(), 7);
    }

    proptest! {
        #[test]
        fn what_is_there_and_what_is_missing_make_up_the_file(
            pairs in prop::collection::vec((0_u64..60, 0_u64..60), 0..12),
            size in 0_u64..70,
            part in 1_u64..20,
        ) {
            let ranges = Ranges::from(pairs.clone());
            let mut there = [false; 128];
            for (start, end) in pairs {
                for byte in start..end {
                    there[byte as usize] = true;
                }
            }
            prop_assert_eq!(ranges.count(), there.iter().filter(|it| **it).count() as u64);
            prop_assert_eq!(ranges.front(), there.iter().take_while(|it| **it).count() as u64);
            for hole in ranges.missing(size, part) {
                prop_assert!(hole.end - hole.start <= part && hole.end <= size);
                for byte in hole {
                    prop_assert!(!std::mem::replace(&mut there[byte as usize], true));
                }
            }
            prop_assert!(there[..size as usize].iter().all(|it| *it));
            let pairs: Vec<(u64, u64)> = ranges.clone().into();
            prop_assert_eq!(Ranges::from(pairs), ranges);
        }
    }
}
