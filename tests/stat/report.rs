//! `slime-stat --html`: what the page says, that it shows everything as text, and that a real browser is content.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::synthetic::Synthetic;
use super::{name, run_with, stat};

/// The page of these runs.
fn page(runs: &[&Path]) -> String {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("report.html");
    let mut arguments: Vec<&str> = runs.iter().map(|run| name(run)).collect();
    arguments.extend(["--html", name(&file)]);
    let output = stat(&arguments);
    assert!(output.status.success(), "{output:?}");
    fs::read_to_string(&file).expect("it was written")
}

fn synthetic(change: impl FnOnce(&mut Synthetic)) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut synthetic = Synthetic::default();
    change(&mut synthetic);
    synthetic.write(folder.path());
    folder
}

/// Where each part begins, which must be in this order.
fn in_order(page: &str, parts: &[&str]) {
    let mut from = 0;
    for part in parts {
        let at = page[from..].find(part);
        assert!(at.is_some(), "{part} is not there, or not behind the one before");
        from += at.expect("checked above");
    }
}

#[test]
fn page_says_whether_it_worked_and_why_and_has_all_parts_in_order() {
    let run = synthetic(|_| ());
    let page = page(&[run.path()]);
    in_order(
        &page,
        &[
            "<h1>The run worked</h1>",
            "Held-out reward rose from 0.10 to 0.90 in 12 steps",
            "finished; warnings: many answers are cut off (over since step 7).",
            "Key numbers",
            "<h2>Warnings</h2>",
            "12 % of the answers are cut off at the length limit",
            "<h2>Curves</h2>",
            "Training reward",
            "Evaluations",
            "Parts of the reward",
            "Length of the answers",
            "Entropy",
            "Clipped tokens",
            "Mismatch of generation and training",
            "Staleness",
            "Speed",
            "Time of a step",
            "generation is the slower side, or that an evaluation ran",
            "the KV cache or rollout.max_in_flight is the limit",
            "KV cache in use",
            "<h2>Timeline</h2>",
            "trainer.0",
            "replica.0",
            "<h2>Samples</h2>",
            "<h2>Before and after</h2>",
            "Compute 1 + 0. Reply with only the number.",
            "<h2>Configuration</h2>",
            "n_samples_per_prompt",
            "<h2>Provenance</h2>",
            "slurm.job_id",
            "<h2>Words</h2>",
        ],
    );
    let charts = page.matches("<figure class=\"card chart\"").count();
    assert!(charts >= 18, "{charts} charts");
    assert_eq!(
        page.matches("training step</text>").count()
            + page.matches("policy version</text>").count()
            + page.matches("minutes since the start</text>").count(),
        charts,
        "every chart names what is to the right"
    );
    assert_eq!(page.matches("rotate(-90)").count(), charts, "and what is upwards");
}

#[test]
fn all_answers_of_an_evaluation_are_counted() {
    let run = synthetic(|_| ());
    let page = page(&[run.path()]);
    in_order(
        &page,
        &[
            "right at version 0: 1 of 4 answers; at version 12: 4 of 4 answers",
            "right at version 0: 2 of 8 answers, 1 of 4 questions at least once",
            "at version 12: 7 of 8 answers, 4 of 4 questions at least once",
        ],
    );
}

#[test]
fn flat_curves_say_why() {
    let run = synthetic(|_| ());
    let moving = page(&[run.path()]);
    let reasons = [
        "There is no reference in this run.",
        "One optimizer step per rollout: nothing can be clipped.",
        "A synchronous run: the staleness is 0.",
    ];
    assert!(reasons.iter().all(|reason| !moving.contains(reason)), "curves that move need no reason");
    assert!(moving.contains("The schedule is constant."));
    let path = run.path().join("metrics/train.jsonl");
    let flat = |line: &str| {
        let mut row: serde_json::Value = serde_json::from_str(line).expect("JSON");
        for name in ["train/pg_clipfrac", "train/ppo_kl", "train/staleness"] {
            row[name] = 0.into();
        }
        row.as_object_mut().expect("an object").remove("train/kl_loss");
        format!("{row}\n")
    };
    let text = fs::read_to_string(&path).expect("it is there");
    fs::write(&path, text.lines().map(flat).collect::<String>()).expect("writable");
    let flat = page(&[run.path()]);
    in_order(&flat, &reasons);
}

