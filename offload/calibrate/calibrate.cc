#include "offload/calibrate/calibrate.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/bytes.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/memory_limit.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/code8.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "offload/arena/pinned_arena.h"
#include "offload/calibrate/compute_probe.h"
#include "offload/calibrate/evict.h"
#include "offload/calibrate/gpu_probe.h"
#include "offload/calibrate/nvme_probe.h"
#include "offload/io/path_probe.h"

namespace strata {
namespace {

constexpr int64_t kMiB = 1 << 20;
// What a process takes beside the buffers while it measures: code that kernels make, what their threads pack,
// stacks, rings. 5 MiB were measured, the program itself among them, with 2 threads and NVMe.
constexpr int64_t kBesideBytes = 8 * kMiB;
// For others in the control group, who may grow meanwhile.
constexpr int64_t kReserveBytes = 8 * kMiB;

double Now() { return static_cast<double>(Clock::Real().MonotonicNanos()) * 1e-9; }

// Where the CPU is the device: as it is called, and with rows that it takes a few milliseconds for.
absl::Status MeasureCpu(DType dtype, int threads, PinnedArena& arena, ComputeRates* rates) {
  const std::unique_ptr<Ops> ops = MakeCpuOps(dtype, threads);
  ComputeBench bench;
  bench.ops = ops.get();
  bench.fp8 = dtype == DType::kBF16;
  bench.memory = arena.span();
  bench.products = {{256, 256}, {1024, 512}, {768, 1024}};
  bench.attention = {{.batch = 1, .seq = 512, .heads = 4, .head_dim = 64},
                     {.batch = 2, .seq = 512, .heads = 8, .head_dim = 64}};
  bench.elementwise = {{.rows = 256, .hidden = 512, .ffn = 1024}, {.rows = 1024, .hidden = 768, .ffn = 2048}};
  bench.time = [](const std::function<absl::Status()>& call) -> absl::StatusOr<double> {
    const double start = Now();
    STRATA_RETURN_IF_ERROR(call());
    return Now() - start;
  };
  return MeasureCompute(bench, rates);
}

// ---- Memory and states

// States are met once in a step: what is measured finds none of its memory in a cache. A machine whose caches
// hold all of what is measured here would else seem twice as fast as it is. Of the calls the one that a
// quarter was faster than: a step has many and not all are the best, but one that another process takes the
// core from takes several times as long.
template <typename F>
absl::StatusOr<double> QuartileCold(double slice, std::span<const std::byte> memory, F call) {
  std::vector<double> seconds;
  const double begin = Now();
  for (int i = 0; i < 20; ++i) {
    if (i > 1 && Now() - begin > slice) break;
    EvictFromCaches(memory);
    const double start = Now();
    STRATA_RETURN_IF_ERROR(call());
    if (i > 0) seconds.push_back(std::max(1e-9, Now() - start));  // the first does not count
  }
  const auto quartile = seconds.begin() + static_cast<int64_t>(seconds.size() / 4);
  std::nth_element(seconds.begin(), quartile, seconds.end());
  return *quartile;
}

absl::Status MeasureStates(int threads, PinnedArena& arena, MachineProfile* profile) {
  const std::unique_ptr<StateOps> math = MakeCpuStateOps(threads);
  ProbeMemory memory(arena.span());
  constexpr int64_t kBytesEach = 18;  // gradient, master and moments, copy
  int64_t n = 4 * kMiB;
  while (kBytesEach * n > static_cast<int64_t>(arena.size())) n /= 2;
  AdamWStep step;
  step.n = n;
  auto* const grad = static_cast<float*>(memory.Take(4 * n));
  std::fill_n(grad, n, 1e-3f);  // eight-bit states of zeros take a fifth less time
  step.grad = grad;
  step.master = static_cast<float*>(memory.Take(12 * n));
  step.m = step.master + n;
  step.v = step.master + 2 * n;
  step.params = memory.Take(2 * n);
  step.lr = 1e-3;
  const std::span<const std::byte> all = arena.span().first(kBytesEach * n);
  STRATA_ASSIGN_OR_RETURN(const double adamw,
                          QuartileCold(0.08, all, [&] { return math->AdamW(nullptr, step); }));
  STRATA_ASSIGN_OR_RETURN(const double accumulate, QuartileCold(0.05, all, [&] {
                            return math->Accumulate(nullptr, step.m, step.grad, n);
                          }));
  double sum;
  int64_t bad;
  STRATA_ASSIGN_OR_RETURN(const double norm, QuartileCold(0.04, all, [&] {
                            return math->SumSquares(nullptr, step.v, n, &sum, &bad);
                          }));
  STRATA_ASSIGN_OR_RETURN(const double copy, QuartileCold(0.05, all, [&] {
                            std::memcpy(step.v, step.m, 4 * n);
                            return absl::OkStatus();
                          }));
  // What m and v hold by now are codes as well, and scales of ordinary size.
  auto* const codes = reinterpret_cast<uint8_t*>(step.m);
  const Code8Moments moments = {
      .m = codes, .v = codes + n, .m_scale = step.v, .v_scale = step.v + n / kCode8Block};
  step.m = step.v = nullptr;
  STRATA_ASSIGN_OR_RETURN(const double adamw8bit,
                          QuartileCold(0.08, all, [&] { return math->AdamW8(nullptr, step, moments); }));
  // What computes is measured in the same memory, where codes would be denormal numbers: those take a hundred
  // times as long.
  std::memset(arena.span().data(), 0, all.size());
  const auto elements = static_cast<double>(n);
  profile->adamw_seconds_per_parameter = adamw / elements;
  profile->adamw8bit_seconds_per_parameter = adamw8bit / elements;
  profile->accumulate_bytes_per_second = 12 * elements / accumulate;
  profile->norm_bytes_per_second = 4 * elements / norm;
  // The CPU device's memory is host memory: both directions are the same copy by one core.
  profile->h2d_bytes_per_second = profile->d2h_bytes_per_second = 4 * elements / copy;
  profile->dram_bytes_per_second =
      std::max({30 * elements / adamw, profile->accumulate_bytes_per_second, 8 * elements / copy});
  return absl::OkStatus();
}

// What every operation costs beside its work: one lane wakes another.
double HandoverSeconds() {
  constexpr int kRounds = 100;
  Mutex mu;
  CondVar changed;
  int turn = 0;
  const auto play = [&](int me) {
    for (int i = 0; i < kRounds; ++i) {
      MutexLock lock(mu);
      while (turn % 2 != me) changed.WaitFor(mu, std::chrono::seconds(10));
      ++turn;
      changed.SignalAll();
    }
  };
  const double begin = Now();
  Thread other("calibrate", [&] { play(1); });
  play(0);
  other.Join();
  return (Now() - begin) / (2 * kRounds);
}

}  // namespace

absl::StatusOr<int64_t> CalibrationMemory(const MemoryLimit& available, bool files_in_memory) {
  const auto needed = [&](int64_t bytes) {
    return bytes + (files_in_memory ? NvmeProbeFileBytes(bytes) : 0) + kBesideBytes + kReserveBytes;
  };
  int64_t bytes = kCalibrationBytes;
  while (bytes > kCalibrationLeastBytes && needed(bytes) > available.bytes) bytes /= 2;
  if (needed(bytes) <= available.bytes) return bytes;
  return absl::ResourceExhaustedError(
      absl::StrCat("measuring how fast this machine is takes ", FormatBytes(needed(bytes)), " of memory",
                   files_in_memory ? ", with files on a path that is memory" : "", ", ",
                   FormatBytes(available.bytes), " are ", available.of, ": raise the limit, or free memory"));
}

absl::StatusOr<int64_t> CalibrationMemoryNow(const std::vector<NvmePath>& nvme_paths) {
  const absl::StatusOr<MemoryLimits> limits = ReadMemoryLimits();
  if (!limits.ok()) return kCalibrationBytes;
  const bool files_in_memory = std::any_of(nvme_paths.begin(), nvme_paths.end(),
                                           [](const NvmePath& path) { return IsInMemory(path.path); });
  return CalibrationMemory(limits->available, files_in_memory);
}

absl::StatusOr<MachineProfile> Calibrate(const CalibrationOptions& options) {
  MachineProfile profile;
  profile.cores = AvailableCpus();
  profile.threads = std::max(1, options.threads);
  STRATA_ASSIGN_OR_RETURN(
      const auto arena,
      PinnedArena::Create({.bytes = static_cast<uint64_t>(options.memory_bytes), .budget = ""}),
      "calibration");
  STRATA_RETURN_IF_ERROR(MeasureStates(profile.threads, *arena, &profile), "calibration");
  profile.per_op_seconds = HandoverSeconds();
  const std::string cpu = absl::StrCat(CpuModel(), ", ", profile.threads, " of ", profile.cores, " CPUs");
  if (options.gpu == nullptr) {
    STRATA_RETURN_IF_ERROR(MeasureCpu(DType::kBF16, profile.threads, *arena, &profile.bf16), "calibration");
    STRATA_RETURN_IF_ERROR(MeasureCpu(DType::kF32, profile.threads, *arena, &profile.f32), "calibration");
    profile.source = absl::StrCat("measured: ", cpu);
  } else {
    STRATA_ASSIGN_OR_RETURN(const std::string gpu, ProbeGpu(*options.gpu, arena->span(), &profile),
                            "calibration of ", options.gpu->description());
    profile.source = absl::StrCat("measured: ", gpu, "; ", cpu);
  }
  if (!options.nvme_paths.empty())
    STRATA_RETURN_IF_ERROR(ProbeNvme(options.nvme_paths, *arena, &profile), "calibration");
  if (options.memory_bytes < kCalibrationBytes) {
    absl::StrAppend(&profile.source, ", in ", FormatBytes(options.memory_bytes), " of memory instead of ",
                    FormatBytes(kCalibrationBytes));
  }
  return profile;
}

bool MachineIsBusy() {
  // "0.20 0.18 0.12 3/80 11206": runnable now, this thread among them.
  const auto text = ReadFile("/proc/loadavg", 256);
  if (!text.ok()) return false;
  const std::vector<std::string> fields = absl::StrSplit(*text, ' ');
  int running = 0;
  return fields.size() > 3 && absl::SimpleAtoi(fields[3].substr(0, fields[3].find('/')), &running) &&
         running > AvailableCpus();
}

int AvailableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  // Machines with more CPUs than cpu_set_t holds give EINVAL; then count what is online.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
}

std::string CpuModel() {
  std::string model = "unknown CPU";
  if (const auto text = ReadFile("/proc/cpuinfo", 1 << 20); text.ok()) {
    for (absl::string_view line : absl::StrSplit(*text, '\n')) {
      if (!absl::ConsumePrefix(&line, "model name")) continue;
      (void)absl::ConsumePrefix(&line, absl::string_view("\t"));
      model = std::string(
          absl::StripAsciiWhitespace(absl::StripPrefix(absl::StripLeadingAsciiWhitespace(line), ":")));
      break;
    }
  }
  return absl::StrCat(model, " (", Name(DetectCpuIsa()), ")");
}

}  // namespace strata
