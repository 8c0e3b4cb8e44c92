//! Which steps readers look into.

use slime_config::paths;

use crate::{Result, Store};

/// The steps whose folders may hold more than their manifests, in order.
pub(crate) fn open_steps(store: &mut dyn Store) -> Result<Vec<u64>> {
    let hint = store.read(paths::FIRST_STEP)?;
    let hint = hint.and_then(|bytes| String::from_utf8_lossy(&bytes).trim().parse::<u64>().ok());
    // Nothing is wrong with an unreadable hint but the time it costs.
    let first = hint.unwrap_or(0);
    let steps = store.list(paths::ROLLOUT)?;
    Ok(steps.iter().filter_map(|name| paths::parse_number(name)).filter(|step| *step >= first).collect())
}
