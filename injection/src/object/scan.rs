//! An in-place JSON scanner that returns values as they are written.
//!
//! Many values in a response of the API server are never decoded, above all `managedFields`. The scanner skips a value
//! by matching its brackets and quotes. Values that are kept are validated when they are decoded.

use std::borrow::Cow;

use memchr::memchr2;
use serde::de::IgnoredAny;

/// A position in a JSON text. Everything before it has been read.
pub(crate) struct Scanner<'a> {
    text: &'a str,
    at: usize,
}

/// An unexpected byte. The error does not quote the text, which may contain a Secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{expected} expected at byte {at}")]
pub(crate) struct Malformed {
    expected: &'static str,
    at: usize,
}

pub(crate) type Result<T> = std::result::Result<T, Malformed>;

impl<'a> Scanner<'a> {
    /// Scans a text that contains one value, and reads it with `value`.
    pub(crate) fn over<T>(text: &'a str, value: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let mut scanner = Self { text, at: 0 };
        let value = value(&mut scanner)?;
        scanner.skip_space();
        if scanner.at == text.len() { Ok(value) } else { Err(scanner.expected("the end")) }
    }

    /// Scans an object and calls `field` to read the value of each field.
    pub(crate) fn object(
        &mut self,
        mut field: impl FnMut(Cow<'a, str>, &mut Self) -> Result<()>,
    ) -> Result<()> {
        self.scan_elements(b"{}", "an object", |scanner| {
            let name = scanner.string()?;
            scanner.expect(b':', "a colon")?;
            field(name, scanner)
        })
    }

    /// The fields of an object without its braces, up to one that is malformed.
    pub(crate) fn fields(text: &'a str) -> impl Iterator<Item = (Cow<'a, str>, &'a str)> {
        let mut scanner = Self { text, at: 0 };
        std::iter::from_fn(move || {
            let name = scanner.string().ok()?;
            scanner.expect(b':', "a colon").ok()?;
            let value = scanner.value().ok()?;
            scanner.accept(b',');
            Some((name, value))
        })
    }

    /// Scans an array and calls `item` to read each item.
    pub(crate) fn array(&mut self, item: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.scan_elements(b"[]", "an array", item)
    }

    fn scan_elements(
        &mut self,
        [open, close]: &[u8; 2],
        what: &'static str,
        mut element: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.expect(*open, what)?;
        if self.accept(*close) {
            return Ok(());
        }
        loop {
            element(self)?;
            if self.accept(*close) {
                return Ok(());
            }
            self.expect(b',', "a comma")?;
        }
    }

    /// Reads the next value with `read`, and returns the result and the value as it is written.
    ///
    /// If `read` fails, a well-formed value is skipped. A malformed value fails the whole scan, since its end is
    /// unknown.
    pub(crate) fn attempt<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(Result<T>, &'a str)> {
        self.skip_space();
        let start = self.at;
        let result = read(self);
        if let Err(unexpected) = result {
            self.at = start;
            serde_json::from_str::<IgnoredAny>(self.value()?).map_err(|_| unexpected)?;
        }
        Ok((result, self.text_since(start)))
    }

    /// The next value as it is written.
    pub(crate) fn value(&mut self) -> Result<&'a str> {
        self.skip_space();
        let start = self.at;
        self.at = match self.peek() {
            Some(b'"') => self.end_of_string(start)?,
            Some(b'{' | b'[') => self.end_of_brackets(start)?,
            Some(b't' | b'f' | b'n' | b'-' | b'0'..=b'9') => self.end_of_scalar(start),
            _ => return Err(self.expected("a value")),
        };
        Ok(self.text_since(start))
    }

