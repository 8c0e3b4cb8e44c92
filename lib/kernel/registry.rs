//! The kernels that this process has loaded, by GPU and by the numbers they are specialised to.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock, PoisonError};

use slime_cuda::{CubinCache, Device, Function, Program};

use crate::Result;

type Loaded = HashMap<(usize, String, Vec<i64>), Vec<Function>>;

/// The functions `names` of `program` on GPU `device`, compiled and loaded at first use.
///
/// # Errors
/// There is no driver or compiler, or they refuse.
pub(crate) fn functions(device: usize, program: &Program<'_>, names: &[&str]) -> Result<Vec<Function>> {
    static LOADED: OnceLock<Mutex<Loaded>> = OnceLock::new();
    let mut loaded = LOADED.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let name = format!("{}: {}", program.name, names.join(" "));
    let key = (device, name, program.defines.iter().map(|(_, value)| *value).collect());
    if let Some(functions) = loaded.get(&key) {
        return Ok(functions.clone());
    }
    let functions = Function::load(&Device::open(device)?, &CubinCache::from_env(), program, names)?;
    loaded.insert(key, functions.clone());
    Ok(functions)
}
