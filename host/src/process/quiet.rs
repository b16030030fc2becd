//! A process that waits gives back what only its start needed.

use std::fs;

use rustix::mm::{Advice, madvise};

/// Lets go of all that work took and waiting does not need: freed memory, and code. For a program to call
/// once its engines are up; harmless at any time.
pub fn rest() {
    let_go_of_freed();
    let_go_of_code();
}

/// Gives freed memory back to the system, also from between what is used still.
pub(super) fn let_go_of_freed() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the allocator has no safe interface")]
    // SAFETY: only what nobody uses is given back, under the allocator's own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Keeps what many threads allocate together, so that what they have freed lies together too. To be called
/// before there are threads: each one's share of the heap stays where it is.
pub fn share_one_heap() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the allocator has no safe interface")]
    // SAFETY: a setting of the allocator, which takes a number.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Lets go of this program's own code in memory, which is read again from the file's cache where it runs
/// on: of what resolving, fetching and building took, waiting needs next to nothing. A host stays for as
/// long as its engine does.
fn let_go_of_code() {
    let Ok(maps) = fs::read_to_string("/proc/self/maps") else {
        return;
    };
    let Ok(program) = fs::read_link("/proc/self/exe") else {
        return;
    };
    let program = program.to_string_lossy();
    for (start, length) in maps.lines().filter_map(|line| code(line, &program)) {
        #[expect(unsafe_code, reason = "advice about memory has no safe interface")]
        // SAFETY: the range is mapped from a file, private, executable and never writable: its content is
        // the file's, and is read from there again.
        let _ = unsafe { madvise(start as *mut _, length, Advice::LinuxDontNeed) };
    }
}

/// Start and length of a mapping of the program's code; `None` for any other line of `/proc/PID/maps`.
fn code(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, access) = (words.next()?, words.next()?);
    if access != "r-xp" || !line.ends_with(program) {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let start = usize::from_str_radix(start, 16).ok()?;
    let end = usize::from_str_radix(end, 16).ok()?;
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_of_the_program_itself_is_let_go_of() {
        let line = |access: &str, path: &str| {
            format!("5560a000-5560c000 {access} 00001000 fd:00 42                 {path}")
        };
        let program = "/usr/bin/host";
        let of = |access: &str, path: &str| code(&line(access, path), program);
        assert_eq!(of("r-xp", program), Some((0x5560_a000, 0x2000)));
        assert_eq!(of("r--p", program), None, "relocated data");
        assert_eq!(of("rw-p", program), None);
        assert_eq!(of("r-xp", "/usr/lib/libc.so.6"), None);
        // It runs on, with all it has.
        let text = "kept".repeat(1000);
        rest();
        assert_eq!(text.len(), 4000);
    }
}