#[test]
fn page_needs_nothing_but_itself() {
    let run = synthetic(|_| ());
    let page = page(&[run.path()]);
    for foreign in ["http://", "https://", " src=", "@import", "url(", "fetch("] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("prefers-color-scheme: dark") && page.contains("@media print"));
    assert!(page.contains("id=\"theme\""), "there is a switch between light and dark");
}

const EVIL: &str = "</script><script>document.title='broken'</script><b>bold</b> & \"so on\"";

#[test]
fn what_a_model_wrote_is_text() {
    let run = synthetic(|run| run.answer = EVIL.to_owned());
    let name_of_set = "{\"version\":0,\"set\":\"<i>set</i>\",\"reward_mean\":0.5}\n";
    let rollout = run.path().join("metrics/rollout.jsonl");
    let text = fs::read_to_string(&rollout).expect("it is there") + name_of_set;
    fs::write(&rollout, text).expect("writable");
    let page = page(&[run.path()]);
    assert!(!page.contains("<b>bold") && !page.contains("<i>set"), "markup of a model or a name");
    assert!(page.contains("\\u003c/script>\\u003cscript>document.title"), "samples are data");
    assert!(page.contains("&lt;/script&gt;"), "answers are text");
    let opened = page.matches("<script").count();
    assert_eq!(page.matches("</script>").count(), opened);
}

#[test]
fn run_of_an_older_version_is_shown_as_far_as_it_goes() {
    let run = run_with(
        "{\"step\":0,\"tool\":\"train\",\"reward_mean\":0.25,\"loss\":0.5,\"entropy\":2.4,\"step_s\":20,\"train_s\":5}\n\
         {\"step\":1,\"tool\":\"train\",\"reward_mean\":0.75,\"loss\":0.5,\"entropy\":1.4,\"step_s\":20,\"train_s\":5}\n\
         {\"step\":2,\"to",
        "",
    );
    let page = page(&[run.path()]);
    in_order(
        &page,
        &["The run", "not finished", "Training reward", "Entropy", "Time of a step", "<h2>Timeline</h2>"],
    );
    for missing in [
        "run.toml is missing",
        "run.json is missing",
        "there are no trace files",
        "its last line is still being written",
    ] {
        assert!(page.contains(missing), "{missing}");
    }
    assert!(page.contains("No committed samples could be read"), "no samples");
}

#[test]
fn pruned_segments_are_said_and_the_rest_is_shown() {
    let run = synthetic(|run| run.segment_steps = vec![11]);
    let page = page(&[run.path()]);
    assert!(
        page.contains("step 0: rollout/000000/replica-0.000001.000000.arrow: No such file"),
        "pruned step"
    );
    assert!(page.contains("\"step\":11"));
}

#[test]
fn pruned_steps_are_said_in_a_sentence_and_are_no_problem() {
    let run = synthetic(|run| run.segment_steps = vec![10, 11]);
    fs::write(run.path().join("rollout/first_step"), "10").expect("writable");
    let page = page(&[run.path()]);
    assert!(page.contains("Steps 0 to 9 were pruned with their checkpoints."), "no word of pruning");
    assert!(!page.contains("evenly chosen") && !page.contains("No such file"), "told as a problem");
    assert!(page.contains("\"step\":10") && page.contains("\"step\":11"));
}

