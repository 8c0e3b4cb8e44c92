//! What the lines say together: all checks of every node, clocks that differ, nodes that said nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::check::{Check, Verdict};
use super::judge_links::median;
use super::line::{Line, Reporter};

/// The check about lines that did not come.
const ANSWER: &str = "answer";

/// Who has to report.
#[derive(Debug, Clone, Copy, Default)]
pub struct Expected<'a> {
    /// Nodes without a line are bad; nodes that are not here are judged too.
    pub nodes: &'a [&'a str],
    /// So are nodes without a line about a link.
    pub links: bool,
}

/// A node and all that was found out about it.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Slurm's name for it.
    pub name: String,
    /// The worst of its checks.
    pub verdict: Verdict,
    /// All of them, the worst first.
    pub checks: Vec<Check>,
}

/// The judgement over all nodes.
#[derive(Debug, Clone, PartialEq)]
pub struct Judged {
    /// The worst of all nodes.
    pub verdict: Verdict,
    /// The expected ones in their order, then others as they came.
    pub nodes: Vec<Node>,
    /// Checks that are bad on all of several nodes.
    pub everywhere: Vec<String>,
    /// Nodes to leave out: bad for another reason than those.
    pub exclude: Vec<String>,
}

/// Judges the lines.
pub fn judge(lines: &[Line], expected: &Expected<'_>, max_skew_s: f64) -> Judged {
    let mut names: Vec<&str> = Vec::new();
    let mut checks: BTreeMap<&str, Vec<Check>> = BTreeMap::new();
    for name in expected.nodes.iter().copied().chain(lines.iter().map(|line| line.node.as_str())) {
        if checks.insert(name, Vec::new()).is_none() {
            names.push(name);
        }
    }
    for line in lines {
        checks.entry(&line.node).or_default().extend(line.checks.iter().cloned());
    }
    let lost = lost_lines(lines);
    for (name, check) in
        lost.into_iter().chain(silent(lines, expected, &names)).chain(clocks(lines, max_skew_s))
    {
        checks.entry(name).or_default().push(check);
    }
    let nodes: Vec<Node> =
        names.iter().map(|name| node(name, checks.remove(name).unwrap_or_default())).collect();
    let everywhere = everywhere(&nodes);
    let is_own = |check: &&Check| check.verdict == Verdict::Bad && !everywhere.contains(&check.name);
    let to_exclude = nodes.iter().filter(|node| node.checks.iter().any(|check| is_own(&check)));
    let exclude = to_exclude.map(|node| node.name.clone()).collect();
    let verdict = nodes.iter().map(|node| node.verdict).max().unwrap_or(Verdict::Ok);
    Judged { verdict, nodes, everywhere, exclude }
}

fn node(name: &str, mut checks: Vec<Check>) -> Node {
    // Several ranks of a node may have found the same.
    let mut seen = BTreeSet::new();
    checks.retain(|check| check.verdict == Verdict::Ok || seen.insert(check.clone()));
    checks.sort_by_key(|check| std::cmp::Reverse(check.verdict));
    let verdict = checks.iter().map(|check| check.verdict).max().unwrap_or(Verdict::Ok);
    Node { name: name.to_owned(), verdict, checks }
}

const LOOK: &str = "look whether the node is up and starts the step (sinfo -R, slurmd's log)";

/// Reports of which not all lines came.
fn lost_lines(lines: &[Line]) -> Vec<(&str, Check)> {
    let rank = |line: &Line| match line.reporter {
        Reporter::Node { .. } => None,
        Reporter::Link { rank, .. } => Some(rank),
    };
    let mut reports: BTreeMap<(&str, Option<usize>), Vec<&Line>> = BTreeMap::new();
    for line in lines {
        reports.entry((&line.node, rank(line))).or_default().push(line);
    }
    let mut lost = Vec::new();
    for ((name, _), report) in reports {
        let seen: BTreeSet<usize> = report.iter().map(|line| line.part).collect();
        let num_parts = report.iter().map(|line| line.num_parts).max().unwrap_or(0);
        if seen.len() < num_parts {
            let got = format!("{} of {num_parts} lines", seen.len());
            lost.push((name, Check::bad(ANSWER, got, "all lines of its report", LOOK)));
        }
    }
    lost
}

