#include "kernels/cuda/kernel_checks.h"

#include <cmath>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/bfloat16.h"
#include "common/float16.h"
#include "kernels/attention/ref.h"
#include "kernels/checksum/launch.h"
#include "kernels/checksum/pieces.h"
#include "kernels/cuda/cuda_state_ops.h"
#include "kernels/cuda/device_array.h"
#include "kernels/optimizer/adamw8.h"
#include "kernels/optimizer/code8.h"
#include "kernels/optimizer/cpu_state_ops.h"
#include "kernels/state/launch.h"

namespace strata {
namespace {

using conformance::Draw;
using kx::emu::RangeKind;

// Of the output: the roundings of Q, K, V and the weights, 2^-4 at most and 0.03 at the root mean square
// each. Of a log-sum-exp: a score's error, whose deviation is about 0.04 for heads of normal numbers.
constexpr double kFp8Error = 0.1, kFp8LseError = 0.25;

// n values as elements of `dtype`, in bytes.
std::vector<char> Elements(DType dtype, const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    char* const at = bytes.data() + i * SizeOf(dtype);
    const BFloat16 b = ToBFloat16(values[i]);
    const Float16 h = ToFloat16(values[i]);
    std::memcpy(at,
                dtype == DType::kF32    ? static_cast<const void*>(&values[i])
                : dtype == DType::kBF16 ? static_cast<const void*>(&b)
                                        : &h,
                SizeOf(dtype));
  }
  return bytes;
}
float ValueAt(DType dtype, const std::vector<char>& bytes, int64_t i) {
  const char* const at = bytes.data() + i * SizeOf(dtype);
  float f;
  BFloat16 b;
  Float16 h;
  std::memcpy(dtype == DType::kF32    ? static_cast<void*>(&f)
              : dtype == DType::kBF16 ? static_cast<void*>(&b)
                                      : &h,
              at, SizeOf(dtype));
  return dtype == DType::kF32 ? f : dtype == DType::kBF16 ? ToFloat(b) : ToFloat(h);
}
std::vector<char> Random(Draw& draw, DType dtype, int64_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = static_cast<float>(draw.Normal());
  return Elements(dtype, values);
}

}  // namespace

std::string CheckStates(Draw& draw, int64_t n) {
  std::vector<float> grad(n), master(n), m(n), v(n);
  for (int64_t i = 0; i < n; ++i) {
    grad[i] = static_cast<float>(draw.Normal());
    master[i] = static_cast<float>(draw.Normal());
    m[i] = static_cast<float>(draw.Normal());
    v[i] = std::abs(static_cast<float>(draw.Normal()));
  }
  std::vector<BFloat16> params(n);
  DeviceArray<float> device_grad("grad", grad, RangeKind::kInput),
      device_master("master", master, RangeKind::kInOut), device_m("m", m, RangeKind::kInOut),
      device_v("v", v, RangeKind::kInOut);
  DeviceArray<BFloat16> device_params("params", n, RangeKind::kOutput);
  DeviceArray<char> scratch("scratch", CudaStateScratchBytes(), RangeKind::kOutput);
  DeviceArray<double> device_sum("sum", 1, RangeKind::kOutput);
  DeviceArray<int64_t> device_bad("first_bad", 1, RangeKind::kOutput);
  const auto cuda = MakeCudaStateOps({scratch.data(), CudaStateScratchBytes()});
  const auto cpu = MakeCpuStateOps(1);

  AdamWStep step{.n = n, .grad = grad.data(), .master = master.data(), .m = m.data(), .v = v.data()};
  step.params = params.data();
  step.lr = 1e-2;
  step.step = 3;
  step.grad_scale = 0.7f;
  (void)cpu->AdamW(nullptr, step);
  step.grad = device_grad.data();
  step.master = device_master.data();
  step.m = device_m.data();
  step.v = device_v.data();
  step.params = device_params.data();
  absl::Status status = cuda->AdamW(nullptr, step);
  if (!status.ok()) return status.ToString();
  if (device_master.Values() != master || device_m.Values() != m || device_v.Values() != v) {
    return "AdamW: other bits than the CPU's";
  }
  const std::vector<BFloat16> written = device_params.Values();
  for (int64_t i = 0; i < n; ++i) {
    if (written[i].bits != params[i].bits) return "AdamW: other parameters than the CPU's";
  }
  double sum;
  int64_t first_bad;
  (void)cpu->SumSquares(nullptr, grad.data(), n, &sum, &first_bad);
  status = cuda->SumSquares(nullptr, device_grad.data(), n, device_sum.data(), device_bad.data());
  if (!status.ok()) return status.ToString();
  if (device_sum.Values()[0] != sum || device_bad.Values()[0] != first_bad) {
    return "SumSquares: other bits than the CPU's";
  }
  return "";
}

