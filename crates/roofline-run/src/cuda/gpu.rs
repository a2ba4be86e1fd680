//! One GPU: its context, its memory and the kernels loaded on it.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

use cudarc::{
    driver::{
        CudaContext, CudaFunction, CudaSlice, CudaStream, DriverError,
        sys::{self, CUdevice_attribute, CUfunction_attribute, CUresult},
    },
    nvrtc::Ptx,
};
use roofline_core::{hash::fnv1a, units::Bytes};

use super::{
    compiler::{Architecture, Compiler},
    cublaslt::Blas,
    gemm_packed::OLDEST,
};
use crate::{Error, Result, own::CudaKernel, telemetry};

/// Oldest driver interface that has everything used here: CUDA 12.0, drivers from 525 on.
const OLDEST_DRIVER: i32 = 12_000;
/// What a block may have of shared memory without asking.
const PLAIN_SHARED: u32 = 48 * 1024;

/// A kernel's source, function and macros.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    /// Text of the program, common part included.
    pub source: &'static str,
    /// The function's name.
    pub function: &'static str,
    /// Macros and their values.
    pub defines: Vec<(&'static str, i64)>,
    /// Dynamic shared memory that launches will ask for.
    pub shared: u32,
}

impl Recipe {
    /// Whether blocks share memory, which takes an architecture of generation 9.
    pub fn needs_clusters(&self) -> bool {
        self.has("SPLIT", 2) || self.has("CLUSTER", 2)
    }

    /// Whether it is for an architecture at all: some ask for clusters, for Hopper's own instructions, or for mma.
    pub fn is_for(&self, architecture: Architecture) -> bool {
        let Architecture { major, minor } = architecture;
        (!self.needs_clusters() || major >= 9)
            && (!self.has("GROUPS", 1) || (major, minor) == (9, 0))
            && (!self.has("TILED", 1) || architecture >= OLDEST)
    }

    fn has(&self, macro_name: &str, least: i64) -> bool {
        self.defines.iter().any(|(name, value)| *name == macro_name && *value >= least)
    }
}

/// A GPU, ready to run kernels.
pub struct Gpu {
    /// As the driver names it.
    pub name: String,
    /// Compute capability.
    pub architecture: Architecture,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Second-level cache.
    pub l2: Bytes,
    /// The driver's interface, such as 13.0.
    pub driver: String,
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    compiler: OnceLock<Compiler>,
    blas: OnceLock<Blas>,
    loaded: Mutex<HashMap<Recipe, CudaFunction>>,
    /// Folder for compiled kernels; none keeps them in memory only.
    cache: Option<PathBuf>,
}

/// Whether there is a driver and a GPU. Makes no context on it.
pub fn present() -> bool {
    // SAFETY: this only tries to open the driver's library.
    #[allow(unsafe_code)]
    let driver = unsafe { sys::is_culib_present() };
    driver && CudaContext::device_count().is_ok_and(|count| count > 0)
}

