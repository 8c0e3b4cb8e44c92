//! The plan of a run in words: what its sizes and intervals come to.

use crate::{Order, Result, RunConfig};

impl RunConfig {
    /// One line for each decision that follows from the configuration.
    ///
    /// # Errors
    /// The batch identity does not hold.
    pub fn plan(&self) -> Result<Vec<String>> {
        let batch = self.batch()?;
        let (groups, samples) = (batch.rollout_batch_size, batch.n_samples_per_prompt);
        let length = match (self.run.num_steps, self.run.num_epoch) {
            (Some(steps), _) => count(steps, "step"),
            (None, epochs) => format!("{} of the prompts", count(epochs.unwrap_or(1), "epoch")),
        };
        let mut lines = vec![
            format!(
                "{length}, each of {} x {} = {}",
                count(groups.into(), "prompt"),
                count(samples.into(), "sample"),
                u64::from(groups) * u64::from(samples)
            ),
            format!(
                "{} of {} in each step",
                count(batch.num_steps_per_rollout.into(), "optimizer step"),
                count(batch.global_batch_size.into(), "sample")
            ),
        ];
        if self.data.kind.is_recorded() {
            lines.push(format!("{} are recorded: none is sampled or rewarded", self.data.kind.as_str()));
        }
        let order = match self.run.order() {
            Order::Fixed => "fixed",
            Order::Arrival => "arrival",
        };
        lines.push(format!(
            "order {order}, staleness at most {}, a version published every {}",
            self.run.max_staleness,
            count(self.run.publish_interval, "step")
        ));
        lines.push(match self.checkpoint.interval {
            0 => "one checkpoint, at the end".to_owned(),
            interval => format!(
                "a checkpoint every {}, the last {} kept",
                count(interval, "step"),
                self.checkpoint.keep_last
            ),
        });
        for (number, (stage, earliest)) in self.stage.iter().zip(self.earliest_starts()).enumerate() {
            lines.push(match stage.when {
                None => format!("stage {number} from step {earliest}"),
                Some(condition) => {
                    format!("stage {number} once {condition}, from step {earliest} at the earliest")
                }
            });
        }
        for (name, set) in &self.eval {
            lines.push(format!(
                "evaluation {name} every {}: {} x {}",
                count(set.interval, "version"),
                count(set.num_prompts, "prompt"),
                count(set.n_samples_per_prompt.into(), "sample")
            ));
        }
        Ok(lines)
    }
}

fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn plan_says_what_the_sizes_come_to() {
        let text = "[run]\nnum_steps = 3\n[rollout]\nrollout_batch_size = 4\nn_samples_per_prompt = 8\n\
                    [[stage]]\nwhen = \"pass_rate:min=0.5\"\nmax_response_len = 9\n\
                    [train]\nnum_steps_per_rollout = 2\n[eval.greedy]\ninterval = 1\nnum_prompts = 5\n";
        let plan = crate::parse(text, "run.toml", &[]).unwrap().plan().unwrap();
        assert_eq!(
            plan,
            [
                "3 steps, each of 4 prompts x 8 samples = 32",
                "2 optimizer steps of 16 samples in each step",
                "order fixed, staleness at most 0, a version published every 1 step",
                "one checkpoint, at the end",
                "stage 0 once pass_rate:min=0.5, from step 1 at the earliest",
                "evaluation greedy every 1 version: 5 prompts x 1 sample",
            ]
        );
    }
}
