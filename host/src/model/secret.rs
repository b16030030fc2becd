//! What of a reference must not be told: a URL may carry a password, a token for a user, or a signature.

use engine_provider_api::StageModel;

use super::Reference;
use crate::narrate::Secrets;

/// Keeps what is secret in the places of a model from being told, before anything is said of them.
pub(crate) fn register_all(secrets: &Secrets, step: &StageModel) {
    for place in std::iter::once(&step.reference).chain(&step.mirrors) {
        register(secrets, place);
    }
}

/// Keeps what is secret in a reference from being told. By which name a server takes a token is its own
/// matter: all of a query counts.
fn register(secrets: &Secrets, reference: &str) {
    let Ok(Reference::Url(url)) = Reference::parse(reference) else {
        return;
    };
    let user = Some(url.username()).filter(|_| url.password().is_none());
    for secret in [url.password(), user, url.query()].into_iter().flatten() {
        secrets.register(secret);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_mirrors_carry_is_told_no_more_than_what_a_reference_does() {
        let secrets = Secrets::default();
        let step = StageModel {
            reference: "https://h.test/m?token=first".to_owned(),
            mirrors: vec!["https://i.test/m?token=second".to_owned()],
            ..StageModel::default()
        };
        register_all(&secrets, &step);
        assert_eq!(secrets.mask("token=first, token=second"), "***, ***");
    }

    #[test]
    fn nothing_of_a_url_that_may_be_a_token_is_told() {
        for (reference, told) in [
            ("https://h.test/m?jwt=abcdef&x=1", "https://h.test/m?***"),
            ("https://atoken@h.test/m", "https://***@h.test/m"),
            ("https://me:secret@h.test/m", "https://***@h.test/m"),
            ("hf:o/n@main/m.gguf", "hf:o/n@main/m.gguf"),
            ("https://h.test/m", "https://h.test/m"),
        ] {
            let secrets = Secrets::default();
            register(&secrets, reference);
            assert_eq!(secrets.mask(reference), told);
        }
        let secrets = Secrets::default();
        register(&secrets, "https://me:secret@h.test/m");
        assert_eq!(secrets.mask("it was secret"), "it was ***");
    }
}
