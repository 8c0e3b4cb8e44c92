//! Attempts to get out of the sandbox: each is real, prints ESCAPED when it works, and has to fail with what the sandbox
//! says, in every tier that promises it. What a tier does not promise is said aloud.
#![allow(missing_docs, clippy::unwrap_used)]

mod attacks;

use attacks::{found, limits, python, run_python, run_shell, sandboxes};
use libtest_mimic::{Arguments, Failed, Trial};
use slime_sandbox::{Kind, Promises, Sandbox};

/// An attempt in Python: what promise forbids it, the code, and a word of what it has to be told.
struct Attempt {
    name: &'static str,
    is_forbidden: fn(&Promises) -> bool,
    code: &'static str,
    /// One of these stands in what it wrote.
    told: &'static [&'static str],
}

const DENIED: &[&str] = &["PermissionError", "Operation not permitted", "FileNotFoundError", "No such file"];

const ATTEMPTS: &[Attempt] = &[
    Attempt {
        name: "network",
        is_forbidden: |promises| promises.no_network,
        code: "import socket; s = socket.socket(); s.settimeout(1)\ns.bind(('127.0.0.1', 0)); print('ESCAPED')",
        told: DENIED,
    },
    Attempt {
        name: "network_by_datagram_and_unix",
        is_forbidden: |promises| promises.no_network,
        code: "import socket\nfor family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):\n    \
               try: socket.socket(family, socket.SOCK_DGRAM); print('ESCAPED', family)\n    except OSError as error: \
               print(error)",
        told: DENIED,
    },
    Attempt {
        name: "reading_files_outside",
        is_forbidden: |promises| promises.no_reading_outside,
        code: "print(open('@secret').read()); print('ESCAPED')",
        told: DENIED,
    },
    Attempt {
        name: "reading_the_users_of_the_machine",
        is_forbidden: |promises| promises.no_reading_outside,
        code: "import os\nfor path in ('/etc/shadow', '/root/.bashrc', '/root/.ssh', '/home', '@folder', '/var/log'):\n    try:\n        \
               found = os.listdir(path) if os.path.isdir(path) else open(path).read()\n        print('ESCAPED', path) if \
               found else print('No such file')\n    except OSError as error: print(error)",
        told: &["No such file", "Permission denied"],
    },
    Attempt {
        name: "writing_files_outside",
        is_forbidden: |promises| promises.no_writing_outside,
        code: "open('@folder/new', 'w').write('x'); print('ESCAPED')",
        told: &["PermissionError", "FileNotFoundError", "Read-only"],
    },
    Attempt {
        name: "writing_to_programs_and_devices",
        is_forbidden: |promises| promises.no_writing_outside,
        code: "import os, sys\nfor path in ('/usr/bin/x', '/dev/x', '/x', os.path.join(sys.prefix, 'x'), '/etc/ld.so.cache'):\n    \
               try: open(path, 'a').write('x'); print('ESCAPED', path)\n    except OSError as error: print(error)",
        told: &["Permission denied", "Read-only"],
    },
    Attempt {
        name: "links_to_files_outside",
        is_forbidden: |promises| promises.no_reading_outside,
        code: "import os; os.symlink('@secret', 'link'); print(open('link').read()); print('ESCAPED')",
        told: DENIED,
    },
    Attempt {
        name: "hard_links_and_parent_folders",
        is_forbidden: |promises| promises.no_reading_outside,
        code: "import os\nup = '../' * 40\nfor act in (lambda: os.link('@secret', 'hard'), lambda: open(up + '@secret'[1:]), lambda: \
               os.chroot('.'), lambda: os.rename('@secret', 'mine')):\n    try: act(); print('ESCAPED')\n    except OSError \
               as error: print(error)",
        told: &["No such file", "Permission denied", "not permitted", "cross-device"],
    },
    Attempt {
        name: "signals_to_the_parent_and_to_all",
        is_forbidden: |promises| promises.no_signals,
        code: "import os, signal\nfor pid in (os.getppid(), @tool, 1, -1):\n    try:\n        os.kill(pid, signal.SIGKILL if \
               pid != -1 else 0)\n        print('killed', pid)\n    except OSError as error: print(error)",
        told: &["No such process", "not permitted", "killed 0", "killed 1"],
    },
    Attempt {
        name: "proc_of_the_parent",
        is_forbidden: |promises| promises.no_reading_outside,
        code: "import os\nseen = [] if not os.access('/proc', os.R_OK) else [int(name) for name in os.listdir('/proc') if \
               name.isdigit()]\nfor pid in {os.getppid(), @tool, 1, *seen} - {os.getpid()}:\n    for name in ('mem', 'environ', \
               'cmdline', 'fd', 'maps'):\n        path = f'/proc/{pid}/{name}'\n        try:\n            os.listdir(path) \
               if name == 'fd' else open(path, 'rb').read(1)\n            print('ESCAPED', path)\n        except OSError as \
               error: print(error)",
        told: &["No such file", "Permission denied"],
    },
    Attempt {
        name: "tracing_and_memory_of_others",
        is_forbidden: |promises| promises.no_signals,
        code: "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nfor call in (lambda: libc.ptrace(16, os.getppid(), 0, 0), \
               lambda: libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0)):\n    print('ESCAPED' if call() == 0 else \
               os.strerror(ctypes.get_errno()))",
        told: &["not permitted"],
    },
    Attempt {
        name: "new_namespaces_and_mounts",
        is_forbidden: |promises| promises.no_network,
        code: "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nfor call in (lambda: libc.unshare(0x10000000), lambda: \
               libc.mount(b'none', b'/work', b'tmpfs', 0, None), lambda: libc.syscall(56, 0x10000011, 0, 0, 0, 0), lambda: \
               libc.syscall(425, 1, None), lambda: libc.syscall(321, 0, 0, 0), lambda: libc.setuid(0) or \
               libc.chown(b'/work', 0, 0) or 1):\n    result = call()\n    if result == 0: print('ESCAPED')\n    \
               else: print(os.strerror(ctypes.get_errno()))",
        told: &["not permitted", "not implemented"],
    },
    Attempt {
        name: "inherited_descriptors",
        is_forbidden: |_| true,
        code: "import os\nfound = []\nfor fd in range(1024):\n    try: os.fstat(fd); found.append(fd)\n    except OSError: pass\n\
               print('ESCAPED' if found != [0, 1, 2, 3] else 'only its own', found)",
        told: &["only its own"],
    },
    Attempt {
        name: "descriptors_over_exec",
        is_forbidden: |_| true,
        code: "import subprocess, sys\ncode = 'import os\\nn = 0\\nfor fd in range(3, 1024):\\n  try: os.fstat(fd); n += 1\\n  except \
               OSError: pass\\nprint(n)'\nout = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, \
               close_fds=False)\nprint('ESCAPED' if out.stdout.strip() != '1' else 'its own', out.stdout, out.stderr)",
        told: &["its own"],
    },
    Attempt {
        name: "environment_of_the_tool",
        is_forbidden: |_| true,
        code: "import os; print('ESCAPED' if any(name.startswith(('CARGO', 'SLIME', 'SLURM')) for name in os.environ) else \
               sorted(os.environ))",
        told: &["PATH"],
    },
    Attempt {
        name: "tests_cannot_be_written",
        is_forbidden: |_| true,
        code: "import os\ntry:\n    os.pwrite(3, b'pass', 0); print('ESCAPED')\nexcept OSError as error: print(error)\ntry:\n    \
               os.ftruncate(3, 0); print('ESCAPED')\nexcept OSError as error: print(error)",
        told: &["not permitted"],
    },
];