/// Expected nodes without a line of their own, and nodes without a line about a link where those are expected.
fn silent<'a>(lines: &'a [Line], expected: &Expected<'a>, names: &[&'a str]) -> Vec<(&'a str, Check)> {
    let mut of_nodes = BTreeSet::new();
    let mut of_links = BTreeSet::new();
    for line in lines {
        match line.reporter {
            Reporter::Node { .. } => of_nodes.insert(line.node.as_str()),
            Reporter::Link { .. } => of_links.insert(line.node.as_str()),
        };
    }
    // A preflight of links alone has no other lines.
    let answered = if of_nodes.is_empty() { &of_links } else { &of_nodes };
    let got = "none, it did not answer";
    let mut found: Vec<(&str, Check)> = expected
        .nodes
        .iter()
        .filter(|name| !answered.contains(*name))
        .map(|name| (*name, Check::bad(ANSWER, got, "a line", LOOK)))
        .collect();
    let unlinked = names.iter().filter(|name| expected.links && !of_links.contains(*name));
    let hint = "the measurement of the links did not end: see what it said";
    found.extend(unlinked.map(|name| (*name, Check::bad("link_answer", "none", "a line of link", hint))));
    found
}

/// Nodes whose clock differs from the median of all.
fn clocks(lines: &[Line], max_skew_s: f64) -> Vec<(&str, Check)> {
    const NAME: &str = "clock";
    let times = |of: fn(&Reporter) -> Option<f64>| -> BTreeMap<&str, f64> {
        lines.iter().filter_map(|line| Some((line.node.as_str(), of(&line.reporter)?))).collect()
    };
    let of_links = times(|reporter| match reporter {
        Reporter::Link { unix_s, .. } => *unix_s,
        Reporter::Node { .. } => None,
    });
    let of_nodes = times(|reporter| match reporter {
        Reporter::Node { unix_s } => Some(*unix_s),
        Reporter::Link { .. } => None,
    });
    // The ranks of a measurement read their clocks together; nodes by themselves do when they happen to start.
    let times = if of_links.is_empty() { of_nodes } else { of_links };
    let middle = median(&mut times.values().copied().collect::<Vec<_>>());
    let judged = |time: f64| {
        let got = format!("{:+.1} s from the median of {} nodes", time - middle, times.len());
        if (time - middle).abs() <= max_skew_s {
            return Check::ok(NAME, got);
        }
        let hint =
            "set the clock (chronyc tracking), or raise --max-skew-s where nodes start at different times";
        Check::bad(NAME, got, format!("within {max_skew_s} s"), hint)
    };
    times.iter().map(|(name, time)| (*name, judged(*time))).collect()
}

