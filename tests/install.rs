//! The installed tree: it works wherever it is moved to, its modulefiles load in both module systems, and the
//! container definitions describe it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;

/// The tools, as the installer finds them.
const TOOLS: [&str; 6] =
    ["slime-convert", "slime-reward", "slime-rollout", "slime-stat", "slime-sync", "slime-train"];
/// What a build of an image copies from the source tree; everything of it but what only git and editors read.
const UNSEEN: [&str; 3] = ["target", "runs", "weights"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where cargo put the tools under test.
fn bin() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_slime-train")).parent().expect("a folder")
}

/// Where bootstrap.sh keeps what it fetched.
fn deps() -> PathBuf {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("SLIME_DEPS").or_else(|| Some(cache()?.join("slime"))).expect("a home")
}

/// Says past the capture of the test harness that something was not tested.
fn skip(what: &str) {
    writeln!(std::io::stderr(), "skipped: {what}").expect("stderr");
}

fn is_here(program: &str) -> bool {
    let run = Command::new("bash").args(["-c", "PATH=$PATH:/usr/sbin command -v \"$0\"", program]).output();
    run.expect("bash is here").status.success()
}

/// Whether bwrap is there and the kernel lets this user use it.
fn has_bwrap() -> bool {
    let run = Command::new("bwrap").args(["--ro-bind", "/", "/", "true"]).output();
    run.is_ok_and(|output| output.status.success())
}

/// Runs a script of the source tree.
fn script(path: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new("bash");
    command.arg(root().join(path)).args(arguments).env("SLIME_BIN", bin());
    command.output().expect("bash is here")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Stdout of a bash script that must succeed.
fn bash(script: &str, arguments: &[&str]) -> String {
    let output =
        Command::new("bash").args(["-c", script, "bash"]).args(arguments).output().expect("bash is here");
    assert!(output.status.success(), "{}\n{}{}", script, text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

/// The installed tree, made once; later runs find most of it there.
fn prefix() -> &'static Path {
    static PREFIX: OnceLock<PathBuf> = OnceLock::new();
    PREFIX.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install");
        let output = script("modules/install.sh", &[&prefix]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        prefix
    })
}

/// One clear error with this code and hint, and nothing on stdout.
fn check_error(output: &Output, code: i32, says: &str) {
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{message}");
    assert!(message.contains(says), "{message}");
    assert_eq!((message.matches("error:").count(), message.lines().count()), (1, 2), "{message}");
    assert!(output.stdout.is_empty());
}

#[test]
fn installed_tree_is_whole_and_readable_by_others() {
    let prefix = prefix();
    for tool in TOOLS {
        for (path, mode) in [
            (format!("bin/{tool}"), 0o755),
            (format!("share/man/man1/{tool}.1"), 0o644),
            (format!("share/bash-completion/completions/{tool}"), 0o644),
            (format!("share/zsh/site-functions/_{tool}"), 0o644),
            (format!("share/fish/vendor_completions.d/{tool}.fish"), 0o644),
        ] {
            let metadata = fs::metadata(prefix.join(&path)).unwrap_or_else(|error| panic!("{path}: {error}"));
            assert!(
                metadata.len() > 0 && metadata.permissions().mode() & 0o7777 == mode,
                "{path}: {metadata:?}"
            );
        }
        if is_here("readelf") {
            let dynamic = bash("readelf -d \"$1\"", &[prefix.join("bin").join(tool).to_str().expect("text")]);
            let paths: Vec<&str> = dynamic.lines().filter(|line| line.contains("PATH)")).collect();
            assert!(paths.len() == 1 && paths[0].ends_with("[$ORIGIN/../lib]"), "{tool}: {paths:?}");
        }
    }
    for path in [
        "lib/libtorch_cpu.so",
        "lib/libc10.so",
        "sbatch/loop.sh",
        "configs/tiny.toml",
        "modulefiles/slime/0.1.0",
        "modulefiles/slime/0.1.0.lua",
        "share/doc/slime/LICENSE",
        "share/slime/installed",
        "tests/cluster/shim/apptainer",
    ] {
        assert!(prefix.join(path).is_file(), "no {path}");
    }
    assert!(!prefix.join("sbatch/site.env").exists(), "the site's own settings are no part of it");
}

/// Every file of a tree with what a second run must leave alone.
fn files(folder: &Path) -> BTreeMap<PathBuf, (u64, SystemTime)> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        let metadata = fs::symlink_metadata(&path).expect("readable");
        if metadata.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path, (metadata.len(), metadata.modified().expect("a time")));
        }
    }
    found
}

