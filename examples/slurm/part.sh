#!/bin/bash
#SBATCH --job-name=roofline-part
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=4G
#SBATCH --requeue
# One part of a quantized checkpoint: which of how many is told by the array that this job belongs to.
#
#   sbatch --array=1-16 part.sh MODEL PLAN TARGET [further arguments of roofline quantize]
set -euo pipefail

: "${SLURM_ARRAY_TASK_ID:?is set in a job of an array: sbatch --array=1-16 $0 MODEL PLAN TARGET}"
number="$((SLURM_ARRAY_TASK_ID - ${SLURM_ARRAY_TASK_MIN:-1} + 1))"
count="${SLURM_ARRAY_TASK_COUNT:?how many parts there are}"
model="$1" plan="$2" target="$3"
shift 3

# With --resume a job that was put back into the queue goes on where it was stopped.
exec "${ROOFLINE:-roofline}" quantize "$model" --plan "$plan" --to "$target" --part "$number/$count" --resume \
    --threads "${SLURM_CPUS_PER_TASK:-1}" "$@"
