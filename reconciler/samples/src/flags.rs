//! The flags of the sample controllers, beside the framework's own.

use reknit::prelude::*;

/// Parsed with the framework's flags; constructors find it in their [`Context`].
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Flags {
    /// Work on the objects of one namespace only, so that a Role there is all the controller needs
    #[arg(long, value_name = "NAME", value_parser = namespace)]
    pub namespace: Option<String>,
}

impl Flags {
    /// The objects that the controllers of this process read.
    pub fn selection(&self) -> Selection {
        self.namespace.iter().fold(select(), |selection, namespace| selection.namespace(namespace))
    }
}

/// A namespace's name is an RFC 1123 label.
fn namespace(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = text.len() <= 63
        && text.chars().all(|c| plain(c) || c == '-')
        && text.starts_with(plain)
        && text.ends_with(plain);
    match label {
        true => Ok(text.to_owned()),
        false => Err("no name of a namespace: want lower-case letters, digits and '-', 63 at most".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::namespace;

    #[test]
    fn only_what_can_name_a_namespace_is_taken() {
        for good in ["a", "team-a", "0"] {
            assert_eq!(namespace(good).as_deref(), Ok(good));
        }
        for bad in ["", "No Such", "a.b", "-a", "a-", &"a".repeat(64)] {
            assert!(namespace(bad).is_err(), "{bad:?}");
        }
    }
}