    /// Reads a string, or `None` for `null`.
    pub(crate) fn string_or_null(&mut self) -> Result<Option<Cow<'a, str>>> {
        if self.accept_null() { Ok(None) } else { self.string().map(Some) }
    }

    /// Reads a string. It is borrowed unless it contains escapes.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, str>> {
        self.skip_space();
        let start = self.at;
        if self.peek() != Some(b'"') {
            return Err(self.expected("a string"));
        }
        let quote_or_escape = memchr2(b'"', b'\\', &self.rest()[1..]);
        if let Some(length) = quote_or_escape
            && self.rest()[1 + length] == b'"'
        {
            self.at += length + 2;
            return Ok(Cow::Borrowed(&self.text_since(start)[1..=length]));
        }
        self.at = self.end_of_string(start)?;
        let unescaped = serde_json::from_str(self.text_since(start)).map(Cow::Owned);
        unescaped.map_err(|_| Malformed { expected: "a string", at: start })
    }

    /// The position after the closing quote of the string that begins at `start`.
    fn end_of_string(&self, start: usize) -> Result<usize> {
        let bytes = self.text.as_bytes();
        let mut at = start + 1;
        while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
            at += found;
            if bytes[at] == b'"' {
                return Ok(at + 1);
            }
            at += 2; // the backslash and the escaped byte
        }
        Err(Malformed { expected: "the end of the string", at: start })
    }

    /// The position after the closing bracket that matches the opening bracket at `start`.
    fn end_of_brackets(&self, start: usize) -> Result<usize> {
        let bytes = self.text.as_bytes();
        let (mut depth, mut at) = (0_usize, start);
        while let Some(byte) = bytes.get(at) {
            match byte {
                b'"' => {
                    at = self.end_of_string(at)?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' if depth == 1 => return Ok(at + 1),
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            at += 1;
        }
        Err(Malformed { expected: "the closing bracket", at: start })
    }

    /// The position after the number, `true`, `false` or `null`.
    fn end_of_scalar(&self, start: usize) -> usize {
        let is_end = |byte: &u8| matches!(byte, b',' | b'}' | b']' | b' ' | b'\n' | b'\r' | b'\t');
        start + self.rest().iter().position(is_end).unwrap_or(self.rest().len())
    }

    fn text_since(&self, start: usize) -> &'a str {
        &self.text[start..self.at]
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<()> {
        if self.accept(byte) { Ok(()) } else { Err(self.expected(what)) }
    }

    /// Skips white space. If this byte follows, skips it and returns true.
    fn accept(&mut self, byte: u8) -> bool {
        self.skip_space();
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    /// Skips white space. If `null` follows, skips it and returns true.
    pub(crate) fn accept_null(&mut self) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(b"null");
        self.at += if is_next { "null".len() } else { 0 };
        is_next
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.rest().first().copied()
    }

    fn rest(&self) -> &'a [u8] {
        &self.text.as_bytes()[self.at..]
    }

    fn expected(&self, expected: &'static str) -> Malformed {
        Malformed { expected, at: self.at }
    }
}

#[cfg(test)]
mod tests {
    use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
    use serde_json::{Map, Value, json};

    use super::*;

    const STRINGS: [&str; 9] =
        ["", "a", "}", "]\"", "\\", "{\"a\\", "ä🦀", "\n\u{1}", "a longer string, of words"];

    fn random_value(random: &mut StdRng, depth: u32) -> Value {
        let string = |random: &mut StdRng| STRINGS.choose(random).unwrap().to_string();
        match random.random_range(0..if depth == 0 { 5 } else { 9 }) {
            0 => Value::Null,
            1 => json!(random.random::<bool>()),
            2 => json!(random.random::<i64>()),
            3 => json!(f64::from(random.random::<i16>()) / 8.0),
            4 => json!(string(random)),
            5 | 6 => (0..random.random_range(0..4)).map(|_| random_value(random, depth - 1)).collect(),
            _ => (0..random.random_range(0..4))
                .map(|_| (string(random), random_value(random, depth - 1)))
                .collect(),
        }
    }

