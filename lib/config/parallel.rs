//! `[parallel]`: how ranks share the work, and whether a world and a model can be shared out like that.

use serde::{Deserialize, Serialize};

use crate::check::at_least_one;
use crate::{Error, HfConfig, Pipeline, Result};

/// The section of the trainer's layout.
const SECTION: &str = "parallel";

/// Layouts that an error names.
const NUM_NEAREST: usize = 3;

/// How context-parallel ranks bring queries and keys together; the names are Megatron's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CpCommType {
    /// Every rank gets the keys and values of all tokens, in one message for each layer.
    #[default]
    AllGather,
    /// Keys and values go round the ranks, so that no rank holds more than those of three: its own, and two that pass.
    P2p,
}

/// `[parallel]`: how the ranks of the trainer share the work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Parallel {
    /// Tensor-parallel ranks: they share the heads and widths of every layer, the vocabulary, and between products the
    /// tokens.
    pub tp: u32,
    /// Pipeline stages: they have the layers between them, and pass on what a micro-batch is so far.
    pub pp: u32,
    /// Runs of layers of each stage. More than one shorten the time in which stages wait at the ends of a step, for as many
    /// times the messages.
    pub virtual_pp: u32,
    /// Layers of the first stage (of its first run), where it is to have another number than the others.
    pub first_stage_layers: Option<u32>,
    /// Layers of the last stage (of its last run).
    pub last_stage_layers: Option<u32>,
    /// Context-parallel ranks: they have the tokens of every sequence between them.
    pub cp: u32,
    /// How these bring queries and keys together.
    pub cp_comm_type: CpCommType,
    /// Expert-parallel ranks: they have the experts of every layer between them. They are taken from the tensor-, context-
    /// and data-parallel ones of a stage, so they do not multiply the world.
    pub ep: u32,
    /// Ranks that share the width of each expert, within `ep` as `tp` is within `dp`.
    pub etp: u32,
    /// Data-parallel ranks; the default is what the launcher's world leaves.
    pub dp: Option<u32>,
}

impl Default for Parallel {
    fn default() -> Self {
        Self {
            tp: 1,
            pp: 1,
            virtual_pp: 1,
            first_stage_layers: None,
            last_stage_layers: None,
            cp: 1,
            cp_comm_type: CpCommType::AllGather,
            ep: 1,
            etp: 1,
            dp: None,
        }
    }
}

impl Parallel {
    /// Checks each axis by itself.
    pub(crate) fn check_sizes(&self) -> Result<()> {
        let axes = [
            ("tp", Some(self.tp)),
            ("pp", Some(self.pp)),
            ("virtual_pp", Some(self.virtual_pp)),
            ("first_stage_layers", self.first_stage_layers),
            ("last_stage_layers", self.last_stage_layers),
            ("cp", Some(self.cp)),
            ("ep", Some(self.ep)),
            ("etp", Some(self.etp)),
            ("dp", self.dp),
        ];
        let mut given = axes.into_iter().filter_map(|(axis, size)| Some((axis, size?)));
        given.try_for_each(|(axis, size)| at_least_one(&format!("parallel.{axis}"), u64::from(size)))
    }

    /// Whether a model is split over several ranks.
    pub fn is_split(&self) -> bool {
        self.of_copy() > 1 || self.ep > 1 || self.etp > 1
    }

    /// Whether anything is said that must fit the model.
    pub fn is_asked_for(&self) -> bool {
        let has_lens = self.first_stage_layers.is_some() || self.last_stage_layers.is_some();
        self.is_split() || self.virtual_pp > 1 || has_lens
    }

    /// Ranks of one data-parallel copy.
    fn of_copy(&self) -> usize {
        self.of_stage() * self.pp as usize
    }

    /// Those of them that form a stage.
    fn of_stage(&self) -> usize {
        self.tp as usize * self.cp as usize
    }

    /// The stages of the pipeline.
    pub fn pipeline(&self) -> Pipeline {
        Pipeline {
            num_stages: self.pp as usize,
            chunks: self.virtual_pp as usize,
            first: self.first_stage_layers.map(|num| num as usize),
            last: self.last_stage_layers.map(|num| num as usize),
        }
    }

