//! What a list of engine flags in a pool file means, and which of them are refused.

use engine_provider_api::ProviderError;

use crate::help::Help;

/// A flag as an operator gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Its name with dashes, in the spelling given until [`normalise`] changes it.
    pub name: String,
    /// Values that follow it.
    pub values: Vec<String>,
    /// Pool-file field it came from, for example `provisioning.flags[2]`.
    pub field: String,
}

/// A flag that an operator may not set, and what to do instead.
#[derive(Debug, Clone, Copy)]
pub struct Refusal {
    /// Canonical name; a trailing `*` stands for any ending.
    pub name: &'static str,
    /// Why not, a clause that follows the flag's name.
    pub reason: &'static str,
    /// What to do instead.
    pub instead: &'static str,
}

impl Refusal {
    /// A flag or variable that belongs to the provider.
    #[must_use]
    pub const fn managed(name: &'static str, instead: &'static str) -> Self {
        Self::new(name, "is set by the provider", instead)
    }

    /// A flag or variable that is refused for a reason of its own.
    #[must_use]
    pub const fn new(name: &'static str, reason: &'static str, instead: &'static str) -> Self {
        Self {
            name,
            reason,
            instead,
        }
    }
}

impl Flag {
    /// A flag that the provider itself sets.
    pub fn own<T: Into<String>>(name: &str, values: impl IntoIterator<Item = T>) -> Self {
        Self {
            name: name.to_owned(),
            values: values.into_iter().map(Into::into).collect(),
            field: String::new(),
        }
    }

    /// Its first value; empty where it has none.
    #[must_use]
    pub fn value(&self) -> &str {
        self.values.first().map_or("", String::as_str)
    }

    fn invalid(&self, message: impl Into<String>) -> ProviderError {
        ProviderError::invalid(self.field.clone(), message)
    }
}

/// Groups a pool's `provisioning.flags` into flags with their values.
///
/// `--flag value`, `--flag=value` and both in one string are understood. A negative number is a
/// value; any other value that starts with a dash is written `--flag=-value`.
pub fn parse(tokens: &[String]) -> Result<Vec<Flag>, ProviderError> {
    let mut flags: Vec<Flag> = Vec::new();
    for (index, token) in tokens.iter().enumerate() {
        let field = format!("provisioning.flags[{index}]");
        let token = token.trim();
        if is_flag(token) {
            let (name, value) = match token.split_once(['=', ' ']) {
                Some((name, value)) => (name, Some(value.trim().to_owned())),
                None => (token, None),
            };
            flags.push(Flag {
                name: name.to_owned(),
                values: value.into_iter().collect(),
                field,
            });
        } else {
            let Some(flag) = flags.last_mut() else {
                return Err(ProviderError::invalid(
                    field,
                    format!("`{token}` follows no flag"),
                ));
            };
            flag.values.push(token.to_owned());
        }
    }
    Ok(flags)
}

