//! Every file in `configs/` loads without a warning, and its resolved text is the same run.

use std::path::Path;

#[test]
fn every_config_loads_without_warnings_and_reads_back() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).expect("configs/ exists") {
        let path = entry.expect("configs/ is readable").path();
        if path.extension().is_none_or(|extension| extension != "toml") {
            continue;
        }
        let name = path.display().to_string();
        let config = slime_config::load(Some(&path), &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(config.warnings(), Vec::<String>::new(), "{name}");
        let text = config.to_toml().unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = slime_config::parse(&text, &name, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.to_toml().expect("it was written once"), text, "{name}");
        assert_eq!(again.warnings(), Vec::<String>::new(), "{name}, resolved");
        seen += 1;
    }
    assert!(seen >= 2, "only {seen} configurations in {}", folder.display());
}

/// The scripts of whole models print their resolved configuration, which needs neither weights nor a GPU; where the model's
/// `config.json` is there, its plan too.
#[test]
fn scripts_of_models_answer_a_dry_run() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let bin = Path::new(env!("CARGO_BIN_EXE_slime-train")).parent().expect("a folder");
    let weights = tempfile::tempdir().expect("a temporary directory");
    for (script, model, plan) in [
        ("qwen3_4b_8xh100.sh", "Qwen3-4B", "# qwen3: 4.022 billion parameters"),
        ("glm4_9b_8xh100.sh", "GLM-4-9B-0414", "# glm4: 9.400 billion parameters"),
        ("qwen3_30b_a3b_8xh100.sh", "Qwen3-30B-A3B", "# qwen3_moe: 30.532 billion parameters, 3.353 billion"),
        ("glm47_64xh100.sh", "GLM-4.7", "# glm4_moe: 352.798 billion parameters, 33.632 billion"),
        ("qwen3_235b_64xh100.sh", "Qwen3-235B-A22B", "# qwen3_moe: 235.094 billion parameters"),
    ] {
        let config = home.join("configs/models").join(format!("{model}.json"));
        std::fs::copy(config, weights.path().join("config.json")).expect("the model is in configs/models");
        let output = std::process::Command::new("bash")
            .arg(home.join("sbatch").join(script))
            .args(["--dry-run", "--set", "run.seed=7"])
            .env("SLIME_HOME", home)
            .env("SLIME_BIN", bin)
            .env("SLIME_WEIGHTS", weights.path())
            .output()
            .expect("bash starts");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && stderr.is_empty(), "{script}: {stderr}");
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.starts_with(plan), "{script}: {text}");
        assert!(text.contains("seed = 7") && text.contains("data/dapo-math-17k.jsonl"), "{script}: {text}");
        slime_config::parse(&text, script, &[]).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A model that is only planned, or not there yet, keeps no configuration from being resolved.
#[test]
fn a_dry_run_needs_no_model_that_could_be_computed() {
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    let planned = tempfile::tempdir().expect("a temporary directory");
    let config = home.join("configs/models/DeepSeek-R1.json");
    std::fs::copy(config, planned.path().join("config.json")).expect("the model is in configs/models");
    for (path, begins) in [(planned.path().to_owned(), "# deepseek_v3: "), (planned.path().join("none"), "#")]
    {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_slime-train"))
            .arg("--config")
            .arg(home.join("configs/qwen3_4b.toml"))
            .args(["--dry-run", "--set", "parallel.tp=1", "--set", &format!("model.path={}", path.display())])
            .output()
            .expect("it starts");
        let (text, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && text.starts_with(begins), "{text}{stderr}");
    }
}