#[test]
fn second_run_changes_nothing_but_what_is_no_part_any_more() {
    // A tree of its own, for the other tests read the first one; its files are the same ones.
    let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("install-again");
    bash(
        "rm -rf \"$2\" && cp -al \"$1\" \"$2\"",
        &[self::prefix().to_str().expect("text"), prefix.to_str().expect("text")],
    );
    let before = files(&prefix);
    let (old, foreign, site) =
        (prefix.join("bin/slime-old"), prefix.join("bin/other"), prefix.join("sbatch/site.env"));
    for path in [&old, &foreign, &site] {
        fs::write(path, "").expect("writable");
    }
    let list = prefix.join("share/slime/installed");
    let mut names = fs::read_to_string(&list).expect("readable") + "bin/slime-old\n";
    let mut sorted: Vec<&str> = names.lines().collect();
    sorted.sort_unstable();
    names = sorted.join("\n") + "\n";
    fs::remove_file(&list).and_then(|()| fs::write(&list, names)).expect("writable");
    let damaged = prefix.join("configs/tiny.toml");
    fs::remove_file(&damaged).and_then(|()| fs::write(&damaged, "half")).expect("writable");

    let output = script("modules/install.sh", &[&prefix]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!old.exists() && foreign.exists() && site.exists());
    let mut after = files(&prefix);
    for path in [&foreign, &site] {
        after.remove(path);
    }
    let sizes = |tree: &BTreeMap<PathBuf, (u64, SystemTime)>| -> Vec<(PathBuf, u64)> {
        tree.iter().map(|(path, (len, _))| (path.clone(), *len)).collect()
    };
    assert_eq!(sizes(&before), sizes(&after));
    for (path, time) in &before {
        assert!(
            after.get(path) == Some(time) || *path == list || *path == damaged,
            "{} anew",
            path.display()
        );
    }
    fs::remove_dir_all(prefix).expect("our own");
}

/// Two ranks of a world of their own train one step; `$1` is the prefix, `$2` a folder to work in. The MPI is the one
/// that came along, else the site's.
const ONE_STEP: &str = r#"
set -euo pipefail
unset LD_LIBRARY_PATH
export PATH=$1/bin:$1/lib/openmpi/bin:$PATH OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
cd "$2"
slime-rollout --weights weights --config "$1/configs/tiny.toml" --num-prompts 2 | slime-reward --type number >samples.jsonl
launcher=(mpirun --oversubscribe -n 2)
command -v mpirun >/dev/null || launcher=()
"${launcher[@]}" slime-train --config "$1/configs/tiny.toml" --set model.path=weights --samples samples.jsonl --output new
slime-convert inspect new >/dev/null
echo "${#launcher[@]}"
"#;

#[test]
fn moved_tree_works_with_nothing_of_the_build_in_sight() {
    if !has_bwrap() {
        return skip("no bwrap to hide the build from a moved tree");
    }
    let work = tempfile::tempdir().expect("writable");
    let weights = work.path().join("weights");
    assert!(script("tests/fixtures/tiny_weights.sh", &[&weights]).status.success());
    // A tmpfs over the source tree and over what bootstrap fetched; the tree appears at a place it was not made for.
    let output = Command::new("bwrap")
        .args([
            "--ro-bind",
            "/",
            "/",
            "--dev-bind",
            "/dev",
            "/dev",
            "--proc",
            "/proc",
            "--tmpfs",
            "/tmp",
            "--tmpfs",
        ])
        .arg(deps())
        .arg("--tmpfs")
        .arg(root())
        .args(["--tmpfs", "/mnt", "--bind"])
        .arg(prefix())
        .args(["/mnt/moved", "--bind"])
        .arg(work.path())
        .args(["/mnt/work", "bash", "-c", ONE_STEP, "bash", "/mnt/moved", "/mnt/work"])
        .output()
        .expect("it is here");
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    assert!(work.path().join("new/model.safetensors").is_file());
    if text(&output.stdout).trim() == "0" {
        skip("no mpirun for two ranks of the moved tree");
    } else {
        let steps = text(&output.stderr).matches("optimizer step 1/1").count();
        assert_eq!(steps, 1, "two ranks are one world:\n{}", text(&output.stderr));
    }
}

