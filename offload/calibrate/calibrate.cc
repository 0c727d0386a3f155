#include "offload/calibrate/calibrate.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/checked.h"
#include "common/clock.h"
#include "common/fd.h"
#include "common/mutex.h"
#include "common/status.h"
#include "common/thread.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "kernels/workspace.h"
#include "offload/arena/pinned_arena.h"
#include "offload/calibrate/evict.h"
#include "offload/calibrate/nvme_probe.h"

namespace strata {
namespace {

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kArenaBytes = kNvmeProbeArenaBytes;

double Now() { return static_cast<double>(Clock::Real().MonotonicNanos()) * 1e-9; }

// Seconds of the fastest of up to five calls after one that does not count (kernels are compiled, pages
// touched). After the second call none begins that is later than `slice` seconds.
template <typename F>
absl::StatusOr<double> Best(double slice, F call) {
  double best = 0;
  const double begin = Now();
  for (int i = 0; i < 6; ++i) {
    const double start = Now();
    if (i > 1 && start - begin > slice) break;
    STRATA_RETURN_IF_ERROR(call());
    const double seconds = std::max(1e-9, Now() - start);
    if (i <= 1 || seconds < best) best = seconds;
  }
  return best;
}

// Hands out parts of an arena, one measurement after the other.
class Memory {
 public:
  explicit Memory(PinnedArena& arena) : arena_(arena) {}
  void Reset() { used_ = 0; }
  void* Take(int64_t bytes) {
    void* at = arena_.data() + used_;
    used_ += RoundUp<int64_t>(bytes, 4096);
    return used_ <= static_cast<int64_t>(arena_.size()) ? at : nullptr;
  }

 private:
  PinnedArena& arena_;
  int64_t used_ = 0;
};

// ---- Compute

// The matrix products of a transformer block of `hidden` with `rows` rows: inputs and outputs of the widths
// that Llama and GPT-2 have, in the forms that forward and backward passes use.
class BlockProducts {
 public:
  BlockProducts(Ops& ops, Memory& memory, int64_t rows, int64_t hidden)
      : ops_(ops), rows_(rows), hidden_(hidden), size_(SizeOf(ops.compute_dtype())) {
    memory.Reset();
    x_ = memory.Take(rows * 4 * hidden * size_);
    y_ = memory.Take(rows * 4 * hidden * size_);
    weight_ = memory.Take(4 * hidden * hidden * size_);
    gradient_ = memory.Take(4 * hidden * hidden * 4);
    int64_t workspace = 0;
    for (const auto& [in, out] : Shapes()) {
      workspace = std::max({workspace, GemmWorkspaceBytes(ops.compute_dtype(), rows, out, in),
                            GemmWorkspaceBytes(ops.compute_dtype(), rows, in, out),
                            GemmWorkspaceBytes(ops.compute_dtype(), out, in, rows)});
    }
    workspace_ = {memory.Take(workspace), workspace};
  }

  bool fits() const { return workspace_.data != nullptr; }
  double forward_flops() const { return 24.0 * static_cast<double>(rows_ * hidden_ * hidden_); }

  absl::Status Forward() {
    for (const auto& [in, out] : Shapes()) {
      GemmArgs gemm = Args(rows_, out, in, x_, in, weight_, in, y_, out);
      gemm.transpose_b = true;
      STRATA_RETURN_IF_ERROR(ops_.Gemm(nullptr, gemm));
    }
    return absl::OkStatus();
  }

  absl::Status Backward() {
    for (const auto& [in, out] : Shapes()) {
      STRATA_RETURN_IF_ERROR(ops_.Gemm(nullptr, Args(rows_, in, out, y_, out, weight_, in, x_, in)));
      GemmArgs gemm = Args(out, in, rows_, y_, out, x_, in, gradient_, in);
      gemm.transpose_a = true;
      gemm.c_is_acc = true;
      STRATA_RETURN_IF_ERROR(ops_.Gemm(nullptr, gemm));
    }
    return absl::OkStatus();
  }

