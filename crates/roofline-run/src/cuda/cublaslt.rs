//! cuBLASLt: products of many rows. Its heuristics name candidates; they are timed on the operands, and the fastest is kept.
//! [`library`](super::library) says why its functions are not `cudarc`'s.
#![allow(unsafe_code)]

use std::{
    ffi::{c_int, c_void},
    ptr,
};

use cudarc::driver::CudaSlice;
use libloading::Library;

use super::{
    gpu::Gpu,
    library::{function, open},
    operand::address,
};
use crate::{Error, Result};

/// Scratch memory that algorithms may take, as PyTorch gives them on Hopper.
const WORKSPACE: usize = 32 << 20;
/// Candidates asked for.
const CANDIDATES: usize = 8;

/// Attributes of a product that say where scales are.
const A_SCALE: c_int = 17;
const B_SCALE: c_int = 18;

/// Element types, numbered as in `library_types.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Type {
    Fp32 = 0,
    Fp64 = 1,
    Fp16 = 2,
    Int8 = 3,
    Int32 = 10,
    Bf16 = 14,
    Fp8 = 28,
    Fp4 = 33,
}

/// What multiplies, numbered as `cublasComputeType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Compute {
    Fp32 = 68,
    Fp64 = 70,
    Int32 = 72,
    Tf32 = 77,
}

/// Scales of FP8 and FP4 operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scales {
    None,
    /// One FP32 number per operand.
    Tensor,
    /// An FP32 number per row of W and per row of x.
    Rows,
    /// An E4M3 number per 16 columns of a row, in tiles of 128 rows and four numbers: `VEC16_UE4M3`.
    Blocks,
}

/// `y[m,n] = x[m,k] W[n,k]^T`, rows of x and W `width` elements apart.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) width: usize,
    pub(super) input: Type,
    pub(super) output: Type,
    pub(super) compute: Compute,
    pub(super) scales: Scales,
}

type Handle = *mut c_void;
type Descriptor = *mut c_void;

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Algorithm {
    data: [u64; 8],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Heuristic {
    algorithm: Algorithm,
    workspace: usize,
    state: c_int,
    waves: f32,
    reserved: [c_int; 4],
}

type Matmul = unsafe extern "C" fn(
    Handle,
    Descriptor,
    *const c_void,
    u64,
    Descriptor,
    u64,
    Descriptor,
    *const c_void,
    u64,
    Descriptor,
    u64,
    Descriptor,
    *const Algorithm,
    u64,
    usize,
    *mut c_void,
) -> c_int;

/// The library, opened.
pub(super) struct Blas {
    handle: Handle,
    workspace: CudaSlice<u8>,
    destroy: unsafe extern "C" fn(Handle) -> c_int,
    describe: unsafe extern "C" fn(*mut Descriptor, c_int, c_int) -> c_int,
    set: unsafe extern "C" fn(Descriptor, c_int, *const c_void, usize) -> c_int,
    forget: unsafe extern "C" fn(Descriptor) -> c_int,
    layout: unsafe extern "C" fn(*mut Descriptor, c_int, u64, u64, i64) -> c_int,
    forget_layout: unsafe extern "C" fn(Descriptor) -> c_int,
    prefer: unsafe extern "C" fn(*mut Descriptor) -> c_int,
    set_preference: unsafe extern "C" fn(Descriptor, c_int, *const c_void, usize) -> c_int,
    forget_preference: unsafe extern "C" fn(Descriptor) -> c_int,
    ask: unsafe extern "C" fn(
        Handle,
        Descriptor,
        Descriptor,
        Descriptor,
        Descriptor,
        Descriptor,
        Descriptor,
        c_int,
        *mut Heuristic,
        *mut c_int,
    ) -> c_int,
    matmul: Matmul,
    version: usize,
    _library: Library,
}

// SAFETY: the library's documentation allows a handle to be used from several threads, and nothing else here changes.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: made by the library, and not used again.
        unsafe {
            (self.destroy)(self.handle);
        }
    }
}

fn refused(what: &str, status: c_int) -> Error {
    let reason = match status {
        3 => "out of memory",
        7 => "invalid value",
        8 => "the GPU lacks what it needs",
        14 => "internal error",
        15 => "not supported",
        _ => "unknown reason",
    };
    Error::Gpu { reason: format!("cuBLASLt: {what}: {reason} (status {status})"), hint: None }
}

