//! The products of a model in fp8: which they are, and the scales of those that look back on earlier steps.

use slime_config::{Fp8 as Settings, Fp8Scaling};
use slime_kernel::fp8_cast::{Format, SIDE, scales_of};
use tch::{Device, Kind, Tensor};

use crate::ops::experts::Experts;
use crate::ops::fp8::{Fp8, Mode, NUM_ROLES, Role, STEP, format_of, magnitude};
use crate::ops::linear::Linear;
use crate::{Error, Model, Result};

/// Roles whose magnitudes of earlier steps are kept: inputs and gradients. Weights stand still within a step.
const NUM_KEPT: usize = 2;

/// Elements of a matrix in the tensors of scales.
const SLOTS: usize = NUM_ROLES * STEP;

/// A part of a layer with products that fp8 can take.
#[derive(Debug)]
pub(crate) enum Product<'a> {
    /// One.
    Linear(&'a mut Linear),
    /// Those of its experts.
    Experts(&'a mut Experts),
}

/// The scales of a model's products.
#[derive(Debug)]
pub(crate) struct Fp8Products {
    scaling: Fp8Scaling,
    matrices: Vec<Matrix>,
    /// What a code is times, and the largest magnitudes of the step that runs: f32, for each matrix those of its roles.
    scales: Tensor,
    largest: Tensor,
    history_len: usize,
    /// Largest magnitudes of inputs, and of gradients, in earlier steps, the last one first; 0 where there was none.
    histories: Vec<Vec<f32>>,
}

#[derive(Debug)]
struct Matrix {
    name: String,
    weight: Tensor,
    is_expert: bool,
}

impl Matrix {
    /// That its shape fits.
    fn check(&self, scaling: Fp8Scaling) -> Result<()> {
        let side = if scaling == Fp8Scaling::Block && !self.is_expert { SIDE } else { 16 };
        let (rows, columns) = self.weight.size2()?;
        if rows % side == 0 && columns % side == 0 {
            return Ok(());
        }
        let (name, expected) = (&self.name, format!("rows and columns in multiples of {side}"));
        Err(conflict(format!(
            "[train.fp8]: expected {expected}, got {name} [{rows}, {columns}] on this rank"
        )))
    }
}

impl Fp8Products {
    /// The two tensors of the matrix `at`; none where nothing is kept.
    fn of(&self, at: usize) -> Result<Fp8> {
        if self.scaling == Fp8Scaling::Block {
            return Ok(Fp8 { mode: Mode::Block, state: None });
        }
        let part = |all: &Tensor| all.f_narrow(0, (at * SLOTS) as i64, SLOTS as i64);
        Ok(Fp8 { mode: self.mode(), state: Some([part(&self.scales)?, part(&self.largest)?]) })
    }

    fn mode(&self) -> Mode {
        let is_known = self.histories.iter().flatten().any(|largest| *largest > 0.0);
        match self.scaling {
            Fp8Scaling::Block => Mode::Block,
            Fp8Scaling::Tensor if is_known => Mode::Delayed,
            Fp8Scaling::Tensor => Mode::Own,
        }
    }

    /// Scales from the histories and the largest magnitudes of the weights.
    fn rescale(&mut self, weights: &[f32]) -> Result<()> {
        let formats = |matrix: &Matrix| {
            [Role::Input, Role::Weight, Role::Gradient]
                .map(|role| format_of(self.scaling, role, matrix.is_expert))
        };
        let largest = |history: &Vec<f32>| history.iter().copied().fold(0.0_f32, f32::max);
        let histories = self.histories.chunks_exact(NUM_KEPT);
        let mut scales = Vec::with_capacity(self.matrices.len() * SLOTS);
        for ((matrix, of_weight), kept) in self.matrices.iter().zip(weights).zip(histories) {
            let of_roles = [kept.first().map_or(0.0, largest), *of_weight, kept.get(1).map_or(0.0, largest)];
            for (magnitude, format) in of_roles.into_iter().zip(formats(matrix)) {
                scales.push(scale_of(magnitude, format)?);
                scales.extend([0.0; STEP - 1]);
            }
        }
        self.scales.f_copy_(&Tensor::f_from_slice(&scales)?)?;
        let _ = self.largest.f_zero_()?;
        Ok(())
    }

    /// The largest magnitude of every weight.
    fn weights(&self) -> Result<Vec<f32>> {
        if self.matrices.is_empty() {
            return Ok(Vec::new());
        }
        let all = self.matrices.iter().map(|matrix| magnitude(&matrix.weight.f_detach()?, None));
        Ok(Vec::try_from(Tensor::f_stack(&all.collect::<Result<Vec<_>>>()?, 0)?.f_to_device(Device::Cpu)?)?)
    }
}

fn scale_of(magnitude: f32, format: Format) -> Result<f32> {
    Ok(f32::try_from(scales_of(&Tensor::f_from_slice(&[magnitude])?, format)?)?)
}

impl Model {
    /// From now on the products of attention, MLPs and experts are computed in fp8, as training does it.
    ///
    /// # Errors
    /// A matrix whose sizes do not fit, a GPU without fp8, or another dtype than bf16 there.
    pub fn set_fp8(&mut self, settings: &Settings) -> Result<()> {
        let scaling = settings.scaling;
        let mut matrices = Vec::new();
        self.each_product(&mut |name, product| {
            let mut push = |name: String, weight: &Tensor, is_expert| {
                let weight = weight.f_detach()?;
                matrices.push(Matrix { name, weight, is_expert });
                Ok::<_, Error>(())
            };
            match product {
                Product::Linear(linear) => push(name.to_owned(), linear.weight(), false),
                Product::Experts(experts) => {
                    let [gate_up, down] = experts.weights();
                    push(format!("{name}_gate_up"), gate_up, true)?;
                    push(format!("{name}_down"), down, true)
                }
            }
        })?;
        matrices.iter().try_for_each(|matrix| matrix.check(scaling))?;
        let (kind, device) = (self.params().kind(), self.params().device());
        check_device(kind, device, scaling, matrices.iter().any(|matrix| matrix.is_expert))?;
        let (num, history_len) = (matrices.len(), settings.amax_history_len as usize);
        let zeros = || Tensor::f_zeros([(num * SLOTS) as i64], (Kind::Float, device));
        let num_kept = if scaling == Fp8Scaling::Tensor { num * NUM_KEPT } else { 0 };
        let (scales, largest, histories) = (zeros()?, zeros()?, vec![vec![0.0; history_len]; num_kept]);
        self.fp8 = Some(Fp8Products { scaling, matrices, scales, largest, history_len, histories });
        self.hand_out_fp8()
    }

    /// From now on experts are computed as they are behind groups of four-bit codes, and gradients go straight to the weights.
    ///
    /// # Errors
    /// The model has no experts, or groups do not divide the columns of a matrix of this rank.
    pub fn set_fake_int4(&mut self, group_size: u32) -> Result<()> {
        let mut has_experts = false;
        self.each_product(&mut |name, product| {
            let Product::Experts(experts) = product else { return Ok(()) };
            has_experts = true;
            for (part, weight) in ["gate_up", "down"].into_iter().zip(experts.weights()) {
                let columns = weight.size2()?.1;
                if columns % i64::from(group_size) != 0 {
                    let got = format!("{name}_{part} with {columns} on this rank");
                    return Err(conflict(format!(
                        "train.qat: expected columns in multiples of {group_size}, got {got}"
                    )));
                }
            }
            experts.set_fake_int4(i64::from(group_size));
            Ok(())
        })?;
        if has_experts || self.config().moe.is_some() {
            return Ok(());
        }
        Err(conflict(format!("train.qat: expected a model with experts, got {}", self.config().model_type)))
    }

    /// Gives every product what it needs of the scales.
    fn hand_out_fp8(&mut self) -> Result<()> {
        let Some(fp8) = self.fp8.take() else { return Ok(()) };
        let mut at = 0;
        let handed = self.each_product(&mut |_, product| {
            let mut next = || {
                at += 1;
                fp8.of(at - 1)
            };
            match product {
                Product::Linear(linear) => linear.set_fp8(Some(next()?)),
                Product::Experts(experts) => experts.set_fp8(Some([next()?, next()?])),
            }
            Ok(())
        });
        self.fp8 = Some(fp8);
        handed
    }

    /// The names of the matrices whose magnitudes in earlier steps are kept, with how many numbers there are of each: of inputs and
    /// of gradients.
    pub fn fp8_histories(&self) -> impl Iterator<Item = (&str, [usize; 2])> {
        let kept = self.fp8.iter().filter(|fp8| fp8.scaling == Fp8Scaling::Tensor);
        kept.flat_map(|fp8| {
            fp8.matrices.iter().map(|matrix| (matrix.name.as_str(), [NUM_KEPT, fp8.history_len]))
        })
    }

    /// Those of one matrix, inputs first, the last step first.
    pub fn fp8_history(&self, name: &str) -> Option<Vec<f32>> {
        let fp8 = self.fp8.as_ref()?;
        let at = fp8.matrices.iter().position(|matrix| matrix.name == name)?;
        fp8.histories.get(at * NUM_KEPT..(at + 1) * NUM_KEPT).map(<[_]>::concat)
    }

    /// Overwrites them; [`Self::rescale_fp8`] follows. False where there are none, or another number.
    pub fn set_fp8_history(&mut self, name: &str, values: &[f32]) -> bool {
        let Some(fp8) = &mut self.fp8 else { return false };
        let Some(at) = fp8.matrices.iter().position(|matrix| matrix.name == name) else { return false };
        let Some(own) = fp8.histories.get_mut(at * NUM_KEPT..(at + 1) * NUM_KEPT) else { return false };
        if values.len() != NUM_KEPT * fp8.history_len {
            return false;
        }
        own.iter_mut()
            .zip(values.chunks_exact(fp8.history_len))
            .for_each(|(own, values)| own.copy_from_slice(values));
        true
    }

    /// Behind an optimizer step: its largest magnitudes join the histories, and scales follow from these. `most` makes numbers those
    /// that are largest among the ranks that have parts of the same layers, so that scales do not depend on the layout.
    ///
    /// # Errors
    /// Those of `most`, or no room.
    pub fn end_fp8_step<E: From<Error>>(
        &mut self,
        most: impl FnOnce(&mut [f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.renew_fp8(true, most)
    }

    /// Scales from the histories as they are: after they were overwritten, or a step that was left out.
    ///
    /// # Errors
    /// As [`Self::end_fp8_step`].
    pub fn rescale_fp8<E: From<Error>>(
        &mut self,
        most: impl FnOnce(&mut [f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        self.renew_fp8(false, most)
    }

    fn renew_fp8<E: From<Error>>(
        &mut self,
        is_kept: bool,
        most: impl FnOnce(&mut [f32]) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let Some(fp8) = self.fp8.as_mut().filter(|fp8| fp8.scaling == Fp8Scaling::Tensor) else {
            return Ok(());
        };
        let mut seen =
            Vec::try_from(fp8.largest.f_to_device(Device::Cpu).map_err(Error::from)?).map_err(Error::from)?;
        seen.extend(fp8.weights()?);
        most(&mut seen)?;
        let (of_roles, weights) = seen.split_at(seen.len() - fp8.matrices.len());
        if is_kept {
            for (kept, roles) in fp8.histories.chunks_exact_mut(NUM_KEPT).zip(of_roles.as_chunks::<SLOTS>().0)
            {
                for (history, largest) in
                    kept.iter_mut().zip([Role::Input, Role::Gradient].map(|role| roles[role as usize * STEP]))
                {
                    // Rotated by hand: the oldest goes. What is not finite says nothing of the steps to come.
                    history.rotate_right(1);
                    history[0] = if largest.is_finite() { largest } else { 0.0 };
                }
            }
        }
        fp8.rescale(weights)?;
        Ok(self.hand_out_fp8()?)
    }
}

/// That products in fp8 are there.
fn check_device(kind: Kind, device: Device, scaling: Fp8Scaling, has_experts: bool) -> Result<()> {
    let Device::Cuda(number) = device else { return Ok(()) };
    let arch = slime_cuda::Device::open(number)?.arch()?;
    let version = arch.trim_start_matches("sm_").parse::<u32>().unwrap_or(0);
    let is_hopper = scaling == Fp8Scaling::Block || has_experts;
    let fits = if is_hopper { version == 90 } else { version >= 89 };
    if !fits {
        let expected = if is_hopper { "sm_90 for blocks and for experts" } else { "sm_89 or later" };
        return Err(conflict(format!("[train.fp8]: expected a GPU of {expected}, got {arch}")));
    }
    if kind == Kind::BFloat16 {
        return Ok(());
    }
    Err(conflict(format!("[train.fp8]: expected a model in bf16 on a GPU, got {kind:?}")))
}

/// A setting that does not fit the model.
fn conflict(text: String) -> Error {
    slime_config::Error::Conflict(text).into()
}