 private:
  std::vector<std::pair<int64_t, int64_t>> Shapes() const {  // {in, out}
    return {{hidden_, 3 * hidden_}, {hidden_, hidden_}, {hidden_, 4 * hidden_}, {4 * hidden_, hidden_}};
  }
  GemmArgs Args(int64_t m, int64_t n, int64_t k, const void* a, int64_t lda, const void* b, int64_t ldb,
                void* c, int64_t ldc) const {
    GemmArgs gemm;
    gemm.m = m;
    gemm.n = n;
    gemm.k = k;
    gemm.a = a;
    gemm.lda = lda;
    gemm.b = b;
    gemm.ldb = ldb;
    gemm.c = c;
    gemm.ldc = ldc;
    gemm.workspace = workspace_;
    return gemm;
  }

  Ops& ops_;
  const int64_t rows_, hidden_, size_;
  void *x_, *y_, *weight_, *gradient_;
  Workspace workspace_;
};

absl::Status MeasureProducts(Ops& ops, Memory& memory, ComputeRates* rates) {
  rates->forward_gemm.clear();
  rates->backward_gemm.clear();
  struct Size {
    int64_t rows, hidden;
  };
  constexpr double kSlice = 0.06;
  double per_flop = 0;  // of the size before, both passes
  for (const auto& [rows, hidden] : {Size{256, 256}, Size{1024, 512}, Size{768, 1024}}) {
    BlockProducts products(ops, memory, rows, hidden);
    // Where it would take too long, small products have to speak for large ones.
    if (per_flop * products.forward_flops() > 2 * kSlice) break;
    if (!products.fits()) return absl::InternalError("calibration: the arena is too small");
    STRATA_ASSIGN_OR_RETURN(const double forward, Best(kSlice / 2, [&] { return products.Forward(); }));
    STRATA_ASSIGN_OR_RETURN(const double backward, Best(kSlice, [&] { return products.Backward(); }));
    rates->forward_gemm.push_back({products.forward_flops(), products.forward_flops() / forward});
    rates->backward_gemm.push_back({products.forward_flops(), 2 * products.forward_flops() / backward});
    per_flop = (forward + backward) / products.forward_flops();
  }
  return absl::OkStatus();
}

absl::Status MeasureAttention(Ops& ops, Memory& memory, ComputeRates* rates) {
  const int64_t size = SizeOf(ops.compute_dtype());
  AttentionArgs a;
  a.batch = 2;
  a.seq = 512;
  a.heads = 8;
  a.kv_heads = 8;
  a.head_dim = 64;
  a.scale = 0.125;
  const int64_t width = a.heads * a.head_dim, rows = a.batch * a.seq;
  memory.Reset();
  std::vector<void*> wide;
  for (int i = 0; i < 8; ++i) wide.push_back(memory.Take(rows * width * size));
  a.q = wide[0];
  a.k = wide[1];
  a.v = wide[2];
  a.out = wide[3];
  a.ldq = a.ldk = a.ldv = a.ldo = width;
  a.lse = memory.Take(rows * a.heads * 4);
  const int64_t workspace = std::max(
      AttentionForwardWorkspaceBytes(ops.compute_dtype(), a.batch, a.seq, a.heads, a.kv_heads, a.head_dim),
      AttentionBackwardWorkspaceBytes(ops.compute_dtype(), a.batch, a.seq, a.heads, a.kv_heads, a.head_dim));
  a.workspace = {memory.Take(workspace), workspace};
  if (a.workspace.data == nullptr) return absl::InternalError("calibration: the arena is too small");
  AttentionBackwardArgs b;
  b.forward = a;
  b.dout = wide[4];
  b.dq = wide[5];
  b.dk = wide[6];
  b.dv = wide[7];
  b.lddo = b.lddq = b.lddk = b.lddv = width;
  const double product = static_cast<double>(rows * a.seq * width);
  STRATA_ASSIGN_OR_RETURN(const double forward, Best(0.02, [&] { return ops.AttentionForward(nullptr, a); }));
  STRATA_ASSIGN_OR_RETURN(const double backward,
                          Best(0.03, [&] { return ops.AttentionBackward(nullptr, b); }));
  rates->attention_flops = 2 * product / forward;
  rates->attention_backward_flops = 5 * product / backward;
  return absl::OkStatus();
}

absl::Status MeasureElementwise(Ops& ops, Memory& memory, ComputeRates* rates) {
  constexpr int64_t kRows = 1024, kHidden = 768, kFfn = 2048;
  const int64_t size = SizeOf(ops.compute_dtype());
  memory.Reset();
  void* const x = memory.Take(kRows * kHidden * size);
  void* const y = memory.Take(kRows * kHidden * size);
  void* const gate = memory.Take(kRows * 2 * kFfn * size);
  void* const inner = memory.Take(kRows * kFfn * size);
  NormArgs norm;
  norm.rows = kRows;
  norm.width = kHidden;
  norm.x = x;
  norm.weight = memory.Take(kHidden * size);
  norm.y = y;
  norm.rstd = memory.Take(kRows * 4);
  norm.mean = memory.Take(kRows * 4);
  if (norm.mean == nullptr) return absl::InternalError("calibration: the arena is too small");
  const double bytes = static_cast<double>(kRows * size * (2 * kHidden + 3 * kHidden + 3 * kFfn + 5 * kFfn));
  STRATA_ASSIGN_OR_RETURN(const double seconds, Best(0.02, [&]() -> absl::Status {
                            STRATA_RETURN_IF_ERROR(ops.NormForward(nullptr, norm));
                            STRATA_RETURN_IF_ERROR(ops.Add(nullptr, kRows * kHidden, x, y, y));
                            STRATA_RETURN_IF_ERROR(ops.SwigluForward(nullptr, kRows, kFfn, gate, inner));
                            return ops.SwigluBackward(nullptr, kRows, kFfn, gate, inner, gate);
                          }));
  rates->elementwise_bytes_per_second = bytes / seconds;
  return absl::OkStatus();
}

absl::Status MeasureCompute(DType dtype, int threads, PinnedArena& arena, ComputeRates* rates) {
  const std::unique_ptr<Ops> ops = MakeCpuOps(dtype, threads);
  Memory memory(arena);
  STRATA_RETURN_IF_ERROR(MeasureProducts(*ops, memory, rates));
  STRATA_RETURN_IF_ERROR(MeasureAttention(*ops, memory, rates));
  return MeasureElementwise(*ops, memory, rates);
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
  Memory memory(arena);
  constexpr int64_t n = 4 * kMiB;
  AdamWStep step;
  step.n = n;
  step.grad = static_cast<float*>(memory.Take(4 * n));
  step.master = static_cast<float*>(memory.Take(12 * n));
  step.m = step.master + n;
  step.v = step.master + 2 * n;
  step.params = memory.Take(2 * n);
  step.lr = 1e-3;
  const std::span<const std::byte> all = arena.span().first(18 * n);
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
  profile->adamw_seconds_per_parameter = adamw / n;
  profile->accumulate_bytes_per_second = 12.0 * n / accumulate;
  profile->norm_bytes_per_second = 4.0 * n / norm;
  // The CPU device's memory is host memory: both directions are the same copy by one core.
  profile->h2d_bytes_per_second = profile->d2h_bytes_per_second = 4.0 * n / copy;
  profile->dram_bytes_per_second =
      std::max({30.0 * n / adamw, profile->accumulate_bytes_per_second, 8.0 * n / copy});
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

absl::StatusOr<MachineProfile> Calibrate(const CalibrationOptions& options) {
  MachineProfile profile;
  profile.cores = AvailableCpus();
  profile.threads = std::max(1, options.threads);
  STRATA_ASSIGN_OR_RETURN(const auto arena, PinnedArena::Create({.bytes = kArenaBytes}), "calibration");
  STRATA_RETURN_IF_ERROR(MeasureCompute(DType::kBF16, profile.threads, *arena, &profile.bf16), "calibration");
  STRATA_RETURN_IF_ERROR(MeasureCompute(DType::kF32, profile.threads, *arena, &profile.f32), "calibration");
  STRATA_RETURN_IF_ERROR(MeasureStates(profile.threads, *arena, &profile), "calibration");
  profile.per_op_seconds = HandoverSeconds();
  if (!options.nvme_paths.empty())
    STRATA_RETURN_IF_ERROR(ProbeNvme(options.nvme_paths, *arena, &profile), "calibration");
  profile.source =
      absl::StrCat("measured: ", CpuModel(), ", ", profile.threads, " of ", profile.cores, " CPUs");
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
