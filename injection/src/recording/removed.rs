//! The texts that are removed from a recorded pass, in each form in which other texts may contain them.
//!
//! A text is found as it is, in base64, and in the strings of JSON, YAML and URLs, however they quote, escape, indent or
//! break it. Base64 is decoded, so a text within a longer one is found too.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use memchr::memmem;
use serde_json::{Value, json};

/// The text that replaces a value, and its base64. A test that encodes or decodes it again gets the same.
pub(super) const REDACTED: &str = "redacted";
pub(super) const REDACTED_BASE64: &str = "cmVkYWN0ZWQ=";

/// The length in bytes from which a value is removed wherever it occurs. Shorter ones, such as `on`, occur by chance.
const MIN_LENGTH: usize = 4;

/// The length in bytes from which a value is found although it is broken or escaped in another way. Shorter ones may occur by
/// chance in two words.
const MIN_LOOSE: usize = 8;

/// The length in bytes from which a line of a longer value is removed wherever it occurs.
const MIN_LINE: usize = 16;

/// The texts that were removed, with their replacements.
#[derive(Default)]
pub(super) struct Removed(BTreeMap<String, &'static str>);

/// The texts to remove everywhere, the longest first, since one may contain another.
pub(super) struct Texts(Vec<Text>);

/// Texts that differ only in their form.
struct Text {
    forms: Vec<(String, &'static str)>,
    loose: Vec<u8>,
}

/// A text without what differs between its forms: white space, quotes, and the escapes of JSON, YAML and URLs.
#[derive(Default)]
struct Loose {
    bytes: Vec<u8>,
    /// The start and the end in the text of what each byte comes from.
    ranges: Vec<(usize, usize)>,
}

impl Removed {
    /// Replaces each text within the value, so that it can still be decoded as its type. Numbers become 0, and booleans
    /// false.
    pub(super) fn replace(&mut self, value: &mut Value, replacement: &'static str) {
        match value {
            Value::Null => {}
            Value::Bool(value) => *value = false,
            Value::Number(number) => {
                self.add(&number.to_string(), REDACTED);
                *number = 0.into();
            }
            Value::String(text) => {
                self.add(text, replacement);
                replacement.clone_into(text);
            }
            Value::Array(items) => items.iter_mut().for_each(|item| self.replace(item, replacement)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.replace(field, replacement)),
        }
    }

    /// Adds a text, its decoded form if it is base64, and the other forms of each.
    fn add(&mut self, text: &str, replacement: &'static str) {
        self.0.insert(text.to_owned(), replacement);
        let decoded = decoded(text);
        for text in [Some(text), decoded.as_deref()].into_iter().flatten() {
            for text in [text, text.trim()] {
                let lines = text.lines().map(str::trim).filter(|line| line.len() >= MIN_LINE);
                let forms = [text.to_owned(), in_json(text), in_url(text)];
                for form in forms.into_iter().chain(lines.map(str::to_owned)) {
                    self.0.entry(form).or_insert(REDACTED);
                }
                self.0.entry(in_base64(text)).or_insert(REDACTED_BASE64);
            }
        }
    }

    /// Returns the texts to remove everywhere, of those that the function admits.
    pub(super) fn texts(self, admits: impl Fn(&str) -> bool) -> Texts {
        let is_replacement = |loose: &[u8]| {
            [REDACTED, REDACTED_BASE64].iter().any(|text| memmem::find(text.as_bytes(), loose).is_some())
        };
        let mut by_loose = BTreeMap::<Vec<u8>, Vec<_>>::new();
        for (text, replacement) in self.0 {
            let loose = Loose::of(&text).bytes;
            if text.len() >= MIN_LENGTH && !is_replacement(&loose) && admits(&text) {
                by_loose.entry(loose).or_default().push((text, replacement));
            }
        }
        let texts = by_loose.into_iter().map(|(loose, mut forms)| {
            forms.sort_by_key(|(form, _)| std::cmp::Reverse(form.len()));
            Text { forms, loose }
        });
        let mut texts: Vec<_> = texts.collect();
        texts.sort_by_key(|text| std::cmp::Reverse(text.loose.len()));
        Texts(texts)
    }
}

impl Texts {
    /// Returns the text without the texts to remove.
    pub(super) fn scrubbed(&self, text: &str) -> String {
        let text = self.scrubbed_in_base64(&self.scrubbed_as_is(text));
        let is_broken =
            text.contains(char::is_whitespace) && text.chars().all(|c| c.is_whitespace() || is_base64(c));
        match is_broken {
            true => {
                let whole: String = text.split_whitespace().collect();
                let scrubbed = self.scrubbed_in_base64(&whole);
                if scrubbed == whole { text } else { scrubbed }
            }
            false => text,
        }
    }

    fn scrubbed_as_is(&self, text: &str) -> String {
        let mut text = text.to_owned();
        let mut loose = Loose::of(&text);
        for removed in &self.0 {
            for (form, replacement) in &removed.forms {
                if text.contains(form) {
                    text = text.replace(form, replacement);
                    loose = Loose::of(&text);
                }
            }
            if removed.loose.len() >= MIN_LOOSE
                && let Some(scrubbed) = removed.replaced_in(&text, &loose)
            {
                text = scrubbed;
                loose = Loose::of(&text);
            }
        }
        text
    }

    /// Removes the texts from each word that is base64 of a text.
    fn scrubbed_in_base64(&self, text: &str) -> String {
        let words = text.split_inclusive(|c| !is_base64(c)).map(|part| {
            let word = part.trim_end_matches(|c| !is_base64(c));
            let decoded = Some(word).filter(|word| word.len() >= MIN_LOOSE).and_then(decoded_loosely);
            match decoded.map(|decoded| (self.scrubbed_as_is(&decoded), decoded)) {
                Some((scrubbed, decoded)) if scrubbed != decoded => {
                    format!("{}{}", in_base64(&scrubbed), &part[word.len()..])
                }
                _ => part.to_owned(),
            }
        });
        words.collect()
    }
}

impl Text {
    /// Replaces this text in whichever form another one contains it. `None` if it does not.
    fn replaced_in(&self, text: &str, loose: &Loose) -> Option<String> {
        let (mut replaced, mut end) = (String::new(), 0);
        for start in memmem::find_iter(&loose.bytes, &self.loose) {
            let found = &loose.ranges[start..start + self.loose.len()];
            replaced.push_str(text.get(end..found[0].0)?);
            replaced.push_str(self.forms[0].1);
            end = found[found.len() - 1].1;
        }
        Some(replaced + text.get(end..)?).filter(|_| end > 0)
    }
}

impl Loose {
    fn of(text: &str) -> Self {
        let decoded = url_decoded(text.as_bytes());
        let (mut loose, mut rest) = (Self::default(), &decoded[..]);
        while let Some((&(byte, start, end), after)) = rest.split_first() {
            rest = after;
            match byte {
                b'\\' => rest = loose.add_escape(start, after),
                b'"' | b'\'' => {}
                byte if byte.is_ascii_whitespace() => {}
                byte => loose.add(&[byte], (start, end)),
            }
        }
        loose
    }

    /// Adds the character of an escape, unless it is white space, and returns what follows. A string within a string has
    /// several backslashes.
    fn add_escape<'a>(&mut self, start: usize, rest: &'a [Decoded]) -> &'a [Decoded] {
        let backslashes = rest.iter().take_while(|(byte, ..)| *byte == b'\\').count();
        let rest = &rest[backslashes..];
        match rest {
            [(b'n' | b'r' | b't', ..), rest @ ..] => rest,
            [(b'u', ..), digits @ ..] => match character(digits) {
                Some((c, end)) => {
                    self.add(c.encode_utf8(&mut [0; 4]).as_bytes(), (start, end));
                    &digits[4..]
                }
                None => rest,
            },
            rest => rest,
        }
    }

    fn add(&mut self, bytes: &[u8], range: (usize, usize)) {
        self.bytes.extend(bytes);
        self.ranges.extend(bytes.iter().map(|_| range));
    }
}

