//! The memory that JSON takes once it is decoded, estimated from its text.

/// The memory that a byte of a body may take once it is decoded. A body that takes more counts as a larger one.
pub(crate) const DECODED_PER_BYTE: usize = 40;
/// The bytes of an object that is not empty: a node of a map takes 632, and a decoded object of a Kind and its JSON exist at
/// once.
const OBJECT: usize = 1280;
/// The bytes of a list that is not empty.
const LIST: usize = 256;
/// The bytes of a field.
const FIELD: usize = 640;
/// The bytes of an item of a list.
const ITEM: usize = 64;
/// The copies of each text.
const COPIES: usize = 6;

/// An estimate of the memory that JSON takes once it is decoded, which is updated as its text arrives. It is rather too
/// high: a text of many tiny objects takes over two hundred times its bytes, and one of long texts a few times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecodedSize {
    bytes: usize,
    is_in_text: bool,
    is_escaped: bool,
    /// The beginning of an object or a list, if it comes directly before.
    begun: Option<u8>,
}

impl DecodedSize {
    /// The estimate of a whole text.
    pub(crate) fn of(json: &str) -> Self {
        let mut size = Self::default();
        size.add(json.as_bytes());
        size
    }

    /// Adds the next bytes of the text.
    pub(crate) fn add(&mut self, json: &[u8]) {
        self.bytes += COPIES * json.len();
        for byte in json {
            match (self.is_in_text, byte) {
                (true, _) if self.is_escaped => self.is_escaped = false,
                (true, b'\\') => self.is_escaped = true,
                (_, b'"') => (self.is_in_text, self.begun) = (!self.is_in_text, None),
                (true, _) => {}
                (false, b' ' | b'\n' | b'\r' | b'\t') => {}
                (false, byte) => self.add_outside_of_texts(*byte),
            }
        }
    }

    fn add_outside_of_texts(&mut self, byte: u8) {
        self.bytes += match byte {
            b'{' => OBJECT,
            b'[' => LIST,
            b':' => FIELD,
            b',' => ITEM,
            _ => 0,
        };
        self.bytes -= match (self.begun, byte) {
            (Some(b'{'), b'}') => OBJECT,
            (Some(b'['), b']') => LIST,
            _ => 0,
        };
        self.begun = matches!(byte, b'{' | b'[').then_some(byte);
    }

    pub(crate) const fn bytes(self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(json: &str) -> usize {
        let mut size = DecodedSize::default();
        json.as_bytes().chunks(3).for_each(|chunk| size.add(chunk)); // as it arrives
        size.bytes() - COPIES * json.len()
    }

    #[test]
    fn objects_fields_and_items_count_outside_of_texts() {
        assert_eq!(estimate(r#"{"a": [1, 2], "b": {}, "c": [ ]}"#), OBJECT + LIST + 3 * FIELD + 3 * ITEM);
        assert_eq!(estimate(r#""{\"a\":[1,2]}\\""#), 0);
        assert_eq!(estimate(r#"["\\",{}]"#), LIST + ITEM);
        assert_eq!(estimate("[[]]"), LIST);
        assert_eq!(estimate("[}]}"), LIST);
    }
}
