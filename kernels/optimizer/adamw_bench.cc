// AdamW beside its limit: a pass with the same access pattern (read one stream, update three: 28 bytes per
// element) and next to no arithmetic, in the same run. Working set 32 Mi elements, beyond any cache, on huge
// pages that are populated before the clock starts.
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "kernels/optimizer/accumulate.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/optimizer/adamw8.h"
#include "kernels/optimizer/code8.h"
#include "kernels/optimizer/parallel.h"
#include "kernels/optimizer/reduce.h"

#if STRATA_OPTIMIZER_X86
#include <immintrin.h>
#endif

namespace strata {
namespace {

constexpr int64_t kElements = int64_t{32} << 20;

struct Memory {
  float* grad;
  float* master;
  float* m;
  float* v;
  void* params;

  Memory() {
    constexpr size_t kBytes = kElements * (4 * sizeof(float) + sizeof(float)) + (size_t{2} << 20);
    void* base = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) {
      std::perror("mmap");
      std::exit(1);
    }
    madvise(base, kBytes, MADV_HUGEPAGE);
    // An odd page between the streams: otherwise all of them meet in the same cache sets.
    constexpr int64_t kSkew = 1024 + 16;
    grad = static_cast<float*>(base);
    master = grad + kElements + kSkew;
    m = master + kElements + kSkew;
    v = m + kElements + kSkew;
    params = v + kElements + kSkew;
    for (int64_t i = 0; i < kElements; ++i) {
      grad[i] = 1e-3f * static_cast<float>(i % 17 - 8);
      master[i] = 0.02f;
      m[i] = 1e-4f;
      v[i] = 1e-6f;
      static_cast<float*>(params)[i] = 0;
    }
  }
};

Memory& Shared() {
  static Memory* memory = new Memory;
  return *memory;
}

void Report(benchmark::State& state, double bytes_per_element) {
  state.counters["ns/param"] =
      benchmark::Counter(static_cast<double>(kElements) * 1e-9,
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["GB/s"] = benchmark::Counter(static_cast<double>(kElements) * bytes_per_element * 1e-9,
                                              benchmark::Counter::kIsIterationInvariantRate);
}

void BM_AdamW(benchmark::State& state, Isa isa, DType params_dtype) {
  if (!Supported(isa)) {
    state.SkipWithError("not supported by this processor");
    return;
  }
  Memory& memory = Shared();
  AdamWRange range;
  range.n = kElements;
  range.grad = memory.grad;
  range.master = memory.master;
  range.m = memory.m;
  range.v = memory.v;
  range.params = memory.params;
  range.params_dtype = params_dtype;
  int64_t step = 1;
  for (auto _ : state) {
    AdamWOnIsa(isa, MakeAdamWScalars({.lr = 1e-4, .weight_decay = 0.1}, step++, 0.9f), range,
               static_cast<int>(state.range(0)));
  }
  Report(state, 28.0 + static_cast<double>(SizeOf(params_dtype)));
}

// In the memory of the floats that they replace.
void BM_AdamW8(benchmark::State& state, Isa isa) {
  if (!Supported(isa)) {
    state.SkipWithError("not supported by this processor");
    return;
  }
  Memory& memory = Shared();
  AdamW8Range range;
  range.n = kElements;
  range.grad = memory.grad;
  range.master = memory.master;
  range.m_scale = memory.m;
  range.m = reinterpret_cast<uint8_t*>(memory.m + kElements / kCode8Block);
  range.v_scale = memory.v;
  range.v = reinterpret_cast<uint8_t*>(memory.v + kElements / kCode8Block);
  range.params = memory.params;
  std::fill_n(memory.m, kElements, 0.0f);
  std::fill_n(memory.v, kElements, 0.0f);
  int64_t step = 1;
  for (auto _ : state) {
    AdamW8OnIsa(isa, MakeAdamWScalars({.lr = 1e-4, .weight_decay = 0.1}, step++, 0.9f), range,
                static_cast<int>(state.range(0)));
  }
  std::fill_n(memory.m, kElements, 1e-4f);
  std::fill_n(memory.v, kElements, 1e-6f);
  Report(state, 4 + 2 * (4 + 2 + 8.0 / kCode8Block) + 2);
}

#if STRATA_OPTIMIZER_X86
STRATA_TARGET_AVX512 void StreamPart(const Memory& memory, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 512;
  for (int64_t i = begin; i < end; i += 16) {
    _mm_prefetch(memory.grad + i + kAhead, _MM_HINT_T0);
    _mm_prefetch(memory.master + i + kAhead, _MM_HINT_T0);
    _mm_prefetch(memory.m + i + kAhead, _MM_HINT_T0);
    _mm_prefetch(memory.v + i + kAhead, _MM_HINT_T0);
    const __m512 g = _mm512_loadu_ps(memory.grad + i);
    _mm512_storeu_ps(memory.master + i, _mm512_add_ps(_mm512_loadu_ps(memory.master + i), g));
    _mm512_storeu_ps(memory.m + i, _mm512_add_ps(_mm512_loadu_ps(memory.m + i), g));
    _mm512_storeu_ps(memory.v + i, _mm512_add_ps(_mm512_loadu_ps(memory.v + i), g));
  }
}

void BM_StreamLimit(benchmark::State& state) {
  if (!Supported(Isa::kAvx512)) {
    state.SkipWithError("not supported by this processor");
    return;
  }
  Memory& memory = Shared();
  for (auto _ : state) {
    ForEachPart(kElements, static_cast<int>(state.range(0)),
                [&](int64_t begin, int64_t end) { StreamPart(memory, begin, end); });
  }
  Report(state, 28);
}

// The accesses of AdamW8: one stream of floats read, one updated, two of bytes updated.
STRATA_TARGET_AVX512 void StreamPart8(const Memory& memory, int64_t begin, int64_t end) {
  constexpr int64_t kAhead = 512;
  uint8_t* const m = reinterpret_cast<uint8_t*>(memory.m);
  uint8_t* const v = reinterpret_cast<uint8_t*>(memory.v);
  for (int64_t i = begin; i < end; i += 64) {
    for (int64_t k = i; k < i + 64; k += 16) {
      _mm_prefetch(memory.grad + k + kAhead, _MM_HINT_T0);
      _mm_prefetch(memory.master + k + kAhead, _MM_HINT_T0);
      const __m512 g = _mm512_loadu_ps(memory.grad + k);
      _mm512_storeu_ps(memory.master + k, _mm512_add_ps(_mm512_loadu_ps(memory.master + k), g));
    }
    _mm_prefetch(m + i + kAhead, _MM_HINT_T0);
    _mm_prefetch(v + i + kAhead, _MM_HINT_T0);
    _mm512_storeu_si512(m + i, _mm512_add_epi8(_mm512_loadu_si512(m + i), _mm512_set1_epi8(1)));
    _mm512_storeu_si512(v + i, _mm512_add_epi8(_mm512_loadu_si512(v + i), _mm512_set1_epi8(1)));
  }
}

void BM_StreamLimit8(benchmark::State& state) {
  if (!Supported(Isa::kAvx512)) {
    state.SkipWithError("not supported by this processor");
    return;
  }
  Memory& memory = Shared();
  for (auto _ : state) {
    ForEachPart(kElements, static_cast<int>(state.range(0)),
                [&](int64_t begin, int64_t end) { StreamPart8(memory, begin, end); });
  }
  std::fill_n(memory.m, kElements, 1e-4f);
  std::fill_n(memory.v, kElements, 1e-6f);
  Report(state, 16);
}
BENCHMARK(BM_StreamLimit8)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_StreamLimit)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
#endif

void BM_SumSquares(benchmark::State& state) {
  Memory& memory = Shared();
  for (auto _ : state) {
    benchmark::DoNotOptimize(SumSquares(memory.grad, kElements, static_cast<int>(state.range(0))));
  }
  Report(state, 4);
}

void BM_Accumulate(benchmark::State& state) {
  Memory& memory = Shared();
  for (auto _ : state) Accumulate(memory.m, memory.grad, kElements, static_cast<int>(state.range(0)));
  Report(state, 12);
}

#define STRATA_ADAMW_BENCH(name, isa, dtype) \
  BENCHMARK_CAPTURE(BM_AdamW, name, isa, dtype)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond)

STRATA_ADAMW_BENCH(avx512_bf16_copy, Isa::kAvx512, DType::kBF16);
STRATA_ADAMW_BENCH(avx512_f32_copy, Isa::kAvx512, DType::kF32);
STRATA_ADAMW_BENCH(avx2_bf16_copy, Isa::kAvx2, DType::kBF16);
STRATA_ADAMW_BENCH(scalar_bf16_copy, Isa::kScalar, DType::kBF16);

#define STRATA_ADAMW8_BENCH(name, isa) \
  BENCHMARK_CAPTURE(BM_AdamW8, name, isa)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond)

STRATA_ADAMW8_BENCH(avx512_bf16_copy, Isa::kAvx512);
STRATA_ADAMW8_BENCH(avx2_bf16_copy, Isa::kAvx2);
STRATA_ADAMW8_BENCH(scalar_bf16_copy, Isa::kScalar);
BENCHMARK(BM_SumSquares)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Accumulate)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace strata

BENCHMARK_MAIN();
