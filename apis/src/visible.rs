//! Makes text of strangers harmless on a terminal.

use std::{borrow::Cow, fmt::Write};

/// Writes characters that control a terminal as escapes, such as `\u{1b}`, also those that change the direction of
/// text. Newlines and tabs stay. Names and messages come from users, who could otherwise hide or forge lines.
pub fn visible(text: &str) -> Cow<'_, str> {
    let is_harmless = |c: char| match c {
        '\n' | '\t' => true,
        '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => false,
        c => !c.is_control(),
    };
    if text.chars().all(is_harmless) {
        return text.into();
    }
    let mut visible = String::with_capacity(text.len());
    for c in text.chars() {
        if is_harmless(c) {
            visible.push(c);
        } else {
            let _ = write!(visible, "{}", c.escape_unicode());
        }
    }
    visible.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_that_control_a_terminal_are_escaped() {
        assert_eq!(visible("a\r\x1b[2Kb\u{9b}1m\u{202e}c\x07"), r"a\u{d}\u{1b}[2Kb\u{9b}1m\u{202e}c\u{7}");
        assert!(matches!(visible("é\n\t日本"), Cow::Borrowed(_)));
    }
}
