use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

fn data(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data").join(name);
    if !path.exists() {
        eprintln!("skipped: {} is not here", path.display());
    }
    path.exists().then_some(path)
}

fn rows(name: &str) -> Option<Vec<Value>> {
    let text = fs::read_to_string(data(name)?).unwrap();
    Some(text.lines().map(|line| serde_json::from_str(line).unwrap()).collect())
}

fn judge(is_loose: bool) -> Instructions {
    Instructions { name: "ifbench", is_loose, pays_shares: false }
}

fn followed(row: &Value, is_loose: bool) -> Vec<bool> {
    let metadata = row.to_string();
    let response = row["response"].as_str().unwrap();
    let row = Row { response, metadata: Some(&metadata), ..Row::default() };
    judge(is_loose).followed(&row).unwrap().into_iter().map(|(_, is_followed)| is_followed).collect()
}

#[test]
fn verdicts_agree_with_the_published_ones() {
    let Some(rows) = rows("ifbench_verdicts.jsonl") else { return };
    let mut agreed: BTreeMap<&str, [usize; 2]> = BTreeMap::new();
    let mut wrong = Vec::new();
    for row in &rows {
        for (mode, is_loose) in [("strict", false), ("loose", true)] {
            for (at, is_followed) in followed(row, is_loose).into_iter().enumerate() {
                let id = row["instruction_id_list"][at].as_str().unwrap();
                let is_right = row[mode][at] == json!(is_followed);
                let group = id.split(':').next().unwrap();
                let counts = agreed.entry(group).or_default();
                counts[0] += usize::from(is_right);
                counts[1] += 1;
                if !is_right {
                    wrong.push(format!("{} {mode} {id}: got {is_followed}", row["key"]));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} verdicts differ:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(agreed.values().map(|counts| counts[1]).sum::<usize>() > 300, true);
}

#[test]
fn every_instruction_of_the_benchmark_is_known_and_takes_its_arguments() {
    let Some(rows) = rows("IFBench_test.jsonl") else { return };
    for mut row in rows {
        row["response"] = json!("A word, and another one. Is it \"enough\"?\n\n* One\n- two");
        assert!(!followed(&row, true).is_empty());
    }
}
