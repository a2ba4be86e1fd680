//! What a GPU's memory does when nothing else is asked of it, and what starting a kernel costs.

use roofline_core::{
    measurement::Residency,
    units::{ByteRate, Bytes, Seconds},
};

use super::{
    backend::{Argument, Launch, launch},
    gpu::{Gpu, Recipe},
    operand::{Copies, Part},
    replay::Replay,
};
use crate::{Result, backend::Ceiling, random::Random};

const SOURCE: &str = concat!(include_str!("../../kernels/common.cuh"), include_str!("../../kernels/stream.cu"));
/// Bytes of a stream from memory, where the GPU has them free.
const STREAM: f64 = 4e9;
/// Rounds over bytes that stay in the second-level cache.
const ROUNDS: i32 = 20;
/// How a stream is divided.
struct Grid {
    /// Of a block.
    threads: u32,
    /// Of a multiprocessor.
    blocks: u32,
}

/// Which of these is best differs a little by GPU.
const GRIDS: [Grid; 3] =
    [Grid { threads: 1024, blocks: 32 }, Grid { threads: 512, blocks: 4 }, Grid { threads: 256, blocks: 8 }];
/// Empty kernels in a row.
const EMPTY: usize = 500;
const SAMPLES: usize = 7;

/// The program that may be compiled here, for a test that needs no GPU.
pub(super) fn sources() -> Vec<(String, Recipe)> {
    vec![("streams".to_owned(), Recipe { source: SOURCE, function: "read", defines: vec![("DEPTH", 4)], shared: 0 })]
}

/// Each stream's best rate over a few grids, and the time of an empty kernel in a graph.
pub(super) fn measure(gpu: &Gpu) -> Result<Vec<Ceiling>> {
    let free = gpu.free()?.value();
    // There are two such buffers, because a copy reads one and writes the other. Both are whole pages.
    let bytes = (STREAM.min(free * 0.4) / 4096.0) as usize * 4096;
    let mut random = Random(5);
    let pattern: Vec<u8> = (0..1 << 20).flat_map(|_| random.normal().to_le_bytes()).collect();
    let part = || Part { pattern: pattern.clone(), bytes };
    let memory = Copies::new(gpu, &[part(), part()], Residency::Warm)?;
    let [from, to] = [0, 1].map(|part| Argument::Address(memory.at(gpu, 0, part)));
    let cached = ((gpu.l2.value() * 0.4) as usize) / 4096 * 4096;
    let count = |bytes: usize| Argument::Count(bytes as u64 / 16);
    let streams: [(&str, &str, usize, f64, Vec<Argument>); 4] = [
        ("read", "read", bytes, 1.0, vec![from, to, count(bytes), Argument::Integer(1)]),
        ("write", "write", bytes, 1.0, vec![to, Argument::Integer(7), count(bytes)]),
        ("copy", "copy", bytes, 2.0, vec![from, to, count(bytes)]),
        ("read from L2", "read", cached, f64::from(ROUNDS), vec![from, to, count(cached), Argument::Integer(ROUNDS)]),
    ];
    let recipe = |function| Recipe { source: SOURCE, function, defines: vec![("DEPTH", 4)], shared: 0 };
    let mut all = Vec::new();
    for (name, kernel, bytes, times, arguments) in streams {
        let function = gpu.function(&recipe(kernel))?;
        let mut best = f64::INFINITY;
        for Grid { threads, blocks } in GRIDS {
            let geometry = Launch { blocks: gpu.multiprocessors * blocks, threads, shared: 0 };
            let once = fastest(gpu, 1, &mut |_| launch(gpu, &function, geometry, &arguments))?;
            best = best.min(once.value());
        }
        let moved = Bytes::new(bytes as f64 * times);
        all.push(Ceiling::Stream { name, moved, rate: ByteRate::new(moved.value() / best) });
    }
    let function = gpu.function(&recipe("nothing"))?;
    let geometry = Launch { blocks: gpu.multiprocessors, threads: 128, shared: 0 };
    let time = fastest(gpu, EMPTY, &mut |_| launch(gpu, &function, geometry, &[]))?;
    all.push(Ceiling::Launch { name: "empty kernel in a graph", time });
    Ok(all)
}

fn fastest(gpu: &Gpu, calls: usize, enqueue: &mut dyn FnMut(usize) -> Result<()>) -> Result<Seconds> {
    let replay = Replay::new(gpu, calls, enqueue)?;
    let samples = (0..SAMPLES).map(|_| replay.sample(gpu)).collect::<Result<Vec<Seconds>>>()?;
    Ok(samples.into_iter().reduce(Seconds::min).unwrap_or(Seconds::ZERO))
}
