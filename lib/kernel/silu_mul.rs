//! The gate of the MLP. Suffixes: t tokens, m intermediate size.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "silu_mul";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("silu_mul.cu"));
const THREADS: i64 = 128;

/// Whether [`serve`] takes rows of `2 * width` elements of this kind there.
pub fn is_supported(kind: Kind, width: i64, device: Device) -> bool {
    is_element(kind, device) && width % 8 == 0 && width > 0
}

/// Writes `silu(gate) * up` `[t, m]` of `gate_up` `[t, 2 m]`, gate first, to `out_tm`.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn serve(gate_up: &Tensor, out_tm: &Tensor) -> Result<()> {
    let (num_tokens, width) = out_tm.size2()?;
    let (kind, device) = (out_tm.kind(), out_tm.device());
    if !is_supported(kind, width, device) {
        return Err(refused(NAME, "output", "f32 or bf16 on a GPU, a multiple of 8", format!("{out_tm:?}")));
    }
    is_as(NAME, "gate and up", gate_up, (kind, &[num_tokens, 2 * width], device))?;
    is_as(NAME, "output", out_tm, (kind, &[num_tokens, width], device))?;
    if num_tokens == 0 {
        return Ok(());
    }
    let number = device_of(NAME, out_tm)?;
    let defines = [bf16(kind), ("THREADS", THREADS)];
    let program = Program { name: "silu_mul.cu", source: SOURCE, defines: &defines };
    let arguments = Arguments::default().tensor(gate_up).tensor(out_tm).int(width as i32);
    let num_blocks = (width / 8 + THREADS - 1) / THREADS;
    let grid = [num_tokens as u32, num_blocks as u32, 1];
    // SAFETY: the arguments are those of the kernel, checked above.
    unsafe { arguments.launch(number, (&program, NAME), (grid, THREADS)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu() {
        for kind in [Kind::Float, Kind::BFloat16] {
            compiles(NAME, SOURCE, &[bf16(kind), ("THREADS", THREADS)]);
        }
    }
}
