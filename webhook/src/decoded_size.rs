//! The memory that JSON takes once it is decoded, estimated from its text.

/// The memory that a byte of a body may take once it is decoded. A body that takes more counts as a larger one.
pub(crate) const DECODED_PER_BYTE: usize = 40;
/// The bytes of an object: a node of a map takes 632, and a struct of Kubernetes takes its whole size even if the object is
/// empty, several times, since a decoded object of a Kind and its JSON exist at once. A `null` in a list may be such a
/// struct too.
const OBJECT: usize = 6144;
/// The bytes of an object in the `fieldsV1` of a manager, unless it is empty. These are maps in any Kind, and an object has thousands of them.
const FIELD_SET: usize = 1280;
/// The bytes of a list that is not empty.
const LIST: usize = 256;
/// The bytes of a field.
const FIELD: usize = 640;
/// The bytes of an item of a list.
const ITEM: usize = 64;
/// The copies of each text.
const COPIES: usize = 6;

/// An estimate of the memory that JSON takes once it is decoded, which is updated as its text arrives. It is rather too
/// high. A list of empty objects may take two thousand times its bytes, and one of long texts takes a few times.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecodedSize {
    bytes: usize,
    is_escaped: bool,
    is_in_text: bool,
    /// The last byte outside of texts, except for space. A text is its first quote.
    last: u8,
    /// The bytes of [`MANAGED_FIELDS`] that the last text consists of, or `None` if it has others.
    matched: Option<usize>,
    /// The open objects and lists from the list of managed fields on: 0 outside of it.
    depth: usize,
}

const MANAGED_FIELDS: &[u8] = b"managedFields";

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
        for &byte in json {
            match (self.is_in_text, byte) {
                (true, _) if self.is_escaped => self.is_escaped = false,
                (true, b'\\') => (self.is_escaped, self.matched) = (true, None),
                (true, b'"') => self.is_in_text = false,
                (true, byte) => {
                    self.matched =
                        self.matched.filter(|at| MANAGED_FIELDS.get(*at) == Some(&byte)).map(|at| at + 1);
                }
                (false, b'"') => (self.is_in_text, self.matched, self.last) = (true, Some(0), b'"'),
                (false, b' ' | b'\n' | b'\r' | b'\t') => {}
                (false, byte) => self.add_outside_of_texts(byte),
            }
        }
    }

    fn add_outside_of_texts(&mut self, byte: u8) {
        let last = std::mem::replace(&mut self.last, byte);
        match byte {
            b'{' | b'[' if self.depth > 0 => self.depth += 1,
            b'[' if last == b':' && self.matched == Some(MANAGED_FIELDS.len()) => self.depth = 1,
            b'}' | b']' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        self.bytes += match byte {
            b'{' if self.depth > 2 && last == b':' => FIELD_SET,
            b'{' => OBJECT,
            b'n' if matches!(last, b'[' | b',') => OBJECT,
            b'[' => LIST,
            b':' => FIELD,
            b',' => ITEM,
            _ => 0,
        };
        self.bytes -= match (last, byte) {
            (b'{', b'}') if self.depth > 1 => FIELD_SET,
            (b'[', b']') => LIST,
            _ => 0,
        };
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
        assert_eq!(estimate(r#"{"a": [1, 2], "b": {}, "c": [ ]}"#), 2 * OBJECT + LIST + 3 * FIELD + 3 * ITEM);
        assert_eq!(estimate(r#""{\"a\":[1,2]}\\""#), 0);
        assert_eq!(estimate("[[]]"), LIST);
        assert_eq!(estimate("[}]}"), LIST);
    }

    #[test]
    fn an_empty_object_and_a_null_in_a_list_count_as_an_object_and_a_null_field_does_not() {
        assert_eq!(estimate(r#"["\\",{}, { }]"#), LIST + 2 * (ITEM + OBJECT));
        assert_eq!(estimate("[null, null]"), LIST + ITEM + 2 * OBJECT);
        assert_eq!(estimate(r#"{"a": null}"#), OBJECT + FIELD);
    }

    #[test]
    fn the_fields_of_a_manager_count_as_maps_whose_empty_objects_are_free() {
        let object =
            |name| format!(r#"{{"{name}":[{{"fieldsV1":{{"f:a":{{"f:b":{{}}}},"f:c":{{}}}}}}],"b":{{}}}}"#);
        let others = LIST + 6 * FIELD + 2 * ITEM;
        assert_eq!(estimate(&object("managedFields")), 3 * OBJECT + 2 * FIELD_SET + others);
        for name in ["managedField", "managedFields2", "managed\\u0046ields", "xmanagedFields"] {
            assert_eq!(estimate(&object(name)), 7 * OBJECT + others, "{name}");
        }
        assert!(estimate(r#"{"managedFields":[{},{},{}]}"#) > 3 * (OBJECT - FIELD_SET));
    }
}
