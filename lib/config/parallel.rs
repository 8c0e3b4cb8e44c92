//! `[parallel]`: how ranks share the work, and whether a world and a model can be shared out like that.

use serde::{Deserialize, Serialize};

use crate::check::at_least_one;
use crate::{Error, HfConfig, Result};

/// Layouts that an error names.
const NUM_NEAREST: usize = 3;

/// `[parallel]`: how the ranks of the trainer share the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parallel {
    /// Tensor-parallel ranks: they share the heads and widths of every layer, the vocabulary, and between products the
    /// tokens.
    pub tp: u32,
    /// Expert-parallel ranks: they have the experts of every layer between them. They are taken from the tensor- and
    /// data-parallel ones, so they do not multiply the world.
    pub ep: u32,
    /// Ranks that share the width of each expert, within `ep` as `tp` is within `dp`.
    pub etp: u32,
    /// Data-parallel ranks; the default is what the launcher's world leaves.
    pub dp: Option<u32>,
}

impl Default for Parallel {
    fn default() -> Self {
        Self { tp: 1, ep: 1, etp: 1, dp: None }
    }
}

impl Parallel {
    /// Checks each axis by itself.
    pub(crate) fn check_sizes(&self) -> Result<()> {
        let axes = [("tp", Some(self.tp)), ("ep", Some(self.ep)), ("etp", Some(self.etp)), ("dp", self.dp)];
        let mut given = axes.into_iter().filter_map(|(axis, size)| Some((axis, size?)));
        given.try_for_each(|(axis, size)| at_least_one(&format!("parallel.{axis}"), u64::from(size)))
    }

    /// Whether a model is split over several ranks.
    pub fn is_split(&self) -> bool {
        self.tp > 1 || self.ep > 1 || self.etp > 1
    }

    /// The data-parallel ranks of a world of `size` ranks.
    ///
    /// # Errors
    /// The axes do not multiply to the world, with the nearest layouts that do.
    pub fn data_parallel(&self, size: usize, model: &HfConfig) -> Result<usize> {
        let dp = self.dp.map_or((size / self.tp as usize).max(1), |dp| dp as usize);
        match self.misfit(dp, Some(size), model) {
            None => Ok(dp),
            Some(problem) => {
                let wanted = self.tp as usize * dp;
                let fits = wanted != size && self.misfit(dp, None, model).is_none();
                let launch = fits.then(|| format!("mpirun -n {wanted} starts that many"));
                let hints: Vec<_> = launch.into_iter().chain(self.nearest(size, model)).collect();
                Err(refused(&problem, &hints))
            }
        }
    }

    /// The data-parallel ranks before the launcher's world is known: those given, else the fewest that the experts can be on.
    pub fn fewest_data_parallel(&self) -> usize {
        let spread = self.ep * self.etp;
        let fewest = || (1..=spread).find(|dp| (self.tp * dp).is_multiple_of(spread)).unwrap_or(1);
        self.dp.unwrap_or_else(fewest) as usize
    }

    /// Checks what can be checked before the launcher's world is known.
    ///
    /// # Errors
    /// As [`Self::data_parallel`].
    pub fn check(&self, model: &HfConfig) -> Result<()> {
        let dp = self.fewest_data_parallel();
        match self.misfit(dp, None, model) {
            None => Ok(()),
            Some(problem) => {
                let nearest = self.nearest(self.tp as usize * dp, model);
                Err(refused(&problem, nearest.as_slice()))
            }
        }
    }

    /// What is wrong with this layout of `tp dp` ranks; in a world of `size` ranks, where that is known.
    fn misfit(&self, dp: usize, size: Option<usize>, model: &HfConfig) -> Option<String> {
        let [tp, ep, etp] = [self.tp, self.ep, self.etp].map(|axis| axis as usize);
        if let Some(size) = size.filter(|size| tp * dp != *size) {
            let product = tp * dp;
            return Some(format!(
                "parallel: tp {tp} x dp {dp} = {}, but the launcher started {}",
                ranks(product),
                ranks(size)
            ));
        }
        let (num_q, num_kv) = (model.num_attention_heads, model.num_key_value_heads);
        let shared = model.moe.as_ref().map(|moe| moe.shared_intermediate_size).filter(|width| *width > 0);
        let width = model.intermediate_size.min(shared.unwrap_or(usize::MAX));
        if !num_q.is_multiple_of(tp) {
            return Some(format!("parallel.tp: expected a divisor of the model's {num_q} heads, got {tp}"));
        }
        if !num_kv.is_multiple_of(tp) && !tp.is_multiple_of(num_kv) {
            let expected = format!("a divisor or a multiple of the model's {num_kv} key-value heads");
            return Some(format!("parallel.tp: expected {expected}, got {tp}"));
        }
        if tp > width {
            return Some(format!("parallel.tp: expected at most {width}, the width of an MLP, got {tp}"));
        }
        let Some(moe) = &model.moe else {
            let key = if ep > 1 { "ep" } else { "etp" };
            return (ep * etp > 1).then(|| format!("parallel.{key}: the model has no experts"));
        };
        if !moe.num_experts.is_multiple_of(ep) {
            let num = moe.num_experts;
            return Some(format!("parallel.ep: expected a divisor of the model's {num} experts, got {ep}"));
        }
        if etp > moe.intermediate_size {
            let width = moe.intermediate_size;
            return Some(format!(
                "parallel.etp: expected at most {width}, the width of an expert, got {etp}"
            ));
        }
        let product = tp * dp;
        let spread = etp * ep;
        (!product.is_multiple_of(spread)).then(|| {
            format!(
                "parallel: etp {etp} x ep {ep} = {spread} does not divide tp {tp} x dp {dp} = {product} ranks"
            )
        })
    }

