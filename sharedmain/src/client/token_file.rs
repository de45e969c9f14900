//! A bearer token in a file that somebody else keeps fresh.
use std::time::Duration;

use http::{HeaderValue, Request, header};
use parking_lot::Mutex;
use tokio::time::Instant;

/// How old what was read may become: short against the lifetime of any token.
const FRESH: Duration = Duration::from_secs(10);

/// Reads its file again every ten seconds, when it is used. What was read last goes on being used while the file
/// cannot be read: it may be replaced just now.
pub(crate) struct TokenFile {
    path: String,
    held: Mutex<(Instant, HeaderValue)>,
}

impl TokenFile {
    pub(crate) fn open(path: String) -> Result<Self, String> {
        let token = read(&path)?;
        Ok(Self { path, held: Mutex::new((Instant::now(), token)) })
    }

    pub(crate) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        request.headers_mut().insert(header::AUTHORIZATION, self.header());
        request
    }

    fn header(&self) -> HeaderValue {
        let mut held = self.held.lock();
        if held.0.elapsed() >= FRESH {
            *held = (Instant::now(), read(&self.path).unwrap_or_else(|_| held.1.clone()));
        }
        held.1.clone()
    }
}

fn read(path: &str) -> Result<HeaderValue, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("token file {path}: {e}"))?;
    // Most are written with a line end, which no header may hold.
    let token = Some(text.trim()).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| format!("token file {path} is empty"))?;
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| format!("token file {path} holds what no token can hold"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }
    fn open(file: &tempfile::NamedTempFile) -> Result<TokenFile, String> {
        TokenFile::open(file.path().display().to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_rotated_token_is_used_within_ten_seconds() {
        let file = file("first\n");
        let token = open(&file).unwrap();
        assert_eq!(token.header(), "Bearer first");
        std::fs::write(&file, "second").unwrap();
        tokio::time::advance(FRESH).await;
        assert_eq!(token.header(), "Bearer second");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_token_is_kept_while_the_file_is_away() {
        let file = file("first");
        let token = open(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        tokio::time::advance(FRESH * 2).await;
        assert_eq!(token.header(), "Bearer first");
    }

    #[test]
    fn a_file_without_a_token_is_named() {
        assert!(open(&file("\n")).err().unwrap().ends_with("is empty"));
        assert!(open(&file("a\nb")).err().unwrap().ends_with("holds what no token can hold"));
        let missing = TokenFile::open("/nowhere/token".into()).err().unwrap();
        assert!(missing.starts_with("token file /nowhere/token: No such file"), "{missing}");
    }
}
