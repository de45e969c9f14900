//! Texts within the bounds that the API server sets for a field. A text beyond them would have the whole request
//! refused, so it is changed instead.

use std::borrow::Cow;

/// The length and the characters of a text that the API server accepts in a field.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    max_bytes: usize,
    first: fn(char) -> bool,
    inner: fn(char) -> bool,
    last: fn(char) -> bool,
    /// Replaces a text without any valid character. Empty if the field may be empty.
    fallback: &'static str,
    /// The replacement of an invalid character.
    replacement: Replacement,
}

#[derive(Clone, Copy, Debug)]
enum Replacement {
    /// A dash.
    Dash,
    /// Nothing, and the next letter is capitalized: `no pods` becomes `noPods`.
    CamelCase,
}

impl Bounds {
    /// The message of a condition.
    pub const CONDITION_MESSAGE: Self = Self::any(32_768, "");
    /// The reason of a `metav1.Condition`.
    pub const CONDITION_REASON: Self = Self {
        max_bytes: 1024,
        first: |c| c.is_ascii_alphabetic(),
        inner: |c| is_word(c) || ",:".contains(c),
        last: is_word,
        fallback: "Unspecified",
        replacement: Replacement::CamelCase,
    };
    /// The type of a `metav1.Condition` without its domain.
    pub const CONDITION_TYPE: Self = Self::LABEL_VALUE.within(316);
    /// The note of an event.
    pub const EVENT_NOTE: Self = Self::any(1024, "");
    /// The reason and the action of an event.
    pub const EVENT_REASON: Self = Self::any(128, "Unspecified");
    /// The instance that reports an event.
    pub const REPORTING_INSTANCE: Self = Self::any(128, "unknown");
    /// The value of a label, or a qualified name without a domain.
    pub const LABEL_VALUE: Self = Self {
        max_bytes: 63,
        first: |c| c.is_ascii_alphanumeric(),
        inner: |c| is_word(c) || "-.".contains(c),
        last: |c| c.is_ascii_alphanumeric(),
        fallback: "unknown",
        replacement: Replacement::Dash,
    };
    /// The name of a field manager, which has to be printable.
    pub const FIELD_MANAGER: Self = Self {
        max_bytes: 128,
        first: |c| c.is_ascii_graphic(),
        inner: |c| c == ' ' || c.is_ascii_graphic(),
        last: |c| c.is_ascii_graphic(),
        fallback: "unknown",
        replacement: Replacement::Dash,
    };

    const fn any(max_bytes: usize, fallback: &'static str) -> Self {
        let any = |_| true;
        Self { max_bytes, first: any, inner: any, last: any, fallback, replacement: Replacement::Dash }
    }

    /// The same bounds with a shorter length.
    pub const fn within(self, max_bytes: usize) -> Self {
        Self { max_bytes, ..self }
    }

    /// Returns the text, cut between characters and made valid if it exceeds the bounds.
    pub fn apply<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let cut = &text[..text.floor_char_boundary(self.max_bytes)];
        if !cut.is_empty()
            && cut.starts_with(self.first)
            && cut.ends_with(self.last)
            && cut.chars().all(self.inner)
        {
            return Cow::Borrowed(cut);
        }
        let valid = self.replace_invalid(text);
        let valid = valid.trim_start_matches(|c| !(self.first)(c));
        let valid = valid[..valid.floor_char_boundary(self.max_bytes)].trim_end_matches(|c| !(self.last)(c));
        Cow::Owned(if valid.is_empty() { self.fallback } else { valid }.to_owned())
    }

    /// Replaces the invalid characters of a text, which may be long, up to twice the maximum length.
    fn replace_invalid(&self, text: &str) -> String {
        let mut valid = String::new();
        let mut is_new_word = false;
        for c in text.chars() {
            if valid.len() >= 2 * self.max_bytes {
                break;
            }
            match self.replacement {
                _ if (self.inner)(c) => {
                    valid.push(if is_new_word { c.to_ascii_uppercase() } else { c });
                    is_new_word = false;
                }
                Replacement::Dash => valid.push('-'),
                Replacement::CamelCase => is_new_word = true,
            }
        }
        valid
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_ascii_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn assert_becomes(bounds: Bounds, text: &str, expected: &str) {
        assert_eq!(bounds.apply(text), expected);
        assert_eq!(bounds.apply(expected), expected, "a valid text was changed");
    }

    #[test]
    fn a_reason_becomes_a_word() {
        for (text, expected) in [
            ("NoPods", "NoPods"),
            ("no pods", "noPods"),
            ("image pull: failed!", "imagePull:Failed"),
            ("2 of 3 failed", "Of3Failed"),
            ("Quota/Exceeded-now", "QuotaExceededNow"),
            ("a,b:c_", "a,b:c_"),
            ("ends:", "ends"),
            ("", "Unspecified"),
            ("äöü 日本", "Unspecified"),
        ] {
            assert_becomes(Bounds::CONDITION_REASON, text, expected);
        }
        assert_eq!(Bounds::CONDITION_REASON.apply(&"x ".repeat(5000)).len(), 1024);
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(Bounds::CONDITION_MESSAGE.apply(&"ä".repeat(20_000)).len(), 32_768);
        assert_eq!(Bounds::CONDITION_MESSAGE.apply(&format!("x{}", "ä".repeat(20_000))).len(), 32_767);
        assert_becomes(Bounds::CONDITION_MESSAGE, "line\n日本 \0", "line\n日本 \0");
        assert_becomes(Bounds::EVENT_NOTE, "", "");
    }

    #[test]
    fn a_name_gets_valid_characters_and_ends() {
        assert_becomes(Bounds::LABEL_VALUE, "my controller/ä.", "my-controller");
        assert_becomes(Bounds::LABEL_VALUE, "", "unknown");
        assert_eq!(Bounds::LABEL_VALUE.apply(&format!("{}..b", "a".repeat(62))), "a".repeat(62));
        assert_becomes(Bounds::FIELD_MANAGER, " kube\tctl é ", "kube-ctl -");
        assert_eq!(Bounds::FIELD_MANAGER.within(91).apply(&"é".repeat(200)).len(), 91);
    }
}
