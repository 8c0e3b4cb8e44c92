//! The world of one rank.

use std::sync::Arc;

use crate::{Communicator, Error, Incoming, Outgoing, Result};

/// One rank alone: collectives are copies.
#[derive(Clone, Copy, Debug, Default)]
pub struct Single;

impl Communicator for Single {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn backend(&self) -> &'static str {
        "single"
    }

    fn exchange(&self, _tag: u16, out: &[Outgoing<'_>], into: &mut [Incoming<'_>]) -> Result<()> {
        if out.len() != into.len() {
            return Err(Error::Length {
                call: "exchange with oneself",
                expected: into.len(),
                got: out.len(),
            });
        }
        for (sent, received) in out.iter().zip(into) {
            for rank in [sent.to, received.from] {
                if rank != 0 {
                    return Err(Error::Rank { call: "exchange", rank, size: 1 });
                }
            }
            if sent.data.len() != received.data.len() {
                return Err(Error::Message { from: 0, expected: received.data.len(), got: sent.data.len() });
            }
            received.data.copy_from_slice(sent.data);
        }
        Ok(())
    }

    fn post(&self, _tag: u16, message: &Outgoing<'_>) -> Result<()> {
        // What one rank posts to itself nobody takes.
        Err(Error::Rank { call: "post", rank: message.to, size: 1 })
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn split(&self, _colour: u32, _key: u32) -> Result<Arc<dyn Communicator>> {
        Ok(Arc::new(Self))
    }

    fn abort(&self, code: u8) -> ! {
        std::process::exit(i32::from(code))
    }

    fn finish(&self) -> Result<()> {
        Ok(())
    }
}