fn done(what: &str, status: c_int) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(refused(what, status)) }
}

impl Blas {
    pub(super) fn open(gpu: &Gpu) -> Result<Self> {
        let library = open("cublasLt", "nvidia-cublas")?;
        let create: unsafe extern "C" fn(*mut Handle) -> c_int = function(&library, "cublasLtCreate")?;
        let version: unsafe extern "C" fn() -> usize = function(&library, "cublasLtGetVersion")?;
        let workspace = gpu.memory(WORKSPACE)?;
        let mut handle = ptr::null_mut();
        // SAFETY: a place for a handle; the GPU's context is current on this thread.
        let version = unsafe {
            gpu.context().bind_to_thread().map_err(super::gpu::failed)?;
            done("start", create(&raw mut handle))?;
            version()
        };
        Ok(Self {
            handle,
            workspace,
            destroy: function(&library, "cublasLtDestroy")?,
            describe: function(&library, "cublasLtMatmulDescCreate")?,
            set: function(&library, "cublasLtMatmulDescSetAttribute")?,
            forget: function(&library, "cublasLtMatmulDescDestroy")?,
            layout: function(&library, "cublasLtMatrixLayoutCreate")?,
            forget_layout: function(&library, "cublasLtMatrixLayoutDestroy")?,
            prefer: function(&library, "cublasLtMatmulPreferenceCreate")?,
            set_preference: function(&library, "cublasLtMatmulPreferenceSetAttribute")?,
            forget_preference: function(&library, "cublasLtMatmulPreferenceDestroy")?,
            ask: function(&library, "cublasLtMatmulAlgoGetHeuristic")?,
            matmul: function(&library, "cublasLtMatmul")?,
            version,
            _library: library,
        })
    }

    /// Version in words.
    pub(super) fn version(&self) -> String {
        format!("cuBLASLt {}", self.version)
    }

    /// A product and the algorithms that can do it, best guess first. `scales` are the addresses of W's and x's.
    pub(super) fn product(&self, shape: Shape, scales: [u64; 2]) -> Result<Product<'_>> {
        const TRANSPOSE_A: c_int = 3;
        const FAST_ACCUMULATION: c_int = 25;
        const A_SCALE_MODE: c_int = 31;
        const B_SCALE_MODE: c_int = 32;
        const PER_ROW: c_int = 3;
        const PER_BLOCK: c_int = 1;
        const MAX_WORKSPACE: c_int = 1;
        let scale_type = match shape.compute {
            Compute::Int32 => Type::Int32,
            Compute::Fp64 => Type::Fp64,
            Compute::Fp32 | Compute::Tf32 => Type::Fp32,
        };
        let descriptors = [ptr::null_mut(); 4];
        let mut product = Product { blas: self, shape, descriptors, candidates: Vec::new(), factor: 1.0 };
        // SAFETY: descriptors are made before they are used and freed by `Product`; attributes have the sizes that the
        // library's header gives them.
        unsafe {
            let [operation, a, b, d] = &mut product.descriptors;
            done("describe", (self.describe)(operation, shape.compute as c_int, scale_type as c_int))?;
            let set = |which: c_int, value: &c_int| {
                done("attribute", (self.set)(*operation, which, ptr::from_ref(value).cast(), 4))
            };
            let point = |which: c_int, value: &u64| {
                done("attribute", (self.set)(*operation, which, ptr::from_ref(value).cast(), 8))
            };
            // Column-major: y^T = (W^T)^T x^T, with W and x as they lie.
            set(TRANSPOSE_A, &1)?;
            if shape.scales != Scales::None {
                let mode = match shape.scales {
                    Scales::Rows => Some(PER_ROW),
                    Scales::Blocks => Some(PER_BLOCK),
                    Scales::None | Scales::Tensor => None,
                };
                if shape.input == Type::Fp8 {
                    let on: i8 = 1;
                    done("attribute", (self.set)(*operation, FAST_ACCUMULATION, ptr::from_ref(&on).cast(), 1))?;
                }
                if let Some(mode) = mode {
                    set(A_SCALE_MODE, &mode)?;
                    set(B_SCALE_MODE, &mode)?;
                }
                point(A_SCALE, &scales[0])?;
                point(B_SCALE, &scales[1])?;
            }
            let (m, n, k) = (shape.m as u64, shape.n as u64, shape.k as u64);
            done("layout", (self.layout)(a, shape.input as c_int, k, n, shape.width as i64))?;
            done("layout", (self.layout)(b, shape.input as c_int, k, m, shape.width as i64))?;
            done("layout", (self.layout)(d, shape.output as c_int, n, m, shape.n as i64))?;
            let mut preference = ptr::null_mut();
            done("preference", (self.prefer)(&raw mut preference))?;
            let bytes = WORKSPACE;
            let asked =
                done("preference", (self.set_preference)(preference, MAX_WORKSPACE, ptr::from_ref(&bytes).cast(), 8));
            let mut found = [Heuristic::default(); CANDIDATES];
            let mut count = 0;
            let [operation, a, b, d] = product.descriptors;
            let status = (self.ask)(
                self.handle,
                operation,
                a,
                b,
                d,
                d,
                preference,
                CANDIDATES as c_int,
                found.as_mut_ptr(),
                &raw mut count,
            );
            (self.forget_preference)(preference);
            asked?;
            if status != 0 || count == 0 {
                let words = format!("no algorithm for {shape:?}");
                return Err(if status == 0 { refused(&words, 15) } else { refused(&words, status) });
            }
            product.candidates =
                found[..count as usize].iter().filter(|found| found.state == 0).map(|found| found.algorithm).collect();
            if product.candidates.is_empty() {
                return Err(refused(&format!("no algorithm for {shape:?}"), 15));
            }
        }
        Ok(product)
    }
}

