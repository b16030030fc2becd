//! Narration for people: one line per event, bars for long work on a terminal.

use std::{
    borrow::Cow,
    collections::HashMap,
    io::{IsTerminal, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    config::environment::Environment,
    narrate::{Actor, Event, Level, Progress, Sink, Unit},
};

/// Longest silence about long work when there is no terminal to draw bars on.
const PLAIN_INTERVAL: Duration = Duration::from_secs(10);

/// Width of the action column: the longest usual action, `download-failed`, fits.
const ACTION_WIDTH: usize = 16;

/// Width of the column of pools and replicas: short names fit, and longer ones are rare.
const POOL_WIDTH: usize = 10;

/// Writes events and progress to standard error.
pub struct Terminal {
    bars: MultiProgress,
    state: Mutex<State>,
    interactive: bool,
    colour: bool,
    margin: Margin,
}

/// What stands before an event's action.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Margin {
    /// Whether engine or model is spoken of: a command has one pool.
    #[default]
    Side,
    /// Which pool and replica.
    Pool,
    /// The time, and which pool and replica: what a daemon tells is read later.
    DateAndPool,
}

#[derive(Default)]
struct State {
    bars: HashMap<String, ProgressBar>,
    plain: HashMap<String, Plain>,
}

struct Plain {
    started: Instant,
    /// What was done by then: an earlier run's work says nothing of this one's pace.
    before: u64,
    told: Instant,
}

impl Terminal {
    /// A sink for standard error; `colour`: where that [has colours](has_colour).
    #[must_use]
    pub fn new(colour: bool, margin: Margin) -> Self {
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
            colour,
            margin,
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
        self.line(&line_of(event, self.margin, self.colour));
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

/// Whether standard error is a terminal with colours, and nobody asked for none (no-color.org).
#[must_use]
pub fn has_colour(environment: &Environment) -> bool {
    let dumb = environment.get("TERM") == Some("dumb");
    std::io::stderr().is_terminal() && environment.get("NO_COLOR").is_none() && !dumb
}

/// An event as one line.
fn line_of(event: &Event, margin: Margin, colour: bool) -> String {
    let margin = match margin {
        Margin::Side => side(event).to_owned(),
        Margin::Pool => format!("{:<POOL_WIDTH$}", place(event)),
        Margin::DateAndPool => {
            let time = event.time.strftime("%FT%TZ");
            format!("{time} {:<POOL_WIDTH$}", place(event))
        }
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
    format!("{margin:>7}  {action} {sign}{human}{took}")
}

fn side(event: &Event) -> &'static str {
    match event.actor {
        Actor::EngineProvisioner => "engine",
        Actor::ModelProvisioner => "model",
        Actor::PoolManager => "pool",
    }
}

/// Pool and replica that an event is about, as far as it is about one.
fn place(event: &Event) -> String {
    let context = &event.context;
    let pool = context.pool_id.as_deref().unwrap_or_default();
    let place = match &context.replica_id {
        Some(replica) => format!("{pool}/{replica}"),
        None => pool.to_owned(),
    };
    printable(&place).into_owned()
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
        bar.set_prefix(printable(&progress.task).into_owned());
        bar.set_style(style(progress));
        bar.enable_steady_tick(Duration::from_millis(200));
        // What an earlier run brought is no pace of this one.
        bar.set_position(progress.done);
        bar.reset_eta();
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
        before: progress.done,
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
            // What was thrown away meanwhile is no pace either.
            plain.before = plain.before.min(progress.done);
            let since = progress.done - plain.before;
            let missing = total.saturating_sub(progress.done);
            let left = elapsed.mul_f64(missing as f64 / since.max(1) as f64);
            let rate = match progress.unit {
                Unit::Bytes => {
                    let bytes = since as f64 / elapsed.as_secs_f64();
                    format!(", {}/s", size(bytes as u64))
                }
                Unit::Items => String::new(),
            };
            format!(
                "{done} of {} ({} %){rate}, about {} left",
                count(total, progress.unit),
                progress.done * 100 / total,
                seconds(left)
            )
        }
        _ => format!("{done} so far"),
    };
    Some(format!(
        "{:>7}  {:<ACTION_WIDTH$} {amount}",
        "",
        printable(&progress.task)
    ))
}

fn count(amount: u64, unit: Unit) -> String {
    match unit {
        Unit::Bytes => size(amount),
        Unit::Items => amount.to_string(),
    }
}

/// A text without control characters but line breaks and tabs: what providers, engines and servers
/// say must not move the cursor, rename the window, or have its letters shown in another order
/// (Unicode's UAX #9) or not at all.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmful = |character: char| {
        let moves = character.is_control() && !matches!(character, '\n' | '\t');
        let reorders = matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
        );
        moves || reorders
    };
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
            line_of(&event, Margin::Side, false),
            " engine  cmake-build      built llama-server (2 min)"
        );
    }

    #[test]
    fn of_several_pools_each_line_says_which_and_of_a_daemon_also_when() {
        let mut event = Event::new(
            Actor::EngineProvisioner,
            "launch",
            "chat".into(),
            "starting on port 8080".into(),
        );
        event.time = "2026-05-04T10:00:30.25Z".parse().unwrap();
        event.context.pool_id = Some("chat".into());
        event.context.replica_id = Some("r0".into());
        assert_eq!(
            line_of(&event, Margin::Pool, false),
            "chat/r0     launch           starting on port 8080"
        );
        assert_eq!(
            line_of(&event, Margin::DateAndPool, false),
            "2026-05-04T10:00:30Z chat/r0     launch           starting on port 8080"
        );
    }

    #[test]
    fn a_plugin_cannot_drive_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\r\n\tc"), "a\u{fffd}[2Jb\u{fffd}\n\tc");
        assert_eq!(printable("m\u{202e}fugg.exe"), "m\u{fffd}fugg.exe");
        for plain in ["plain", "\u{fc}\u{5e9}\u{4f60}"] {
            assert!(matches!(printable(plain), Cow::Borrowed(_)));
        }
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
            "         cmake-build      50 of 200 (25 %), about 61 s left"
        );
        assert_eq!(plain_line(&mut state, &progress(51), later), None);
    }

    #[test]
    fn what_an_earlier_run_brought_is_no_pace_of_this_one() {
        let mut state = State::default();
        let progress = |done: u64| Progress {
            task: "download".into(),
            done: done << 20,
            total: Some(1000 << 20),
            unit: Unit::Bytes,
            finished: false,
        };
        let start = Instant::now();
        assert_eq!(plain_line(&mut state, &progress(900), start), None);
        let later = start + Duration::from_secs(20);
        assert_eq!(
            plain_line(&mut state, &progress(920), later).unwrap(),
            "         download         920.0 MiB of 1000.0 MiB (92 %), 1.0 MiB/s, about 80 s left"
        );
    }

    #[test]
    fn sizes_and_durations_read_naturally() {
        assert_eq!(size(512), "512 B");
        assert_eq!(size(69_000_000), "65.8 MiB");
        assert_eq!(seconds(Duration::from_millis(1500)), "1.5 s");
        assert_eq!(seconds(Duration::from_secs(7300)), "2 h");
    }
}
