//! Pages of metrics put together: this program's own and those of engines.
//!
//! Read line by line; a line that cannot be read is left out and nothing else. Every sample can be
//! given labels that say where it comes from; one that has such a label already keeps it as
//! `exported_…`, as Prometheus itself does it. Samples of one family stand together, whichever page
//! they came from, since the format demands that. Pure.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::Write as _,
};

use super::sample::{Sample, is_metric_name, parse};

/// Names that begin like this are this program's own: no engine can speak in its name.
pub(super) const OWN: &str = "engine_host_";

/// How much is taken from one page.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that are read; what follows is left out.
    pub bytes: usize,
    /// Samples that are taken; further ones are left out.
    pub samples: usize,
}

impl Default for Limits {
    /// Several times what a busy engine with histograms over many labels has.
    fn default() -> Self {
        Self {
            bytes: 4 << 20,
            samples: 20_000,
        }
    }
}

/// What was taken from a page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Taken {
    /// Samples that are there now.
    pub samples: usize,
    /// Lines that were left out: unreadable, said twice, or beyond a limit.
    pub dropped: usize,
}

/// Families of metrics, growing page by page.
#[derive(Debug, Clone, Default)]
pub struct Exposition {
    families: BTreeMap<String, Family>,
    seen: HashSet<String>,
}

#[derive(Debug, Clone, Default)]
struct Family {
    kind: Option<Kind>,
    help: Option<String>,
    samples: Vec<Sample>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Counter,
    Gauge,
    Histogram,
    Summary,
    Untyped,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
            Self::Untyped => "untyped",
        }
    }
}

/// Whose page it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Own,
    Engine,
}

/// What a page says of its own families, by the name that its comments use.
#[derive(Default)]
struct Said<'a> {
    kinds: BTreeMap<&'a str, &'a str>,
    helps: BTreeMap<&'a str, &'a str>,
}

impl Exposition {
    /// Takes in this program's own page.
    pub(super) fn add_own(&mut self, page: &str) {
        let limits = Limits {
            bytes: usize::MAX,
            samples: usize::MAX,
        };
        self.take(page, &[], limits, Whose::Own);
        for family in self.families.values_mut() {
            // Whoever wrote it keeps its series in no order; parts of a histogram stay together.
            family.samples.sort_by_cached_key(Sample::whose);
        }
    }

    /// Takes in the page of an engine; every sample gets these labels.
    pub fn add(&mut self, page: &str, labels: &[(&str, &str)], limits: Limits) -> Taken {
        self.take(page, labels, limits, Whose::Engine)
    }

    fn take(&mut self, page: &str, labels: &[(&str, &str)], limits: Limits, whose: Whose) -> Taken {
        let mut said = Said::default();
        let mut taken = Taken::default();
        let (page, cut) = up_to(page, limits.bytes);
        taken.dropped += usize::from(cut);
        for line in page.lines() {
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                said.note(comment);
            } else if !line.is_empty() {
                let room = taken.samples < limits.samples;
                let sample = parse(line).filter(|_| room);
                let added = sample.is_some_and(|sample| self.put(sample, labels, &said, whose));
                match added {
                    true => taken.samples += 1,
                    false => taken.dropped += 1,
                }
            }
        }
        taken
    }

    /// Puts a sample to its family; whether it belongs there.
    fn put(
        &mut self,
        mut sample: Sample,
        labels: &[(&str, &str)],
        said: &Said<'_>,
        whose: Whose,
    ) -> bool {
        if whose == Whose::Engine && sample.name.starts_with(OWN) {
            return false;
        }
        sample.label(labels);
        let Place { family, kind, help } = said.place(&sample.name);
        let known = self.families.entry(family).or_default();
        // The first page that has a family says what it is.
        if known.samples.is_empty() {
            known.kind = Some(kind);
            known.help = help.map(str::to_owned);
        } else if known.kind != Some(kind) {
            return false;
        }
        let fresh = self.seen.insert(sample.series());
        if fresh {
            known.samples.push(sample);
        }
        fresh
    }

    /// The page, in Prometheus' text format 0.0.4.
    #[must_use]
    pub fn text(&self) -> String {
        let mut page = String::new();
        let full = |family: &&Family| !family.samples.is_empty();
        for (name, family) in self.families.iter().filter(|(_, family)| full(family)) {
            let help = family.help.as_deref().unwrap_or("Not described.");
            let kind = family.kind.unwrap_or(Kind::Untyped).as_str();
            // Writing to a text cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for sample in &family.samples {
                let _ = writeln!(page, "{sample}");
            }
        }
        page
    }
}

