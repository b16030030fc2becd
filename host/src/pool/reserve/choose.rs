//! Which GPUs a replica gets: a pure function of what is asked, what the driver says and what is
//! reserved.
//!
//! The fewest GPUs that it fits on, and of those the ones with the fewest engines: first of its own
//! pool, so that replicas spread, then of any. One process can use one MIG slice and no GPU beside it,
//! and GPUs of one vendor only.

use std::{cmp::Reverse, ops::RangeInclusive};

use engine_provider_api::{Device, Gpu, GpuPolicy, GpuStatus, Gpus, Mode};

use super::{Need, NoRoom, Placement, ReserveError, Room, Share, book::Entry};

/// Whether a replica uses GPUs at all.
pub(super) fn uses_gpus(want: &Placement<'_>, gpus: &Gpus) -> bool {
    let machine_has_some = gpus.status == GpuStatus::Present && !gpus.devices.is_empty();
    want.need != Need::Bytes(0)
        && want.pool.provisioning.mode != Some(Mode::External)
        && match want.pool.gpu {
            GpuPolicy::Forbid => false,
            GpuPolicy::Prefer => machine_has_some,
            GpuPolicy::Require => true,
        }
}

/// Chooses the GPUs of a replica; none where it uses none.
pub(super) fn choose(
    want: &Placement<'_>,
    gpus: &Gpus,
    taken: &[Entry],
) -> Result<Vec<Share>, ReserveError> {
    if !uses_gpus(want, gpus) {
        return Ok(Vec::new());
    }
    let rooms = rooms(want, candidates(want, gpus)?, taken);
    let fitting = counts(want, rooms.len()).find_map(|count| fit(want, &rooms, count));
    fitting.ok_or_else(|| refusal(want, rooms))
}

/// Chooses the GPUs of a replica as [`choose`] does, or gives it its share of them by number where no
/// share could ever hold what it is said to take: an engine that takes nine tenths of whatever it gets
/// takes nine tenths of all, as long as it was prepared for all.
pub(super) fn choose_or_share(
    want: &Placement<'_>,
    gpus: &Gpus,
    taken: &[Entry],
) -> Result<Vec<Share>, ReserveError> {
    let chosen = choose(want, gpus, taken);
    match (&chosen, want.need) {
        (Err(ReserveError::NoRoom(none)), Need::Bytes(bytes))
            if bytes > largest_share(want, &none.rooms) =>
        {
            let unknown = Placement {
                need: Need::Unknown,
                ..*want
            };
            choose(&unknown, gpus, taken)
        }
        _ => chosen,
    }
}

/// What the share of one replica could hold at best; everything where its share is all there is, or
/// all that one process can use.
fn largest_share(want: &Placement<'_>, rooms: &[Room]) -> u64 {
    let share = share(want, rooms.len());
    let one_only = rooms.iter().any(|room| room.mig);
    if share == rooms.len() || one_only || !want.pool.tensor_split.is_empty() {
        return u64::MAX;
    }
    let mut totals: Vec<u64> = rooms.iter().map(|room| room.total_bytes).collect();
    totals.sort_unstable();
    totals.iter().rev().take(share).sum()
}

/// How many GPUs each replica can have.
fn share(want: &Placement<'_>, available: usize) -> usize {
    (available / want.pool.replicas.max(1) as usize).max(1)
}

/// Shares what a replica needs among the GPUs that it has been given already. What an engine of its own
/// has taken of them counts as free.
pub(super) fn choose_on(
    want: &Placement<'_>,
    given: &Entry,
    gpus: &Gpus,
    others: &[Entry],
) -> Result<Vec<Share>, ReserveError> {
    if !uses_gpus(want, gpus) {
        return Ok(Vec::new());
    }
    let find = |share: &Share| gpus.devices.iter().find(|gpu| gpu.uuid == share.uuid);
    let candidates = given.devices.iter().filter_map(find).collect();
    let mut rooms = rooms(want, candidates, others);
    for room in rooms.iter_mut().filter(|_| given.allocated) {
        let own = given.devices.iter().filter(|it| it.uuid == room.uuid);
        room.free_bytes += own.map(|share| share.bytes).sum::<u64>();
    }
    let fitting = fit(want, &rooms, given.devices.len());
    fitting.ok_or_else(|| refusal(want, rooms))
}

/// Whether a replica may have these GPUs, as its pool is now.
pub(super) fn may_stay(want: &Placement<'_>, given: &[Share], gpus: &Gpus) -> bool {
    let Ok(candidates) = candidates(want, gpus) else {
        return false;
    };
    let allowed = |share: &Share| candidates.iter().any(|gpu| gpu.uuid == share.uuid);
    uses_gpus(want, gpus)
        && given.iter().all(allowed)
        && counts(want, candidates.len()).contains(&given.len())
}

