//! The gate of the MLP. Suffixes: t tokens, m intermediate size.

use tch::Tensor;

use crate::Result;

/// `silu(gate) * up`, `[t, m]`, of `gate_up` `[t, 2 m]` (gate first).
///
/// # Errors
/// The last dimension is odd.
pub fn reference(gate_up: &Tensor) -> Result<Tensor> {
    let (t, width) = gate_up.size2()?;
    let halves = gate_up.f_view((t, 2, width / 2))?;
    Ok(halves.f_select(1, 0)?.f_silu()?.f_mul(&halves.f_select(1, 1)?)?)
}
