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