#[test]
fn what_cannot_be_installed_is_one_clear_error() {
    let folder = tempfile::tempdir().expect("writable");
    let file = folder.path().join("file");
    fs::write(&file, "").expect("writable");
    check_error(&script("modules/install.sh", &[&file.join("slime")]), 73, "cannot write to");
    check_error(&script("modules/install.sh", &[&file]), 73, "cannot write to");
    check_error(&script("modules/install.sh", &[]), 64, "no PREFIX");
    check_error(&script("modules/install.sh", &[Path::new("--frefix")]), 64, "no PREFIX");
    check_error(&script("modules/install.sh", &[folder.path(), &file]), 64, "expected one PREFIX");
    let empty = Command::new("bash")
        .arg(root().join("modules/install.sh"))
        .arg(folder.path())
        .env("SLIME_BIN", folder.path())
        .output()
        .expect("bash is here");
    check_error(&empty, 66, "has no slime-convert");
    check_error(&script("modules/bootstrap.sh", &[Path::new("--test")]), 64, "unknown argument --test");
    check_error(&script("modules/rootfs.sh", &[]), 64, "neither DIR nor FILE.sqsh");
    check_error(&script("modules/rootfs.sh", &[folder.path()]), 73, "is there already");
}

/// What a shell says before loading, after it and after unloading; `$1` is a bash line that defines `module`, `$2` the
/// folder of modulefiles.
const LOADING: &str = r#"
export PATH=/usr/local/bin:/usr/bin:/bin
# Nothing of the caller's: neither its modules nor cargo's path for libraries.
unset $(compgen -e | grep -vE '^(PATH|HOME|USER|SHELL|TERM|LANG)$')
eval "$1"
state() { echo "$PATH|${MANPATH-unset}|${XDG_DATA_DIRS-unset}|${SLIME_HOME-unset}|${LD_LIBRARY_PATH-unset}"; }
state
module use "$2"
module load slime || exit 1
state
type -P slime-train || echo none
module load slime/9.9 2>/dev/null; echo "$?"
module unload slime || exit 1
state
"#;

/// Loads the modulefile in a module system, from an installed and from the source tree.
fn check_modules(system: &str) {
    let installed = prefix();
    for (home, modulefiles, bin) in [
        (installed, installed.join("modulefiles"), installed.join("bin")),
        (root(), root().join("modules"), root().join("target/release")),
    ] {
        let said = bash(LOADING, &[system, modulefiles.to_str().expect("text")]);
        let lines: Vec<&str> = said.lines().collect();
        let [before, loaded, tool, code, after] = lines[..] else { panic!("{said}") };
        let (home, is_installed) = (home.display(), home == installed);
        let state: Vec<&str> = loaded.split('|').collect();
        let mpi = installed.join("lib/openmpi/bin");
        let mpi = if is_installed && mpi.exists() { format!("{}:", mpi.display()) } else { String::new() };
        assert_eq!(state[0], format!("{mpi}{}:/usr/local/bin:/usr/bin:/bin", bin.display()));
        if is_installed {
            assert!(state[1].starts_with(&format!("{home}/share/man:")), "{loaded}");
            assert_eq!(state[2], format!("{home}/share:/usr/local/share:/usr/share"));
        } else {
            assert_eq!(state[1..3], ["unset", "unset"]);
        }
        assert_eq!(state[3..], [home.to_string().as_str(), "unset"]);
        if bin.join("slime-train").exists() {
            assert_eq!(Path::new(tool), bin.join("slime-train"));
            let version = Command::new(tool).arg("--version").output().expect("it starts");
            assert_eq!(text(&version.stdout), format!("slime-train {}\n", env!("CARGO_PKG_VERSION")));
        }
        assert_eq!(code, "1", "a version that is not there");
        assert_eq!(before, after);
    }
}

