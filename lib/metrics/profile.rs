//! Which steps are looked at closely: `--profile 3` or `--profile 3:5`.

use std::str::FromStr;

/// Steps from `first` to `last`, both included; none by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Profile {
    first: u64,
    last: u64,
}

impl Profile {
    /// Whether finer spans are wanted of this step.
    pub fn covers(&self, step: u64) -> bool {
        (self.first..=self.last).contains(&step)
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("expected a step or FIRST:LAST, got {text}");
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        let (first, last) = (first.parse().map_err(|_| wrong())?, last.parse().map_err(|_| wrong())?);
        if first <= last { Ok(Self { first, last }) } else { Err(wrong()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_or_a_range_with_both_ends() {
        let covered = |text: &str| -> Vec<u64> {
            let profile: Profile = text.parse().unwrap();
            (0..8).filter(|step| profile.covers(*step)).collect()
        };
        assert_eq!((covered("3"), covered("3:5")), (vec![3], vec![3, 4, 5]));
        for wrong in ["", "a", "5:3", "3:", "-1"] {
            assert!(wrong.parse::<Profile>().is_err(), "{wrong}");
        }
    }
}
