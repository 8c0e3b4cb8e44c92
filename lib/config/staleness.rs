//! What follows from `run.order` and `run.max_staleness`: which groups may be kept for later steps, what becomes of samples
//! under way, and that stale samples are corrected.

use crate::algorithm::{CorrectionWeight, LossType, OldLogProbs};
use crate::buffer::{BufferOrder, Partial};
use crate::check::at_least_one;
use crate::error::{Error, Result};
use crate::load::RunConfig;
use crate::run::Order;

/// Greatest weight of a stale token when nothing is said: the bound of the framework slime (`--tis-clip`).
const STALE_HIGH: f64 = 2.0;

impl RunConfig {
    /// Whether steps are open beside each other and groups may pass from one to the next.
    pub fn keeps_groups(&self) -> bool {
        self.run.order() == Order::Arrival && self.run.max_staleness > 0
    }

    /// What becomes of samples under way when newer weights come.
    pub fn partial(&self) -> Partial {
        self.rollout.partial.unwrap_or(if self.keeps_groups() { Partial::Train } else { Partial::Off })
    }

    /// Where samples may be stale, the ratio of training to generation weighs them: for when nothing is said about it.
    pub(crate) fn correct_stale(&mut self) {
        let algorithm = &mut self.algorithm;
        let is_stale = self.run.max_staleness > 0 && !self.data.kind.is_recorded();
        let compares =
            algorithm.loss == LossType::Policy && algorithm.old_log_probs == OldLogProbs::Recomputed;
        if is_stale && compares {
            algorithm.correction.weight = CorrectionWeight::Truncate;
            algorithm.correction.high = Some(STALE_HIGH);
        }
    }
}

/// What needs steps that are open beside each other.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let (run, rollout) = (&config.run, &config.rollout);
    let keeps = config.keeps_groups();
    let needs = |what: &str| {
        let order = "run.order = \"arrival\" and run.max_staleness of at least 1";
        Err(Error::Conflict(format!("{what}, which needs {order}")))
    };
    if rollout.over_sampling_batch_size.is_some() && !keeps && !config.has_filter() {
        return needs(
            "rollout.over_sampling_batch_size without a filter keeps surplus groups for later steps",
        );
    }
    if rollout.buffer_order != BufferOrder::Fifo && !keeps {
        return needs("rollout.buffer_order chooses among groups that are kept");
    }
    at_least_one("rollout.max_reuse", u64::from(rollout.max_reuse))?;
    if rollout.max_reuse > 1 && !keeps {
        return needs("rollout.max_reuse keeps groups for later steps");
    }
    if u64::from(rollout.max_reuse) > run.max_staleness + 1 {
        let most = format!("at most run.max_staleness + 1 = {}", run.max_staleness + 1);
        return Err(Error::value("rollout.max_reuse", &most, rollout.max_reuse));
    }
    if rollout.partial.is_some_and(|partial| partial != Partial::Off) && !keeps {
        return needs("rollout.partial lets samples go on under newer weights");
    }
    if rollout.early_abort && !keeps {
        return needs("rollout.early_abort lets samples go on under newer weights");
    }
    if rollout.early_abort && (config.partial() == Partial::Off || run.publish_interval > 1) {
        return Err(Error::Conflict(
            "rollout.early_abort stops samples until the next step's weights, under which they go on: rollout.partial \
             \"off\" and run.publish_interval above 1 do not have that\nhint: partial = \"train\" or \"mask\", and \
             publish_interval = 1"
                .to_owned(),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::load::parse;
    use crate::{CorrectionWeight, Partial};

    fn refusal(text: &str) -> String {
        parse(text, "run.toml", &[]).unwrap_err().to_string()
    }

    #[test]
    fn what_keeps_groups_needs_arrival_and_staleness() {
        for key in [
            "over_sampling_batch_size = 12",
            "buffer_order = \"newest\"",
            "max_reuse = 2",
            "partial = \"mask\"",
            "early_abort = true",
        ] {
            let rollout = format!("[rollout]\nrollout_batch_size = 8\n{key}\n");
            assert!(refusal(&rollout).contains("needs run.order"), "{key}");
            assert!(refusal(&format!("{rollout}[run]\norder = \"arrival\"\n")).contains("needs run.order"));
            let allowed = format!("{rollout}[run]\norder = \"arrival\"\nmax_staleness = 1\n");
            assert!(parse(&allowed, "run.toml", &[]).is_ok(), "{key}");
        }
        let filtered = "[rollout]\nrollout_batch_size = 8\nover_sampling_batch_size = 12\n\
                        dynamic_filter = \"nonzero_std\"\n";
        assert!(
            parse(filtered, "run.toml", &[]).is_ok(),
            "a synchronous step may ask for more than it needs"
        );
        let often = "[rollout]\nmax_reuse = 4\n[run]\nmax_staleness = 2\n";
        assert!(refusal(often).contains("rollout.max_reuse") && refusal(often).contains("= 3"));
    }

    #[test]
    fn samples_go_on_where_groups_are_kept() {
        let partial = |text: &str| parse(text, "run.toml", &[]).unwrap().partial();
        assert_eq!(partial(""), Partial::Off);
        assert_eq!(partial("[run]\nmax_staleness = 1\n"), Partial::Off);
        assert_eq!(partial("[run]\nmax_staleness = 2\n"), Partial::Train);
        assert_eq!(partial("[run]\nmax_staleness = 2\n[rollout]\npartial = \"mask\"\n"), Partial::Mask);
    }

    #[test]
    fn stale_samples_are_corrected_unless_something_is_said() {
        let weight = |text: &str| parse(text, "run.toml", &[]).unwrap().algorithm.correction.weight;
        assert_eq!(weight(""), CorrectionWeight::None);
        let stale = "[run]\nmax_staleness = 1\n";
        assert_eq!(weight(stale), CorrectionWeight::Truncate);
        for said in [
            "[algorithm.correction]\nweight = \"none\"\n",
            "[algorithm]\nold_log_probs = \"rollout\"\n",
            "[data]\nkind = \"conversations\"\n",
        ] {
            assert_eq!(weight(&format!("{stale}{said}")), CorrectionWeight::None, "{said}");
        }
        let resolved = parse(stale, "run.toml", &[]).unwrap().to_toml().unwrap();
        let again = parse(&resolved, "run.toml", &[]).unwrap();
        assert_eq!((again.algorithm.correction.high, again.warnings()), (Some(2.0), Vec::new()));
    }
}