#[test]
fn lmod_loads_and_unloads_the_modulefile() {
    let folder = std::env::var("LMOD_PKG").unwrap_or_else(|_| "/usr/share/lmod/lmod".to_owned());
    let init = Path::new(&folder).join("init/bash");
    if !init.exists() {
        return skip("no Lmod to load the modulefile (bash modules/bootstrap.sh --tests)");
    }
    check_modules(&format!(". '{}'", init.display()));
}

#[test]
fn environment_modules_load_and_unload_the_modulefile() {
    let folder = deps().join("environment-modules/usr");
    let find = "find \"$1\" -path '*-linux-gnu*/modulecmd.tcl' 2>/dev/null | head -n 1";
    let command = if folder.exists() { bash(find, &[folder.to_str().expect("text")]) } else { String::new() };
    if command.is_empty() || !is_here("tclsh") {
        return skip("no Environment Modules to load the modulefile (bash modules/bootstrap.sh --tests)");
    }
    check_modules(&format!("module() {{ eval \"$(tclsh '{}' bash \"$@\")\"; }}", command.trim()));
}

#[test]
fn modulefiles_carry_the_version_of_the_tools() {
    for name in [env!("CARGO_PKG_VERSION").to_owned(), concat!(env!("CARGO_PKG_VERSION"), ".lua").to_owned()]
    {
        let file = fs::read_to_string(root().join("modules/slime").join(&name))
            .expect("a file of the version's name");
        assert!(file.contains(&format!("slime {}", env!("CARGO_PKG_VERSION"))), "{name}");
    }
}

/// Joins the lines of a Dockerfile, without comments.
fn dockerfile() -> Vec<String> {
    let file = fs::read_to_string(root().join("modules/Dockerfile")).expect("readable");
    let lines: Vec<&str> = file.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    joined
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(|line| !line.is_empty())
        .collect()
}

