//! The token that clients show: one line of a file that only its owner can read.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, Result};

/// Characters of the shortest token.
const LEAST_LEN: usize = 16;
/// Random bytes of a token that is made here.
const NEW_BYTES: usize = 32;
/// Bits of the mode that let others in.
const OTHERS: u32 = 0o077;

/// What a client has to show.
#[derive(Clone)]
pub struct Token(Vec<u8>);

impl std::fmt::Debug for Token {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Token")
    }
}

impl Token {
    /// Reads the token file, which must be this user's with mode 0600; where none is, one with a random token is made.
    ///
    /// # Errors
    /// Others can read it, or its content is no token.
    pub fn from_file(path: &Path) -> Result<Self> {
        let failed = |source| Error::TokenFile { path: path.to_owned(), source };
        let mut file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => make(path).map_err(failed)?,
            file => file.map_err(failed)?,
        };
        // Of the opened file, so that nobody changes it in between.
        let meta = file.metadata().map_err(failed)?;
        let (mode, owner) = (meta.mode() & 0o7777, meta.uid());
        let own = fs::metadata("/proc/self").map_err(failed)?.uid();
        if mode & OTHERS != 0 || owner != own {
            return Err(Error::TokenMode { path: path.to_owned(), mode, owner });
        }
        let mut text = String::new();
        file.read_to_string(&mut text).map_err(failed)?;
        let token = text.trim();
        if token.len() < LEAST_LEN || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            let got = format!("{} characters", token.len());
            return Err(Error::Token { path: path.to_owned(), least: LEAST_LEN, got });
        }
        Ok(Self(token.as_bytes().to_vec()))
    }

    /// Whether `shown` is the token; how long that takes tells nothing of it but its length.
    pub fn is(&self, shown: &[u8]) -> bool {
        let difference = self.0.iter().zip(shown).fold(0, |found, (a, b)| found | (a ^ b));
        std::hint::black_box(difference) == 0 && self.0.len() == shown.len()
    }
}

/// A new file with a random token.
fn make(path: &Path) -> std::io::Result<File> {
    let mut random = [0; NEW_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut random)?;
    let token = random.iter().fold(String::new(), |token, byte| token + &format!("{byte:02x}"));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{token}\n").as_bytes())?;
    file.sync_all()?;
    tracing::info!("a new token is in {}", path.display());
    File::open(path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn token_file_is_made_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let first = Token::from_file(&path).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!((text.trim().len(), fs::metadata(&path).unwrap().mode() & 0o777), (64, 0o600));
        assert!(
            first.is(text.trim().as_bytes()) && Token::from_file(&path).unwrap().is(text.trim().as_bytes())
        );
        for wrong in ["", "x", &text.trim()[1..], &format!("{}x", text.trim())] {
            assert!(!first.is(wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn files_that_others_read_and_short_tokens_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        fs::write(&path, "0123456789abcdef\n").unwrap();
        for mode in [0o644, 0o640, 0o602] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let error = Token::from_file(&path).unwrap_err();
            assert!(error.exit_code() == 77 && error.to_string().contains("0600"), "{error}");
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(Token::from_file(&path).is_ok());
        fs::write(&path, "short\n").unwrap();
        assert_eq!(Token::from_file(&path).unwrap_err().exit_code(), 78);
        fs::write(&path, "with a space in the midst of it\n").unwrap();
        assert!(Token::from_file(&path).is_err());
    }
}