fn attempt(sandbox: &Sandbox, attempt: &Attempt) -> Result<(), Failed> {
    let standing = sandbox.standing();
    if !(attempt.is_forbidden)(&standing.promises) {
        eprintln!("SKIPPED: {}: the tier {} does not promise it here", attempt.name, standing.tier);
        return Ok(());
    }
    let Some(mut zygote) = python(sandbox) else { return Ok(()) };
    let dir = tempfile::tempdir()?;
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "the secret")?;
    let code = attempt
        .code
        .replace("@secret", &secret.to_string_lossy())
        .replace("@folder", &dir.path().to_string_lossy())
        .replace("@tool", &std::process::id().to_string());
    let (stdout, stderr, report) = run_python(&mut zygote, &code, &limits());
    let all = format!("{stdout}\n{stderr}");
    if all.contains("ESCAPED") || all.contains("the secret") {
        return Err(format!("escaped: {all}").into());
    }
    if !attempt.told.iter().any(|word| all.contains(word)) {
        return Err(format!("expected one of {:?}, got {all:?} ({})", attempt.told, report.outcome).into());
    }
    let is_untouched =
        std::fs::read_to_string(&secret)? == "the secret" && std::fs::read_dir(dir.path())?.count() == 1;
    if !is_untouched {
        return Err("files outside were changed".into());
    }
    // The zygote goes on as if nothing had been tried.
    let (stdout, stderr, _) = run_python(&mut zygote, "print(6 * 7)", &limits());
    if stdout != "42" || sandbox.num_restarts() != 0 {
        return Err(format!("the zygote was hurt: {stdout} {stderr}").into());
    }
    Ok(())
}

