// Checks of calls, and the choice of the kernel.
#include "kernels/attention/launch.h"

#include <cstdint>
#include <string>

#include "kernels/attention/fp8_layout.h"
#include "kernels/attention/kernel_table.h"

namespace strata::attention {
namespace {

// Of CUDA: blocks in y and z of a grid.
constexpr int32_t kGridMax = 65535;

std::string Wrong(const char* field, int64_t value, const std::string& rule) {
  return "attention: " + std::string(field) + " = " + std::to_string(value) + " " + rule;
}

std::string CheckShape(const Shape& s, bool packed) {
  const struct {
    const char* name;
    int64_t value, max;
  } fields[] = {{"batch", s.batch, kGridMax},       {"heads", s.heads, kGridMax},
                {"kv_heads", s.kv_heads, kGridMax}, {"head_dim", s.head_dim, 256},
                {"seq_q", s.seq_q, kSeqMax},        {"seq_k", s.seq_k, kSeqMax},
                {"total_q", s.total_q, kSeqMax},    {"total_k", s.total_k, kSeqMax}};
  for (const auto& field : fields) {
    if (field.value < 1 || field.value > field.max) {
      return Wrong(field.name, field.value, "must be in [1, " + std::to_string(field.max) + "]");
    }
  }
  if (s.heads % s.kv_heads != 0) return Wrong("heads", s.heads, "must be a multiple of kv_heads");
  if (s.head_dim % 8 != 0) return Wrong("head_dim", s.head_dim, "must be a multiple of 8: pad the heads");
  if (!packed && (s.total_q != static_cast<int64_t>(s.batch) * s.seq_q ||
                  s.total_k != static_cast<int64_t>(s.batch) * s.seq_k)) {
    return Wrong("total_q", s.total_q,
                 "must be batch * seq_q, and total_k batch * seq_k: pass cu_q and cu_k to pack");
  }
  if (s.left < 0 || s.left > kUnbounded) return Wrong("left", s.left, "must be in [0, kUnbounded]");
  if (s.right < 0 || s.right > kUnbounded) return Wrong("right", s.right, "must be in [0, kUnbounded]");
  if (!(s.scale > 0)) return "attention: scale = " + std::to_string(s.scale) + " must be positive";
  return "";
}

std::string CheckMatrix(const char* name, const void* data, int64_t ld, int32_t heads, int32_t head_dim) {
  if (data == nullptr) return "attention: " + std::string(name) + " is null";
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) {
    return "attention: " + std::string(name) + " must be a multiple of 16 bytes: align the allocation";
  }
  if (ld % 8 != 0 || ld < static_cast<int64_t>(heads) * head_dim) {
    return Wrong((std::string("leading dimension of ") + name).c_str(), ld,
                 "must be a multiple of 8, and at least heads * head_dim");
  }
  return "";
}

std::string CheckType(DType dtype, int32_t head_dim, bool backward) {
  if (dtype != DType::kBF16 && dtype != DType::kF16) {
    return "attention: element type " + std::string(Name(dtype)) +
           " must be bf16 or f16: use another backend";
  }
  if (backward && head_dim > 128) {
    return Wrong("head_dim", head_dim,
                 "must be at most 128 backward: the gradients of 256 do not fit the registers");
  }
  return "";
}

// Calls f<T, the smallest compiled dimension that holds head_dim>.
#define ATTENTION_FOR_TYPE(dtype, ...) \
  if (dtype == DType::kBF16) {         \
    using T = kx::bf16;                \
    __VA_ARGS__                        \
  } else {                             \
    using T = kx::f16;                 \
    __VA_ARGS__                        \
  }

}  // namespace

std::string CheckForward(DType dtype, const ForwardCall& call) {
  const Shape& s = call.shape;
  if ((call.cu_q == nullptr) != (call.cu_k == nullptr))
    return "attention: cu_q and cu_k must be given together";
  std::string wrong = CheckShape(s, call.cu_q != nullptr);
  if (wrong.empty()) wrong = CheckType(dtype, s.head_dim, false);
  if (wrong.empty()) wrong = CheckMatrix("q", call.q, call.ldq, s.heads, s.head_dim);
  if (wrong.empty()) wrong = CheckMatrix("k", call.k, call.ldk, s.kv_heads, s.head_dim);
  if (wrong.empty()) wrong = CheckMatrix("v", call.v, call.ldv, s.kv_heads, s.head_dim);
  if (wrong.empty()) wrong = CheckMatrix("out", call.out, call.ldo, s.heads, s.head_dim);
  if (wrong.empty() && call.lse == nullptr) wrong = "attention: lse is null";
  return wrong;
}

