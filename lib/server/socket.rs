//! Where clients come in: a TCP address behind a token, or a Unix socket that only this user may open.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::{Error, Result, Token};

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A host and a port (0 takes a free one), behind the token of this file.
    Tcp {
        /// Name or address.
        host: String,
        /// The port.
        port: u16,
        /// The file; it is made where it does not exist.
        token_file: PathBuf,
    },
    /// A socket of this path, mode 0600.
    Unix(PathBuf),
}

/// A socket that listens.
#[derive(Debug)]
pub struct Socket {
    pub(crate) listener: Listener,
    pub(crate) token: Option<Token>,
    url: String,
}

#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, SocketFile),
}

/// The name of a socket, taken away on drop.
#[derive(Debug)]
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Nobody is left who could be told.
        let _ = fs::remove_file(&self.0);
    }
}

impl Socket {
    /// Listens there.
    ///
    /// # Errors
    /// The place is taken or refused; others can read the token.
    pub fn bind(place: &Place) -> Result<Self> {
        match place {
            Place::Tcp { host, port, token_file } => {
                let token = Some(Token::from_file(token_file)?);
                let failed = |source| Error::Listen { place: format!("{host}:{port}"), source };
                let addresses: Vec<SocketAddr> =
                    (host.as_str(), *port).to_socket_addrs().map_err(failed)?.collect();
                let listener = TcpListener::bind(&*addresses).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let url = format!("http://{}", listener.local_addr().map_err(failed)?);
                Ok(Self { listener: Listener::Tcp(listener), token, url })
            }
            Place::Unix(path) => {
                let failed = |source| Error::Listen { place: path.display().to_string(), source };
                remove_stale(path)?;
                let listener = UnixListener::bind(path).map_err(failed)?;
                let file = SocketFile(path.clone());
                // Until here others could have come in: each of them is asked for its user too.
                fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
                listener.set_nonblocking(true).map_err(failed)?;
                let url = format!("unix:{}", path.display());
                Ok(Self { listener: Listener::Unix(listener, file), token: None, url })
            }
        }
    }

    /// What clients call it.
    pub fn url(&self) -> &str {
        &self.url
    }
}

/// A socket that nobody listens on is left from a process that was killed.
fn remove_stale(path: &Path) -> Result<()> {
    let failed = |source| Error::Listen { place: path.display().to_string(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err(failed(io::Error::new(ErrorKind::AlreadyExists, "a file that is no socket is in its place")))
        }
        Ok(_) => match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)
            }
            Err(error) => Err(failed(error)),
            Ok(_) => Err(Error::SocketInUse { path: path.to_owned() }),
        },
    }
}

/// Whether a peer of this user id may come in.
pub(crate) fn is_welcome(user: u32) -> bool {
    user == 0 || fs::metadata("/proc/self").is_ok_and(|own| own.uid() == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_for_its_owner_goes_with_it_and_replaces_a_stale_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let place = Place::Unix(path.clone());
        let socket = Socket::bind(&place).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(socket.url(), format!("unix:{}", path.display()));
        assert!(matches!(Socket::bind(&place).unwrap_err(), Error::SocketInUse { .. }));
        drop(socket);
        assert!(!path.exists());
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "a killed process leaves it");
        drop(Socket::bind(&place).unwrap());
        fs::write(&path, "mine").unwrap();
        assert_eq!(Socket::bind(&place).unwrap_err().exit_code(), 73);
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }

    #[test]
    fn port_0_is_told_as_the_one_that_was_free() {
        let dir = tempfile::tempdir().unwrap();
        let token_file = dir.path().join("token");
        let socket = Socket::bind(&Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port: 0,
            token_file: token_file.clone(),
        })
        .unwrap();
        let port: u16 = socket.url().rsplit_once(':').unwrap().1.parse().unwrap();
        assert!(port > 0 && token_file.exists());
        let again = Socket::bind(&Place::Tcp { host: "127.0.0.1".to_owned(), port, token_file });
        assert_eq!(again.unwrap_err().exit_code(), 73);
    }
}
