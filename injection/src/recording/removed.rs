//! The texts that are removed from a recorded pass, in each form in which other texts may contain them.
//!
//! A text is found as it is, in base64, and in the strings of JSON, YAML and URLs, however they quote, escape, indent or
//! break it. Base64 is decoded, wherever in a word it is, so a text within a longer one is found too.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

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

    /// Returns the texts to remove everywhere, without the names in whichever form.
    pub(super) fn texts<'a>(self, names: impl Iterator<Item = &'a str>) -> Texts {
        let names: BTreeSet<_> = names.map(|name| Loose::of(name).bytes).collect();
        let is_replacement = |loose: &[u8]| {
            [REDACTED, REDACTED_BASE64].iter().any(|text| memmem::find(text.as_bytes(), loose).is_some())
        };
        let mut by_loose = BTreeMap::<Vec<u8>, Vec<_>>::new();
        for (text, replacement) in self.0 {
            let loose = Loose::of(&text).bytes;
            if text.len() >= MIN_LENGTH && !is_replacement(&loose) && !names.contains(&loose) {
                by_loose.entry(loose).or_default().push((text, replacement));
            }
        }
        let texts = by_loose.into_iter().map(|(loose, mut forms)| {
            forms.sort_by_key(|(form, _)| Reverse(form.len()));
            Text { forms, loose }
        });
        let mut texts: Vec<_> = texts.collect();
        texts.sort_by_key(|text| Reverse(text.loose.len()));
        Texts(texts)
    }
}

impl Texts {
    /// Returns the text without the texts to remove.
    pub(super) fn scrubbed(&self, text: &str) -> String {
        let text = self.scrubbed_in_base64(&self.scrubbed_as_is(text));
        let is_broken = text.contains(char::is_whitespace)
            && text.chars().all(|c| c.is_whitespace() || is_base64(c) || c == '=');
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
        // A form has at least two bytes for each three of its loose one: of the escapes, `\L` grows the most.
        let too_long = self.0.partition_point(|removed| 2 * removed.loose.len() > 3 * text.len());
        let removed = &self.0[too_long..];
        if removed.is_empty() {
            return text.to_owned();
        }
        let loose = Loose::of(text);
        let mut found: Vec<_> = removed.iter().flat_map(|removed| removed.found_in(text, &loose)).collect();
        found.sort_by_key(|(start, end, _)| (*start, Reverse(*end)));
        let (mut scrubbed, mut rest) = (String::new(), 0);
        for (start, end, replacement) in found {
            if start >= rest {
                scrubbed += &text[rest..start];
                scrubbed += replacement;
            }
            rest = rest.max(end);
        }
        scrubbed + &text[rest..]
    }

    /// Removes the texts from each word that is or contains base64 of a text.
    fn scrubbed_in_base64(&self, text: &str) -> String {
        let (mut scrubbed, mut rest) = (String::with_capacity(text.len()), text);
        while !rest.is_empty() {
            let (word, after) = rest.split_at(rest.find(|c| !is_base64(c)).unwrap_or(rest.len()));
            let unpadded = after.trim_start_matches('=');
            match self.scrubbed_word(word) {
                Some(word) => scrubbed += &word,
                None => scrubbed += &rest[..rest.len() - unpadded.len()],
            }
            let (others, words) = unpadded.split_at(unpadded.find(is_base64).unwrap_or(unpadded.len()));
            scrubbed += others;
            rest = words;
        }
        scrubbed
    }