    /// Reads a value of the same form as `expected`: strings, arrays and objects by the scanner, numbers and booleans
    /// by serde.
    fn read_value(scanner: &mut Scanner<'_>, expected: &Value) -> Result<Value> {
        match expected {
            Value::Object(fields) => {
                let mut read_fields = Map::new();
                scanner.object(|name, scanner| {
                    let value = read_value(scanner, &fields[&*name])?;
                    read_fields.insert(name.into(), value);
                    Ok(())
                })?;
                Ok(read_fields.into())
            }
            Value::Array(items) => {
                let mut read_items = Vec::new();
                scanner.array(|scanner| {
                    let expected = items.get(read_items.len()).unwrap_or(&Value::Null);
                    read_items.push(read_value(scanner, expected)?);
                    Ok(())
                })?;
                Ok(read_items.into())
            }
            Value::String(_) | Value::Null => Ok(json!(scanner.string_or_null()?)),
            Value::Bool(_) | Value::Number(_) => {
                Ok(serde_json::from_str(scanner.value()?).unwrap_or_default())
            }
        }
    }

    #[test]
    fn values_are_returned_as_written_and_truncated_text_fails() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..500 {
            let value: Value = [("a", random_value(&mut random, 4)), ("b", random_value(&mut random, 4))]
                .into_iter()
                .collect();
            for text in [value.to_string(), serde_json::to_string_pretty(&value).unwrap()] {
                assert_eq!(
                    Scanner::over(&text, |scanner| read_value(scanner, &value)),
                    Ok(value.clone()),
                    "{text}"
                );
                assert_eq!(Scanner::over(&text, Scanner::value), Ok(&*text));
                for truncated in text.char_indices().map(|(at, _)| &text[..at]) {
                    Scanner::over(truncated, |scanner| read_value(scanner, &value)).unwrap_err();
                    Scanner::over(truncated, Scanner::value).unwrap_err();
                }
            }
        }
    }

    #[test]
    fn an_unexpected_byte_is_reported_with_its_position() {
        let error_of = |text| {
            let fields = |scanner: &mut Scanner<'_>| scanner.object(|_, scanner| scanner.string().map(drop));
            Scanner::over(text, fields).unwrap_err().to_string()
        };
        assert_eq!(error_of("3"), "an object expected at byte 0");
        assert_eq!(error_of(r#"{"a":3}"#), "a string expected at byte 5");
        assert_eq!(error_of(r#"{"a" "b"}"#), "a colon expected at byte 5");
        assert_eq!(error_of(r#"{"a":"b" "c":"d"}"#), "a comma expected at byte 9");
        assert_eq!(error_of(r#"{"a":"b",}"#), "a string expected at byte 9");
        assert_eq!(error_of(r#"{"a":"\x"}"#), "a string expected at byte 5");
        assert_eq!(error_of("{} {}"), "the end expected at byte 3");
    }

    #[test]
    fn unexpected_values_are_skipped_and_malformed_values_fail() {
        let mut results = Vec::new();
        let text = r#"["a",{"b":["]"]}, {"c":"d"}]"#;
        let read_array = |scanner: &mut Scanner<'static>| {
            scanner.array(|scanner| {
                results.push(
                    scanner.attempt(|scanner| scanner.object(|_, scanner| scanner.string().map(drop)))?,
                );
                Ok(())
            })
        };
        Scanner::over(text, read_array).unwrap();
        let results: Vec<_> =
            results.iter().map(|(result, text)| (result.map_err(|error| error.at), *text)).collect();
        assert_eq!(results, [(Err(1), "\"a\""), (Err(10), r#"{"b":["]"]}"#), (Ok(()), r#"{"c":"d"}"#)]);
        let read_strings =
            |scanner: &mut Scanner<'_>| scanner.array(|scanner| scanner.attempt(Scanner::string).map(drop));
        Scanner::over(r#"["a",{}]"#, read_strings).unwrap();
        for malformed in [r#"["a",{"b" 3}]"#, r#"["a",{]}]"#, r#"["a\x"]"#, r#"[{"a":[1},{"b":2}]]"#] {
            Scanner::over(malformed, read_strings).unwrap_err();
        }
    }
}