/// The checks that are bad on all of several nodes that answered: no node is to blame for them.
fn everywhere(nodes: &[Node]) -> Vec<String> {
    let bad = |node: &Node| -> BTreeSet<String> {
        let bad = node.checks.iter().filter(|check| check.verdict == Verdict::Bad);
        bad.map(|check| check.name.clone()).collect()
    };
    let answered = nodes.iter().filter(|node| node.checks.iter().all(|check| check.name != ANSWER));
    let mut counted: Vec<BTreeSet<String>> = answered.map(bad).collect();
    if counted.is_empty() {
        counted = nodes.iter().map(bad).collect();
    }
    let Some(first) = counted.first().filter(|_| counted.len() > 1) else { return Vec::new() };
    first.iter().filter(|name| counted.iter().all(|bad| bad.contains(*name))).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::super::line::SCHEMA;
    use super::*;

    fn line(node: &str, reporter: Reporter, checks: Vec<Check>) -> Line {
        let (schema, host) = (SCHEMA.to_owned(), "h".to_owned());
        Line { schema, node: node.to_owned(), host, reporter, part: 0, num_parts: 1, checks }
    }

    fn node_line(node: &str, unix_s: f64, checks: Vec<Check>) -> Line {
        line(node, Reporter::Node { unix_s }, checks)
    }

    fn nodes<'a>(nodes: &'a [&'a str]) -> Expected<'a> {
        Expected { nodes, links: false }
    }

    fn bad(name: &str) -> Check {
        Check::bad(name, "got", "expected", "hint")
    }

    #[test]
    fn node_is_as_bad_as_its_worst_check_and_ranks_count_for_their_node() {
        let link = Reporter::Link {
            rank: 3,
            size: 4,
            unix_s: None,
            left_bytes_per_s: None,
            right_bytes_per_s: None,
            all_reduce_bytes_per_s: None,
        };
        let lines = [
            node_line("n1", 10.0, vec![Check::ok("tcp", "x"), Check::warn("stack", "1", "8", "ulimit")]),
            node_line("n2", 10.0, vec![Check::ok("tcp", "x")]),
            line("n2", link.clone(), vec![bad("link_bandwidth")]),
            line("n2", link, vec![bad("link_bandwidth")]),
        ];
        let judged = judge(&lines, &nodes(&["n1", "n2"]), 5.0);
        let verdicts: Vec<Verdict> = judged.nodes.iter().map(|node| node.verdict).collect();
        assert_eq!(verdicts, [Verdict::Warn, Verdict::Bad]);
        assert_eq!((judged.verdict, judged.exclude), (Verdict::Bad, vec!["n2".to_owned()]));
        assert_eq!(judged.nodes[1].checks[0], bad("link_bandwidth"));
        assert_eq!(judged.nodes[1].checks.iter().filter(|check| check.verdict == Verdict::Bad).count(), 1);
    }

    #[test]
    fn silent_nodes_and_lost_lines_are_bad() {
        let mut cut = node_line("n2", 10.0, Vec::new());
        cut.num_parts = 2;
        let lines = [node_line("n1", 10.0, Vec::new()), cut];
        let judged = judge(&lines, &nodes(&["n1", "n2", "n3"]), 5.0);
        assert_eq!(judged.exclude, ["n2", "n3"]);
        assert_eq!(judged.nodes[1].checks[0].got, "1 of 2 lines");
        assert_eq!(judged.nodes[2].checks[0].got, "none, it did not answer");
    }

    #[test]
    fn clock_is_compared_with_the_median() {
        let lines: Vec<Line> = [("n1", 100.0), ("n2", 101.0), ("n3", 160.0)]
            .map(|(node, time)| node_line(node, time, Vec::new()))
            .into();
        let judged = judge(&lines, &nodes(&[]), 5.0);
        assert_eq!(judged.exclude, ["n3"]);
        assert_eq!(judged.nodes[2].checks[0].got, "+59.0 s from the median of 3 nodes");
        assert_eq!(judge(&lines, &nodes(&[]), 60.0).verdict, Verdict::Ok);

        // What started late is not wrong where the ranks read their clocks together.
        let mut lines = lines;
        for (rank, node) in ["n1", "n2", "n3"].into_iter().enumerate() {
            let reporter = Reporter::Link {
                rank,
                size: 3,
                unix_s: Some(200.0),
                left_bytes_per_s: None,
                right_bytes_per_s: None,
                all_reduce_bytes_per_s: None,
            };
            lines.push(line(node, reporter, Vec::new()));
        }
        assert_eq!(judge(&lines, &nodes(&[]), 5.0).verdict, Verdict::Ok);
    }

    #[test]
    fn what_is_bad_everywhere_excludes_nobody() {
        let lines = [
            node_line("n1", 10.0, vec![bad("free_space")]),
            node_line("n2", 10.0, vec![bad("free_space"), bad("gpus")]),
        ];
        let judged = judge(&lines, &nodes(&[]), 5.0);
        assert_eq!(judged.verdict, Verdict::Bad);
        assert_eq!(
            (judged.everywhere, judged.exclude),
            (vec!["free_space".to_owned()], vec!["n2".to_owned()])
        );
        let expected = ["n3", "n1"];
        let judged = judge(&lines, &nodes(&expected), 5.0);
        assert_eq!(judged.everywhere, ["free_space"], "who is silent cannot have it");
        assert_eq!(judged.exclude, ["n3", "n2"]);
        let unlinked = judge(&lines[..1], &Expected { links: true, ..nodes(&["n1"]) }, 5.0);
        assert_eq!(unlinked.nodes[0].checks[1].name, "link_answer");
        let alone = judge(&lines[..1], &nodes(&[]), 5.0);
        assert_eq!((alone.everywhere, alone.exclude), (Vec::new(), vec!["n1".to_owned()]));
    }
}