    /// The data-parallel ranks of a world of `size` ranks.
    ///
    /// # Errors
    /// The axes do not multiply to the world, with the nearest layouts that do.
    pub fn data_parallel(&self, size: usize, model: &HfConfig) -> Result<usize> {
        let dp = self.dp.map_or((size / self.of_copy()).max(1), |dp| dp as usize);
        match self.misfit(SECTION, dp, Some(size), model) {
            None => Ok(dp),
            Some(problem) => {
                let wanted = self.of_copy() * dp;
                let fits = wanted != size && self.misfit(SECTION, dp, None, model).is_none();
                let launch = fits.then(|| format!("mpirun -n {wanted} starts that many"));
                let hints: Vec<_> = launch.into_iter().chain(self.nearest(size, model)).collect();
                Err(refused(&problem, &hints))
            }
        }
    }

    /// The data-parallel ranks before the launcher's world is known: those given, else the fewest that the experts can be on.
    pub fn fewest_data_parallel(&self) -> usize {
        let spread = self.ep * self.etp;
        let fewest = || (1..=spread).find(|dp| (self.tp * self.cp * dp).is_multiple_of(spread)).unwrap_or(1);
        self.dp.unwrap_or_else(fewest) as usize
    }

    /// Checks what can be checked before the launcher's world is known.
    ///
    /// # Errors
    /// As [`Self::data_parallel`].
    pub fn check(&self, model: &HfConfig) -> Result<()> {
        let dp = self.fewest_data_parallel();
        match self.misfit(SECTION, dp, None, model) {
            None => Ok(()),
            Some(problem) => {
                let nearest = self.nearest(self.of_copy() * dp, model);
                Err(refused(&problem, nearest.as_slice()))
            }
        }
    }

    /// What is wrong with this layout of `dp` copies, whose keys are those of `section`; in a world of `size` ranks, where that is
    /// known.
    pub(crate) fn misfit(
        &self,
        section: &str,
        dp: usize,
        size: Option<usize>,
        model: &HfConfig,
    ) -> Option<String> {
        let [tp, ep, etp] = [self.tp, self.ep, self.etp].map(|axis| axis as usize);
        if let Some(size) = size.filter(|size| self.of_copy() * dp != *size) {
            let (axes, product) = (self.axes(dp, &[("pp", self.pp)]), ranks(self.of_copy() * dp));
            return Some(format!("{section}: {axes} = {product}, but the launcher started {}", ranks(size)));
        }
        if let Some(problem) = self.pipeline().misfit(model.num_hidden_layers) {
            return Some(problem);
        }
        let (num_q, num_kv) = (model.num_attention_heads, model.num_key_value_heads);
        let shared = model.moe.as_ref().map(|moe| moe.shared_intermediate_size).filter(|width| *width > 0);
        let width = model.intermediate_size.min(shared.unwrap_or(usize::MAX));
        if !num_q.is_multiple_of(tp) {
            return Some(format!("{section}.tp: expected a divisor of the model's {num_q} heads, got {tp}"));
        }
        if !num_kv.is_multiple_of(tp) && !tp.is_multiple_of(num_kv) {
            let expected = format!("a divisor or a multiple of the model's {num_kv} key-value heads");
            return Some(format!("{section}.tp: expected {expected}, got {tp}"));
        }
        if tp > width {
            return Some(format!("{section}.tp: expected at most {width}, the width of an MLP, got {tp}"));
        }
        let Some(moe) = &model.moe else {
            let key = if ep > 1 { "ep" } else { "etp" };
            return (ep * etp > 1).then(|| format!("{section}.{key}: the model has no experts"));
        };
        if !moe.num_experts.is_multiple_of(ep) {
            let num = moe.num_experts;
            return Some(format!("{section}.ep: expected a divisor of the model's {num} experts, got {ep}"));
        }
        if etp > moe.intermediate_size {
            let width = moe.intermediate_size;
            return Some(format!(
                "{section}.etp: expected at most {width}, the width of an expert, got {etp}"
            ));
        }
        let (product, spread) = (self.of_stage() * dp, etp * ep);
        (!product.is_multiple_of(spread)).then(|| {
            let (axes, of_stage) = (self.axes(dp, &[]), if self.pp > 1 { " of a stage" } else { "" });
            format!(
                "{section}: etp {etp} x ep {ep} = {spread} does not divide {axes} = {product} ranks{of_stage}"
            )
        })
    }

    /// The axes that multiply to a number of ranks: tp and dp, and which of the others there are.
    fn axes(&self, dp: usize, more: &[(&str, u32)]) -> String {
        let others = [("cp", self.cp)].into_iter().chain(more.iter().copied()).filter(|(_, size)| *size > 1);
        let others = others.map(|(axis, size)| format!(" x {axis} {size}")).collect::<Vec<_>>().concat();
        format!("tp {}{others} x dp {dp}", self.tp)
    }

