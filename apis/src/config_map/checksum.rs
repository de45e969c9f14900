//! The checksum of the example in a ConfigMap, by which a webhook refuses edits of the example, which would have no
//! effect.

/// The annotation that holds the checksum of `_example`, the key in which Knative's ConfigMaps document their settings.
pub const EXAMPLE_CHECKSUM_ANNOTATION: &str = "knative.dev/example-checksum";

/// Computes the checksum of an `_example`, as eight hexadecimal digits. Line endings and empty lines do not affect it.
///
/// It is the CRC-32 (IEEE) of the trimmed text, with each run of line ends replaced by the two characters `\n`.
///
/// ```
/// use reknit_apis::example_checksum;
///
/// assert_eq!(example_checksum("a somewhat\nlonger\ntext"), "2b4ed320");
/// assert_eq!(example_checksum("\na somewhat\r\n\r\nlonger\ntext\n"), "2b4ed320");
/// ```
pub fn example_checksum(text: &str) -> String {
    let lines: Vec<&str> = text.trim().split(['\r', '\n']).filter(|line| !line.is_empty()).collect();
    format!("{:08x}", crc32fast::hash(lines.join(r"\n").as_bytes()))
}
