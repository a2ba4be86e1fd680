//! Every kernel compiles for every architecture that it claims, with NVRTC and without a GPU.

use std::thread;

use roofline_run::cuda::{Architecture, Compiler, sources};

/// Turing, Ampere (datacentre, desktop, Orin), Ada, Hopper, Blackwell (datacentre, desktop, GB10).
const ARCHITECTURES: [(u32, u32); 9] = [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)];

#[test]
fn every_kernel_compiles_for_every_architecture() {
    let compiler = match Compiler::open() {
        Ok(compiler) => compiler,
        Err(error) => {
            assert!(std::env::var_os("ROOFLINE_NEEDS_NVRTC").is_none(), "{error}");
            eprintln!("SKIPPED: no kernel was compiled, because {error}; {}", error.hint().unwrap_or_default());
            return;
        }
    };
    let programs = sources();
    assert!(programs.len() > 50, "{}", programs.len());
    let work: Vec<(usize, Architecture)> = ARCHITECTURES
        .iter()
        .map(|(major, minor)| Architecture { major: *major, minor: *minor })
        .flat_map(|architecture| (0..programs.len()).map(move |at| (at, architecture)))
        .filter(|(at, architecture)| architecture.major >= 9 || !programs[*at].1.needs_clusters())
        .collect();
    let workers = thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let failures: Vec<String> = thread::scope(|scope| {
        let handles: Vec<_> = (0..workers)
            .map(|worker| {
                let (compiler, programs, work) = (&compiler, &programs, &work);
                scope.spawn(move || {
                    let own = work.iter().skip(worker).step_by(workers);
                    own.filter_map(|(at, architecture)| {
                        let (name, recipe) = &programs[*at];
                        let code = compiler.compile(recipe.source, &recipe.defines, *architecture);
                        code.err().map(|error| format!("{name}, sm_{architecture}: {error}"))
                    })
                    .collect::<Vec<String>>()
                })
            })
            .collect();
        handles.into_iter().flat_map(|handle| handle.join().expect("a thread that compiles")).collect()
    });
    assert!(failures.is_empty(), "{} of {} failed:\n{}", failures.len(), work.len(), failures.join("\n"));
    println!("{} programs for {} architectures by {}", programs.len(), ARCHITECTURES.len(), compiler.version());
}
