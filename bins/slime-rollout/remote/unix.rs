//! HTTP over a Unix socket, for a server on the same host that listens on one.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use ureq::Error;
use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{
    Buffers, ConnectionDetails, Connector, LazyBuffers, NextTimeout, Transport,
};

/// Opens connections to one socket, whatever host a request names.
#[derive(Debug)]
pub struct SocketConnector(pub PathBuf);

impl<In: Transport> Connector<In> for SocketConnector {
    type Out = SocketTransport;

    fn connect(&self, details: &ConnectionDetails, _: Option<In>) -> Result<Option<Self::Out>, Error> {
        let (input, output) = (details.config.input_buffer_size(), details.config.output_buffer_size());
        let stream = UnixStream::connect(&self.0)?;
        Ok(Some(SocketTransport { stream, buffers: LazyBuffers::new(input, output) }))
    }
}

/// Names no address: the connector knows its socket.
#[derive(Debug)]
pub struct Nowhere;

impl Resolver for Nowhere {
    fn resolve(&self, _: &Uri, _: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, Error> {
        let mut addresses = self.empty();
        addresses.push(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)));
        Ok(addresses)
    }
}

/// A connection.
pub struct SocketTransport {
    stream: UnixStream,
    buffers: LazyBuffers,
}

impl Transport for SocketTransport {
    fn buffers(&mut self) -> &mut dyn Buffers {
        &mut self.buffers
    }

    fn transmit_output(&mut self, amount: usize, timeout: NextTimeout) -> Result<(), Error> {
        self.stream.set_write_timeout(timeout.not_zero().map(|timeout| *timeout))?;
        let output = self.buffers.output().get(..amount).unwrap_or_default();
        Ok(self.stream.write_all(output)?)
    }

    fn await_input(&mut self, timeout: NextTimeout) -> Result<bool, Error> {
        self.stream.set_read_timeout(timeout.not_zero().map(|timeout| *timeout))?;
        let amount = self.stream.read(self.buffers.input_append_buf())?;
        self.buffers.input_appended(amount);
        Ok(amount > 0)
    }

    /// An idle connection has nothing to read, not even its end.
    fn is_open(&mut self) -> bool {
        let is_silent = self.stream.set_nonblocking(true).is_ok()
            && self.stream.read(&mut [0]).is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        is_silent && self.stream.set_nonblocking(false).is_ok()
    }
}

impl std::fmt::Debug for SocketTransport {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("SocketTransport").finish_non_exhaustive()
    }
}