std::string CheckAdamW8(Draw& draw, DType params_dtype, int64_t n, int64_t offset) {
  const std::string what = absl::StrCat("AdamW8 ", Name(params_dtype), " n=", n, " offset=", offset, ": ");
  const int64_t blocks = (n + kCode8Block - 1) / kCode8Block;
  std::vector<float> grad(n), master(n), m_scale(blocks), v_scale(blocks);
  std::vector<uint8_t> m(n), v(n);
  std::vector<char> params(n * SizeOf(params_dtype));
  for (float& x : master) x = static_cast<float>(draw.Normal());
  DeviceArray<float> device_master("master", master, RangeKind::kInOut, offset),
      device_m_scale("m_scale", m_scale, RangeKind::kInOut),
      device_v_scale("v_scale", v_scale, RangeKind::kInOut);
  DeviceArray<uint8_t> device_m("m", m, RangeKind::kInOut, offset),
      device_v("v", v, RangeKind::kInOut, offset);
  DeviceArray<char> device_params("params", n * SizeOf(params_dtype), RangeKind::kOutput,
                                  offset * SizeOf(params_dtype));
  for (int64_t step = 1; step <= 2; ++step) {
    for (float& x : grad) {
      x = static_cast<float>(
          draw.Int(0, 9) == 0 ? 0 : draw.Normal() * std::ldexp(1, static_cast<int>(draw.Int(-20, 5))));
    }
    const AdamWScalars scalars = MakeAdamWScalars({.lr = 1e-2, .weight_decay = 0.1}, step, 0.9f);
    AdamW8Range range = {.n = n, .grad = grad.data(), .master = master.data(), .m = m.data()};
    range.m_scale = m_scale.data();
    range.v = v.data();
    range.v_scale = v_scale.data();
    range.params = params.data();
    range.params_dtype = params_dtype;
    AdamW8(scalars, range);
    DeviceArray<float> device_grad("grad", grad, RangeKind::kInput, offset);
    range.grad = device_grad.data();
    range.master = device_master.data();
    range.m = device_m.data();
    range.m_scale = device_m_scale.data();
    range.v = device_v.data();
    range.v_scale = device_v_scale.data();
    range.params = device_params.data();
    const kx::LaunchStatus status = gpu::AdamW8(nullptr, scalars, range);
    if (!status.ok()) return what + status.message;
    if (device_master.Values() != master || device_params.Values() != params)
      return what + "other parameters";
    if (device_m.Values() != m || device_v.Values() != v) return what + "other codes";
    if (device_m_scale.Values() != m_scale || device_v_scale.Values() != v_scale)
      return what + "other scales";
  }
  return "";
}

std::string CheckChecksums(Draw& draw, int64_t bytes) {
  std::vector<uint32_t> words(bytes / sizeof(uint32_t));
  for (uint32_t& word : words) word = static_cast<uint32_t>(draw.Int(0, 0xffffffff));
  std::vector<uint32_t> expected(ChecksumPieces(bytes));
  (void)MakeCpuStateOps(1)->Checksums(nullptr, words.data(), bytes, expected.data());
  DeviceArray<uint32_t> device_words("data", words, RangeKind::kInput);
  DeviceArray<uint32_t> crcs("crcs", static_cast<int64_t>(expected.size()), RangeKind::kOutput);
  const kx::LaunchStatus status = gpu::Checksums(nullptr, device_words.data(), bytes, crcs.data());
  if (!status.ok()) return status.message;
  if (crcs.Values() != expected) return absl::StrCat("checksums of ", bytes, " bytes: not the host's");
  return "";
}

