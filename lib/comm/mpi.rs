//! Ranks of an MPI world, through the plug-in.
#![expect(unsafe_code, reason = "calls the C functions of the MPI plug-in")]

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::Arc;

use crate::plugin::{Part, Plugin};
use crate::{Communicator, Error, Incoming, Outgoing, Placement, Result};

/// One rank of a group of MPI ranks.
pub struct Mpi {
    plugin: Arc<Plugin>,
    handle: *mut c_void,
    rank: usize,
    size: usize,
}

// SAFETY: the handle is an immutable box of an MPI communicator; the plug-in serialises all calls into MPI.
unsafe impl Send for Mpi {}
// SAFETY: as above.
unsafe impl Sync for Mpi {}

impl Mpi {
    /// Initialises MPI, once in the life of a process; only where a launcher started this process. The world MPI
    /// sees must be the one of `placement`.
    pub fn init(placement: &Placement) -> Result<Self> {
        let plugin = Arc::new(Plugin::open()?);
        let (mut handle, mut rank, mut size) = (null_mut(), 0, 0);
        // SAFETY: all three point to live variables.
        let code = unsafe { (plugin.init)(&raw mut handle, &raw mut rank, &raw mut size) };
        plugin.check("init", code)?;
        let world = Self { plugin, handle, rank: rank as usize, size: size as usize };
        if (world.rank, world.size) != (placement.rank, placement.size) {
            return Err(Error::Disagree {
                launcher: format!("{:?}", placement.source),
                rank: placement.rank,
                size: placement.size,
                mpi_rank: world.rank,
                mpi_size: world.size,
            });
        }
        Ok(world)
    }

    fn peer(&self, rank: usize) -> Result<c_int> {
        if rank < self.size {
            return Ok(rank as c_int);
        }
        Err(Error::Rank { call: "exchange", rank, size: self.size })
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        // SAFETY: the handle came from the plug-in and is freed once; this calls no MPI function.
        unsafe { (self.plugin.free)(self.handle) }
    }
}

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn backend(&self) -> &'static str {
        "mpi"
    }

    fn exchange(&self, tag: u16, out: &[Outgoing<'_>], into: &mut [Incoming<'_>]) -> Result<()> {
        let out: Vec<Part> = out
            .iter()
            .map(|m| {
                let data = m.data.as_ptr().cast_mut().cast();
                Ok(Part { data, len: m.data.len(), peer: self.peer(m.to)? })
            })
            .collect::<Result<_>>()?;
        let into: Vec<Part> = into
            .iter_mut()
            .map(|m| {
                Ok(Part { data: m.data.as_mut_ptr().cast(), len: m.data.len(), peer: self.peer(m.from)? })
            })
            .collect::<Result<_>>()?;
        // SAFETY: the parts describe slices borrowed until this call returns, those received into exclusively, and
        // the plug-in leaves no request behind that uses them. Outgoing data is only read.
        let code = unsafe {
            (self.plugin.exchange)(
                self.handle,
                c_int::from(tag),
                out.len() as c_int,
                out.as_ptr(),
                into.len() as c_int,
                into.as_ptr(),
            )
        };
        self.plugin.check("exchange", code)
    }

    fn post(&self, tag: u16, message: &Outgoing<'_>) -> Result<()> {
        let data = message.data.as_ptr().cast_mut().cast();
        let part = Part { data, len: message.data.len(), peer: self.peer(message.to)? };
        // SAFETY: the part describes a borrowed slice, which the plug-in copies before it returns.
        let code = unsafe { (self.plugin.post)(self.handle, c_int::from(tag), &raw const part) };
        self.plugin.check("post", code)
    }

    fn barrier(&self) -> Result<()> {
        // SAFETY: the handle is live.
        let code = unsafe { (self.plugin.barrier)(self.handle) };
        self.plugin.check("barrier", code)
    }

    fn split(&self, colour: u32, key: u32) -> Result<Arc<dyn Communicator>> {
        let (mut handle, mut rank, mut size) = (null_mut(), 0, 0);
        // SAFETY: the handle is live and the others point to live variables. Colours and keys are ranks, so they
        // fit a C int.
        let code = unsafe {
            let (colour, key) = (colour as c_int, key as c_int);
            (self.plugin.split)(self.handle, colour, key, &raw mut handle, &raw mut rank, &raw mut size)
        };
        self.plugin.check("split", code)?;
        Ok(Arc::new(Self { plugin: self.plugin.clone(), handle, rank: rank as usize, size: size as usize }))
    }

    fn abort(&self, code: u8) -> ! {
        // SAFETY: takes a number; ends the job.
        unsafe { (self.plugin.abort)(c_int::from(code)) };
        std::process::exit(i32::from(code))
    }

    fn finish(&self) -> Result<()> {
        // MPI_Finalize may spin while it waits for slower ranks; behind a barrier it does not wait.
        self.barrier()?;
        // SAFETY: the last use of MPI in this process, by the contract of `finish`.
        let code = unsafe { (self.plugin.finalize)() };
        self.plugin.check("finalize", code)
    }
}
