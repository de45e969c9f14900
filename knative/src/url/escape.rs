//! Percent-encoding of the parts of a URL.

use std::borrow::Cow;

/// The part of a URL that a text is in. It decides which bytes are escaped.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    User,
    Host,
    /// The zone of an IPv6 address, as in `[fe80::1%25en0]`.
    Zone,
    Path,
    Fragment,
}

fn is_unescaped(byte: u8, part: Part) -> bool {
    let reserved: &[u8] = match part {
        Part::User => b"$&+,;=",
        Part::Host | Part::Zone => b"!$&'()*+,;=:[]<>\"",
        Part::Path => b"$&+,/:;=@",
        Part::Fragment => b"$&+,/:;=?@!()*",
    };
    is_unreserved(byte) || reserved.contains(&byte)
}

/// Returns true if the byte is never escaped (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// Returns true if the text needs no decoding. This is the common case.
pub(super) fn is_plain(text: &str) -> bool {
    text.bytes().all(is_unreserved)
}

pub(super) fn encode(bytes: &[u8], part: Part) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if is_unescaped(byte, part) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Decodes the text and encodes it again, so that all encodings of a text become the same.
pub(super) fn reencode(text: &str, part: Part) -> Result<String, &'static str> {
    if is_plain(text) {
        return Ok(text.into());
    }
    Ok(encode(&unescape(text, part)?, part))
}

/// Decodes the percent-encoded bytes of the text.
pub(super) fn unescape(text: &str, part: Part) -> Result<Vec<u8>, &'static str> {
    let mut bytes = text.bytes();
    let mut decoded = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let byte =
                hex_digit(bytes.next()).zip(hex_digit(bytes.next())).map(|(high, low)| high << 4 | low);
            decoded.push(byte.filter(|byte| may_be_escaped(*byte, part)).ok_or("invalid URL escape")?);
        } else if is_allowed(byte, part) {
            decoded.push(byte);
        } else {
            return Err("invalid character in host name");
        }
    }
    Ok(decoded)
}

fn is_allowed(byte: u8, part: Part) -> bool {
    !matches!(part, Part::Host | Part::Zone) || !byte.is_ascii() || is_unescaped(byte, part)
}

/// Returns true if the byte is allowed as the value of an escape. In a host, only bytes that are not ASCII and the `%`
/// before a zone are allowed. In a zone, only `%`, the space, and the bytes that a host can contain unescaped are
/// allowed.
fn may_be_escaped(byte: u8, part: Part) -> bool {
    match part {
        Part::Host => !byte.is_ascii() || byte == b'%',
        Part::Zone => matches!(byte, b'%' | b' ') || is_unescaped(byte, part),
        _ => true,
    }
}

fn hex_digit(digit: Option<u8>) -> Option<u8> {
    char::from(digit?).to_digit(16).and_then(|value| value.try_into().ok())
}

/// Keeps a text whose encoding is valid, and encodes any other text anew.
pub(super) fn normalise(text: &str, part: Part) -> Result<String, &'static str> {
    if is_plain(text) {
        return Ok(text.into());
    }
    let decoded = unescape(text, part)?;
    let is_valid = |byte| is_unescaped(byte, part) || b"!$&'()*+,;=:@[]%".contains(&byte);
    Ok(if text.bytes().all(is_valid) { text.into() } else { encode(&decoded, part) })
}

/// Decodes the text. Bytes that are not UTF-8 are replaced.
pub(super) fn decode(text: &str) -> Cow<'_, str> {
    match unescape(text, Part::Path) {
        Ok(decoded) if decoded != text.as_bytes() => String::from_utf8_lossy(&decoded).into_owned().into(),
        _ => text.into(),
    }
}
