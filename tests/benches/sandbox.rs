//! What isolation costs: an empty Python case in a zygote of each tier, against the same fork with limits only, by turns;
//! and beside them a Python that is started anew for each case.
//!
//! `cargo bench -p slime-sandbox --bench sandbox`
#![allow(clippy::print_stdout, missing_docs)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use slime_sandbox::{Case, Entry, Kind, Limits, Options, Outcome, Sandbox, Tier, Toolchain, Zygote};

const REPEATS: usize = 400;
const PRELOAD: &str = "def nothing():\n    return 0\n";

fn main() {
    // The sandboxes start while this process has one thread.
    let start = |tier| Sandbox::start(Options { min: tier, max: tier });
    let tiers = [Tier::Limits, Tier::Seccomp, Tier::Landlock, Tier::Namespaces];
    let sandboxes: Vec<Sandbox> = tiers
        .into_iter()
        .filter_map(|tier| start(tier).map_err(|error| println!("no {tier}: {error}")).ok())
        .collect();
    let toolchain = match Toolchain::find("python", &["python3"]) {
        Ok(toolchain) => toolchain,
        Err(error) => return println!("{error}"),
    };
    let python = toolchain.programs.first().map(|program| program.path.clone()).unwrap_or_default();
    let mut zygotes: Vec<(Tier, Zygote)> = sandboxes
        .iter()
        .map(|sandbox| {
            let kind = Kind::python(toolchain.clone(), PRELOAD.to_owned());
            (sandbox.standing().tier, sandbox.zygote(kind))
        })
        .collect();
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); zygotes.len() + 1];
    let limits = Limits::default();
    for repeat in 0..=REPEATS {
        for ((_, zygote), times) in zygotes.iter_mut().zip(&mut times) {
            let began = Instant::now();
            let report =
                zygote.run(&Case::new(Entry::Function("nothing"), &limits)).expect("a zygote that runs");
            assert_eq!(report.outcome, Outcome::Exited(0));
            // The first one starts the zygote.
            if repeat > 0 {
                times.push(began.elapsed());
            }
        }
        if repeat % 20 == 1 {
            let began = Instant::now();
            let status = Command::new(&python).args(["-c", ""]).stdin(Stdio::null()).status();
            assert!(status.expect("python starts").success());
            times[zygotes.len()].push(began.elapsed());
        }
    }
    println!("an empty Python case, {REPEATS} times, milliseconds from the request to the report");
    println!("  {:<26}{:>8}{:>14}", "", "median", "lowest tenth");
    for times in &mut times {
        times.sort_unstable();
    }
    let without = times.first().cloned().unwrap_or_default();
    let of = |times: &[Duration], part: usize| {
        times.get(times.len() / part).map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    for ((tier, _), times) in zygotes.iter().zip(&times) {
        let name = format!("zygote, tier {tier}");
        let [median, low] = [2, 10].map(|part| (of(times, part), of(times, part) - of(&without, part)));
        println!(
            "  {name:<26}{:>8.3}{:>14.3}   over the fork with limits only: {:+.3} and {:+.3}, {:.2} and {:.2} times it",
            median.0,
            low.0,
            median.1,
            low.1,
            median.0 / (median.0 - median.1),
            low.0 / (low.0 - low.1),
        );
    }
    let anew = times.last().map_or(&[][..], Vec::as_slice);
    println!("  {:<26}{:>8.3}{:>14.3}", "a new python3, not isolated", of(anew, 2), of(anew, 10));
}
