//! Which results a newer one took the place of. Pure.

use super::Kept;

/// Whether a result was superseded: a newer one of its kind and name was made for the same pool, and it was
/// not used since. What another pool used last is its pool's, however old. Of what was never noted who used it,
/// any newer one takes the place.
pub(super) fn is_superseded(one: &Kept, all: &[Kept]) -> bool {
    let same_pool = |other: &Kept| match (&one.last_used_by, &other.last_used_by) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    all.iter().any(|other| {
        let (old, new) = (&one.manifest, &other.manifest);
        old.key.kind == new.key.kind
            && old.name == new.name
            && one.last_used < new.created
            && same_pool(other)
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::store::{Kind, results::tests::kept};

    /// Results of one name that were made one after the other, an hour apart.
    fn three() -> Vec<Kept> {
        let numbers = 0..3_u8;
        let one = |number: u8| {
            let mut one = kept(Kind::Build, "toy/build", usize::from(number));
            one.manifest.created += SignedDuration::from_hours(i64::from(number));
            one.last_used = one.manifest.created;
            one
        };
        numbers.map(one).collect()
    }

    fn superseded(all: &[Kept]) -> Vec<bool> {
        all.iter().map(|one| is_superseded(one, all)).collect()
    }

    #[test]
    fn of_results_of_one_name_the_newest_stays_and_one_that_was_used_since() {
        let mut all = three();
        assert_eq!(superseded(&all), [true, true, false]);
        all[0].last_used = all[2].manifest.created + SignedDuration::from_mins(1);
        assert_eq!(superseded(&all), [false, true, false]);
    }

    #[test]
    fn another_kind_another_name_and_another_pool_take_no_place() {
        let mut all = three();
        all[1].manifest.name = "toy/other".to_owned();
        all[2].manifest.key.kind = Kind::Source;
        assert_eq!(superseded(&all), [false, false, false]);
        let mut all = three();
        for (one, pool) in all.iter_mut().zip(["chat", "draft", "chat"]) {
            one.last_used_by = Some(pool.to_owned());
        }
        assert_eq!(superseded(&all), [true, false, false]);
        all[1].last_used_by = None;
        assert_eq!(superseded(&all), [true, true, false]);
    }
}
