//! Messages with descriptors between tool, broker and zygotes, over sequenced-packet sockets: one packet, one message.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

use crate::error::{Error, Result};

/// Longest message; plans are the longest, with about 3 KB.
const MAX_BYTES: usize = 1 << 16;
/// Most descriptors of a message.
pub(crate) const MAX_FDS: usize = 16;

/// Two connected ends.
pub(crate) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
        .map_err(Error::os("socketpair"))
}

/// Sends one message; a peer that is gone is [`Errno::PIPE`], never a signal.
pub(crate) fn send(socket: impl AsFd, message: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if message.len() > MAX_BYTES || !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::MSGSIZE);
    }
    let parts = [IoSlice::new(message)];
    loop {
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            sent => return sent.map(|_| ()),
        }
    }
}

/// The next message; none when the peer is gone.
pub(crate) fn receive(socket: impl AsFd) -> rustix::io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => return Ok(None),
            received => break received?.bytes,
        }
    };
    if len == 0 {
        return Ok(None);
    }
    bytes.truncate(len);
    let fds = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let fds = fds.collect();
    Ok(Some((bytes, fds)))
}

/// A file in memory with this content, at its beginning, that nobody can change.
pub(crate) fn sealed(name: &str, content: &[u8]) -> Result<OwnedFd> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(Error::os("memfd_create"))?;
    let mut rest = content;
    let mut at = 0;
    while !rest.is_empty() {
        let written = rustix::io::pwrite(&fd, rest, at).map_err(Error::os("write to a memfd"))?;
        at += written as u64;
        rest = rest.get(written..).unwrap_or_default();
    }
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&fd, seals).map_err(Error::os("seal a memfd"))?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_carry_descriptors() {
        let (left, right) = pair().unwrap();
        let file = sealed("case", b"content").unwrap();
        send(&left, b"one", &[file.as_fd(), left.as_fd()]).unwrap();
        send(&left, b"two", &[]).unwrap();
        let (message, mut fds) = receive(&right).unwrap().unwrap();
        assert_eq!((message.as_slice(), fds.len()), (&b"one"[..], 2));
        let mut content = String::new();
        let mut copy = File::from(fds.swap_remove(0));
        copy.read_to_string(&mut content).unwrap();
        assert_eq!(content, "content");
        assert!(copy.write_all(b"other").is_err());
        assert_eq!(receive(&right).unwrap().unwrap().0, b"two");
        drop((left, fds));
        assert!(receive(&right).unwrap().is_none());
        assert_eq!(send(&right, b"three", &[]), Err(Errno::PIPE));
    }
}
