//! The uids, generated names and times that the server gives to objects.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// The letters of generated names, as on the real API server.
const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The source of uids and generated names. They are derived from the key of the object and the number of earlier objects
/// of that key, and so do not depend on other objects.
#[derive(Default)]
pub(crate) struct Identities {
    /// The number of removed objects, by key.
    removed: BTreeMap<String, u64>,
    /// The number of names that were generated, by the key with the prefix of the name.
    generated: BTreeMap<String, u64>,
    dry_runs: u64,
}

/// The source of the time.
pub(crate) struct Clock(Box<dyn Fn() -> Timestamp + Send>);

impl Identities {
    /// Returns the uid of the next object of this key. Each dry run gets another uid.
    pub(crate) fn uid(&mut self, key: &str, is_dry_run: bool) -> String {
        self.dry_runs += u64::from(is_dry_run);
        let number = match is_dry_run {
            true => u64::MAX - self.dry_runs,
            false => self.removed.get(key).copied().unwrap_or_default(),
        };
        let hash = hash(key, number);
        let digits = format!("{hash:032x}");
        format!(
            "{}-{}-4{}-8{}-{}",
            &digits[..8],
            &digits[8..12],
            &digits[13..16],
            &digits[17..20],
            &digits[20..]
        )
    }

    /// Returns five letters to be appended to this key.
    pub(crate) fn suffix(&mut self, key: &str) -> String {
        let count = self.generated.entry(key.to_owned()).or_default();
        *count += 1;
        let mut rest = hash(key, *count);
        let mut letter = || {
            let index = rest % LETTERS.len() as u128;
            rest /= LETTERS.len() as u128;
            char::from(LETTERS[index as usize])
        };
        (0..5).map(|_| letter()).collect()
    }

    /// Makes the next object of this key get another uid.
    pub(crate) fn forget(&mut self, key: &str) {
        *self.removed.entry(key.to_owned()).or_default() += 1;
    }
}

impl Clock {
    pub(crate) fn new(now: impl Fn() -> Timestamp + Send + 'static) -> Self {
        Self(Box::new(now))
    }

    /// The current time in seconds, as Kubernetes writes it.
    pub(crate) fn now(&self) -> String {
        (self.0)().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Timestamp::now)
    }
}

/// The FNV-1a hash of the key and the number, which is the same in each process.
fn hash(key: &str, number: u64) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = key.bytes().chain(number.to_le_bytes());
    bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME))
}
