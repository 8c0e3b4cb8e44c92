//! Compiles the MPI plug-in with the site's `mpicc`, where there is one; the crate itself never links MPI.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=mpi_plugin.c");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=SLIME_MPICC");
    let Some(out) = std::env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    let plugin = out.join("libslime_mpi.so");
    let mpicc = std::env::var("SLIME_MPICC").unwrap_or_else(|_| "mpicc".into());
    let built = Command::new(&mpicc)
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o"])
        .arg(&plugin)
        // An installed tree may carry its own Open MPI; mpicc adds the path of its own after this one.
        .arg("-Wl,-rpath,$ORIGIN/openmpi/lib")
        .arg("mpi_plugin.c")
        .status();
    match built {
        Ok(status) if status.success() => {
            println!("cargo:rustc-env=SLIME_MPI_PLUGIN_BUILT={}", plugin.display());
            copy_beside_binaries(&out, &plugin);
        }
        Ok(status) => {
            println!("cargo:warning={mpicc} could not build the MPI plug-in ({status}); one rank only");
        }
        Err(e) => println!("cargo:warning={mpicc} did not start ({e}); no MPI plug-in, one rank only"),
    }
}

/// `OUT_DIR` is `target/<profile>/build/<crate>-<hash>/out`; the binaries lie three levels up.
fn copy_beside_binaries(out: &Path, plugin: &Path) {
    let Some(profile) = out.ancestors().nth(3) else { return };
    let name = "libslime_mpi.so";
    let temporary = profile.join(format!(".{name}.new"));
    // Renamed into place, so a process that has the old one mapped keeps it whole.
    let copied =
        std::fs::copy(plugin, &temporary).and_then(|_| std::fs::rename(&temporary, profile.join(name)));
    if let Err(e) = copied {
        println!("cargo:warning=the MPI plug-in could not be copied to {}: {e}", profile.display());
    }
}
