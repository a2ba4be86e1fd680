//! A CUDA kernel that somebody wrote, for one shape: its text, how it is started, and what it is called with.

use std::{fmt::Write as _, path::PathBuf};

/// What a kernel is called with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Argument {
    /// An operand's array, by its name.
    Array(String),
    /// Where the result goes.
    Output,
    /// A dimension, by its name: an `int`.
    Count(&'static str, i32),
}

impl Argument {
    /// As the manifest has it.
    fn name(&self) -> &str {
        match self {
            Self::Array(name) => name,
            Self::Output => "y",
            Self::Count(name, _) => name,
        }
    }
}

/// A kernel that is ready to be compiled and started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaKernel {
    /// What it is called in answers.
    pub name: String,
    /// The program.
    pub source: String,
    /// Where the program's own headers are.
    pub folder: Option<PathBuf>,
    /// The function, declared `extern "C" __global__`.
    pub entry: String,
    /// Threads of a block.
    pub block: [u32; 3],
    /// Blocks.
    pub grid: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// In order.
    pub arguments: Vec<Argument>,
    /// Macros and their values.
    pub defines: Vec<(String, i64)>,
}

impl CudaKernel {
    /// The program, with a check of the function's parameters behind it. A driver reads as many arguments as a kernel was
    /// compiled with, whatever it is given: one too few is read from where there is none, so that this must not compile.
    pub fn text(&self) -> String {
        let Self { source, entry, arguments, .. } = self;
        let mut text = format!("{source}\n#line 1 \"manifest\"\n{SIGNATURE}");
        let signature = format!("roofline_manifest::signature<decltype({entry})>");
        let _ = writeln!(
            text,
            "static_assert({signature}::count == {count}, \"the manifest gives `{entry}` {count} arguments\");",
            count = arguments.len()
        );
        for (at, argument) in arguments.iter().enumerate() {
            let (kind, words) = match argument {
                Argument::Array(_) | Argument::Output => ("pointer", "a pointer"),
                Argument::Count(..) => ("count", "an int"),
            };
            let name = argument.name();
            // Where there are fewer parameters, that is said by the one above.
            let _ = writeln!(
                text,
                "static_assert({at} >= {signature}::count || roofline_manifest::{kind}<{signature}::at<{at}>>::value, \
                 \"argument {number} of `{entry}`, `{name}`, is {words}\");",
                number = at + 1
            );
        }
        text
    }
}

/// Counts the parameters of a function and looks at each.
const SIGNATURE: &str = r"namespace roofline_manifest {
struct nothing {};
template <int at, class... All> struct nth { using type = nothing; };
template <class First, class... Rest> struct nth<0, First, Rest...> { using type = First; };
template <int at, class First, class... Rest> struct nth<at, First, Rest...> { using type = typename nth<at - 1, Rest...>::type; };
template <class Function> struct signature;
template <class... All> struct signature<void(All...)> {
    static constexpr int count = sizeof...(All);
    template <int at> using at_type = typename nth<at, All...>::type;
    template <int at_> using at = at_type<at_>;
};
template <class Type> struct pointer { static constexpr bool value = false; };
template <class Type> struct pointer<Type*> { static constexpr bool value = true; };
template <class Type> struct count { static constexpr bool value = false; };
template <> struct count<int> { static constexpr bool value = true; };
template <> struct count<unsigned> { static constexpr bool value = true; };
}
";

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use roofline_core::{Registry, measurement::Subject, precision::PrecisionSpec};

    use super::*;
    use crate::{
        cuda::{Architecture, Compiler},
        own::{Manifest, Operands},
    };

    const SOURCE: &str = r#"extern "C" __global__ void twice(const float* x, float* __restrict__ y, int n) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = 2 * x[at];
} // the end"#;

    fn kernel(arguments: Vec<Argument>) -> CudaKernel {
        CudaKernel {
            name: "twice".to_owned(),
            source: SOURCE.to_owned(),
            folder: None,
            entry: "twice".to_owned(),
            block: [256, 1, 1],
            grid: [1, 1, 1],
            shared: 0,
            arguments,
            defines: Vec::new(),
        }
    }

    /// NVRTC, which takes no GPU.
    fn compiler() -> Option<Compiler> {
        let opened = Compiler::open();
        if let Err(error) = &opened {
            assert!(std::env::var_os("ROOFLINE_NEEDS_NVRTC").is_none(), "{error}");
            eprintln!("SKIPPED: no kernel was compiled, because {error}");
        }
        opened.ok()
    }

    /// The kernels that people start from.
    #[test]
    fn examples_compile() {
        let Some(compiler) = compiler() else { return };
        let h200 = Registry::builtin().find("h200").unwrap().into_owned();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/kernels");
        let files = fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path());
        let manifests: Vec<PathBuf> = files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
        assert!(!manifests.is_empty());
        for path in manifests {
            let manifest = Manifest::parse(&fs::read_to_string(&path).unwrap(), &path).unwrap();
            let source = fs::read_to_string(folder.join(&manifest.source)).unwrap();
            let formats = manifest.precision.parse::<PrecisionSpec>().unwrap().on(&h200).unwrap();
            for shape in manifest.shapes() {
                let subject = Subject::new(&manifest.graph(shape).unwrap().nodes[0], "", formats);
                let kernel = manifest.kernel(shape, &Operands::of(&subject).unwrap(), source.clone(), 132).unwrap();
                for architecture in [Architecture { major: 8, minor: 0 }, Architecture { major: 9, minor: 0 }] {
                    compiler.compile_own(&kernel, architecture).unwrap();
                }
            }
        }
    }

    /// What a kernel is called with is looked at when it is compiled.
    #[test]
    fn arguments_that_do_not_fit_do_not_compile() {
        let Some(compiler) = compiler() else { return };
        let (x, y, n) = (Argument::Array("x".to_owned()), Argument::Output, Argument::Count("n", 4));
        let made = |arguments: &[&Argument]| {
            let kernel = kernel(arguments.iter().map(|one| (*one).clone()).collect());
            compiler.compile_own(&kernel, Architecture { major: 9, minor: 0 })
        };
        assert!(made(&[&x, &y, &n]).is_ok_and(|code| code.starts_with(b"\x7fELF")));
        let refused = |arguments: &[&Argument]| made(arguments).unwrap_err().to_string();
        assert!(refused(&[&x, &y]).contains("the manifest gives `twice` 2 arguments"), "{}", refused(&[&x, &y]));
        assert!(refused(&[&x, &y, &n, &n]).contains("4 arguments"));
        assert!(refused(&[&x, &n, &y]).contains("argument 2 of `twice`, `n`, is an int"));
        assert!(refused(&[&x, &n, &y]).contains("argument 3 of `twice`, `y`, is a pointer"));
        let broken = CudaKernel { source: format!("{SOURCE}\nthis is no C++"), ..kernel(vec![x, y, n]) };
        let error = compiler.compile_own(&broken, Architecture { major: 9, minor: 0 }).unwrap_err();
        assert_eq!(error.kind(), "compile");
        assert!(error.to_string().contains("twice.cu(5): error"), "{error}");
    }
}
