//! Collectives of buffers in GPU memory, over NCCL, which libtorch brings along.
//!
//! The types are cudarc's. Its loader looks for `libnccl.so`, which may be another NCCL than the one that libtorch has
//! loaded, and whose symbols would mix with that one's; so the functions are bound here, from `libnccl.so.2`, the name
//! under which libtorch loads its own.
#![expect(unsafe_code, reason = "binds the functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::result as driver;
use cudarc::nccl::sys::{ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclUniqueId};
use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use crate::{Collectives, Communicator, Dtype, Error, Op, Result};

/// NCCL's shared object name.
const LIBRARY: &str = "libnccl.so.2";
/// Bytes of the id that makes a communicator.
const ID_BYTES: usize = 128;
/// Bytes by which a GPU is told from all others.
const UUID_BYTES: usize = 16;

type Reduce = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    ncclRedOp_t,
    ncclComm_t,
    *mut c_void,
) -> c_int;
type Gather =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, *mut c_void) -> c_int;
type Broadcast = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    ncclDataType_t,
    c_int,
    ncclComm_t,
    *mut c_void,
) -> c_int;

/// The functions of NCCL that are used here; codes are numbers, for a newer NCCL knows more of them.
struct Functions {
    unique_id: unsafe extern "C" fn(*mut ncclUniqueId) -> c_int,
    init: unsafe extern "C" fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int) -> c_int,
    destroy: unsafe extern "C" fn(ncclComm_t) -> c_int,
    all_reduce: Reduce,
    reduce_scatter: Reduce,
    all_gather: Gather,
    broadcast: Broadcast,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// Ranks that each have a GPU of their own.
pub struct Nccl {
    functions: Functions,
    comm: ncclComm_t,
    size: usize,
}

// SAFETY: a communicator may be used from any thread, one call at a time, which `&mut`-free callers of one rank keep.
unsafe impl Send for Nccl {}
// SAFETY: as above.
unsafe impl Sync for Nccl {}

impl Nccl {
    /// Collective over `host`: the ranks meet with GPU `device` (of those this process sees) each. `None` where two ranks
    /// have the same GPU, which NCCL refuses.
    ///
    /// # Errors
    /// There is no NCCL or driver, or they refuse; a failed exchange on the host.
    pub fn meet(host: &dyn Communicator, device: usize) -> Result<Option<Self>> {
        let opened = open_device(device);
        // Every rank takes part in the exchange, whatever it found.
        let mut mine = [0u8; UUID_BYTES + 1];
        if let Ok(uuid) = &opened {
            mine[0] = 1;
            mine[1..].copy_from_slice(uuid);
        }
        let mut all = vec![0u8; mine.len() * host.size()];
        host.all_gather(&mine, &mut all)?;
        opened?;
        let mut gpus: Vec<&[u8]> = all.chunks_exact(mine.len()).collect();
        if let Some(rank) = gpus.iter().position(|gpu| gpu[0] == 0) {
            return Err(Error::Nccl { call: "meet", message: format!("rank {rank} has no GPU") });
        }
        gpus.sort_unstable();
        gpus.dedup();
        if gpus.len() < host.size() {
            return Ok(None);
        }
        let functions = Functions::open()?;
        let mut id = ncclUniqueId { internal: [0; ID_BYTES] };
        if host.rank() == 0 {
            // SAFETY: writes the id.
            functions.check("ncclGetUniqueId", unsafe { (functions.unique_id)(&raw mut id) })?;
        }
        let mut bytes = id.internal.map(|byte| byte as u8);
        host.broadcast(&mut bytes, 0)?;
        id.internal = bytes.map(|byte| byte as c_char);
        let mut comm: ncclComm_t = std::ptr::null_mut();
        // SAFETY: the id is rank 0's, and every rank calls this.
        let code = unsafe { (functions.init)(&raw mut comm, host.size() as c_int, id, host.rank() as c_int) };
        functions.check("ncclCommInitRank", code)?;
        Ok(Some(Self { functions, comm, size: host.size() }))
    }

    /// Ranks that met.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Every rank's `data`, `count` elements in GPU memory, becomes the reduction of all ranks' on `stream`.
    ///
    /// # Errors
    /// A dtype that has no reduction, or NCCL refuses.
    ///
    /// # Safety
    /// `data` is GPU memory of that size and dtype, untouched by others until the stream is past it; the stream belongs to
    /// the rank's GPU.
    pub unsafe fn all_reduce(
        &self,
        data: *mut c_void,
        count: usize,
        dtype: Dtype,
        op: Op,
        stream: usize,
    ) -> Result<()> {
        let (dtype, op) = (data_type(dtype), reduction(op));
        // SAFETY: the caller's promise; in place is allowed.
        let code = unsafe {
            (self.functions.all_reduce)(data, data, count, dtype, op, self.comm, stream as *mut c_void)
        };
        self.functions.check("ncclAllReduce", code)
    }

    /// `output`, `count` elements, becomes this rank's part of the reduction of all ranks' `input`, `count` elements for
    /// each rank.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    ///
    /// # Safety
    /// As [`Self::all_reduce`], for both buffers.
    pub unsafe fn reduce_scatter(
        &self,
        input: *const c_void,
        output: *mut c_void,
        count: usize,
        dtype: Dtype,
        op: Op,
        stream: usize,
    ) -> Result<()> {
        let (dtype, op) = (data_type(dtype), reduction(op));
        // SAFETY: the caller's promise.
        let code = unsafe {
            (self.functions.reduce_scatter)(input, output, count, dtype, op, self.comm, stream as *mut c_void)
        };
        self.functions.check("ncclReduceScatter", code)
    }

