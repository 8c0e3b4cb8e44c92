//! Kernels from source to machine code: NVRTC, which needs no GPU.
#![expect(unsafe_code, reason = "calls into the CUDA compiler")]

use std::ffi::{CString, c_char};

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::{result, sys};

use crate::{Error, Result};

/// A kernel's source with the numbers it is specialised to.
#[derive(Debug, Clone, Copy)]
pub struct Program<'a> {
    /// File name, for messages.
    pub name: &'a str,
    /// CUDA C++ that includes nothing.
    pub source: &'a str,
    /// Macros, name and value.
    pub defines: &'a [(&'a str, i64)],
}

impl Program<'_> {
    /// The compiler's options for `arch`.
    pub(crate) fn options(&self, arch: &str) -> Vec<String> {
        let mut options = vec![format!("--gpu-architecture={arch}"), "--std=c++17".to_owned()];
        options.extend(self.defines.iter().map(|(name, value)| format!("--define-macro={name}={value}")));
        options
    }
}

/// Machine code (a cubin) of `program` for `arch`, such as `sm_90`.
///
/// # Errors
/// There is no compiler, or it refuses the source: its log is in the error.
pub fn compile(program: &Program<'_>, arch: &str) -> Result<Vec<u8>> {
    // SAFETY: the compiler's library is made to be opened at run time.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoCompiler);
    }
    let text = |what, text: &str| CString::new(text).map_err(|_| Error::Text { what });
    let (source, name) = (text("a kernel's source", program.source)?, text("a kernel's name", program.name)?);
    let compiled = Compiled(checked("nvrtcCreateProgram", result::create_program(&source, Some(&name)))?);
    // SAFETY: the program was just created.
    if let Err(error) = unsafe { result::compile_program(compiled.0, &program.options(arch)) } {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(compiled.0) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|&byte| byte as u8).take_while(|&byte| byte != 0).collect();
        let log = format!("{error}: {}", String::from_utf8_lossy(&log).trim());
        return Err(Error::Compile { program: program.name.to_owned(), arch: arch.to_owned(), log });
    }
    let mut len = 0;
    // SAFETY: writes a number about a compiled program.
    checked("nvrtcGetCUBINSize", unsafe { sys::nvrtcGetCUBINSize(compiled.0, &raw mut len) }.result())?;
    let mut cubin = vec![0u8; len];
    // SAFETY: the buffer has the length that the compiler asked for.
    let code = unsafe { sys::nvrtcGetCUBIN(compiled.0, cubin.as_mut_ptr().cast::<c_char>()) };
    checked("nvrtcGetCUBIN", code.result())?;
    Ok(cubin)
}

fn checked<T>(call: &'static str, result: std::result::Result<T, NvrtcError>) -> Result<T> {
    result.map_err(|error| Error::Call { call, name: format!("{:?}", error.0), code: error.0 as u32 })
}

/// A program of the compiler, given back at its end.
struct Compiled(sys::nvrtcProgram);

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: created once and destroyed once; nothing can be done about a refusal.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_source_is_told_with_the_compilers_words() {
        let program = Program { name: "broken.cu", source: "__global__ void f( {}", defines: &[] };
        match compile(&program, "sm_90") {
            Err(Error::NoCompiler) => eprintln!("skipped: no libnvrtc.so"),
            Err(Error::Compile { program, log, .. }) => {
                assert!(program == "broken.cu" && log.contains("error"), "{log}");
            }
            other => panic!("{other:?}"),
        }
    }
}
