//! What the sandbox's tests share: a sandbox for each tier, started before threads, and cases of Python and of a shell.

use slime_sandbox::{Case, Entry, Error, Kind, Limits, Options, Report, Sandbox, Tier, Toolchain, Zygote};
use std::time::Duration;

/// Runs what it finds in the payload, as a file of its own would be.
const PRELOAD: &str = r#"
def program():
    import sys, traceback
    code = 0
    try:
        exec(compile(open(3, closefd=False).read(), "main.py", "exec"), {"__name__": "__main__"})
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
"#;

/// A sandbox for each tier this machine allows; the others are told.
pub fn sandboxes() -> Vec<Sandbox> {
    let start = |tier: Tier| match Sandbox::start(Options { min: tier, max: tier }) {
        Ok(sandbox) => {
            eprintln!("{}", sandbox.standing());
            Some(sandbox)
        }
        Err(error) => {
            eprintln!("SKIPPED: all tests of the tier {tier}: {error}");
            None
        }
    };
    [Tier::Namespaces, Tier::Landlock, Tier::Seccomp, Tier::Limits].into_iter().filter_map(start).collect()
}

/// The zygote of Python; none, said aloud, where it is not installed.
pub fn python(sandbox: &Sandbox) -> Option<Zygote> {
    let toolchain = found("python", &["python3"])?;
    Some(sandbox.zygote(Kind::python(toolchain, PRELOAD.to_owned())))
}

/// Programs of this toolchain; none, said aloud, where one is not installed.
pub fn found(language: &str, names: &[&str]) -> Option<Toolchain> {
    match Toolchain::find(language, names) {
        Ok(toolchain) => Some(toolchain),
        Err(error @ Error::MissingProgram { .. }) => {
            eprintln!("SKIPPED: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// Limits that end a runaway case soon.
pub fn limits() -> Limits {
    Limits {
        wall: Duration::from_secs(5),
        cpu: Duration::from_secs(3),
        memory_bytes: 256 << 20,
        max_processes: 20,
        output_bytes: 1 << 16,
        file_bytes: 8 << 20,
        ..Limits::default()
    }
}

/// Runs Python code; its stdout, its stderr, and the report.
pub fn run_python(zygote: &mut Zygote, code: &str, limits: &Limits) -> (String, String, Report) {
    let case = Case { payload: Some(code.as_bytes()), ..Case::new(Entry::Function("program"), limits) };
    told(zygote.run(&case).unwrap_or_else(|error| panic!("{error}")))
}

/// Runs a line of a shell.
#[allow(dead_code, reason = "not every test target runs a shell")]
pub fn run_shell(zygote: &mut Zygote, line: &str, limits: &Limits) -> (String, String, Report) {
    let argv = ["/bin/sh", "-c", line].map(str::to_owned);
    told(zygote.run(&Case::new(Entry::Program(&argv), limits)).unwrap_or_else(|error| panic!("{error}")))
}

fn told(report: Report) -> (String, String, Report) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    (text(&report.stdout), text(&report.stderr), report)
}