std::string CheckBackward(DType dtype, const BackwardCall& call) {
  const Shape& s = call.forward.shape;
  std::string wrong = CheckForward(dtype, call.forward);
  if (wrong.empty()) wrong = CheckType(dtype, s.head_dim, true);
  if (wrong.empty()) wrong = CheckMatrix("dout", call.dout, call.lddo, s.heads, s.head_dim);
  if (wrong.empty()) wrong = CheckMatrix("dq", call.dq, call.lddq, s.heads, s.head_dim);
  if (wrong.empty()) wrong = CheckMatrix("dk", call.dk, call.lddk, s.kv_heads, s.head_dim);
  if (wrong.empty()) wrong = CheckMatrix("dv", call.dv, call.lddv, s.kv_heads, s.head_dim);
  if (wrong.empty() && call.delta == nullptr) wrong = "attention: delta is null";
  return wrong;
}

int64_t Fp8WorkspaceBytes(const Shape& shape, bool packed) { return Fp8LayoutOf(shape, packed).bytes; }

std::string CheckFp8Workspace(const ForwardCall& call) {
  const int64_t needed = Fp8WorkspaceBytes(call.shape, call.cu_q != nullptr);
  if (call.workspace == nullptr || call.workspace_bytes < needed) {
    return Wrong("workspace_bytes", call.workspace == nullptr ? 0 : call.workspace_bytes,
                 "must be at least " + std::to_string(needed) +
                     " for the e4m3 copies of q, k and v: lend more, or take fa3, which needs none");
  }
  if (reinterpret_cast<uintptr_t>(call.workspace) % 16 != 0) {
    return "attention: workspace must be a multiple of 16 bytes: align the allocation";
  }
  return "";
}

kx::LaunchStatus Forward(kx::Stream stream, Family family, DType dtype, const ForwardCall& call) {
  std::string wrong = CheckForward(dtype, call);
  if (wrong.empty() && family == Family::kFa3Fp8) wrong = CheckFp8Workspace(call);
  if (!wrong.empty()) return {kInvalidCall, wrong};
  const int32_t d = call.shape.head_dim;
  ATTENTION_FOR_TYPE(dtype, {
    if (family == Family::kFa3Fp8) {
      if (d <= 64) return LaunchFp8Forward<T, 64>(stream, call);
      if (d <= 96) return LaunchFp8Forward<T, 96>(stream, call);
      if (d <= 128) return LaunchFp8Forward<T, 128>(stream, call);
      return LaunchFp8Forward<T, 256>(stream, call);
    }
    if (family == Family::kFa3) {
      if (d <= 64) return LaunchFa3Forward<T, 64>(stream, call);
      if (d <= 96) return LaunchFa3Forward<T, 96>(stream, call);
      if (d <= 128) return LaunchFa3Forward<T, 128>(stream, call);
      return LaunchFa3Forward<T, 256>(stream, call);
    }
    if (d <= 64) return LaunchFa2Forward<T, 64>(stream, call);
    if (d <= 96) return LaunchFa2Forward<T, 96>(stream, call);
    if (d <= 128) return LaunchFa2Forward<T, 128>(stream, call);
    return LaunchFa2Forward<T, 256>(stream, call);
  })
}

kx::LaunchStatus Backward(kx::Stream stream, Family family, DType dtype, const BackwardCall& call) {
  std::string wrong = CheckBackward(dtype, call);
  if (wrong.empty() && family == Family::kFa3Fp8) {
    wrong = "attention: fp8 has no backward pass, whose gradients e4m3 is too coarse for: train with fa3";
  }
  if (!wrong.empty()) return {kInvalidCall, wrong};
  const int32_t d = call.forward.shape.head_dim;
  ATTENTION_FOR_TYPE(dtype, {
    const kx::LaunchStatus status = LaunchDelta<T>(stream, call);
    if (!status.ok()) return status;
    if (family == Family::kFa3) {
      if (d <= 64) return LaunchFa3Backward<T, 64>(stream, call);
      if (d <= 96) return LaunchFa3Backward<T, 96>(stream, call);
      return LaunchFa3Backward<T, 128>(stream, call);
    }
    if (d <= 64) return LaunchFa2Backward<T, 64>(stream, call);
    if (d <= 96) return LaunchFa2Backward<T, 96>(stream, call);
    return LaunchFa2Backward<T, 128>(stream, call);
  })
}

}  // namespace strata::attention
