//! Lets the binaries find the libraries of an installed tree (`bin/` beside `lib/`) wherever it is moved to.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Before the absolute path of .cargo/config.toml, which holds only on the machine that built.
    println!("cargo:rustc-link-arg-bins=-Wl,-rpath,$ORIGIN/../lib");
}
