// The benchmarks of the data path in one program: each data_path_*_bench.cc states its question and
// its bound, and tests/bench/bar_sets.py holds them.

#include "benchmark/benchmark.h"

BENCHMARK_MAIN();