std::vector<Fp8Problem> Fp8Problems(int seq) {
  struct Row {
    DType dtype;
    int heads, kv_heads, head_dim, seq_q, seq_k;
    bool causal;
  };
  std::vector<Fp8Problem> problems;
  for (const Row& r :
       {Row{DType::kBF16, 2, 1, 64, seq + 3, seq + 3, true},
        Row{DType::kF16, 1, 1, 96, seq, 3 * seq + 5, true},
        Row{DType::kBF16, 4, 2, 128, seq, 6 * seq + 1, false},
        Row{DType::kF16, 1, 1, 256, 2 * seq, seq, true}, Row{DType::kBF16, 2, 2, 128, 1, 5 * seq, true}}) {
    attention::Shape s = {1, r.heads, r.kv_heads, r.head_dim, r.seq_q, r.seq_k, r.seq_q, r.seq_k};
    if (r.causal) s.right = 0;
    s.scale = 1 / std::sqrt(static_cast<float>(r.head_dim));
    problems.push_back({r.dtype, s});
  }
  return problems;
}

std::string CheckFp8Attention(Draw& draw, DType dtype, const attention::Shape& shape) {
  attention::ReferenceInputs in;
  in.shape = shape;
  in.cu_q = {0, shape.seq_q};
  in.cu_k = {0, shape.seq_k};
  const int64_t q_width = shape.heads * shape.head_dim, k_width = shape.kv_heads * shape.head_dim;
  const std::vector<char> q = Random(draw, dtype, shape.seq_q * q_width),
                          k = Random(draw, dtype, shape.seq_k * k_width),
                          v = Random(draw, dtype, shape.seq_k * k_width);
  for (const auto& [to, from] : {std::pair{&in.q, &q}, std::pair{&in.k, &k}, std::pair{&in.v, &v}}) {
    const auto n = static_cast<int64_t>(from->size()) / SizeOf(dtype);
    for (int64_t i = 0; i < n; ++i) to->push_back(ValueAt(dtype, *from, i));
  }
  const attention::ReferenceResult exact = attention::ReferenceAttention(in, [](double x) { return x; });

  DeviceArray<char> device_q("q", q, RangeKind::kInput), device_k("k", k, RangeKind::kInput),
      device_v("v", v, RangeKind::kInput);
  DeviceArray<char> out("out", static_cast<int64_t>(q.size()), RangeKind::kOutput);
  DeviceArray<float> lse("lse", int64_t{shape.heads} * shape.seq_q, RangeKind::kOutput);
  const int64_t bytes = attention::Fp8WorkspaceBytes(shape, false);
  DeviceArray<char> workspace("workspace", bytes, RangeKind::kOutput);
  attention::ForwardCall call;
  call.shape = shape;
  call.q = device_q.data();
  call.k = device_k.data();
  call.v = device_v.data();
  call.out = out.data();
  call.lse = lse.data();
  call.ldq = call.ldo = q_width;
  call.ldk = call.ldv = k_width;
  call.workspace = workspace.data();
  call.workspace_bytes = bytes;
  for (const bool incoherent : {false, true}) {
    const std::string what = absl::StrCat("fp8 attention ", Name(dtype), " ", shape.heads, "/",
                                          shape.kv_heads, " heads of ", shape.head_dim, ", ", shape.seq_q,
                                          " x ", shape.seq_k, incoherent ? ", incoherent: " : ": ");
    call.incoherent = incoherent;
    const kx::LaunchStatus status = attention::Forward(nullptr, attention::Family::kFa3Fp8, dtype, call);
    if (!status.ok()) return what + status.message;
    const std::vector<char> got = out.Values();
    double error = 0, size = 0;
    for (size_t i = 0; i < exact.out.size(); ++i) {
      const double difference = ValueAt(dtype, got, static_cast<int64_t>(i)) - exact.out[i];
      error += difference * difference;
      size += exact.out[i] * exact.out[i];
    }
    if (!(std::sqrt(error) <= kFp8Error * std::sqrt(size)))
      return absl::StrCat(what, "relative rms error of out ", std::sqrt(error / size));
    const std::vector<float> got_lse = lse.Values();
    for (size_t i = 0; i < got_lse.size(); ++i) {
      if (got_lse[i] == exact.lse[i]) continue;  // also -inf
      if (!(std::abs(got_lse[i] - exact.lse[i]) <= kFp8LseError))
        return absl::StrCat(what, "lse ", i, " is ", got_lse[i], ", not ", exact.lse[i]);
    }
  }
  return "";
}

}  // namespace strata
