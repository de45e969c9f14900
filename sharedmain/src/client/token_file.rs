//! A bearer token in a file that is rotated.
use std::time::Duration;

use http::{HeaderValue, Request, header};
use parking_lot::Mutex;
use reknit_injection::internal::LogLimit;
use tokio::time::Instant;

/// The age at which the file is read again. It is short compared to the lifetime of any token.
const MAX_AGE: Duration = Duration::from_secs(10);

/// A token file. It is read again when the token is used more than ten seconds after the last read. While the file
/// cannot be read, for example during its replacement, the last token stays in use, with a warning.
pub(crate) struct TokenFile {
    path: String,
    last_read: Mutex<LastRead>,
}

struct LastRead {
    time: Instant,
    /// The header with the token.
    header: HeaderValue,
    log_limit: LogLimit<String>,
}

impl TokenFile {
    /// Reads the file for the first time.
    pub(crate) fn open(path: String) -> Result<Self, String> {
        let header = read(&path)?;
        let last_read = LastRead { time: Instant::now(), header, log_limit: LogLimit::default() };
        Ok(Self { path, last_read: Mutex::new(last_read) })
    }

    /// Sets the `Authorization` header of the request.
    pub(crate) fn authorize<B>(&self, mut request: Request<B>) -> Request<B> {
        request.headers_mut().insert(header::AUTHORIZATION, self.header());
        request
    }

    fn header(&self) -> HeaderValue {
        let mut last_read = self.last_read.lock();
        if last_read.time.elapsed() >= MAX_AGE {
            last_read.time = Instant::now();
            match read(&self.path) {
                Ok(header) => {
                    last_read.header = header;
                    last_read.log_limit.reset();
                }
                Err(why) if last_read.log_limit.allows(&why) => {
                    tracing::warn!("{why}; the last token stays in use, until it expires");
                }
                Err(_) => {}
            }
        }
        last_read.header.clone()
    }
}

fn read(path: &str) -> Result<HeaderValue, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("token file {path} cannot be read: {e}"))?;
    // Most token files end with a newline, which is invalid in a header.
    let token = Some(text.trim()).filter(|token| !token.is_empty());
    let token = token.ok_or_else(|| format!("token file {path} is empty: write a token to it"))?;
    let mut header = HeaderValue::try_from(format!("Bearer {token}"))
        .map_err(|_| format!("token file {path} contains characters that are invalid in a token"))?;
    header.set_sensitive(true);
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(text: &str) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        file
    }
    fn open(file: &tempfile::NamedTempFile) -> Result<TokenFile, String> {
        TokenFile::open(file.path().display().to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn a_rotated_token_is_used_within_ten_seconds() {
        let file = file_with("first\n");
        let token = open(&file).unwrap();
        assert_eq!(token.header(), "Bearer first");
        std::fs::write(&file, "second").unwrap();
        tokio::time::advance(MAX_AGE).await;
        assert_eq!(token.header(), "Bearer second");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_token_is_kept_while_the_file_cannot_be_read() {
        let file = file_with("first");
        let token = open(&file).unwrap();
        std::fs::write(&file, "").unwrap();
        tokio::time::advance(MAX_AGE * 2).await;
        assert_eq!(token.header(), "Bearer first");
    }

    #[test]
    fn an_error_names_the_file_without_a_token() {
        assert!(open(&file_with("\n")).err().unwrap().ends_with("is empty: write a token to it"));
        assert!(
            open(&file_with("a\nb"))
                .err()
                .unwrap()
                .ends_with("contains characters that are invalid in a token")
        );
        let missing = TokenFile::open("/nowhere/token".into()).err().unwrap();
        assert!(missing.starts_with("token file /nowhere/token cannot be read: No such file"), "{missing}");
    }
}
