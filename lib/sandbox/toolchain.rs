//! Interpreters and compilers of this machine: where they are and which folders they read.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// A found program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The program itself, behind links and wrappers of version managers.
    pub path: PathBuf,
    /// Folders it reads.
    pub roots: Vec<PathBuf>,
}

/// What code in one language needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolchain {
    /// The programs, in the order they were asked for.
    pub programs: Vec<Program>,
}

impl Toolchain {
    /// Finds programs by name on `PATH`.
    ///
    /// # Errors
    /// [`Error::MissingProgram`], and what a program says that cannot be asked for its folders.
    pub fn find(language: &str, names: &[&str]) -> Result<Self> {
        let find = |name: &&str| {
            let missing =
                || Error::MissingProgram { program: (*name).to_owned(), language: language.to_owned() };
            let path = on_path(name).ok_or_else(missing)?;
            match *name {
                "python3" => python(&path),
                "rustc" => rustc(&path),
                _ => plain(&path),
            }
        };
        Ok(Self { programs: names.iter().map(find).collect::<Result<_>>()? })
    }

    /// All folders that the programs read, with those their libraries are looked for in.
    pub(crate) fn roots(&self) -> Vec<PathBuf> {
        let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let libraries = std::env::split_paths(&libraries).filter(|path| path.is_absolute());
        self.programs.iter().flat_map(|program| program.roots.clone()).chain(libraries).collect()
    }

    /// The environment of their cases: nothing of the tool's but where libraries are.
    pub(crate) fn environment(&self, work: &Path) -> Vec<String> {
        let folders = self.programs.iter().filter_map(|program| program.path.parent());
        let path = folders.map(|folder| folder.display().to_string());
        let path: Vec<String> = path.chain(["/usr/local/bin:/usr/bin:/bin".to_owned()]).collect();
        let work = work.display();
        let mut env = vec![
            format!("PATH={}", path.join(":")),
            format!("HOME={work}"),
            format!("TMPDIR={work}"),
            "LANG=C.UTF-8".to_owned(),
            // The order of sets is part of a program's output: the same one every time.
            "PYTHONHASHSEED=0".to_owned(),
        ];
        env.extend(std::env::var("LD_LIBRARY_PATH").map(|libraries| format!("LD_LIBRARY_PATH={libraries}")));
        env
    }
}

/// The first executable file with this name on `PATH`.
fn on_path(name: &str) -> Option<PathBuf> {
    let is_executable =
        |path: &PathBuf| path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok();
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(is_executable)
}

fn plain(path: &Path) -> Result<Program> {
    let path = real(path)?;
    // PREFIX/bin/program reads below PREFIX.
    let prefix = path.parent().filter(|folder| folder.ends_with("bin")).and_then(Path::parent);
    let root = prefix.or_else(|| path.parent()).unwrap_or(&path).to_owned();
    Ok(Program { path, roots: vec![root] })
}

/// Asks Python, since virtual environments and version managers put others in front of it.
fn python(path: &Path) -> Result<Program> {
    const QUESTION: &str = "import sys; print('\\n'.join([sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix] \
                            + [path for path in sys.path if path]))";
    let answer = ask(path, &["-c", QUESTION])?;
    let mut lines = answer.lines().map(PathBuf::from);
    let path = lines.next().filter(|path| path.is_file()).ok_or_else(|| Error::Toolchain {
        program: path.display().to_string(),
        problem: format!("expected the path of its interpreter, got {answer:?}"),
    })?;
    let behind = real(&path)?;
    let mut roots: Vec<PathBuf> = lines.filter(|path| path.is_absolute() && path.exists()).collect();
    roots.extend(behind.parent().and_then(Path::parent).map(Path::to_owned));
    roots.sort();
    roots.dedup();
    // A folder inside another root is shown with it.
    let all = roots.clone();
    roots.retain(|root| !all.iter().any(|other| other != root && root.starts_with(other)));
    Ok(Program { path, roots })
}

/// Asks rustc, since rustup puts another program in front of it.
fn rustc(path: &Path) -> Result<Program> {
    let sysroot = PathBuf::from(ask(path, &["--print", "sysroot"])?.trim());
    let real = sysroot.join("bin/rustc");
    let path = if real.is_file() { real } else { path.to_owned() };
    Ok(Program { path, roots: vec![sysroot] })
}

fn real(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .map_err(|error| Error::Toolchain { program: path.display().to_string(), problem: error.to_string() })
}

fn ask(path: &Path, arguments: &[&str]) -> Result<String> {
    let program = || path.display().to_string();
    let output = Command::new(path)
        .args(arguments)
        .stdin(Stdio::null())
        .current_dir("/")
        .output()
        .map_err(|error| Error::Toolchain { program: program(), problem: error.to_string() })?;
    if !output.status.success() {
        let problem = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(Error::Toolchain { program: program(), problem });
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_program_is_named_with_its_language() {
        let error = Toolchain::find("cobol", &["no-such-compiler"]).unwrap_err();
        assert_eq!(error.exit_code(), 69);
        assert!(
            error.to_string().starts_with("no-such-compiler is not installed, and code in cobol needs it")
        );
    }

    #[test]
    fn program_is_the_one_behind_links() {
        let shell = Toolchain::find("bash", &["sh"]).unwrap();
        assert!(shell.programs[0].path.is_absolute() && !shell.programs[0].path.is_symlink());
        let env = shell.environment(Path::new("/work"));
        assert!(env.contains(&"HOME=/work".to_owned()) && env.iter().all(|line| !line.starts_with("CARGO")));
    }
}
