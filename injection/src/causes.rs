//! The text of an error with its causes.

use std::error::Error;

/// Returns the text of an error and of its sources in one line. A source whose text is already in the line is left out.
pub fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    for cause in std::iter::successors(error.source(), |cause| (*cause).source()).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}