    /// Returns the word without the texts that its base64 contains. `None` if it contains none. Base64 that begins after
    /// other characters begins after 0 to 3 of them and whole groups of 4, so it is a part of one of four texts.
    fn scrubbed_word(&self, word: &str) -> Option<String> {
        let scrubbed_text = |text: &str| Some(self.scrubbed_as_is(text)).filter(|scrubbed| scrubbed != text);
        if word.len() * 3 / 4 < MIN_LENGTH {
            return None;
        }
        let word = word.replace('-', "+").replace('_', "/");
        let filled = |word: &str, filling: &str| word.to_owned() + &filling.repeat((4 - word.len() % 4) % 4);
        if let Some(scrubbed) = decoded(&filled(&word, "=")).as_deref().and_then(scrubbed_text) {
            return Some(in_base64(&scrubbed));
        }
        let is_within = (0..4).any(|start| {
            let bytes = bytes(&filled(&word[start..], "A"));
            bytes.is_some_and(|bytes| scrubbed_text(&String::from_utf8_lossy(&bytes)).is_some())
        });
        is_within.then(|| REDACTED.to_owned())
    }
}

impl Text {
    /// Returns where another text contains this one in whichever form: the starts, the ends, and the replacements.
    fn found_in(&self, text: &str, loose: &Loose) -> Vec<(usize, usize, &'static str)> {
        let forms = self.forms.iter().flat_map(|(form, replacement)| {
            let starts = memmem::find_iter(text.as_bytes(), form.as_bytes());
            starts.map(move |start| (start, start + form.len(), *replacement))
        });
        let is_long = self.loose.len() >= MIN_LOOSE;
        let starts = is_long.then(|| memmem::find_iter(&loose.bytes, &self.loose)).into_iter().flatten();
        let others = starts.map(|start| {
            let (first, last) = (loose.ranges[start], loose.ranges[start + self.loose.len() - 1]);
            (first.0, last.1, self.forms[0].1)
        });
        let is_whole = |(start, end, _): &(usize, usize, _)| {
            text.is_char_boundary(*start) && text.is_char_boundary(*end)
        };
        forms.chain(others).filter(is_whole).collect()
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
                byte => loose.add(&[byte], (start, end)),
            }
        }
        loose
    }

    /// Adds the character of an escape, and returns what follows. A string within a string has several backslashes.
    fn add_escape<'a>(&mut self, start: usize, rest: &'a [Decoded]) -> &'a [Decoded] {
        let rest = without_backslashes(rest);
        let Some((&(byte, _, end), after)) = rest.split_first() else { return rest };
        let character = match byte {
            b'0' | b'a' | b'b' | b'e' | b'f' | b'n' | b'r' | b't' | b'v' => return after,
            b'_' => Some(('\u{a0}', end, after)),
            b'N' => Some(('\u{85}', end, after)),
            b'L' => Some(('\u{2028}', end, after)),
            b'P' => Some(('\u{2029}', end, after)),
            b'x' => character(after, 2),
            b'u' => character(after, 4),
            b'U' => character(after, 8),
            _ => None,
        };
        let Some((c, end, after)) = character else { return rest };
        self.add(c.encode_utf8(&mut [0; 4]).as_bytes(), (start, end));
        after
    }

    /// Adds a character, unless it is one that the forms of a text write in several ways or leave out.
    fn add(&mut self, character: &[u8], range: (usize, usize)) {
        if !matches!(character, [b' ' | b'"' | b'\'' | 0..0x20 | 0x7f]) {
            self.bytes.extend(character);
            self.ranges.extend(character.iter().map(|_| range));
        }
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

/// The character with the code of so many digits, its end, and what follows. Two codes may be one character: JSON has no
/// others for those beyond 16 bits.
fn character(digits: &[Decoded], count: usize) -> Option<(char, usize, &[Decoded])> {
    let (code, end, rest) = number(digits, count)?;
    if let Some(c) = char::from_u32(code) {
        return Some((c, end, rest));
    }
    let [(b'u', ..), digits @ ..] = without_backslashes(rest) else { return None };
    let (second, end, rest) = number(digits, 4)?;
    let pair = [u16::try_from(code).ok()?, u16::try_from(second).ok()?];
    Some((char::decode_utf16(pair).next()?.ok()?, end, rest))
}

fn number(digits: &[Decoded], count: usize) -> Option<(u32, usize, &[Decoded])> {
    let (digits, rest) = digits.split_at_checked(count)?;
    let bytes: Vec<_> = digits.iter().map(|(byte, ..)| *byte).collect();
    Some((hex(&bytes)?, digits.last()?.2, rest))
}

fn without_backslashes(text: &[Decoded]) -> &[Decoded] {
    let count = text.iter().take_while(|(byte, ..)| *byte == b'\\').count();
    &text[count..]
}

/// The number of at most eight digits.
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
    String::from_utf8(bytes(text)?).ok()
}