impl Gpu {
    /// GPU number `index`, with compiled kernels kept in `cache`.
    pub fn open(index: usize, cache: Option<PathBuf>) -> Result<Self> {
        // SAFETY: this only tries to open the driver's library.
        #[allow(unsafe_code)]
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Gpu {
                reason: "there is no NVIDIA driver on this machine (libcuda.so.1)".to_owned(),
                hint: Some(
                    "on a machine with an NVIDIA GPU install its driver; `⟨backend cpu⟩` measures the processor".into(),
                ),
            });
        }
        let start = |error: DriverError| Error::Gpu {
            reason: format!("the NVIDIA driver does not start: {}", words(error)),
            hint: Some(
                "`nvidia-smi` should list the GPU; in a container pass it in, for instance by `--gpus all`".into(),
            ),
        };
        let count = CudaContext::device_count().map_err(start)?;
        if index >= count as usize {
            let reason = format!("there is no GPU {index}: the driver has {count}");
            return Err(Error::Gpu {
                reason,
                hint: Some("`nvidia-smi -L` lists them; CUDA_VISIBLE_DEVICES hides some".into()),
            });
        }
        let mut version = 0;
        // SAFETY: a place for an integer.
        #[allow(unsafe_code)]
        let asked = unsafe { sys::cuDriverGetVersion(&raw mut version) };
        if asked != CUresult::CUDA_SUCCESS || version < OLDEST_DRIVER {
            return Err(Error::Gpu {
                reason: format!(
                    "the driver speaks CUDA {}.{}, and 12.0 is the oldest that is used",
                    version / 1000,
                    version % 1000 / 10
                ),
                hint: Some("update the NVIDIA driver to 525 or newer (JetPack 6 on Jetson)".into()),
            });
        }
        let context =
            CudaContext::new(index).map_err(|error| if full(error) { failed(error) } else { start(error) })?;
        // SAFETY: one stream is used, so there is nothing to order between streams.
        #[allow(unsafe_code)]
        unsafe {
            context.disable_event_tracking();
        }
        let attribute = |which| context.attribute(which).map_err(failed);
        let architecture = Architecture {
            major: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32,
            minor: attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32,
        };
        let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32;
        let l2 = Bytes::new(f64::from(attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?));
        let name = context.name().map_err(failed)?;
        let stream = context.new_stream().map_err(failed)?;
        let driver = format!("{}.{}", version / 1000, version % 1000 / 10);
        let (compiler, blas, loaded) = (OnceLock::new(), OnceLock::new(), Mutex::default());
        Ok(Self { name, architecture, multiprocessors, l2, driver, context, stream, compiler, blas, loaded, cache })
    }

    /// What it is and which software drives it.
    pub fn facts(&self) -> Vec<(String, String)> {
        let fact = |name: &str, value: String| (name.to_owned(), value);
        let Architecture { major, minor } = self.architecture;
        let mut all = vec![
            fact("GPU", self.name.clone()),
            fact("compute capability", format!("{major}.{minor}")),
            fact("multiprocessors", self.multiprocessors.to_string()),
            fact("L2 cache", format!("{:.0} MiB", self.l2.value() / 1024.0 / 1024.0)),
            fact("driver", format!("CUDA {}", self.driver)),
        ];
        if let Ok(gpu) = self.telemetry() {
            let status = telemetry::Status::read(&gpu);
            all.extend(status.driver_version.map(|version| fact("driver version", version)));
            all.extend(status.power_limit.map(|limit| fact("power limit", limit.to_string())));
        }
        all.extend(self.compiler().ok().map(|compiler| fact("compiler", compiler.version())));
        all.extend(self.blas().ok().map(|blas| fact("library", blas.version())));
        all
    }

    /// The same GPU as its driver's monitoring library knows it.
    pub fn telemetry(&self) -> Result<telemetry::Gpu> {
        let attribute = |which| self.context.attribute(which).map_err(failed);
        let domain = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let slot = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        telemetry::Gpu::at(&format!("{domain:04x}:{bus:02x}:{slot:02x}.0"))
    }

    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    pub(super) fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// Why nothing runs on it any more, where that is so.
    pub(super) fn lost(&self) -> Option<Error> {
        match self.wait() {
            Ok(()) => None,
            Err(Error::Gpu { reason, .. }) => Some(Error::GpuLost { reason }),
            Err(error) => Some(error),
        }
    }

    /// Memory that nobody has taken.
    pub fn free(&self) -> Result<Bytes> {
        // What was dropped is given back when the stream is waited for.
        self.wait()?;
        let (free, _) = self.context.mem_get_info().map_err(failed)?;
        Ok(Bytes::new(free as f64))
    }

    /// Memory whose contents are whatever was there.
    pub(super) fn memory(&self, bytes: usize) -> Result<CudaSlice<u8>> {
        // SAFETY: bytes of any value are bytes, and all are written before they are read.
        #[allow(unsafe_code)]
        let taken = unsafe { self.stream.alloc::<u8>(bytes.max(256)) };
        taken.map_err(|error| self.short(error, bytes))
    }

    fn short(&self, error: DriverError, bytes: usize) -> Error {
        if full(error) {
            return self.shortage(Bytes::new(bytes as f64), self.free().unwrap_or(Bytes::ZERO));
        }
        failed(error)
    }

    /// That `needed` is more than what is `free`, and who has the rest.
    pub(super) fn shortage(&self, needed: Bytes, free: Bytes) -> Error {
        let source = self.telemetry().ok();
        let source = source.as_ref().map(|gpu| gpu as &dyn telemetry::Source);
        Error::GpuMemory(telemetry::Shortage::new(needed, free, source))
    }

    /// A copy of `bytes` on the GPU.
    pub(super) fn upload(&self, bytes: &[u8]) -> Result<CudaSlice<u8>> {
        let mut memory = self.memory(bytes.len())?;
        self.stream.memcpy_htod(bytes, &mut memory.slice_mut(..bytes.len())).map_err(failed)?;
        Ok(memory)
    }

    /// Until everything that was asked for is done.
    pub fn wait(&self) -> Result<()> {
        self.stream.synchronize().map_err(failed)
    }

    /// NVRTC's name and version.
    pub fn compiler(&self) -> Result<&Compiler> {
        if let Some(compiler) = self.compiler.get() {
            return Ok(compiler);
        }
        let compiler = Compiler::open()?;
        Ok(self.compiler.get_or_init(|| compiler))
    }

    /// Bytes of shared memory that a block may have.
    pub(super) fn block_shared(&self) -> Result<u32> {
        let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
        Ok(self.context.attribute(most).map_err(failed)? as u32)
    }

    pub(super) fn blas(&self) -> Result<&Blas> {
        if let Some(blas) = self.blas.get() {
            return Ok(blas);
        }
        let blas = Blas::open(self)?;
        Ok(self.blas.get_or_init(|| blas))
    }

    /// The functions of several recipes, those that are not in the cache compiled side by side.
    pub(super) fn functions(&self, recipes: &[Recipe]) -> Result<Vec<CudaFunction>> {
        let missing: Vec<&Recipe> = recipes.iter().filter(|recipe| !self.loaded().contains_key(*recipe)).collect();
        if !missing.is_empty() {
            let compiler = self.compiler()?;
            let (cache, architecture) = (self.cache.as_deref(), self.architecture);
            let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get).min(missing.len());
            let share = missing.len().div_ceil(workers);
            let made = thread::scope(|scope| {
                let run = |part: &[&Recipe]| {
                    part.iter().map(|recipe| machine_code(compiler, recipe, architecture, cache)).collect::<Vec<_>>()
                };
                let handles: Vec<_> = missing.chunks(share).map(|part| scope.spawn(move || run(part))).collect();
                let join = |handle: thread::ScopedJoinHandle<'_, Vec<Result<Vec<u8>>>>| {
                    handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
                };
                handles.into_iter().flat_map(join).collect::<Vec<_>>()
            });
            for (recipe, code) in missing.iter().zip(made) {
                let function = self.load(recipe, code?)?;
                self.loaded().insert((*recipe).clone(), function);
            }
        }
        let loaded = self.loaded();
        Ok(recipes.iter().map(|recipe| loaded[recipe].clone()).collect())
    }

    fn loaded(&self) -> MutexGuard<'_, HashMap<Recipe, CudaFunction>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn function(&self, recipe: &Recipe) -> Result<CudaFunction> {
        self.functions(std::slice::from_ref(recipe)).map(|mut all| all.remove(0))
    }

    /// Somebody's kernel, compiled and loaded; refused where a block of it cannot run here.
    pub(super) fn own(&self, kernel: &CudaKernel) -> Result<CudaFunction> {
        let code = self.compiler()?.compile_own(kernel, self.architecture)?;
        let entry = &kernel.entry;
        let refused =
            |reason: String| Error::Gpu { reason, hint: Some("change the kernel or its manifest".to_owned()) };
        let module = self.context.load_module(Ptx::from_binary(code)).map_err(|error| refused(words(error)))?;
        let function = module.load_function(entry).map_err(|_| {
            refused(format!("there is no function `{entry}` in the machine code: declare it extern \"C\" __global__"))
        })?;
        let threads: u32 = kernel.block.iter().product();
        let most = function.max_threads_per_block().map_err(failed)? as u32;
        if threads > most {
            return Err(refused(format!(
                "a block of {threads} threads is more than the {most} that `{entry}` has registers for"
            )));
        }
        let fixed = function.shared_size_bytes().map_err(failed)? as u32;
        let room = self.block_shared()?;
        if fixed + kernel.shared > room {
            let all = fixed + kernel.shared;
            return Err(refused(format!("a block of `{entry}` shares {all} bytes, and this GPU has {room} for one")));
        }
        if fixed + kernel.shared > PLAIN_SHARED {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, kernel.shared as i32).map_err(failed)?;
        }
        Ok(function)
    }

    fn load(&self, recipe: &Recipe, code: Vec<u8>) -> Result<CudaFunction> {
        let refused = |error: DriverError| Error::Gpu {
            reason: format!("the driver does not take the kernel `{}`: {}", recipe.function, words(error)),
            hint: Some(
                "an NVRTC newer than the driver makes code it cannot read: take one of the driver's own major version"
                    .into(),
            ),
        };
        let module = self.context.load_module(Ptx::from_binary(code)).map_err(refused)?;
        let function = module.load_function(recipe.function).map_err(refused)?;
        if recipe.shared > 0 {
            let fixed = function.shared_size_bytes().map_err(failed)? as u32;
            if fixed + recipe.shared > PLAIN_SHARED {
                let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                function.set_attribute(attribute, recipe.shared as i32).map_err(failed)?;
            }
        }
        Ok(function)
    }
}

