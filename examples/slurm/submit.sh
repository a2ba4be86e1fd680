#!/bin/bash
# Quantizes a checkpoint on many nodes: an array of parts, and a join that waits until all of them went well.
#
#   examples/slurm/submit.sh PARTS MODEL PLAN TARGET [further arguments of roofline quantize]
#   examples/slurm/submit.sh 16 /shared/Llama-3.1-405B fp8 /shared/Llama-3.1-405B-FP8
#
# MODEL and TARGET lie on a file system that every node has at the same path.
set -euo pipefail

if [ "$#" -lt 4 ]; then
    echo "usage: $0 PARTS MODEL PLAN TARGET [further arguments of roofline quantize]" >&2
    exit 2
fi
parts="$1"
shift
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

array="$(sbatch --parsable --array="1-$parts" "$here/part.sh" "$@")"
# A cluster of several answers with JOB;CLUSTER.
array="${array%%;*}"
# A part that fails leaves the join waiting for nothing: it is taken from the queue, and nothing is written.
join="$(sbatch --parsable --dependency="afterok:$array" --kill-on-invalid-dep=yes "$here/join.sh" "$@")"
echo "parts in job $array, joined by job ${join%%;*}"
