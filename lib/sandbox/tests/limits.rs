//! Runaway cases: each is ended, what is reported says by which limit, and the next case is not hurt.
#![allow(missing_docs, clippy::unwrap_used)]

mod attacks;

use std::time::Duration;

use attacks::{found, limits, python, run_python, run_shell, sandboxes};
use libtest_mimic::{Arguments, Failed, Trial};
use slime_sandbox::{Case, Entry, Error, Kind, Limits, Options, Outcome, Report, Sandbox, Tier};

type Check = fn(&Sandbox) -> Result<(), Failed>;

fn expect(is_right: bool, got: impl std::fmt::Debug) -> Result<(), Failed> {
    if is_right { Ok(()) } else { Err(format!("got {got:?}").into()) }
}

/// Runs code with limits, then asks the same zygote for something harmless.
fn python_then(sandbox: &Sandbox, code: &str, limits: &Limits) -> Option<(String, String, Report)> {
    let mut zygote = python(sandbox)?;
    let result = run_python(&mut zygote, code, limits);
    let (stdout, stderr, _) = run_python(&mut zygote, "print(6 * 7)", limits);
    assert_eq!(stdout, "42", "the next case was hurt: {stderr}");
    assert_eq!(sandbox.num_restarts(), 0, "the zygote died");
    Some(result)
}

fn sleeping_for_ever_is_out_of_time(sandbox: &Sandbox) -> Result<(), Failed> {
    let limits = Limits { wall: Duration::from_millis(300), ..limits() };
    let Some((_, _, report)) = python_then(sandbox, "import time; time.sleep(1000)", &limits) else {
        return Ok(());
    };
    expect(report.outcome == Outcome::WallTime, report)
}

fn looping_for_ever_is_out_of_cpu_time(sandbox: &Sandbox) -> Result<(), Failed> {
    let limits = Limits { cpu: Duration::from_secs(1), wall: Duration::from_secs(60), ..limits() };
    let Some((_, _, report)) = python_then(sandbox, "while True: pass", &limits) else { return Ok(()) };
    expect(report.outcome == Outcome::CpuTime, report)
}

fn memory_bomb_gets_no_memory(sandbox: &Sandbox) -> Result<(), Failed> {
    let code = "import mmap\nfor make in (lambda: bytearray(1 << 30), lambda: mmap.mmap(-1, 1 << 30)):\n    try: make(); \
                print('ESCAPED')\n    except (MemoryError, OSError) as error: print(type(error).__name__)";
    let Some((stdout, _, report)) = python_then(sandbox, code, &limits()) else { return Ok(()) };
    expect(
        stdout == "MemoryError\nOSError" && report.max_rss_bytes < 256 << 20,
        (stdout, report.max_rss_bytes),
    )
}

fn fork_bomb_is_bounded_and_swept_up(sandbox: &Sandbox) -> Result<(), Failed> {
    if !sandbox.standing().promises.bounded_processes {
        eprintln!("SKIPPED: the tier {} does not bound processes here", sandbox.standing().tier);
        return Ok(());
    }
    let code = "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0: time.sleep(1000)\n        n += 1\n\
                except OSError as error: print(n, type(error).__name__, flush=True)";
    let Some((stdout, _, report)) = python_then(sandbox, code, &limits()) else { return Ok(()) };
    let num: u32 = stdout.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(u32::MAX);
    expect(stdout.ends_with("BlockingIOError") && num <= 20, stdout)?;
    expect(report.outcome == Outcome::Exited(0) && report.wall < Duration::from_secs(5), report)
}

fn what_a_case_leaves_behind_is_ended(sandbox: &Sandbox) -> Result<(), Failed> {
    let Some(shell) = found("bash", &["bash"]) else { return Ok(()) };
    let mut zygote = sandbox.zygote(Kind::programs(shell));
    // A daemon of its own session that holds no pipe; its name is looked for afterwards.
    let seconds = 100_000 + std::process::id();
    let line = format!("setsid sleep {seconds} > /dev/null 2>&1 < /dev/null & sleep 0.05; echo gone");
    let (stdout, stderr, report) = run_shell(&mut zygote, &line, &limits());
    expect(stdout == "gone" && report.outcome == Outcome::Exited(0), (stdout, stderr))?;
    let is_alive = std::fs::read_dir("/proc")?.flatten().any(|entry| {
        let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&words).contains(&seconds.to_string())
    });
    expect(!is_alive, "the daemon lives")
}

