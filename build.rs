//! Lets the binaries find the libraries of an installed tree (`bin/` beside `lib/`) wherever it is moved to.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Beside the absolute path of .cargo/config.toml, which install.sh takes out: it holds only where it was built.
    println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
}