#[test]
fn packed_steps_are_shown_as_plain_ones() {
    let run = synthetic(|_| ());
    let shown = |page: &str| page.matches("it is 1").count();
    let plain = shown(&page(&[run.path()]));
    assert!(plain > 0, "no answers");
    for step in 0..12 {
        let names = slime_archive::step_files(run.path(), step).expect("a folder");
        let selection = slime_archive::Selection {
            stem: format!("{step:06}-{step:06}"),
            names: names.into_iter().collect(),
        };
        slime_archive::pack(run.path(), &selection, &mut |_| ()).expect("it packs");
    }
    let is_plain = |path: &str| run.path().join(path).exists();
    assert!(!is_plain("rollout/000000/replica-0.000001.000000.arrow"), "nothing was packed");
    let packed = page(&[run.path()]);
    assert_eq!((shown(&packed), packed.contains("No such file")), (plain, false));
}

#[test]
fn run_in_mid_write_is_shown_as_far_as_it_is() {
    let run = synthetic(|_| ());
    let path = |name: &str| run.path().join(name);
    fs::remove_file(path("control/done")).expect("ours");
    let config = fs::read_to_string(path("run.toml")).expect("it is there");
    fs::write(path("run.toml"), config.replace("num_steps = 12", "num_steps = 20")).expect("writable");
    fs::create_dir(path("rollout/000012")).expect("writable");
    fs::write(path("rollout/000012/.tmp.replica-0.1"), b"ARROW1 half").expect("writable");
    fs::create_dir_all(path("eval/000013.e001/held_out")).expect("writable");
    let open = fs::read_to_string(path("metrics/train.jsonl")).expect("it is there") + "{\"step\":12,\"to";
    fs::write(path("metrics/train.jsonl"), open).expect("writable");
    let failed = "code 74\nrank 0: disk <full>\n";
    fs::create_dir(path("attempt-0")).expect("writable");
    fs::write(path("attempt-0/failed.trainer.0"), failed).expect("writable");
    let open = page(&[run.path()]);
    in_order(&open, &["The run is learning so far", "not finished after 12 of 20 steps", "<h2>Samples</h2>"]);
    assert!(open.contains("\"step\":11") && !open.contains("000012"), "the open step is not there yet");
    fs::write(path("attempt-0/outcome"), "failed\n").expect("writable");
    let over = page(&[run.path()]);
    in_order(
        &over,
        &[
            "The run learned, then failed",
            "failed after 12 of 20 steps: trainer.0: rank 0: disk &lt;full&gt;",
        ],
    );
}

#[test]
fn several_runs_are_compared_in_one_page() {
    let (short, long) = (synthetic(|run| run.num_steps = 6), synthetic(|run| run.num_samples = 2));
    let page = page(&[short.path(), long.path()]);
    in_order(
        &page,
        &["Comparison of 2 runs", "Numbers at the end", "Training reward", "Settings that differ"],
    );
    assert!(
        page.contains("rollout.n_samples_per_prompt") && !page.contains("<code>run.seed</code>"),
        "only what differs"
    );
    let names: Vec<String> = [&short, &long]
        .iter()
        .map(|run| run.path().file_name().expect("a name").to_string_lossy().into_owned())
        .collect();
    for name in names {
        assert!(page.contains(&format!("{name}: mean")), "each run has its line");
    }
    let one = stat(&[name(short.path()), name(long.path())]);
    assert_eq!(one.status.code(), Some(64), "without --html one run is shown");
}

#[test]
fn page_of_ten_thousand_steps_stays_small() {
    let run = synthetic(|run| {
        (run.num_steps, run.num_groups, run.num_samples, run.num_states) = (10_000, 2, 2, 5_000);
        run.segment_steps = (0..16).map(|at| at * 9999 / 15).collect();
        (run.num_tokens, run.answer) = (2000, "a long answer ".repeat(1000));
    });
    let page = page(&[run.path()]);
    assert!(page.len() < 5 << 20, "{} bytes", page.len());
    assert!(page.contains("in 9996 steps") && page.contains("Shown are 16 of 10000 steps"));
}