fn huge_output_is_ended(sandbox: &Sandbox) -> Result<(), Failed> {
    for stream in ["stdout", "stderr"] {
        let code = format!("import sys\nwhile True: sys.{stream}.write('x' * 4096)");
        let Some((stdout, stderr, report)) = python_then(sandbox, &code, &limits()) else { return Ok(()) };
        let kept = stdout.len().max(stderr.len());
        expect(report.outcome == Outcome::Output && kept == 1 << 16, (report.outcome, kept))?;
    }
    Ok(())
}

fn huge_files_cannot_be_written(sandbox: &Sandbox) -> Result<(), Failed> {
    let code = "import signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\ntry:\n    with open('big', 'wb') as file:\n        \
                for _ in range(100): file.write(bytes(1 << 20))\n    print('ESCAPED')\nexcept OSError as error: print(error)";
    let Some((stdout, stderr, _)) = python_then(sandbox, code, &limits()) else { return Ok(()) };
    expect(stdout.contains("File too large") || stdout.contains("No space"), (stdout, stderr))
}

fn work_folder_is_bounded_and_new_for_each_case(sandbox: &Sandbox) -> Result<(), Failed> {
    let Some(mut zygote) = python(sandbox) else { return Ok(()) };
    let (_, stderr, _) = run_python(&mut zygote, "open('left', 'w').write('x')", &limits());
    expect(stderr.is_empty(), stderr)?;
    let (stdout, _, _) = run_python(&mut zygote, "import os; print(os.listdir('.'))", &limits());
    expect(stdout == "[]", stdout)?;
    if !sandbox.standing().promises.bounded_work_folder {
        eprintln!("SKIPPED: the tier {} does not bound the work folder", sandbox.standing().tier);
        return Ok(());
    }
    let code = "try:\n    for n in range(20): open(str(n), 'wb').write(bytes(1 << 20))\n    print('ESCAPED')\nexcept OSError as \
                error: print(error)";
    let (stdout, _, _) = run_python(&mut zygote, code, &limits());
    expect(stdout.contains("No space"), stdout)
}

fn codes_and_signals_are_reported(sandbox: &Sandbox) -> Result<(), Failed> {
    let of = |code| python_then(sandbox, code, &limits());
    let Some((_, _, exited)) = of("import os; os._exit(7)") else { return Ok(()) };
    expect(exited.outcome == Outcome::Exited(7), exited)?;
    let Some((_, _, crashed)) = of("import ctypes; ctypes.string_at(0)") else { return Ok(()) };
    expect(crashed.outcome == Outcome::Signalled(libc_sigsegv()), crashed)?;
    let Some((_, stderr, raised)) = of("1 / 0") else { return Ok(()) };
    expect(raised.outcome == Outcome::Exited(1) && stderr.contains("ZeroDivisionError"), stderr)
}

const fn libc_sigsegv() -> i32 {
    11
}

fn zygote_that_ends_is_started_again_and_counted(sandbox: &Sandbox) -> Result<(), Failed> {
    // A sandbox of its own counts for itself; this one is shared.
    let before = sandbox.num_restarts();
    let Some(mut zygote) = python(sandbox) else { return Ok(()) };
    run_python(&mut zygote, "print(1)", &limits());
    let pid = zygote.pid().unwrap_or_default();
    kill(Some(pid));
    let (stdout, stderr, _) = run_python(&mut zygote, "print(2)", &limits());
    expect(stdout == "2" && zygote.pid() != Some(pid), (stdout, stderr))?;
    expect(sandbox.num_restarts() == before + 1, sandbox.num_restarts())
}

fn missing_program_is_an_error_and_no_verdict(sandbox: &Sandbox) -> Result<(), Failed> {
    let mut zygote = sandbox.zygote(Kind::native());
    let argv = ["/no/such/program".to_owned()];
    let error = zygote.run(&Case::new(Entry::Program(&argv), &limits())).unwrap_err();
    expect(
        matches!(&error, Error::Setup { problem } if problem.contains("cannot execute /no/such/program")),
        error,
    )
}