fn is_flag(token: &str) -> bool {
    let name = token.trim_start_matches('-');
    token.len() > name.len() && name.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Gives each flag its one name: first by the provider's own aliases, then as `known` spells it.
pub fn normalise(flags: &mut [Flag], aliases: &[(&str, &str)], known: &Help) {
    for flag in flags {
        let alias = aliases.iter().find(|(alias, _)| *alias == flag.name);
        if let Some((_, name)) = alias {
            flag.name = (*name).to_owned();
        } else if let Some(name) = known.canonical(&flag.name) {
            flag.name = name.to_owned();
        }
    }
}

/// Refuses the first flag that stands in the table.
pub fn refuse(flags: &[Flag], table: &[Refusal]) -> Result<(), ProviderError> {
    for flag in flags {
        let refused = |refusal: &&Refusal| match refusal.name.strip_suffix('*') {
            Some(start) => flag.name.starts_with(start),
            None => refusal.name == flag.name,
        };
        if let Some(refusal) = table.iter().find(refused) {
            return Err(flag
                .invalid(format!("`{}` {}", flag.name, refusal.reason))
                .hint(refusal.instead));
        }
    }
    Ok(())
}

/// Refuses the first flag that `known` does not have, naming the nearest it has, and the first with
/// a value too few or too many. `program` is named in the message.
pub fn check(flags: &[Flag], known: &Help, program: &str) -> Result<(), ProviderError> {
    for flag in flags {
        let Some(entry) = known.entry(&flag.name) else {
            let error = flag.invalid(format!("{program} has no flag `{}`", flag.name));
            return Err(match known.nearest(&flag.name) {
                Some(near) => error.hint(format!("write `{near}`, if that is what was meant")),
                None => error.hint(format!("remove `{}` from `provisioning.flags`", flag.name)),
            });
        };
        if entry.takes_value && flag.values.is_empty() {
            return Err(flag.invalid(format!("`{}` needs a value", flag.name)));
        }
        if !entry.takes_value && !flag.values.is_empty() {
            return Err(flag.invalid(format!(
                "`{}` takes no value, but `{}` follows it",
                flag.name,
                flag.value()
            )));
        }
    }
    Ok(())
}

/// Adds to `base` what the operator gave: a flag that sets the same thing takes the place of the
/// provider's.
#[must_use]
pub fn override_with(base: Vec<Flag>, given: &[Flag], known: &Help) -> Vec<Flag> {
    let kept = |flag: &Flag| {
        !given
            .iter()
            .any(|other| known.same(&flag.name, &other.name))
    };
    let mut flags: Vec<Flag> = base.into_iter().filter(kept).collect();
    flags.extend(given.iter().cloned());
    flags
}

/// The flags as arguments.
#[must_use]
pub fn arguments(flags: &[Flag]) -> Vec<String> {
    flags
        .iter()
        .flat_map(|flag| std::iter::once(&flag.name).chain(&flag.values))
        .cloned()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(tokens: &[&str]) -> Vec<Flag> {
        let tokens: Vec<String> = tokens.iter().map(|token| (*token).to_owned()).collect();
        parse(&tokens).unwrap()
    }

    #[test]
    fn every_way_to_write_a_value_means_the_same() {
        for tokens in [&["--seed", "-1"][..], &["--seed=-1"], &["--seed -1"]] {
            assert_eq!(arguments(&flags(tokens)), ["--seed", "-1"], "{tokens:?}");
        }
        let key_value = flags(&["--override-kv=a=int:1", "--metrics"]);
        assert_eq!(key_value[0].value(), "a=int:1");
        assert_eq!(key_value[1].field, "provisioning.flags[1]");
    }

    #[test]
    fn a_value_without_a_flag_is_refused_with_its_place() {
        let error = parse(&["99".to_owned()]).unwrap_err();
        assert_eq!(error.message, "`99` follows no flag");
        assert_eq!(error.field.as_deref(), Some("provisioning.flags[0]"));
    }

    #[test]
    fn aliases_win_over_the_help_text() {
        let known =
            Help::parse("-ngl,  --gpu-layers, --n-gpu-layers N  layers\n-c, --ctx-size N  x");
        let mut given = flags(&["--ngl", "9", "-ngl", "8", "-c", "1"]);
        normalise(&mut given, &[("--ngl", "--n-gpu-layers")], &known);
        let names: Vec<&str> = given.iter().map(|flag| flag.name.as_str()).collect();
        assert_eq!(names, ["--n-gpu-layers", "--n-gpu-layers", "--ctx-size"]);
    }

    #[test]
    fn unknown_flags_and_wrong_values_are_named() {
        let known = Help::parse("--flash-attn [on|off|auto]  x\n--metrics    y");
        let message = |tokens: &[&str]| {
            let error = check(&flags(tokens), &known, "llama-server").unwrap_err();
            (
                error.message,
                error.hints.first().map(|hint| hint.text.clone()),
            )
        };
        assert_eq!(
            message(&["--flash-atn", "on"]),
            (
                "llama-server has no flag `--flash-atn`".to_owned(),
                Some("write `--flash-attn`, if that is what was meant".to_owned())
            )
        );
        assert_eq!(message(&["--flash-attn"]).0, "`--flash-attn` needs a value");
        assert_eq!(
            message(&["--metrics", "on"]).0,
            "`--metrics` takes no value, but `on` follows it"
        );
    }

    #[test]
    fn a_refused_family_is_matched_by_its_beginning() {
        let table = [Refusal {
            name: "--fim-*",
            reason: "downloads a model",
            instead: "set `provisioning.model.ref`",
        }];
        let error = refuse(&flags(&["--fim-qwen-3b-default"]), &table).unwrap_err();
        assert_eq!(error.message, "`--fim-qwen-3b-default` downloads a model");
        assert!(refuse(&flags(&["--fit", "on"]), &table).is_ok());
    }

    #[test]
    fn a_given_flag_takes_the_place_of_its_opposite() {
        let known = Help::parse("-cb, --cont-batching, -nocb, --no-cont-batching\n");
        let base = vec![Flag::own::<&str>("--no-cont-batching", [])];
        let all = override_with(base, &flags(&["--cont-batching"]), &known);
        assert_eq!(arguments(&all), ["--cont-batching"]);
    }
}
