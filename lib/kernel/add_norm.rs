//! The residual add and the RMS norm that follows it. Suffixes: t tokens, d hidden size.
#![expect(unsafe_code, reason = "launches a kernel")]

use slime_cuda::Program;
use tch::{Device, Kind, Tensor};

use crate::Result;
use crate::arguments::Arguments;
use crate::check::{bf16, device_of, is_as, is_element, refused};

const NAME: &str = "add_norm";
const SOURCE: &str = concat!(include_str!("element.cuh"), include_str!("add_norm.cu"));
/// Most threads of a block, and elements of a row that they hold.
const MOST_THREADS: i64 = 256;
const MOST_HIDDEN: i64 = MOST_THREADS * 8 * 8;

/// Whether [`serve`] takes rows of this width and kind there.
pub fn is_supported(kind: Kind, hidden: i64, device: Device) -> bool {
    is_element(kind, device) && hidden % 8 == 0 && (8..=MOST_HIDDEN).contains(&hidden)
}

/// Adds `delta_td` (where there is one) to `x_td` in place and writes the RMS norm of the sum times `weight_d` to `out_td`:
/// what `LlamaRMSNorm` of transformers gives, rounded where it rounds. Sums run in f32.
///
/// # Errors
/// Tensors that do not fit each other or that [`is_supported`] refuses; no compiler or driver.
pub fn serve(
    x_td: &Tensor,
    delta_td: Option<&Tensor>,
    weight_d: &Tensor,
    out_td: &Tensor,
    eps: f64,
) -> Result<()> {
    let (num_tokens, hidden) = x_td.size2()?;
    let (kind, device) = (x_td.kind(), x_td.device());
    if !is_supported(kind, hidden, device) {
        return Err(refused(NAME, "rows", "f32 or bf16 on a GPU, a multiple of 8", format!("{x_td:?}")));
    }
    let matrix = (kind, &[num_tokens, hidden][..], device);
    for (what, tensor) in [("rows", x_td), ("delta", delta_td.unwrap_or(x_td)), ("output", out_td)] {
        is_as(NAME, what, tensor, matrix)?;
    }
    is_as(NAME, "weight", weight_d, (kind, &[hidden], device))?;
    if num_tokens == 0 {
        return Ok(());
    }
    let number = device_of(NAME, x_td)?;
    let threads = threads(hidden);
    let defines = [bf16(kind), ("HIDDEN", hidden), ("THREADS", threads)];
    let program = Program { name: "add_norm.cu", source: SOURCE, defines: &defines };
    let arguments = Arguments::default()
        .tensor(x_td)
        .optional(delta_td)
        .tensor(weight_d)
        .tensor(out_td)
        .float(eps as f32);
    // SAFETY: the arguments are those of the kernel, checked above.
    unsafe { arguments.launch(number, (&program, NAME), ([num_tokens as u32, 1, 1], threads)) }
}

fn threads(hidden: i64) -> i64 {
    ((hidden / 8 + 31) / 32 * 32).min(MOST_THREADS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::compiles;

    #[test]
    fn kernel_compiles_for_every_supported_gpu() {
        for hidden in [8, 576, 1024, 4096, 16_384] {
            for kind in [Kind::Float, Kind::BFloat16] {
                compiles(NAME, SOURCE, &[bf16(kind), ("HIDDEN", hidden), ("THREADS", threads(hidden))]);
            }
        }
    }
}