/// From the cache, or compiled and put there.
fn machine_code(
    compiler: &Compiler,
    recipe: &Recipe,
    architecture: Architecture,
    cache: Option<&Path>,
) -> Result<Vec<u8>> {
    let defines = format!("{:?}", recipe.defines);
    let key = [recipe.source, &defines, &compiler.version()].map(|text| fnv1a(text.as_bytes()));
    let place = cache.map(|folder| {
        folder.join(format!(
            "{}-sm_{architecture}-{:016x}{:016x}.cubin",
            recipe.function,
            key[0] ^ key[2].rotate_left(17),
            key[1]
        ))
    });
    if let Some(code) =
        place.as_ref().and_then(|place| fs::read(place).ok()).filter(|code| code.starts_with(b"\x7fELF"))
    {
        return Ok(code);
    }
    let code = compiler.compile(recipe.source, &recipe.defines, architecture)?;
    if let Some(place) = place {
        // A cache that cannot be written costs time the next time, and nothing else.
        let unique = format!("{:?}", thread::current().id());
        let beside = place.with_extension(format!("{}-{}", std::process::id(), fnv1a(unique.as_bytes())));
        let written = place.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&beside, &code));
        if written.and_then(|()| fs::rename(&beside, &place)).is_err() {
            let _ = fs::remove_file(&beside);
        }
    }
    Ok(code)
}

