//! Percent-encoding, which differs from part to part.

use std::borrow::Cow;

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Part {
    User,
    Host,
    /// What follows the address in `[fe80::1%25en0]`.
    Zone,
    Path,
    Fragment,
}

fn stands_for_itself(byte: u8, part: Part) -> bool {
    let others: &[u8] = match part {
        Part::User => b"$&+,;=",
        Part::Host | Part::Zone => b"!$&'()*+,;=:[]<>\"",
        Part::Path => b"$&+,/:;=@",
        Part::Fragment => b"$&+,/:;=?@!()*",
    };
    is_unreserved(byte) || others.contains(&byte)
}

/// Needs no escape in any part (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~')
}

/// Nearly every host, which is why that is looked at first.
pub(super) fn is_plain(text: &str) -> bool {
    text.bytes().all(is_unreserved)
}

pub(super) fn encode(bytes: &[u8], part: Part) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if stands_for_itself(byte, part) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Encodes anew, in the one way that is ours.
pub(super) fn recode(text: &str, part: Part) -> Result<String, &'static str> {
    if is_plain(text) {
        return Ok(text.into());
    }
    Ok(encode(&unescape(text, part)?, part))
}

pub(super) fn unescape(text: &str, part: Part) -> Result<Vec<u8>, &'static str> {
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let byte = hex(bytes.next()).zip(hex(bytes.next())).map(|(high, low)| high << 4 | low);
            plain.push(byte.filter(|byte| may_be_escaped(*byte, part)).ok_or("invalid URL escape")?);
        } else if may_stand(byte, part) {
            plain.push(byte);
        } else {
            return Err("invalid character in host name");
        }
    }
    Ok(plain)
}

fn may_stand(byte: u8, part: Part) -> bool {
    !matches!(part, Part::Host | Part::Zone) || !byte.is_ascii() || stands_for_itself(byte, part)
}

/// A host escapes only what is not ASCII, and the sign before a zone; a zone only what could stand in a host.
fn may_be_escaped(byte: u8, part: Part) -> bool {
    match part {
        Part::Host => !byte.is_ascii() || byte == b'%',
        Part::Zone => matches!(byte, b'%' | b' ') || stands_for_itself(byte, part),
        _ => true,
    }
}

fn hex(digit: Option<u8>) -> Option<u8> {
    char::from(digit?).to_digit(16).and_then(|value| value.try_into().ok())
}

/// Keeps an encoding that is valid as it is, and makes any other one so.
pub(super) fn normalise(text: &str, part: Part) -> Result<String, &'static str> {
    if is_plain(text) {
        return Ok(text.into());
    }
    let plain = unescape(text, part)?;
    let valid = |byte| stands_for_itself(byte, part) || b"!$&'()*+,;=:@[]%".contains(&byte);
    Ok(if text.bytes().all(valid) { text.into() } else { encode(&plain, part) })
}

/// What an encoded text means. Bytes that are no UTF-8 are replaced.
pub(super) fn decode(text: &str) -> Cow<'_, str> {
    match unescape(text, Part::Path) {
        Ok(plain) if plain != text.as_bytes() => String::from_utf8_lossy(&plain).into_owned().into(),
        _ => text.into(),
    }
}