/// A byte, and the start and the end in the text of what it comes from.
type Decoded = (u8, usize, usize);

/// The bytes of a text that may be a part of a URL.
fn url_decoded(text: &[u8]) -> Vec<Decoded> {
    let (mut decoded, mut start) = (Vec::with_capacity(text.len()), 0);
    while let Some(&byte) = text.get(start) {
        let digits = text.get(start + 1..start + 3).filter(|_| byte == b'%').and_then(hex);
        let (byte, len) = digits.map_or((byte, 1), |byte| (byte as u8, 3));
        decoded.push((byte, start, start + len));
        start += len;
    }
    decoded
}

/// The character with the code that begins with these digits, and the end of the four.
fn character(digits: &[Decoded]) -> Option<(char, usize)> {
    let digits = digits.get(..4)?;
    let code: Vec<_> = digits.iter().map(|(byte, ..)| *byte).collect();
    Some((char::from_u32(hex(&code)?)?, digits[3].2))
}

fn hex(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |number, digit| Some(number * 16 + char::from(*digit).to_digit(16)?))
}

/// The text as it is within a string of JSON.
fn in_json(text: &str) -> String {
    let json = json!(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The text as it is within a URL.
pub(super) fn in_url(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect()
}

fn in_base64(text: &str) -> String {
    let encoded = json!(ByteString(text.into()));
    encoded.as_str().unwrap_or_default().to_owned()
}

/// The text of which this is the base64.
fn decoded(text: &str) -> Option<String> {
    let bytes: ByteString = serde_json::from_value(json!(text)).ok()?;
    String::from_utf8(bytes.0).ok()
}

/// The text of which this is the base64, also in the alphabet of URLs or without padding.
fn decoded_loosely(text: &str) -> Option<String> {
    let text = text.trim_end_matches('=').replace('-', "+").replace('_', "/");
    decoded(&format!("{text}{}", "=".repeat((4 - text.len() % 4) % 4)))
}

fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+/-_=".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes the value of a Secret from a text.
    fn scrubbed(value: &str, text: &str) -> String {
        let mut removed = Removed::default();
        removed.replace(&mut json!(value), REDACTED);
        removed.texts(|_| true).scrubbed(text)
    }

    #[test]
    fn a_value_is_found_however_a_text_quotes_escapes_breaks_or_encodes_it() {
        let value = "correct horse's \"battery\" <staple>\nC:\\new 100% ok";
        let json = json!(value).to_string();
        let base64 = in_base64(&format!("user:{value}"));
        let texts = [
            ("as it is", format!("a {value} b")),
            ("JSON", format!("a: {}", json.trim_matches('"'))),
            ("JSON of Go", json.trim_matches('"').replace('<', "\\u003c").replace('>', "\\u003E")),
            ("JSON in JSON", json!(json).to_string()),
            ("single quotes of YAML", format!("a: '{}'", value.replace('\'', "''").replace('\n', "\n\n  "))),
            ("double quotes of YAML", format!("a: {}", json.replace(" horse", "\\\n  \\ horse"))),
            ("an indented block of YAML", format!("a: |\n    {}\n", value.replace('\n', "\n    "))),
            ("a folded block of YAML", format!("a: >\n  {}\n", value.replace(' ', "\n  "))),
            ("a URL", in_url(value)),
            ("a path", in_url(value).replace('+', "%20").replace("%5C", "%5c").replace("%3C", "%3c")),
            ("base64", in_base64(value)),
            (
                "base64 in lines",
                in_base64(value)
                    .as_bytes()
                    .chunks(16)
                    .map(|line| String::from_utf8_lossy(line) + "\n")
                    .collect(),
            ),
            ("base64 of more", format!("Basic {base64}")),
            ("base64 for URLs", base64.trim_end_matches('=').replace('+', "-").replace('/', "_")),
            (
                "base64 of more in lines",
                base64.as_bytes().chunks(16).map(|line| String::from_utf8_lossy(line) + "\n").collect(),
            ),
        ];
        for (form, text) in texts {
            let scrubbed = scrubbed(value, &text);
            let plain: String = scrubbed.split(|c| !is_base64(c)).filter_map(decoded_loosely).collect();
            assert!(scrubbed.contains(REDACTED) || plain.contains(REDACTED), "{form}: {text} → {scrubbed}");
            for part in ["battery", "staple", "horse", "new"] {
                assert!(!scrubbed.contains(part) && !plain.contains(part), "{form}: {scrubbed}");
            }
        }
    }

    #[test]
    fn other_texts_stay_as_they_are() {
        for text in
            ["mouth is", "a \"quoted\\n\" %41 text", "aGVsbG8gd29ybGQ=", "%", "\\", "\\u12", "ä%80", ""]
        {
            assert_eq!(scrubbed("this", text), text);
            assert_eq!(scrubbed("redacted", text), text);
            assert_eq!(scrubbed("\"redacted\"", text), text);
            assert_eq!(scrubbed("\"\"\n\n", text), text);
        }
        assert_eq!(scrubbed("\"redacted\"", "redacted"), "redacted");
        assert_eq!(scrubbed("Müller-Lüdenscheidt", "Herr M\\u00fcller-\nLüdenscheidt!"), "Herr redacted!");
        assert_eq!(scrubbed("%80-1234567", "\u{c0}-1234567"), "\u{c0}-1234567", "it is within a character");
    }
}