/// The driver's own words.
fn words(error: DriverError) -> String {
    let name = error.error_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let text = error.error_string().map(|text| text.to_string_lossy().into_owned()).unwrap_or_default();
    if name.is_empty() { format!("{error:?}") } else { format!("{text} ({name})") }
}

/// After these every call of the process fails: a kernel broke the context, or the GPU itself is gone. One that falls off
/// its bus is answered by the last five, whichever call meets it.
const LOST: [CUresult; 16] = [
    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS,
    CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION,
    CUresult::CUDA_ERROR_MISALIGNED_ADDRESS,
    CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE,
    CUresult::CUDA_ERROR_INVALID_PC,
    CUresult::CUDA_ERROR_ASSERT,
    CUresult::CUDA_ERROR_LAUNCH_FAILED,
    CUresult::CUDA_ERROR_LAUNCH_TIMEOUT,
    CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR,
    CUresult::CUDA_ERROR_ECC_UNCORRECTABLE,
    CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE,
    CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    CUresult::CUDA_ERROR_DEINITIALIZED,
    CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
    CUresult::CUDA_ERROR_NO_DEVICE,
    CUresult::CUDA_ERROR_UNKNOWN,
];

pub(super) fn failed(error: DriverError) -> Error {
    let lost = LOST.contains(&error.0);
    let reason = words(error);
    let hint = full(error).then(|| {
        "the memory of the GPU is full: close what else runs on it (`nvidia-smi` lists it); `⟨backend cpu⟩` measures the \
         processor"
            .to_owned()
    });
    if lost { Error::GpuLost { reason } } else { Error::Gpu { reason, hint } }
}

/// Whether the GPU's memory is what was missing.
fn full(error: DriverError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}