/// Where a sample belongs.
struct Place<'a> {
    family: String,
    kind: Kind,
    help: Option<&'a str>,
}

impl<'a> Said<'a> {
    fn note(&mut self, comment: &'a str) {
        let comment = comment.trim_start();
        if let Some((name, kind)) = words(comment, "TYPE") {
            self.kinds.entry(name).or_insert(kind.trim());
        } else if let Some((name, help)) = words(comment, "HELP") {
            self.helps.entry(name).or_insert(help);
        }
    }

    /// The family of a sample: its own name, but for parts of histograms and summaries, and for what
    /// OpenMetrics calls by a shorter name in its comments.
    fn place(&self, sample: &str) -> Place<'a> {
        let kind_of = |name: &str| self.kinds.get(name).copied();
        let place = |family: &str, said: &str, kind| Place {
            family: family.to_owned(),
            kind,
            help: self.helps.get(said).copied(),
        };
        match kind_of(sample) {
            Some("counter") => return place(sample, sample, Kind::Counter),
            Some("gauge" | "stateset") => return place(sample, sample, Kind::Gauge),
            Some("summary") => return place(sample, sample, Kind::Summary),
            Some("untyped" | "unknown") => return place(sample, sample, Kind::Untyped),
            _ => {}
        }
        let whole = |suffix| {
            let base: &str = sample.strip_suffix(suffix)?;
            Some((base, kind_of(base)?))
        };
        for suffix in ["_bucket", "_sum", "_count"] {
            match whole(suffix) {
                Some((base, "histogram")) => return place(base, base, Kind::Histogram),
                Some((base, "summary")) if suffix != "_bucket" => {
                    return place(base, base, Kind::Summary);
                }
                _ => {}
            }
        }
        match (whole("_total"), whole("_info")) {
            (Some((base, "counter")), _) => place(sample, base, Kind::Counter),
            (_, Some((base, "info"))) => place(sample, base, Kind::Gauge),
            _ => place(sample, sample, Kind::Untyped),
        }
    }
}

/// Name and rest of a comment with this first word.
fn words<'a>(comment: &'a str, first: &str) -> Option<(&'a str, &'a str)> {
    let rest = comment.strip_prefix(first)?;
    let rest = rest.strip_prefix([' ', '\t'])?.trim_start();
    let (name, rest) = rest.split_once([' ', '\t'])?;
    is_metric_name(name).then_some((name, rest.trim_start()))
}

/// As much of a text as fits, whole lines only; whether something was cut off.
fn up_to(text: &str, bytes: usize) -> (&str, bool) {
    if text.len() <= bytes {
        return (text, false);
    }
    let end = text.as_bytes()[..bytes].iter().rposition(|it| *it == b'\n');
    (&text[..end.unwrap_or(0)], true)
}

impl Sample {
    /// Adds labels in front of its own; its own of that name are kept as `exported_…`.
    fn label(&mut self, labels: &[(&str, &str)]) {
        for (given, _) in labels {
            let mut name = (*given).to_owned();
            while self.has(&name) {
                name = format!("exported_{name}");
            }
            let own = self.labels.iter_mut().find(|(own, _)| own == given);
            if let Some(own) = own {
                own.0 = name;
            }
        }
        let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        self.labels.splice(0..0, labels.iter().map(pair));
    }

    fn has(&self, name: &str) -> bool {
        self.labels.iter().any(|(own, _)| own == name)
    }

    /// What all parts of a histogram share: its labels without bounds.
    fn whose(&self) -> Vec<(String, String)> {
        let labels = self.labels.iter().filter(|(name, _)| name != "le");
        labels.cloned().collect()
    }

    /// What no second sample may have: name and labels, in whichever order.
    fn series(&self) -> String {
        let mut labels = self.labels.clone();
        labels.sort();
        let bare = Self {
            labels,
            value: String::new(),
            timestamp: None,
            name: self.name.clone(),
        };
        bare.to_string()
    }
}

#[cfg(test)]
mod tests;