/// A section of slime.def, the first of that name or the last, as trimmed lines.
fn section(of_build: bool, name: &str) -> Vec<String> {
    let file = fs::read_to_string(root().join("modules/slime.def")).expect("readable");
    let (build, last) = file.split_once("\nBootstrap:").expect("two stages");
    let stage = if of_build { build } else { last };
    let (_, body) = stage.split_once(&format!("\n%{name}")).unwrap_or_else(|| panic!("no %{name}"));
    let lines = body.lines().skip(1).take_while(|line| !line.starts_with('%')).map(str::trim);
    lines.filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn container_definitions_have_the_same_steps() {
    let docker = dockerfile();
    let rest = |word: &str| -> Vec<String> {
        docker.iter().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect()
    };
    let steps: Vec<Vec<String>> =
        rest("RUN ").iter().map(|run| run.split(" && ").map(str::to_owned).collect()).collect();
    let [build, packages, version] = &steps[..] else { panic!("{steps:?}") };
    let mut post = vec![format!("cd {}", rest("WORKDIR ")[0])];
    post.extend(build.iter().cloned());
    assert_eq!(section(true, "post"), post);
    assert_eq!(post[1..], ["bash modules/bootstrap.sh", "bash modules/install.sh --small /opt/slime"]);
    assert_eq!(section(false, "post"), *packages);
    assert_eq!(section(false, "test"), *version);
    let environment: Vec<String> = rest("ENV ").iter().map(|line| format!("export {line}")).collect();
    assert_eq!(section(false, "environment"), environment);
    assert_eq!(section(false, "files from build"), [rest("COPY --from=build ")[0].clone()]);

    let file = fs::read_to_string(root().join("modules/slime.def")).expect("readable");
    let from: Vec<String> =
        file.lines().filter_map(|line| line.strip_prefix("From: ")).map(str::to_owned).collect();
    let bases: Vec<String> =
        rest("FROM ").iter().map(|line| line.split(' ').next().unwrap_or("").to_owned()).collect();
    assert_eq!(from, bases);
    // What rootfs.sh puts in.
    let script = fs::read_to_string(root().join("modules/rootfs.sh")).expect("readable");
    let list =
        script.lines().find_map(|line| line.strip_prefix("packages=(")?.strip_suffix(')')).expect("a list");
    assert_eq!(packages[1], format!("apt-get install -y --no-install-recommends {list}"));
    let suite = script.lines().find_map(|line| line.strip_prefix("suite=")).expect("a release");
    assert_eq!(bases[1], format!("debian:{suite}-slim"));
}

#[test]
fn container_definitions_copy_the_whole_source_tree() {
    let mut entries: Vec<String> = fs::read_dir(root())
        .expect("readable")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && !UNSEEN.contains(&name.as_str()))
        .collect();
    entries.sort();
    let mut of_apptainer: Vec<String> = section(true, "files")
        .iter()
        .map(|line| line.split_once(' ').expect("two places"))
        .inspect(|(from, to)| assert_eq!(format!("/src/{from}"), **to))
        .map(|(from, _)| from.to_owned())
        .collect();
    of_apptainer.sort();
    let mut of_docker: Vec<String> = dockerfile()
        .iter()
        .filter_map(|line| line.strip_prefix("COPY ").filter(|rest| !rest.starts_with('-')))
        .flat_map(|rest| {
            rest.split(' ').filter(|part| !part.starts_with("/src/")).map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    of_docker.sort();
    assert_eq!((&of_apptainer, &of_docker), (&entries, &entries));
}

#[test]
fn container_definitions_are_free_of_lint() {
    let lint = deps().join("lint");
    if !lint.join(".complete").exists() {
        return skip(
            "no hadolint and spython to read the container definitions (bash modules/bootstrap.sh --tests)",
        );
    }
    let hadolint = Command::new(lint.join("bin/hadolint")).arg(root().join("modules/Dockerfile")).output();
    let hadolint = hadolint.expect("it starts");
    assert!(hadolint.status.success() && hadolint.stdout.is_empty(), "{}", text(&hadolint.stdout));
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let spython = Command::new(python)
        .arg(lint.join("bin/spython"))
        .args(["recipe", "--parser", "singularity"])
        .arg(root().join("modules/slime.def"))
        .env("PYTHONPATH", &lint)
        .output()
        .expect("it starts");
    assert!(spython.status.success(), "{}", text(&spython.stderr));
    // It turns the definition into a Dockerfile, in which the steps of ours stand one by one.
    let turned = text(&spython.stdout);
    for line in dockerfile() {
        let steps: Vec<String> = match line.split_once(' ') {
            Some(("RUN", run)) => run.split(" && ").map(str::to_owned).collect(),
            Some(("FROM" | "ENV", _)) => vec![line.clone()],
            _ => continue,
        };
        for step in steps {
            assert!(turned.contains(&step), "no {step:?} in\n{turned}");
        }
    }
}

#[test]
fn scripts_are_free_of_lint() {
    if !is_here("shellcheck") {
        return skip("no shellcheck to read the scripts (bash modules/bootstrap.sh --tests)");
    }
    let find = "cd \"$1\" && find modules sbatch tests -name '*.sh' -o -path '*/shim/*' -type f | sort | xargs shellcheck -x";
    bash(find, &[root().to_str().expect("text")]);
}

fn apptainer(arguments: &[&str]) -> Output {
    let shim = root().join("tests/cluster/shim/apptainer");
    Command::new(shim).args(arguments).env("SLIME_SEEN", "yes").output().expect("it starts")
}

#[test]
fn stand_in_for_apptainer_shows_only_what_is_bound_and_becomes_the_command() {
    let folder = tempfile::tempdir().expect("writable");
    let image = folder.path().join("image");
    // The smallest image: a few of this system's programs and their libraries.
    bash(
        "mkdir -p \"$1\"/{etc,root,usr/{bin,lib,lib64},.singularity.d/env}
         for folder in bin lib lib64; do ln -s usr/$folder \"$1/$folder\"; done
         for program in bash sh env cat; do install \"$(realpath \"$(type -P $program)\")\" \"$1/usr/bin/$program\"; done
         ldd \"$1\"/usr/bin/* | grep -o '/[^ :]*' | grep -v \"^$1\" | sort -u |
             while read -r library; do install -D \"$(realpath \"$library\")\" \"$1$library\"; done
         echo 'export SLIME_HOME=/opt/slime PATH=/opt/slime/bin:$PATH' >\"$1/.singularity.d/env/90-environment.sh\"",
        &[image.to_str().expect("text")],
    );
    let data = folder.path().join("data");
    fs::create_dir(&data).and_then(|()| fs::write(data.join("in"), "bound\n")).expect("writable");
    let (image, data) = (image.to_str().expect("text"), data.to_str().expect("text"));
    let inside =
        "cat /data/in && echo $SLIME_HOME ${PATH%%:*} ${SLIME_SEEN-no} ${A-no} && [ ! -e /usr/share ] &&
                  echo out >/data/out && echo lost >/lost && exit 7";
    let bind = format!("{data}:/data");
    let output =
        apptainer(&["exec", "--no-home", "--bind", &bind, "--env", "A=b", image, "bash", "-c", inside]);
    if output.status.code() == Some(69) || text(&output.stderr).contains("unshare failed") {
        return skip("the kernel allows no mounts for the stand-in for Apptainer");
    }
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert_eq!(text(&output.stdout), "bound\n/opt/slime /opt/slime/bin yes b\n");
    assert_eq!(fs::read_to_string(Path::new(data).join("out")).expect("written"), "out\n");
    assert!(!Path::new(image).join("lost").exists());
    let clean = apptainer(&[
        "exec",
        "--cleanenv",
        "--bind",
        &format!("{bind}:ro"),
        image,
        "bash",
        "-c",
        "echo ${SLIME_SEEN-no}; echo x 2>/dev/null >/data/in || echo ro",
    ]);
    assert_eq!(text(&clean.stdout), "no\nro\n", "{clean:?}");

    // A launcher signals the process it started.
    let shim = root().join("tests/cluster/shim/apptainer");
    let wait =
        "trap 'echo drained; exit 5' USR2; echo ready; while :; do read -rt 0.1 _ <>/dev/zero || :; done";
    let driver = "exec 3< <(exec \"$1\" exec \"$2\" bash -c \"$3\"); pid=$!; read -r _ <&3; kill -USR2 \"$pid\"; \
                  read -r said <&3; wait \"$pid\"; echo \"$said $?\"";
    let said = bash(driver, &[shim.to_str().expect("text"), image, wait]);
    assert_eq!(said, "drained 5\n");

    for (wrong, code) in [
        (&["exec", "/no/such/image", "ls"][..], 66),
        (&["exec", "--bind", "/no/such/place:/x", image, "ls"], 66),
        (&["exec", "--frobnicate", image, "ls"], 64),
        (&["build", image, "x.def"], 64),
        (&["exec", image], 64),
    ] {
        let output = apptainer(wrong);
        assert_eq!(output.status.code(), Some(code), "{wrong:?}: {output:?}");
        assert_eq!(text(&output.stderr).lines().count(), 1, "{output:?}");
    }
}

#[test]
#[ignore = "fetches and packs a Debian of 200 MB; bash tests/container.sh"]
fn loop_trains_inside_the_root_filesystem_of_the_container_definitions() {
    let is_root = bash("id -u", &[]).trim() == "0";
    let (debootstrap, mksquashfs, bwrap) = (is_here("debootstrap"), is_here("mksquashfs"), has_bwrap());
    if !(is_root && debootstrap && mksquashfs && bwrap) {
        return skip(&format!(
            "no root filesystem for the loop (root: {is_root}, debootstrap: {debootstrap}, mksquashfs: {mksquashfs}, \
             bwrap: {bwrap})"
        ));
    }
    let output = script("tests/container.sh", &[]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", text(&output.stderr));
    assert!(said.ends_with("container: both runs trained to their end\n"), "{said}");
}