    /// The layouts of `size` ranks that fit and differ least, as a hint.
    fn nearest(&self, size: usize, model: &HfConfig) -> Option<String> {
        let divisors: Vec<u32> = (1..=size as u32).filter(|n| size.is_multiple_of(*n as usize)).collect();
        let mut fits = Vec::new();
        for &tp in &divisors {
            for &ep in &divisors {
                for &etp in &divisors {
                    let dp = size as u32 / tp;
                    let layout = Self { tp, ep, etp, dp: Some(dp) };
                    if layout.misfit(dp as usize, Some(size), model).is_none() {
                        fits.push((self.distance(&layout), layout));
                    }
                }
            }
        }
        fits.sort_by(|a, b| a.0.total_cmp(&b.0));
        let names: Vec<_> = fits.iter().take(NUM_NEAREST).map(|(_, layout)| layout.name(model)).collect();
        (!names.is_empty()).then(|| format!("{} fit as {}", ranks(size), names.join("; ")))
    }

    /// How many times larger or smaller the axes are, all together, as a logarithm.
    fn distance(&self, other: &Self) -> f64 {
        let of = |a: u32, b: u32| (f64::from(a) / f64::from(b)).ln().abs();
        let dp = self.dp.map_or(0.0, |dp| of(dp, other.dp.unwrap_or(1)));
        of(self.tp, other.tp) + of(self.ep, other.ep) + of(self.etp, other.etp) + dp
    }

    fn name(&self, model: &HfConfig) -> String {
        let dp = self.dp.unwrap_or(1);
        match model.moe {
            Some(_) => format!("tp {} dp {dp}, ep {} etp {}", self.tp, self.ep, self.etp),
            None => format!("tp {} dp {dp}", self.tp),
        }
    }
}

fn refused(problem: &str, hints: &[String]) -> Error {
    let hint = if hints.is_empty() { String::new() } else { format!("\nhint: {}", hints.join("; or ")) };
    Error::Conflict(format!("{problem}{hint}"))
}

fn ranks(num: usize) -> String {
    if num == 1 { "1 rank".to_owned() } else { format!("{num} ranks") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(experts: &str) -> HfConfig {
        let text = format!(
            r#"{{"model_type":"qwen3{}","hidden_size":16,"intermediate_size":12,"num_hidden_layers":2,"num_attention_heads":8,
            "num_key_value_heads":2,"vocab_size":10{experts}}}"#,
            if experts.is_empty() { "" } else { "_moe" }
        );
        HfConfig::parse(&text, std::path::Path::new("config.json")).unwrap()
    }

    fn moe() -> HfConfig {
        model(r#","num_experts":6,"num_experts_per_tok":2,"moe_intermediate_size":4"#)
    }

    fn layout(tp: u32, ep: u32, etp: u32, dp: Option<u32>) -> Parallel {
        Parallel { tp, ep, etp, dp }
    }

    #[test]
    fn layouts_that_fit_say_their_data_parallel_ranks() {
        for (parallel, size, dp) in [
            (layout(1, 1, 1, None), 3, 3),
            (layout(4, 1, 1, None), 8, 2),
            (layout(8, 2, 2, None), 8, 1),
            (layout(2, 6, 1, Some(3)), 6, 3),
            (layout(4, 6, 1, None), 12, 3),
        ] {
            assert_eq!(parallel.data_parallel(size, &moe()).unwrap(), dp);
            parallel.check(&moe()).unwrap();
        }
    }

    #[test]
    fn misfits_print_the_product_and_what_would_fit() {
        let message = |parallel: Parallel, size, model: &HfConfig| {
            parallel.data_parallel(size, model).unwrap_err().to_string()
        };
        let dense = model("");
        assert_eq!(
            message(layout(2, 1, 1, Some(2)), 6, &dense),
            "parallel: tp 2 x dp 2 = 4 ranks, but the launcher started 6 ranks\n\
             hint: mpirun -n 4 starts that many; or 6 ranks fit as tp 2 dp 3; tp 1 dp 6"
        );
        assert_eq!(
            message(layout(3, 1, 1, None), 6, &dense),
            "parallel.tp: expected a divisor of the model's 8 heads, got 3\nhint: 6 ranks fit as tp 2 dp 3; tp 1 dp 6"
        );
        assert!(
            message(layout(1, 2, 1, None), 2, &dense).starts_with("parallel.ep: the model has no experts")
        );
        assert!(
            message(layout(1, 4, 1, None), 4, &moe())
                .starts_with("parallel.ep: expected a divisor of the model's 6")
        );
        assert!(
            message(layout(2, 3, 1, None), 4, &moe())
                .starts_with("parallel: etp 1 x ep 3 = 3 does not divide tp 2")
        );
        assert!(layout(1, 3, 1, Some(4)).check(&moe()).is_err());
    }
}