    /// `output`, `count` elements for each rank, becomes all ranks' `input` in rank order.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    ///
    /// # Safety
    /// As [`Self::all_reduce`], for both buffers.
    pub unsafe fn all_gather(
        &self,
        input: *const c_void,
        output: *mut c_void,
        count: usize,
        dtype: Dtype,
        stream: usize,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let code = unsafe {
            (self.functions.all_gather)(
                input,
                output,
                count,
                data_type(dtype),
                self.comm,
                stream as *mut c_void,
            )
        };
        self.functions.check("ncclAllGather", code)
    }

    /// Every rank's `data` becomes `root`'s.
    ///
    /// # Errors
    /// A rank that is not there, or NCCL refuses.
    ///
    /// # Safety
    /// As [`Self::all_reduce`].
    pub unsafe fn broadcast(
        &self,
        data: *mut c_void,
        count: usize,
        dtype: Dtype,
        root: usize,
        stream: usize,
    ) -> Result<()> {
        if root >= self.size {
            return Err(Error::Rank { call: "broadcast", rank: root, size: self.size });
        }
        let (dtype, root) = (data_type(dtype), root as c_int);
        // SAFETY: the caller's promise; in place is allowed.
        let code = unsafe {
            (self.functions.broadcast)(data, data, count, dtype, root, self.comm, stream as *mut c_void)
        };
        self.functions.check("ncclBroadcast", code)
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        // SAFETY: made by `meet` and destroyed once. Nothing can be done about a refusal.
        let _ = unsafe { (self.functions.destroy)(self.comm) };
    }
}

impl Functions {
    fn open() -> Result<Self> {
        // SAFETY: the library is made to be opened at run time; where libtorch has loaded it, this is that one.
        let library = unsafe { Library::open(Some(LIBRARY), RTLD_NOW | RTLD_GLOBAL) };
        let missing = |error: libloading::Error| {
            let reason =
                std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
            Error::NoNccl { library: LIBRARY, reason }
        };
        // It stays open until the process ends.
        let library = std::mem::ManuallyDrop::new(library.map_err(missing)?);
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the signatures are those of nccl.h, stable since NCCL 2.0.
                let symbol = unsafe { library.get($name) };
                *symbol.map_err(missing)?
            }};
        }
        Ok(Self {
            unique_id: symbol!(b"ncclGetUniqueId\0"),
            init: symbol!(b"ncclCommInitRank\0"),
            destroy: symbol!(b"ncclCommDestroy\0"),
            all_reduce: symbol!(b"ncclAllReduce\0"),
            reduce_scatter: symbol!(b"ncclReduceScatter\0"),
            all_gather: symbol!(b"ncclAllGather\0"),
            broadcast: symbol!(b"ncclBroadcast\0"),
            error: symbol!(b"ncclGetErrorString\0"),
        })
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: returns a text that lives as long as the library, whatever the number.
        let message = unsafe { CStr::from_ptr((self.error)(code)) }.to_string_lossy().into_owned();
        Err(Error::Nccl { call, message: format!("{message} ({code})") })
    }
}

/// Makes the GPU current, as NCCL wants it, and tells its id.
fn open_device(device: usize) -> Result<[u8; UUID_BYTES]> {
    let failed = |call: &'static str| {
        move |error: driver::DriverError| Error::Nccl { call, message: format!("{:?}", error.0) }
    };
    // SAFETY: the driver's library is made to be opened at run time.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err(Error::Nccl { call: "meet", message: "no CUDA driver on this host".to_owned() });
    }
    driver::init().map_err(failed("cuInit"))?;
    let device = driver::device::get(device as c_int).map_err(failed("cuDeviceGet"))?;
    // SAFETY: the handle is the driver's own. The context is kept until the process ends: libtorch's tensors live in it.
    let context =
        unsafe { driver::primary_ctx::retain(device) }.map_err(failed("cuDevicePrimaryCtxRetain"))?;
    // SAFETY: retained above.
    unsafe { driver::ctx::set_current(context) }.map_err(failed("cuCtxSetCurrent"))?;
    let uuid = driver::device::get_uuid(device).map_err(failed("cuDeviceGetUuid"))?;
    Ok(uuid.bytes.map(|byte| byte as u8))
}

fn data_type(dtype: Dtype) -> ncclDataType_t {
    match dtype {
        Dtype::F32 => ncclDataType_t::ncclFloat32,
        Dtype::F64 => ncclDataType_t::ncclFloat64,
        Dtype::Bf16 => ncclDataType_t::ncclBfloat16,
        Dtype::U8 => ncclDataType_t::ncclUint8,
        Dtype::U64 => ncclDataType_t::ncclUint64,
    }
}

fn reduction(op: Op) -> ncclRedOp_t {
    match op {
        Op::Sum => ncclRedOp_t::ncclSum,
        Op::Min => ncclRedOp_t::ncclMin,
        Op::Max => ncclRedOp_t::ncclMax,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Single;

    #[test]
    fn a_host_without_gpu_or_nccl_says_what_is_missing() {
        match Nccl::meet(&Single, 0) {
            Ok(nccl) => assert_eq!(nccl.unwrap().size(), 1),
            Err(error @ (Error::Nccl { .. } | Error::NoNccl { .. })) => {
                assert_eq!(error.exit_code(), 69, "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}
