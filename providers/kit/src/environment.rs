//! The environment that an operator gives an engine, checked and made into templates.

use std::collections::BTreeMap;

use engine_provider_api::{Piece, Pool, ProviderError, Template};

use crate::flags::Refusal;

/// Turns `provisioning.env` into templates. `{secret.NAME}` keeps its meaning, other braces are
/// text. A variable that stands in the table (a trailing `*` stands for any ending) is refused.
pub fn environment(
    pool: &Pool,
    refused: &[Refusal],
) -> Result<BTreeMap<String, Template>, ProviderError> {
    let mut environment = BTreeMap::new();
    for (name, value) in &pool.provisioning.env {
        let stands = |refusal: &&Refusal| match refusal.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => refusal.name == name,
        };
        if let Some(refusal) = refused.iter().find(stands) {
            let field = format!("provisioning.env.{name}");
            let message = format!("`{name}` {}", refusal.reason);
            return Err(ProviderError::invalid(field, message).hint(refusal.instead));
        }
        environment.insert(name.clone(), template(value));
    }
    Ok(environment)
}

fn template(value: &str) -> Template {
    let template = Template::new(value);
    let secrets_only = template.pieces().is_ok_and(|pieces| {
        pieces.iter().all(|piece| match piece {
            Piece::Placeholder(name) => name.starts_with("secret."),
            Piece::Text(_) => true,
        })
    });
    if secrets_only && value.contains("{secret.") {
        template
    } else {
        Template::literal(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_stay_names_and_other_braces_stay_text() {
        assert_eq!(template("{secret.KEY}").as_str(), "{secret.KEY}");
        assert_eq!(template("{\"a\": 1}").as_str(), "{{\"a\": 1}}");
        assert_eq!(template("{address.port}").as_str(), "{{address.port}}");
    }
}
