//! One GPU: its primary context, which libtorch uses too, and what it says about itself.
#![expect(unsafe_code, reason = "calls into the CUDA driver")]

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result;
use cudarc::driver::sys::{self, CUdevice_attribute};

use crate::Result;
use crate::driver::{checked, open, set_current};

/// A GPU that this process sees.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    device: sys::CUdevice,
    pub(crate) context: sys::CUcontext,
}

// SAFETY: contexts are the process's own and may be current in any thread.
unsafe impl Send for Device {}
// SAFETY: as above; the handle is never changed.
unsafe impl Sync for Device {}

impl Device {
    /// The GPU with this number, its primary context made current. The context is retained once and kept until the process
    /// ends: kernels and tensors live in it.
    ///
    /// # Errors
    /// There is no driver or no such GPU.
    pub fn open(number: usize) -> Result<Self> {
        static OPENED: Mutex<BTreeMap<usize, Device>> = Mutex::new(BTreeMap::new());
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let device = match opened.get(&number) {
            Some(device) => *device,
            None => *opened.entry(number).or_insert(Self::retain(number)?),
        };
        set_current(device.context)?;
        Ok(device)
    }

    fn retain(number: usize) -> Result<Self> {
        open()?;
        let device = checked("cuDeviceGet", result::device::get(number as i32))?;
        // SAFETY: the handle is the driver's own.
        let context = checked("cuDevicePrimaryCtxRetain", unsafe { result::primary_ctx::retain(device) })?;
        Ok(Self { device, context })
    }

    /// Its name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn name(&self) -> Result<String> {
        checked("cuDeviceGetName", result::device::get_name(self.device))
    }

    /// The instruction set its kernels are compiled for, such as `sm_90`.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn arch(&self) -> Result<String> {
        let major = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = self.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok(format!("sm_{major}{minor}"))
    }

    /// Free and total bytes of its memory.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn memory(&self) -> Result<(usize, usize)> {
        set_current(self.context)?;
        checked("cuMemGetInfo", result::mem_get_info())
    }

    fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32> {
        // SAFETY: the handle is the driver's own.
        checked("cuDeviceGetAttribute", unsafe { result::device::get_attribute(self.device, attribute) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn a_host_without_a_driver_says_so_and_a_gpu_tells_its_name_and_memory() {
        match Device::open(0) {
            Err(Error::NoDriver) => assert_eq!(Error::NoDriver.exit_code(), 69),
            Err(error) => assert_eq!(error.exit_code(), 69, "{error}"),
            Ok(device) => {
                let (free, total) = device.memory().unwrap();
                assert!(free <= total && device.arch().unwrap().starts_with("sm_"));
                assert!(!device.name().unwrap().is_empty());
            }
        }
    }
}
