//! The functions of `libcuda.so.1` that are used here, bound once. Source: the CUDA driver API reference.
#![expect(unsafe_code, reason = "binds the functions of a C library")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::{Error, Result};

const SUCCESS: c_int = 0;
const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;

/// A context's handle.
pub(crate) type Context = *mut c_void;
/// An address in a GPU's memory.
pub(crate) type Address = u64;

/// The driver; the library stays open for the life of the process.
pub(crate) struct Driver {
    device_count: unsafe extern "C" fn(*mut c_int) -> c_int,
    device: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    can_access_peer: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    retain_context: unsafe extern "C" fn(*mut Context, c_int) -> c_int,
    release_context: unsafe extern "C" fn(c_int) -> c_int,
    set_current: unsafe extern "C" fn(Context) -> c_int,
    synchronize: unsafe extern "C" fn() -> c_int,
    enable_peer_access: unsafe extern "C" fn(Context, c_uint) -> c_int,
    allocate: unsafe extern "C" fn(*mut Address, usize) -> c_int,
    free: unsafe extern "C" fn(Address) -> c_int,
    copy_peer: unsafe extern "C" fn(Address, Context, Address, Context, usize) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
}

impl Driver {
    /// Opens and initialises it.
    pub fn open() -> Result<Self> {
        // SAFETY: the driver's library is made to be opened at run time.
        let library = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) };
        let library = std::mem::ManuallyDrop::new(library.map_err(Error::NoDriver)?);
        macro_rules! symbol {
            ($name:literal) => {{
                // SAFETY: the signatures are those of the driver API, whose versioned names never change theirs.
                let symbol = unsafe { library.get($name) };
                *symbol.map_err(Error::Incomplete)?
            }};
        }
        let driver = Self {
            device_count: symbol!(b"cuDeviceGetCount\0"),
            device: symbol!(b"cuDeviceGet\0"),
            can_access_peer: symbol!(b"cuDeviceCanAccessPeer\0"),
            retain_context: symbol!(b"cuDevicePrimaryCtxRetain\0"),
            release_context: symbol!(b"cuDevicePrimaryCtxRelease_v2\0"),
            set_current: symbol!(b"cuCtxSetCurrent\0"),
            synchronize: symbol!(b"cuCtxSynchronize\0"),
            enable_peer_access: symbol!(b"cuCtxEnablePeerAccess\0"),
            allocate: symbol!(b"cuMemAlloc_v2\0"),
            free: symbol!(b"cuMemFree_v2\0"),
            copy_peer: symbol!(b"cuMemcpyPeer\0"),
            error_name: symbol!(b"cuGetErrorName\0"),
        };
        let init: unsafe extern "C" fn(c_uint) -> c_int = symbol!(b"cuInit\0");
        // SAFETY: takes a number that has to be 0.
        driver.check("cuInit", unsafe { init(0) })?;
        Ok(driver)
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: writes a pointer to a text that lives as long as the library.
        let known = unsafe { (self.error_name)(code, &raw mut name) } == SUCCESS && !name.is_null();
        let name = if known {
            // SAFETY: checked above.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            "unknown error".to_owned()
        };
        Err(Error::Call { call, name, code })
    }

    /// Number of GPUs that this process may use.
    pub fn device_count(&self) -> Result<c_int> {
        let mut count = 0;
        // SAFETY: writes a number.
        self.check("cuDeviceGetCount", unsafe { (self.device_count)(&raw mut count) })?;
        Ok(count)
    }

    /// The handle of the GPU with this number.
    pub fn device(&self, number: c_int) -> Result<c_int> {
        let mut device = 0;
        // SAFETY: writes a number.
        self.check("cuDeviceGet", unsafe { (self.device)(&raw mut device, number) })?;
        Ok(device)
    }

    /// Whether one GPU can read and write another's memory without the host.
    pub fn can_access_peer(&self, device: c_int, peer: c_int) -> Result<bool> {
        let mut can = 0;
        // SAFETY: writes a number.
        let code = unsafe { (self.can_access_peer)(&raw mut can, device, peer) };
        self.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    /// The GPU's primary context, made current; to be released.
    pub fn retain_context(&self, device: c_int) -> Result<Context> {
        let mut context = std::ptr::null_mut();
        // SAFETY: writes a handle.
        self.check("cuDevicePrimaryCtxRetain", unsafe { (self.retain_context)(&raw mut context, device) })?;
        self.set_current(context)?;
        Ok(context)
    }

    /// Gives a primary context back; what was allocated in it must be freed.
    pub fn release_context(&self, device: c_int) -> Result<()> {
        // SAFETY: takes a number; counted by the driver.
        self.check("cuDevicePrimaryCtxRelease", unsafe { (self.release_context)(device) })
    }

    /// The context of this thread's calls from now on; it is one of [`Self::retain_context`].
    pub fn set_current(&self, context: Context) -> Result<()> {
        // SAFETY: the handle is the driver's own, or refused by it.
        self.check("cuCtxSetCurrent", unsafe { (self.set_current)(context) })
    }

    /// Waits for the current context's GPU.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: takes nothing.
        self.check("cuCtxSynchronize", unsafe { (self.synchronize)() })
    }

    /// Lets the current context's GPU reach the memory of `peer`.
    pub fn enable_peer_access(&self, peer: Context) -> Result<()> {
        // SAFETY: the handle is the driver's own, or refused by it.
        match unsafe { (self.enable_peer_access)(peer, 0) } {
            PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => self.check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Memory of the current context's GPU, to be freed.
    pub fn allocate(&self, num_bytes: usize) -> Result<Address> {
        let mut address = 0;
        // SAFETY: writes an address.
        self.check("cuMemAlloc", unsafe { (self.allocate)(&raw mut address, num_bytes) })?;
        Ok(address)
    }

    /// Frees memory of [`Self::allocate`].
    pub fn free(&self, address: Address) -> Result<()> {
        // SAFETY: an address that was not allocated is refused.
        self.check("cuMemFree", unsafe { (self.free)(address) })
    }

    /// Copies between two GPUs' memories of at least `num_bytes`; may return before the copy has ended.
    pub fn copy_peer(
        &self,
        (to, to_context): (Address, Context),
        (from, from_context): (Address, Context),
        num_bytes: usize,
    ) -> Result<()> {
        // SAFETY: addresses outside allocated memory are refused.
        let code = unsafe { (self.copy_peer)(to, to_context, from, from_context, num_bytes) };
        self.check("cuMemcpyPeer", code)
    }
}
