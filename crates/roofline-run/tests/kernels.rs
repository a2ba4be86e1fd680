//! Every kernel compiles for every architecture that it claims, with NVRTC and without a GPU.
//!
//! All nine take minutes: an ordinary run compiles every program for Hopper, a third of them for each of four others, and
//! `cargo xtask kernels` all of them for all.

use std::{collections::HashSet, thread};

use roofline_run::cuda::{Architecture, Compiler, Recipe, sources};

/// Turing, Ampere (datacentre, desktop, Orin), Ada, Hopper, Blackwell (datacentre, desktop, GB10).
const ALL: [(u32, u32); 9] = [(7, 5), (8, 0), (8, 6), (8, 7), (8, 9), (9, 0), (10, 0), (12, 0), (12, 1)];

/// Those that stand for the others. The sources ask an architecture for tensor cores that take BF16 (from 8.0), for
/// conversions of FP8 (from 8.9) and for the copy engine (from 9.0), and some programs ask for clusters (from 9.0) or for
/// Hopper's own instructions: 8.6 and 8.7 see the text that 8.0 sees, and all of Blackwell sees what 9.0 sees. One of
/// Blackwell is there all the same, because its machine code is made by another part of the compiler, which may refuse what
/// it took for Hopper.
const REPRESENTATIVE: [(u32, u32); 5] = [(7, 5), (8, 0), (8, 9), HOPPER, (12, 0)];
const HOPPER: (u32, u32) = (9, 0);
/// One in so many programs is compiled for each of the others, and the first of every kernel.
const SHARE: usize = 3;

#[test]
fn every_kernel_compiles_for_representative_architectures() {
    let mut seen = HashSet::new();
    compile(&REPRESENTATIVE, |place, at, recipe| {
        let first = seen.insert((place, recipe.source, recipe.function));
        REPRESENTATIVE[place] == HOPPER || first || at % SHARE == place % SHARE
    });
}

#[test]
#[ignore = "takes minutes: cargo xtask kernels"]
fn every_kernel_compiles_for_every_architecture() {
    compile(&ALL, |_, _, _| true);
}

/// A kernel that asks something new of its architecture needs a representative on either side of the question.
#[test]
fn every_branch_of_the_sources_has_a_representative() {
    const QUESTION: &str = "__CUDA_ARCH__";
    let programs = sources();
    let mut borders = Vec::new();
    for (name, recipe) in &programs {
        for (at, _) in recipe.source.match_indices(QUESTION) {
            let rest = recipe.source[at + QUESTION.len()..].trim_start_matches([' ', '<', '>', '=']);
            let number = rest.split(|letter: char| !letter.is_ascii_digit()).next().unwrap_or_default();
            borders.push(number.parse::<u32>().unwrap_or_else(|_| panic!("{name}: {QUESTION} {rest:.20}")));
        }
    }
    borders.sort_unstable();
    borders.dedup();
    assert!(borders.len() > 1, "{borders:?}");
    let side = |(major, minor): (u32, u32)| borders.partition_point(|border| *border <= major * 100 + minor * 10);
    for architecture in ALL {
        let stands = |one: &(u32, u32)| side(*one) == side(architecture);
        assert!(REPRESENTATIVE.iter().any(stands), "nobody stands for {architecture:?} between {borders:?}");
    }
    // Clusters are no question of the text: programs that have them are compiled where they run.
    assert!(programs.iter().any(|(_, recipe)| recipe.needs_clusters()));
    assert!(REPRESENTATIVE.iter().any(|(major, _)| *major == 9));
}

/// Compiles those of the programs that are `chosen`, by the place of the architecture and the number of the program.
fn compile(architectures: &[(u32, u32)], mut chosen: impl FnMut(usize, usize, &Recipe) -> bool) {
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
    let mut work = Vec::new();
    for (place, (major, minor)) in architectures.iter().enumerate() {
        let architecture = Architecture { major: *major, minor: *minor };
        for (at, (_, recipe)) in programs.iter().enumerate() {
            if recipe.is_for(architecture) && chosen(place, at, recipe) {
                work.push((at, architecture));
            }
        }
    }
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
    println!("{} compilations of {} programs by {}", work.len(), programs.len(), compiler.version());
}