/// A browser that runs without a screen.
fn chromium() -> Option<&'static str> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let found = names.into_iter().find(|name| Command::new(name).arg("--version").output().is_ok());
    if found.is_none() {
        eprintln!("skipped: no chromium to open the page");
    }
    found
}

/// What a browser makes of the page of a run, and what it said; none without a browser.
fn shown(run: &Path) -> Option<(String, String)> {
    let browser = chromium()?;
    let folder = tempfile::tempdir().expect("a folder can be made");
    let file = folder.path().join("report.html");
    assert!(stat(&[name(run), "--html", name(&file)]).status.success());
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
        .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
        .args(["--enable-logging=stderr", "--virtual-time-budget=3000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", name(&folder.path().join("profile"))))
        .arg(format!("file://{}", name(&file)))
        .output()
        .expect("it answered before");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    let (dom, said) = (text(output.stdout), text(output.stderr));
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    Some((dom, said))
}

#[test]
fn real_browser_shows_the_page_without_a_complaint() {
    let run = synthetic(|run| run.answer = EVIL.to_owned());
    let Some((dom, said)) = shown(run.path()) else { return };
    assert!(dom.contains("<div class=\"card group\">"), "the script drew the samples: {said}");
    assert!(dom.contains("&lt;/script&gt;&lt;script&gt;document.title="), "an answer is shown as text");
    assert!(dom.contains("<title>") && !dom.contains("<title>broken"), "and does nothing");
    assert!(dom.contains("advantage "), "advantages are shown");
}

/// Gives a run weights with a tokenizer.
fn with_tokenizer(run: &Path) {
    let other = tempfile::tempdir().expect("a folder can be made");
    super::weights(other.path());
    fs::create_dir_all(run.join("weights")).expect("writable");
    fs::rename(other.path().join("weights"), run.join("weights/000012.e001")).expect("same disk");
}

#[test]
fn tokens_that_training_did_not_measure_look_different_and_show_their_surprise() {
    let run = synthetic(|_| ());
    with_tokenizer(run.path());
    let Some((measured, _)) = shown(run.path()) else { return };
    assert!(measured.contains("token colour: difference of both log-probs"), "the difference comes first");
    assert!(!measured.contains("<span class=\"unmeasured\""), "all tokens were measured");
    fs::remove_dir_all(run.path().join("column/log_probs/000011")).expect("ours");
    let (unmeasured, _) = shown(run.path()).expect("it was there before");
    assert!(unmeasured.contains("token colour: surprise in generation"), "nothing else is known of step 11");
    assert!(unmeasured.contains("<i class=\"unmeasured\">not measured</i>"), "the legend says so");
}

#[test]
fn tokens_are_shown_one_by_one_with_both_log_probs_where_there_is_a_tokenizer() {
    let run = synthetic(|_| ());
    with_tokenizer(run.path());
    let page = page(&[run.path()]);
    let data =
        page.split("<script class=\"samples-data\" type=\"application/json\">").nth(1).expect("samples");
    let steps: serde_json::Value =
        serde_json::from_str(data.split("</script>").next().expect("an end")).expect("JSON");
    let answer = &steps[0]["groups"][1]["answers"][2];
    // Token `at` of the sample is (7 at + group + index) mod 96; the first three are the prompt.
    let tokens: Vec<String> = answer["tokens"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|t| t.as_str().expect("text").trim().to_owned())
        .collect();
    assert_eq!(tokens, ["24", "31", "38", "45", "52", "59"]);
    assert_eq!(answer["generated"].as_array().map(Vec::len), Some(6));
    let differences = answer["differences"].as_array().expect("kept");
    assert!(differences[5].as_f64().is_some_and(|d| (0.009..0.011).contains(&d)), "{differences:?}");
    assert_eq!(answer["advantage"], -0.5);
    assert_eq!(steps[0]["groups"][1]["answers"][0]["advantage"], 1.5);
    assert!(!page.contains("There is no tokenizer"));
}
