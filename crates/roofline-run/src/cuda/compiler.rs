//! NVRTC: kernels from their source, for the GPU that is there. The few functions it takes are the same in CUDA 12 and 13;
//! [`library`](super::library) says why they are not `cudarc`'s.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fmt, ptr,
};

use libloading::Library;

use super::library::{function, headers, open};
use crate::{Error, Result, own::CudaKernel};

/// Compute capability, such as 9.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    /// Generation.
    pub major: u32,
    /// Variant.
    pub minor: u32,
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.major, self.minor)
    }
}

/// Lines of a compiler's log that are shown, and letters of each.
const LOG: usize = 60;
const LINE: usize = 200;

type Program = *mut c_void;
type Strings = *const *const c_char;

/// The compiler, opened.
pub struct Compiler {
    create: unsafe extern "C" fn(*mut Program, *const c_char, *const c_char, c_int, Strings, Strings) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, Strings) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    log_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    cubin_size: unsafe extern "C" fn(Program, *mut usize) -> c_int,
    cubin: unsafe extern "C" fn(Program, *mut c_char) -> c_int,
    version: (c_int, c_int),
    /// Keeps the functions alive.
    _library: Library,
}

impl Compiler {
    /// Opens NVRTC, wherever it is.
    pub fn open() -> Result<Self> {
        let library = open("nvrtc", "nvidia-cuda-nvrtc")?;
        let ask: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int = function(&library, "nvrtcVersion")?;
        let mut version = (0, 0);
        // SAFETY: both are places for an integer.
        #[allow(unsafe_code)]
        let code = unsafe { ask(&raw mut version.0, &raw mut version.1) };
        if code != 0 {
            return Err(Error::Gpu { reason: format!("NVRTC does not say its version (code {code})"), hint: None });
        }
        Ok(Self {
            create: function(&library, "nvrtcCreateProgram")?,
            compile: function(&library, "nvrtcCompileProgram")?,
            destroy: function(&library, "nvrtcDestroyProgram")?,
            log_size: function(&library, "nvrtcGetProgramLogSize")?,
            log: function(&library, "nvrtcGetProgramLog")?,
            cubin_size: function(&library, "nvrtcGetCUBINSize")?,
            cubin: function(&library, "nvrtcGetCUBIN")?,
            version,
            _library: library,
        })
    }

    /// Version in words.
    pub fn version(&self) -> String {
        format!("NVRTC {}.{}", self.version.0, self.version.1)
    }

    /// Machine code of `source` for `architecture`, with macros `defines`.
    pub fn compile(&self, source: &str, defines: &[(&str, i64)], architecture: Architecture) -> Result<Vec<u8>> {
        let options: Vec<String> = defines.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
        self.translate("kernel.cu", source, &options, architecture).map_err(|log| {
            let first = log.lines().find(|line| line.contains("error")).unwrap_or(&log).to_owned();
            failed(&format!("sm_{architecture} with {}", self.version()), &first)
        })
    }

    /// Machine code of somebody's kernel, or what is wrong with it in the compiler's words.
    pub fn compile_own(&self, kernel: &CudaKernel, architecture: Architecture) -> Result<Vec<u8>> {
        let mut options: Vec<String> = kernel.defines.iter().map(|(name, value)| format!("-D{name}={value}")).collect();
        let own = kernel.folder.iter().cloned();
        options.extend(own.chain(headers()).map(|folder| format!("--include-path={}", folder.display())));
        self.translate(&format!("{}.cu", kernel.entry), &kernel.text(), &options, architecture).map_err(|log| {
            let lines: Vec<&str> = log.lines().take(LOG).collect();
            Error::Compile {
                kernel: kernel.name.clone(),
                target: format!("sm_{architecture} with {}", self.version()),
                log: lines.join("\n").chars().take(LOG * LINE).collect(),
            }
        })
    }

    /// Machine code, or the compiler's log.
    #[allow(unsafe_code)]
    fn translate(
        &self,
        name: &str,
        source: &str,
        options: &[String],
        architecture: Architecture,
    ) -> std::result::Result<Vec<u8>, String> {
        let text = |text: &str| CString::new(text).map_err(|_| "the text or an option has a zero byte".to_owned());
        let (name, source) = (text(name)?, text(source)?);
        // Hopper's own instructions are for it alone, and so is all that is compiled here.
        let own = if architecture == (Architecture { major: 9, minor: 0 }) { "a" } else { "" };
        let mut all = vec![text(&format!("--gpu-architecture=sm_{architecture}{own}"))?, text("--std=c++17")?];
        for option in options {
            all.push(text(option)?);
        }
        let options: Vec<*const c_char> = all.iter().map(|option| option.as_ptr()).collect();
        let mut program: Program = ptr::null_mut();
        // SAFETY: all strings end in zero and outlive the calls; sizes are asked before buffers are made.
        unsafe {
            if (self.create)(&raw mut program, source.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()) != 0 {
                return Err("it could not take the source".to_owned());
            }
            let code = (self.compile)(program, options.len() as c_int, options.as_ptr());
            let result = if code == 0 {
                let mut size = 0;
                let _ = (self.cubin_size)(program, &raw mut size);
                let mut cubin = vec![0u8; size];
                match size {
                    0 => Err("it made no machine code".to_owned()),
                    _ if (self.cubin)(program, cubin.as_mut_ptr().cast()) == 0 => Ok(cubin),
                    _ => Err("its machine code could not be read".to_owned()),
                }
            } else {
                let mut size = 0;
                let _ = (self.log_size)(program, &raw mut size);
                let mut log = vec![0u8; size.max(1)];
                let _ = (self.log)(program, log.as_mut_ptr().cast());
                let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy).unwrap_or_default();
                Err(if log.trim().is_empty() { "no reason given".to_owned() } else { log.trim_end().to_owned() })
            };
            let _ = (self.destroy)(&raw mut program);
            result
        }
    }
}

fn failed(what: &str, reason: &str) -> Error {
    Error::Gpu {
        reason: format!("a kernel does not compile for {what}: {reason}"),
        hint: Some("an NVRTC as new as the GPU is needed: `pip install --upgrade nvidia-cuda-nvrtc`".to_owned()),
    }
}
