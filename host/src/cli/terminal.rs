//! Narration for people: one line per event, bars for long work on a terminal.

use std::{
    borrow::Cow,
    collections::HashMap,
    io::{IsTerminal, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::narrate::{Actor, Event, Level, Progress, Sink, Unit};

/// Longest silence about long work when there is no terminal to draw bars on.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Width of the action column: the longest usual action, `download-failed`, fits.
const ACTION_WIDTH: usize = 16;

/// Writes events and progress to standard error.
pub struct Terminal {
    bars: MultiProgress,
    state: Mutex<State>,
    interactive: bool,
    colour: bool,
}

#[derive(Default)]
struct State {
    bars: HashMap<String, ProgressBar>,
    plain: HashMap<String, Plain>,
}

struct Plain {
    started: Instant,
    told: Instant,
}

impl Terminal {
    /// A sink for standard error; `no_colour` as asked for by `NO_COLOR` (no-color.org).
    #[must_use]
    pub fn new(no_colour: bool) -> Self {
        let interactive = std::io::stderr().is_terminal();
        let target = if interactive {
            ProgressDrawTarget::stderr_with_hz(10)
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            bars: MultiProgress::with_draw_target(target),
            state: Mutex::default(),
            interactive,
            colour: interactive && !no_colour,
        }
    }

    fn line(&self, line: &str) {
        // Fails when the terminal is gone: then there is nobody to tell.
        let _ = if self.state.lock().expect("no holder panics").bars.is_empty() {
            writeln!(std::io::stderr(), "{line}")
        } else {
            // Drawn above the bars.
            self.bars.println(line)
        };
    }
}

impl Sink for Terminal {
    fn event(&self, event: &Event) {
        self.line(&line_of(event, self.colour));
    }

    fn progress(&self, progress: &Progress) {
        let line = {
            let mut state = self.state.lock().expect("no holder panics");
            if self.interactive {
                draw(&self.bars, &mut state, progress);
                None
            } else {
                plain_line(&mut state, progress, Instant::now())
            }
        };
        if let Some(line) = line {
            self.line(&line);
        }
    }
}

/// An event as one line.
fn line_of(event: &Event, colour: bool) -> String {
    let side = match event.actor {
        Actor::EngineProvisioner => "engine",
        Actor::ModelProvisioner => "model",
        Actor::PoolManager => "pool",
    };
    let (code, sign) = match event.level {
        Level::Info => ("32", ""),
        Level::Warning => ("33", "warning: "),
        Level::Error => ("31", "failed: "),
    };
    let action = format!("{:<ACTION_WIDTH$}", printable(&event.action));
    let action = if colour {
        format!("\x1b[{code}m{action}\x1b[0m")
    } else {
        action
    };
    // A failure's further lines are the printer's business, which has room for them.
    let human = printable(event.human.lines().next().unwrap_or_default());
    let took = match event.duration_ms {
        Some(ms) if ms >= 100 => format!(" ({})", seconds(Duration::from_millis(ms))),
        _ => String::new(),
    };
    format!("{side:>7}  {action} {sign}{human}{took}")
}

fn draw(bars: &MultiProgress, state: &mut State, progress: &Progress) {
    if progress.finished {
        if let Some(bar) = state.bars.remove(&progress.task) {
            bar.finish_and_clear();
        }
        return;
    }
    let bar = state.bars.entry(progress.task.clone()).or_insert_with(|| {
        let bar = bars.add(ProgressBar::no_length());
        bar.set_prefix(progress.task.clone());
        bar.set_style(style(progress));
        bar.enable_steady_tick(Duration::from_millis(200));
        bar
    });
    if bar.length() != progress.total {
        if let Some(total) = progress.total {
            bar.set_length(total);
        }
        bar.set_style(style(progress));
    }
    bar.set_position(progress.done);
}

fn style(progress: &Progress) -> ProgressStyle {
    let template = match (progress.unit, progress.total.is_some()) {
        (Unit::Bytes, true) => {
            "         {prefix:16} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta} left"
        }
        (Unit::Bytes, false) => "         {prefix:16} {spinner} {bytes} {bytes_per_sec}",
        (Unit::Items, true) => "         {prefix:16} [{bar:30}] {pos}/{len} {elapsed} ({eta} left)",
        (Unit::Items, false) => "         {prefix:16} {spinner} {pos} {elapsed}",
    };
    ProgressStyle::with_template(template)
        .expect("the templates are constants")
        .progress_chars("=> ")
}

/// Without a terminal: a line now and then, the first one only once the work proves to be long.
fn plain_line(state: &mut State, progress: &Progress, now: Instant) -> Option<String> {
    if progress.finished {
        state.plain.remove(&progress.task);
        return None;
    }
    let plain = state.plain.entry(progress.task.clone()).or_insert(Plain {
        started: now,
        told: now,
    });
    if now.duration_since(plain.told) < PLAIN_INTERVAL {
        return None;
    }
    plain.told = now;
    let elapsed = now.duration_since(plain.started);
    let done = count(progress.done, progress.unit);
    let amount = match progress.total {
        Some(total) if total > 0 => {
            let left = elapsed.mul_f64(
                (total.saturating_sub(progress.done)) as f64 / progress.done.max(1) as f64,
            );
            format!(
                "{done} of {} ({} %), about {} left",
                count(total, progress.unit),
                progress.done * 100 / total,
                seconds(left)
            )
        }
        _ => format!("{done} so far"),
    };
    Some(format!(
        "{:>7}  {:<ACTION_WIDTH$} {amount}",
        "", progress.task
    ))
}

fn count(amount: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => size(amount),
        Unit::Items => amount.to_string(),
    }
}

/// A text without control characters but line breaks and tabs: what providers, engines and servers
/// say must not move the cursor or rename the window.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    if text.contains(harmful) {
        Cow::Owned(text.replace(harmful, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A size for people, in binary units.
#[must_use]
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut amount = bytes as f64;
    let mut unit = 0;
    while amount >= 1024.0 && unit + 1 < UNITS.len() {
        amount /= 1024.0;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes} B")
    } else {
        format!("{amount:.1} {}", UNITS[unit])
    }
}

/// A duration for people.
#[must_use]
pub fn seconds(duration: Duration) -> String {
    let whole = duration.as_secs();
    match whole {
        0..10 => format!("{:.1} s", duration.as_secs_f64()),
        10..120 => format!("{whole} s"),
        120..7200 => format!("{} min", whole / 60),
        _ => format!("{} h", whole / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line_with_its_duration() {
        let mut event = Event::new(
            Actor::EngineProvisioner,
            "cmake-build",
            "build".into(),
            "built llama-server\nand more".into(),
        );
        event.duration_ms = Some(153_000);
        assert_eq!(
            line_of(&event, false),
            " engine  cmake-build      built llama-server (2 min)"
        );
    }

    #[test]
    fn a_plugin_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\r\n\tc"), "a\u{fffd}[2Jb\u{fffd}\n\tc");
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
    }

    #[test]
    fn without_a_terminal_long_work_is_told_now_and_then() {
        let mut state = State::default();
        let progress = |done| Progress {
            task: "cmake-build".into(),
            done,
            total: Some(200),
            unit: Unit::Items,
            finished: false,
        };
        let start = Instant::now();
        assert_eq!(plain_line(&mut state, &progress(1), start), None);
        let later = start + Duration::from_secs(20);
        assert_eq!(
            plain_line(&mut state, &progress(50), later).unwrap(),
            "         cmake-build      50 of 200 (25 %), about 60 s left"
        );
        assert_eq!(plain_line(&mut state, &progress(51), later), None);
    }

    #[test]
    fn sizes_and_durations_read_naturally() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(69_000_000), "65.8 MiB");
        assert_eq!(seconds(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(seconds(Duration::from_secs(7300)), "2 h");
    }
}
