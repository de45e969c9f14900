//! Random UUIDs.

/// A random UUID, version 4 of RFC 9562.
pub fn random_uuid() -> String {
    let random: u128 = rand::random();
    let bits = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_random_uuid_has_its_version_and_variant() {
        assert_ne!(random_uuid(), random_uuid());
        for _ in 0..100 {
            let uuid = random_uuid();
            let lengths: Vec<_> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12]);
            assert!(uuid[14..].starts_with('4') && "89ab".contains(&uuid[19..20]), "{uuid}");
        }
    }
}