fn bytes(base64: &str) -> Option<Vec<u8>> {
    let bytes: ByteString = serde_json::from_value(json!(base64)).ok()?;
    Some(bytes.0)
}

/// Returns true for the characters of base64, also for URLs, except its padding.
fn is_base64(c: char) -> bool {
    c.is_ascii_alphanumeric() || "+/-_".contains(c)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Removes the value of a Secret from a text.
    fn scrubbed(value: &str, text: &str) -> String {
        let mut removed = Removed::default();
        removed.replace(&mut json!(value), REDACTED);
        removed.texts(std::iter::empty()).scrubbed(text)
    }

    fn decoded_word(word: &str) -> Option<String> {
        let word = word.replace('-', "+").replace('_', "/");
        decoded(&format!("{word}{}", "=".repeat((4 - word.len() % 4) % 4)))
    }

    #[test]
    fn a_value_is_found_although_its_escapes_are_longer_without_them() {
        for value in ["CORP\\Paul", "CORP\\Laura-1", "C:\\Logs\\Private"] {
            assert_eq!(scrubbed(value, value), "redacted", "{value}");
        }
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
            ("base64 in a flag", format!("--header={base64}")),
            ("base64 in a query", format!("?auth={base64}&a=b")),
            ("base64 in a path", format!("https://host/a/{base64}/b")),
            ("base64 after a prefix", format!("prefix-{base64}")),
            ("base64 between other characters", format!("ab_{}-suffix", base64.trim_end_matches('='))),
            ("base64 after two characters", format!("_/{base64}")),
            ("hexadecimal escapes of YAML", json.replace(' ', "\\x20").replace('<', "\\U0000003c")),
            (
                "base64 of more in lines",
                base64.as_bytes().chunks(16).map(|line| String::from_utf8_lossy(line) + "\n").collect(),
            ),
        ];
        for (form, text) in texts {
            let scrubbed = scrubbed(value, &text);
            let plain: String = scrubbed.split(|c| !is_base64(c)).filter_map(decoded_word).collect();
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

    #[test]
    fn a_character_is_found_in_each_escape_of_json_and_yaml() {
        let value = "\u{1f600}-horse\u{1b}\u{8}\u{c}-\u{a0}\u{85}\u{2028}\u{2029}-m\u{fc}ller='1'!";
        for text in [
            r#"\ud83d\ude00-horse\u001b\b\f-\u00a0\u0085\u2028\u2029-m\u00fcller=\u00271\u0027!"#,
            r#"\\ud83d\\uDE00-horse\\u001b\\b\\f-\\u00a0\\u0085\\u2028\\u2029-m\\u00fcller\\u003d'1'!"#,
            r#"\U0001F600-horse\e\b\f-\_\N\L\P-m\xfcller\x3D'1'!"#,
        ] {
            assert_eq!(scrubbed(value, &format!("a {text} b")), "a redacted b");
        }
        for text in [r"\ud83d", r"\ud83dabc", r"\ud83d\u0041", r"\UFFFFFFFF", r"\x4", r"\xzz", r"\"] {
            assert_eq!(scrubbed(value, text), text);
        }
    }

    #[test]
    fn values_that_overlap_are_removed_whole() {
        let mut removed = Removed::default();
        removed.replace(&mut json!(["correct horse", "horse battery", "battery staple"]), REDACTED);
        let texts = removed.texts(std::iter::empty());
        assert_eq!(texts.scrubbed("a correct horse battery staple b"), "a redacted b");
        assert_eq!(texts.scrubbed("a horse battery, correct\nhorse"), "a redacted, redacted");
    }
}
