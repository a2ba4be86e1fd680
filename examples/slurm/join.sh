#!/bin/bash
#SBATCH --job-name=roofline-join
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=4G
# Puts the parts together once all of them are there, and reads the result back.
#
#   sbatch --dependency=afterok:JOB join.sh MODEL PLAN TARGET [further arguments of roofline quantize]
set -euo pipefail

model="$1" plan="$2" target="$3"
shift 3

exec "${ROOFLINE:-roofline}" quantize "$model" --plan "$plan" --to "$target" --join --verify \
    --threads "${SLURM_CPUS_PER_TASK:-1}" "$@"
