//! Who the API server believes: the key it signs service accounts' tokens with, and the administrator's token.

use std::{fs, path::Path};

use pem::Pem;
use ring::{
    error::Unspecified,
    rand::{SystemRandom, generate},
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING as P256, EcdsaKeyPair, KeyPair},
};

use super::Error;

pub(super) const SIGNING_KEY: &str = "service-accounts.key";
pub(super) const VERIFYING_KEY: &str = "service-accounts.pub";
pub(super) const TOKENS: &str = "tokens.csv";

/// What says, in DER, that the 65 bytes after it are a point on P-256 (RFC 5480).
const P256_PUBLIC_KEY: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
    0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];

/// Writes the keys and the token file into the folder, and answers the token of an administrator.
pub(super) fn create(folder: &Path) -> Result<String, Error> {
    let write = |name: &str, content: String| {
        let path = folder.join(name);
        fs::write(&path, content).map_err(Error::file("write", &path))
    };
    let (private, public) =
        key_pair().map_err(|_| Error::Credentials("make a key for service accounts".into()))?;
    let token = token().map_err(|_| Error::Credentials("make a token for the administrator".into()))?;
    write(SIGNING_KEY, pem::encode(&private))?;
    write(VERIFYING_KEY, pem::encode(&public))?;
    write(TOKENS, format!("{token},admin,admin,system:masters\n"))?;
    Ok(token)
}

fn key_pair() -> Result<(Pem, Pem), Unspecified> {
    let random = SystemRandom::new();
    let private = EcdsaKeyPair::generate_pkcs8(&P256, &random)?;
    let pair = EcdsaKeyPair::from_pkcs8(&P256, private.as_ref(), &random)?;
    let public = [&P256_PUBLIC_KEY, pair.public_key().as_ref()].concat();
    Ok((Pem::new("PRIVATE KEY", private.as_ref()), Pem::new("PUBLIC KEY", public)))
}

fn token() -> Result<String, Unspecified> {
    let bytes: [u8; 16] = generate(&SystemRandom::new())?.expose();
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