/// A product, described.
pub(super) struct Product<'a> {
    blas: &'a Blas,
    shape: Shape,
    /// The operation, W, x and y.
    descriptors: [Descriptor; 4],
    pub(super) candidates: Vec<Algorithm>,
    /// What every sum is multiplied by: scales that there are once per operand.
    pub(super) factor: f32,
}

impl Drop for Product<'_> {
    fn drop(&mut self) {
        let [operation, layouts @ ..] = self.descriptors;
        // SAFETY: made by the library, freed once; those that were never made are null.
        unsafe {
            if !operation.is_null() {
                (self.blas.forget)(operation);
            }
            for layout in layouts.into_iter().filter(|layout| !layout.is_null()) {
                (self.blas.forget_layout)(layout);
            }
        }
    }
}

impl Product<'_> {
    /// From now on multiplies with the scales at these addresses, of W and of x.
    pub(super) fn rescale(&self, scales: [u64; 2]) -> Result<()> {
        for (which, scales) in [A_SCALE, B_SCALE].into_iter().zip(&scales) {
            // SAFETY: an attribute of eight bytes; the descriptor is the product's own.
            let status = unsafe { (self.blas.set)(self.descriptors[0], which, ptr::from_ref(scales).cast(), 8) };
            done("attribute", status)?;
        }
        Ok(())
    }

    /// Asks for the product of operands at these addresses.
    pub(super) fn enqueue(&self, gpu: &Gpu, algorithm: &Algorithm, w: u64, x: u64, y: u64) -> Result<()> {
        let [operation, a, b, d] = self.descriptors;
        let (float, integer, double) = ([self.factor, 0.0], [1i32, 0], [1.0f64, 0.0]);
        let (one, zero): (*const c_void, *const c_void) = match self.shape.compute {
            Compute::Int32 => (ptr::from_ref(&integer[0]).cast(), ptr::from_ref(&integer[1]).cast()),
            Compute::Fp64 => (ptr::from_ref(&double[0]).cast(), ptr::from_ref(&double[1]).cast()),
            Compute::Fp32 | Compute::Tf32 => (ptr::from_ref(&float[0]).cast(), ptr::from_ref(&float[1]).cast()),
        };
        let workspace = address(gpu, &self.blas.workspace);
        // SAFETY: the operands have the sizes that the layouts say, and live until the stream has been waited for.
        let status = unsafe {
            (self.blas.matmul)(
                self.blas.handle,
                operation,
                one,
                w,
                a,
                x,
                b,
                zero,
                y,
                d,
                y,
                d,
                algorithm,
                workspace,
                WORKSPACE,
                gpu.stream().cu_stream().cast(),
            )
        };
        done("product", status)
    }
}