/// The same through a program that is executed, which has a `/proc` of its own.
fn shell_sees_only_itself(sandbox: &Sandbox) -> Result<(), Failed> {
    let promises = sandbox.standing().promises;
    let Some(shell) = found("bash", &["bash"]) else { return Ok(()) };
    let mut zygote = sandbox.zygote(Kind::programs(shell));
    let (stdout, stderr, _) = run_shell(&mut zygote, "echo a | cat; touch mine && echo made", &limits());
    if stdout != "a\nmade" {
        return Err(format!("{stdout} {stderr}").into());
    }
    let lines = [
        (promises.no_reading_outside, "cat /etc/shadow && echo ESCAPED"),
        (promises.no_network, "(echo > /dev/tcp/127.0.0.1/22) && echo ESCAPED"),
        (
            promises.no_other_processes,
            "kill -0 -1 2>&1; ls /proc | grep -c '^[0-9]' | grep -v '^[0-9]$' && echo ESCAPED",
        ),
        (promises.no_other_processes, "cat /proc/1/environ && echo ESCAPED"),
        (promises.no_other_processes, "kill -9 1; kill -9 $PPID; sleep 0.05; echo still here"),
        (promises.no_writing_outside, "echo x > /usr/x && echo ESCAPED"),
        (promises.no_writing_outside, "echo x > /build/x && echo ESCAPED"),
    ];
    for (_, line) in lines.iter().filter(|(is_promised, _)| *is_promised) {
        let (stdout, stderr, _) = run_shell(&mut zygote, line, &limits());
        if format!("{stdout}{stderr}").contains("ESCAPED") {
            return Err(format!("{line}: {stdout} {stderr}").into());
        }
        // The first process of the case and the zygote live: it is told by what still comes.
        if line.contains("still here") && stdout != "still here" {
            return Err(format!("{line}: {stdout:?} {stderr}").into());
        }
    }
    Ok(())
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Limits of processes count all those of one user.
    arguments.test_threads = Some(1);
    let sandboxes = sandboxes();
    let mut trials = Vec::new();
    for sandbox in &sandboxes {
        let tier = sandbox.standing().tier;
        for one in ATTEMPTS {
            let sandbox = sandbox.clone();
            trials.push(Trial::test(format!("{tier}::{}", one.name), move || attempt(&sandbox, one)));
        }
        let sandbox = sandbox.clone();
        trials.push(Trial::test(format!("{tier}::shell_sees_only_itself"), move || {
            shell_sees_only_itself(&sandbox)
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
