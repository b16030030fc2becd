//! Flags that a program knows, read from what it prints for `--help`.
//!
//! Understood is the shape that most command lines share: a line that starts with `-` at its very
//! beginning lists all spellings of one flag, separated by commas, then after one space the name of
//! its value, if it takes one; a description follows after two spaces or on indented lines.

/// Flags of one program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Help {
    entries: Vec<Entry>,
}

/// One flag in all its spellings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    /// Spellings in the order printed, for example `-kvo`, `--kv-offload`, `-nkvo`, `--no-kv-offload`.
    pub spellings: Vec<String>,
    /// Whether at least one value follows it.
    pub takes_value: bool,
}

impl Help {
    /// Reads the flags out of a help text. Flags that it calls removed are left out.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut entries: Vec<Entry> = Vec::new();
        let mut removed = false;
        for line in text.lines() {
            let entry = entry(line);
            if entry.is_some() {
                removed = false;
            }
            if line.contains("argument has been removed") && !removed {
                removed = true;
                if entry.is_none() {
                    entries.pop();
                }
                continue;
            }
            entries.extend(entry);
        }
        Self { entries }
    }

    /// Whether nothing was found: then the text was no help text.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The flag with this spelling.
    #[must_use]
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.spellings.iter().any(|spelling| spelling == name))
    }

    /// Whether two spellings set the same thing, `--no-x` and `--x` included.
    #[must_use]
    pub fn same(&self, one: &str, other: &str) -> bool {
        one == other
            || self
                .entry(one)
                .is_some_and(|entry| entry.spellings.iter().any(|spelling| spelling == other))
    }

    /// The spelling under which a flag is known here: the last long one of the same polarity.
    #[must_use]
    pub fn canonical(&self, name: &str) -> Option<&str> {
        let spellings = &self.entry(name)?.spellings;
        let at = spellings.iter().position(|spelling| spelling == name)?;
        let long = spellings[at..]
            .iter()
            .chain(&spellings[..at])
            .find(|spelling| spelling.starts_with("--"))?;
        let polarity = long.starts_with("--no-");
        spellings
            .iter()
            .rfind(|other| other.starts_with("--") && other.starts_with("--no-") == polarity)
            .map(String::as_str)
    }

    /// The known long spelling that looks most like `name`, if one looks like it at all.
    #[must_use]
    pub fn nearest(&self, name: &str) -> Option<&str> {
        let wanted = name.trim_start_matches('-');
        self.entries
            .iter()
            .flat_map(|entry| &entry.spellings)
            .filter(|spelling| spelling.starts_with("--"))
            .map(|spelling| {
                let score = strsim::jaro_winkler(wanted, spelling.trim_start_matches('-'));
                (score, spelling.as_str())
            })
            .filter(|(score, _)| *score > 0.8)
            .max_by(|one, other| one.0.total_cmp(&other.0))
            .map(|(_, spelling)| spelling)
    }
}

fn entry(line: &str) -> Option<Entry> {
    if !line.starts_with('-') || line.starts_with("-----") {
        return None;
    }
    let mut spellings = Vec::new();
    let mut rest = line;
    loop {
        let end = rest.find([',', ' ']).unwrap_or(rest.len());
        spellings.push(rest[..end].to_owned());
        match rest[end..].strip_prefix(',') {
            Some(tail) if tail.trim_start().starts_with('-') => rest = tail.trim_start(),
            _ => {
                rest = &rest[end..];
                break;
            }
        }
    }
    let value = rest.strip_prefix(' ').unwrap_or_default();
    Some(Entry {
        spellings,
        takes_value: !value.is_empty() && !value.starts_with(' '),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
----- common params -----

-h,    --help, --usage                  print usage and exit
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
                                        (env: LLAMA_ARG_N_GPU_LAYERS)
-kvo,  --kv-offload, -nkvo, --no-kv-offload
                                        whether to enable KV cache offloading
--poll <0...100>                        use polling level
-ot,   --override-tensor <tensor name pattern>=<buffer type>,...
                                        override tensor buffer type
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
--spec-ngram-size-n N                   
                                        the argument has been removed. use another
--metrics                               enable endpoint
";

    #[test]
    fn spellings_values_and_removed_flags_are_told_apart() {
        let help = Help::parse(TEXT);
        assert!(help.entry("--n-gpu-layers").unwrap().takes_value);
        assert!(help.entry("--poll").unwrap().takes_value);
        assert!(help.entry("-ot").unwrap().takes_value);
        assert!(!help.entry("--metrics").unwrap().takes_value);
        assert!(!help.entry("-nkvo").unwrap().takes_value);
        assert_eq!(help.entry("--draft-max"), None);
        assert_eq!(help.entry("--spec-ngram-size-n"), None);
        assert!(Help::parse("error: no such option").is_empty());
    }

    #[test]
    fn the_canonical_spelling_keeps_the_polarity() {
        let help = Help::parse(TEXT);
        assert_eq!(help.canonical("-ngl"), Some("--n-gpu-layers"));
        assert_eq!(help.canonical("--gpu-layers"), Some("--n-gpu-layers"));
        assert_eq!(help.canonical("-kvo"), Some("--kv-offload"));
        assert_eq!(help.canonical("-nkvo"), Some("--no-kv-offload"));
        assert_eq!(help.canonical("--bogus"), None);
        assert!(help.same("-kvo", "--no-kv-offload"));
    }

    #[test]
    fn the_nearest_known_flag_is_named_and_a_far_one_is_not() {
        let help = Help::parse(TEXT);
        assert_eq!(help.nearest("--n-gpu-layer"), Some("--n-gpu-layers"));
        assert_eq!(help.nearest("--metric"), Some("--metrics"));
        assert_eq!(help.nearest("--zzz"), None);
    }
}
