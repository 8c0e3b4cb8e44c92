//! Compiles the C++ shim against the headers and libraries that `LIBTORCH` names.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=shim.cc");
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    let Ok(root) = env::var("LIBTORCH") else {
        println!("cargo:warning=LIBTORCH is not set; run modules/bootstrap.sh");
        return;
    };
    let root = Path::new(&root);
    let include = root.join("include");
    cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .file("shim.cc")
        .flag("-isystem")
        .flag(include.to_string_lossy().as_ref())
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").to_string_lossy().as_ref())
        .flag("-fno-math-errno")
        .flag("-fopenmp")
        .flag_if_supported("-fvisibility=hidden")
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .compile("slime_torch_shim");
    println!("cargo:rustc-link-search=native={}", root.join("lib").display());
    println!("cargo:rustc-link-lib=torch_cpu");
    println!("cargo:rustc-link-lib=c10");
    // at::parallel_for is a header template over OpenMP; libtorch has loaded the same libgomp already.
    println!("cargo:rustc-link-lib=gomp");
}