fn program_is_compiled_once_and_run_from_a_closed_folder(sandbox: &Sandbox) -> Result<(), Failed> {
    let Some(toolchain) = found("C", &["gcc"]) else { return Ok(()) };
    let gcc = toolchain.programs[0].path.display().to_string();
    let mut zygote = sandbox.zygote(Kind::programs(toolchain));
    let build = zygote.open_build(16 << 20)?.display().to_string();
    let source = "#include <stdio.h>\nint main(void) { int n; scanf(\"%d\", &n); printf(\"%d\\n\", n * 2); }";
    let argv =
        ["/bin/sh", "-c", "cat > \"$0.c\" && exec \"$1\" -o \"$0\" \"$0.c\"", &format!("{build}/main"), &gcc];
    let argv = argv.map(str::to_owned);
    let limits = Limits { memory_bytes: 1 << 30, ..limits() };
    let compile = Case {
        stdin: source.as_bytes(),
        build: slime_sandbox::Build::Write,
        ..Case::new(Entry::Program(&argv), &limits)
    };
    let report = zygote.run(&compile)?;
    expect(report.outcome == Outcome::Exited(0), String::from_utf8_lossy(&report.stderr))?;
    let argv = [format!("{build}/main")];
    for n in ["21", "4"] {
        let report =
            zygote.run(&Case { stdin: n.as_bytes(), ..Case::new(Entry::Program(&argv), &limits) })?;
        expect(report.stdout == format!("{}\n", n.parse::<i32>()? * 2).as_bytes(), report)?;
    }
    if sandbox.standing().promises.no_writing_outside {
        let (stdout, stderr, _) = run_shell(&mut zygote, &format!("echo x > {build}/main; echo no"), &limits);
        expect(stdout == "no" && !stderr.is_empty(), stderr)?;
    }
    if sandbox.standing().tier == Tier::Namespaces {
        kill(zygote.pid());
        // What was compiled went with it, and running something else would be no verdict.
        let error = zygote.run(&Case::new(Entry::Program(&argv), &limits)).unwrap_err();
        expect(matches!(error, Error::Died { .. }), error)?;
        zygote.open_build(16 << 20)?;
        let report = zygote.run(&compile)?;
        expect(report.outcome == Outcome::Exited(0), report)?;
    }
    zygote.close_build()?;
    let error = zygote.run(&Case::new(Entry::Program(&argv), &limits)).unwrap_err();
    expect(error.to_string().contains("cannot execute"), error)
}

/// Ends a zygote from outside, and waits until it is gone.
fn kill(pid: Option<i32>) {
    let pid = pid.expect("a zygote that was started").to_string();
    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
    let state = || std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Its sockets are closed once it is a zombie or gone.
    while !state().is_empty() && !state().contains(") Z ") {
        std::thread::yield_now();
    }
}

const CHECKS: &[(&str, Check)] = &[
    ("sleeping_for_ever_is_out_of_time", sleeping_for_ever_is_out_of_time),
    ("looping_for_ever_is_out_of_cpu_time", looping_for_ever_is_out_of_cpu_time),
    ("memory_bomb_gets_no_memory", memory_bomb_gets_no_memory),
    ("fork_bomb_is_bounded_and_swept_up", fork_bomb_is_bounded_and_swept_up),
    ("what_a_case_leaves_behind_is_ended", what_a_case_leaves_behind_is_ended),
    ("huge_output_is_ended", huge_output_is_ended),
    ("huge_files_cannot_be_written", huge_files_cannot_be_written),
    ("work_folder_is_bounded_and_new_for_each_case", work_folder_is_bounded_and_new_for_each_case),
    ("codes_and_signals_are_reported", codes_and_signals_are_reported),
    ("missing_program_is_an_error_and_no_verdict", missing_program_is_an_error_and_no_verdict),
    (
        "program_is_compiled_once_and_run_from_a_closed_folder",
        program_is_compiled_once_and_run_from_a_closed_folder,
    ),
    // Last, since it adds to the count that the others compare with none.
    ("zygote_that_ends_is_started_again_and_counted", zygote_that_ends_is_started_again_and_counted),
];

fn too_late_a_start_is_refused() -> Result<(), Failed> {
    let error = Sandbox::start(Options::default()).unwrap_err();
    expect(
        matches!(error, Error::Threads { num_threads } if num_threads > 1) && error.exit_code() == 70,
        error,
    )
}

/// In the main thread, before there are others.
fn less_than_asked_for_is_refused() {
    let error = Sandbox::start(Options { min: Tier::Namespaces, max: Tier::Seccomp }).unwrap_err();
    assert_eq!(error.exit_code(), 69);
    let text = error.to_string();
    assert!(text.contains("expected at least the tier namespaces, this machine allows"), "{text}");
    assert!(text.contains("hint: ") && text.contains("--sandbox-min "), "{text}");
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    less_than_asked_for_is_refused();
    let sandboxes = sandboxes();
    let mut trials = vec![Trial::test("too_late_a_start_is_refused", move || {
        std::thread::spawn(too_late_a_start_is_refused).join().unwrap()
    })];
    for sandbox in &sandboxes {
        for (name, check) in CHECKS {
            let sandbox = sandbox.clone();
            trials.push(Trial::test(format!("{}::{name}", sandbox.standing().tier), move || check(&sandbox)));
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}