/// The GPUs that a pool may use, in its own order where it names them, else in the driver's.
fn candidates<'a>(want: &Placement<'_>, gpus: &'a Gpus) -> Result<Vec<&'a Gpu>, ReserveError> {
    let first = gpus.devices.first().ok_or_else(|| ReserveError::NoGpu {
        pool: want.pool.id.clone(),
        broken: gpus.status == GpuStatus::DriverBroken,
    })?;
    if want.pool.devices.is_empty() {
        let alike = |gpu: &&Gpu| gpu.vendor == first.vendor;
        return Ok(gpus.devices.iter().filter(alike).collect());
    }
    let named = want.pool.devices.iter().map(|device| {
        let is_it = |gpu: &&Gpu| match device {
            // An index names a whole GPU; its slices have ids of their own.
            Device::Index(index) => gpu.index == *index && !gpu.mig,
            Device::Uuid(uuid) => gpu.uuid == *uuid,
        };
        let found = gpus.devices.iter().find(is_it);
        found.ok_or_else(|| ReserveError::NoSuchGpu {
            pool: want.pool.id.clone(),
            device: match device {
                Device::Index(index) => index.to_string(),
                Device::Uuid(uuid) => uuid.clone(),
            },
            there_are: gpus.devices.iter().map(|gpu| gpu.uuid.clone()).collect(),
        })
    });
    named.collect()
}

/// What each GPU has room for.
fn rooms<'a>(want: &Placement<'_>, gpus: Vec<&'a Gpu>, taken: &[Entry]) -> Vec<Room> {
    let room = |gpu: &'a Gpu| {
        let mut room = Room::of(gpu);
        for entry in taken {
            for share in entry.devices.iter().filter(|it| it.uuid == gpu.uuid) {
                room.engines += 1;
                room.siblings += usize::from(entry.pool_id == want.pool.id);
                room.reserved_bytes += share.bytes;
                if !entry.allocated {
                    room.pending_bytes += share.bytes;
                }
            }
        }
        room
    };
    gpus.into_iter().map(room).collect()
}

/// How many GPUs a replica may have, the best number first.
fn counts(want: &Placement<'_>, available: usize) -> RangeInclusive<usize> {
    let pool = want.pool;
    let exactly = |count: usize| count..=count;
    if !pool.tensor_split.is_empty() {
        return exactly(pool.tensor_split.len());
    }
    if !pool.devices.is_empty() && pool.replicas <= 1 {
        return exactly(available);
    }
    match want.need {
        Need::Unknown => exactly(share(want, available)),
        Need::Bytes(_) => 1..=share(want, available),
    }
}

/// The best set of this many GPUs, if one has room.
fn fit(want: &Placement<'_>, rooms: &[Room], count: usize) -> Option<Vec<Share>> {
    let fits_together = |room: &&Room| count == 1 || !room.mig;
    let mut rooms: Vec<(usize, &Room)> = rooms.iter().filter(fits_together).enumerate().collect();
    let load = |(position, room): &(usize, &Room)| {
        let free = Reverse(room.available());
        (room.siblings, room.engines, free, *position)
    };
    rooms.sort_by_key(load);
    let bytes = match want.need {
        Need::Unknown => return take(rooms, count, |_, _| Some(0)),
        Need::Bytes(bytes) => bytes,
    };
    if !want.pool.tensor_split.is_empty() {
        rooms.sort_by_key(|(position, room)| (Reverse(room.available()), *position));
        return take(rooms, count, |index, _| {
            Some(part(bytes, &want.pool.tensor_split, index))
        });
    }
    let each = bytes.div_ceil(count as u64);
    let roomy: Vec<_> = rooms
        .iter()
        .copied()
        .filter(|(_, room)| room.has(each))
        .collect();
    take(roomy, count, |_, _| Some(each)).or_else(|| in_proportion(rooms, count, bytes))
}

/// Unequal GPUs take shares as large as their room: some engines split like that.
fn in_proportion(mut rooms: Vec<(usize, &Room)>, count: usize, bytes: u64) -> Option<Vec<Share>> {
    rooms.sort_by_key(|(position, room)| (Reverse(room.available()), *position));
    let together: u64 = rooms
        .iter()
        .take(count)
        .map(|(_, room)| room.available())
        .sum();
    if together < bytes {
        return None;
    }
    take(rooms, count, |_, room| {
        let share = u128::from(bytes) * u128::from(room.available());
        u64::try_from(share.div_ceil(u128::from(together.max(1)))).ok()
    })
}

/// The first GPUs in their own order again, each with its share; `None` where they are too few or one
/// has no room.
fn take(
    mut rooms: Vec<(usize, &Room)>,
    count: usize,
    share: impl Fn(usize, &Room) -> Option<u64>,
) -> Option<Vec<Share>> {
    if rooms.len() < count {
        return None;
    }
    rooms.truncate(count);
    rooms.sort_by_key(|(position, _)| *position);
    let shares = rooms.into_iter().enumerate().map(|(index, (_, room))| {
        let bytes = share(index, room)?;
        room.has(bytes).then(|| Share {
            uuid: room.uuid.clone(),
            bytes,
        })
    });
    shares.collect()
}

/// The part of a model that `tensor_split` gives to one GPU, rounded up.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "shares are checked to be positive, and bytes are estimates"
)]
fn part(bytes: u64, split: &[f64], index: usize) -> u64 {
    let whole: f64 = split.iter().sum();
    let share = split.get(index).copied().unwrap_or(0.0) / whole;
    ((bytes as f64 * share).ceil() as u64).min(bytes)
}

fn refusal(want: &Placement<'_>, rooms: Vec<Room>) -> ReserveError {
    ReserveError::NoRoom(Box::new(NoRoom {
        pool: want.pool.id.clone(),
        replica: want.replica.to_owned(),
        bytes: match want.need {
            Need::Unknown => 0,
            Need::Bytes(bytes) => bytes,
        },
        rooms,
    }))
}