    /// The layouts of `size` ranks that fit and differ least, as a hint.
    fn nearest(&self, size: usize, model: &HfConfig) -> Option<String> {
        let mut fits = Vec::new();
        for layout in self.alternatives(size as u32) {
            if layout.misfit(SECTION, layout.dp.unwrap_or(1) as usize, Some(size), model).is_none() {
                fits.push((self.distance(&layout), layout));
            }
        }
        fits.sort_by(|a, b| a.0.total_cmp(&b.0));
        let names: Vec<_> = fits.iter().take(NUM_NEAREST).map(|(_, layout)| layout.name(model)).collect();
        (!names.is_empty()).then(|| format!("{} fit as {}", ranks(size), names.join("; ")))
    }

    /// Every way to multiply axes to `size` ranks; pipelines and contexts that nobody asked for are not among them.
    fn alternatives(&self, size: u32) -> Vec<Self> {
        let divisors = |of: u32| (1..=of).filter(move |n| of.is_multiple_of(*n));
        let asked = |axis: u32, of: u32| divisors(of).filter(move |n| axis > 1 || *n == 1);
        let mut copies = Vec::new();
        for tp in divisors(size) {
            for pp in asked(self.pp, size / tp) {
                for cp in asked(self.cp, size / tp / pp) {
                    copies.push((tp, pp, cp, size / tp / pp / cp));
                }
            }
        }
        let with_experts = |(tp, pp, cp, dp): (u32, u32, u32, u32)| {
            let of_stage = tp * cp * dp;
            let even =
                Self { virtual_pp: 1, first_stage_layers: None, last_stage_layers: None, ..self.clone() };
            let stages = if pp == self.pp { self.clone() } else { even };
            let spread =
                divisors(of_stage).flat_map(move |ep| divisors(of_stage / ep).map(move |etp| (ep, etp)));
            spread.map(move |(ep, etp)| Self { tp, pp, cp, ep, etp, dp: Some(dp), ..stages.clone() })
        };
        copies.into_iter().flat_map(with_experts).collect()
    }

    /// How many times larger or smaller the axes are, all together, as a logarithm.
    fn distance(&self, other: &Self) -> f64 {
        let of = |a: u32, b: u32| (f64::from(a) / f64::from(b)).ln().abs();
        let dp = self.dp.map_or(0.0, |dp| of(dp, other.dp.unwrap_or(1)));
        let axes = |of: &Self| [of.tp, of.pp, of.cp, of.ep, of.etp];
        axes(self).into_iter().zip(axes(other)).map(|(a, b)| of(a, b)).sum::<f64>() + dp
    }

    fn name(&self, model: &HfConfig) -> String {
        let dp = self.dp.unwrap_or(1);
        let others = [("pp", self.pp), ("cp", self.cp)].into_iter().filter(|(_, size)| *size > 1);
        let others = others.map(|(axis, size)| format!(" {axis} {size}")).collect::<Vec<_>>().concat();
        match model.moe {
            Some(_) => format!("tp {}{others} dp {dp}, ep {} etp {}", self.tp, self.ep, self.etp),
            None => format!("tp {}{others} dp {dp}", self.tp),
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
        Parallel { tp, ep, etp, dp, ..Parallel::default() }
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
        let stages = Parallel { pp: 2, cp: 2, ..layout(2, 1, 1, None) };
        assert_eq!(stages.data_parallel(16, &dense).unwrap(), 2);
        assert_eq!(
            message(stages.clone(), 12, &dense),
            "parallel: tp 2 x cp 2 x pp 2 x dp 1 = 8 ranks, but the launcher started 12 ranks\n\
             hint: mpirun -n 8 starts that many; or 12 ranks fit as tp 2 pp 2 cp 3 dp 1; tp 1 pp 2 cp 2 dp 3; tp 2 cp 2 dp 3"
        );
        assert!(message(Parallel { pp: 4, ..layout(1, 1, 1, None) }, 4, &dense).starts_with(
            "parallel.pp: 4 stages of the model's 2 layers leave stage 2 without one\nhint: 4 ranks fit as "
        ));
        let folded = Parallel { pp: 2, cp: 2, ..layout(1, 3, 1, None) };
        assert!(message(folded, 4, &moe()).starts_with(
            "parallel: etp 1 x ep 3 = 3 does not divide tp 1 x cp 2 x dp 1 = 2 ranks of a stage"
        ));
    }
}
