// Attention on the device: what is computed, and the calls that enqueue it. Nothing here needs CUDA or the
// emulator; the same launch.cc is linked with the kernels nvcc compiled or with the emulated ones (testonly).
//
//   out[i] = sum over visible j of softmax_j(scale * q[i] . k[j]) v[j]          (Vaswani et al. 2017)
//   lse[i] = log sum over visible j of exp(scale * q[i] . k[j])
//
// A row without visible keys has out = 0 and lse = -inf, and gives and gets no gradient.
//
// Layout. Matrices are T (bf16 or f16), row-major; row r of q starts at q + r * ldq and head h of it at
// h * head_dim further; k and v have kv_heads heads; out and the gradients look like their inputs. Query head
// h uses kv head h / (heads / kv_heads). The sequences of a batch lie one after another:
//   batched  row = b * seq + s, all of one length (seq_q, seq_k);
//   packed   sequence b has rows cu[b] .. cu[b+1] - 1 of q (cu_q) and of k and v (cu_k); documents never see
//            each other and may be empty. seq_q and seq_k are then at least the longest lengths (they size
//            the grid).
// lse and delta are float: batched [batch, heads, seq_q], packed [heads, total_q].
//
// Window. Positions are aligned at the bottom right: the last query faces the last key. With
// shift = length of keys - length of queries, query i sees key j when
//   i + shift - left <= j <= i + shift + right.
// Causal is right = 0; a sliding window of w keys is left = w - 1, right = 0; kUnbounded lifts a bound. With
// fewer keys than queries the first queries of a causal job see nothing.
//
// Results have fixed bits: no sum depends on the order in which blocks run, backward included.
#ifndef KERNELS_ATTENTION_LAUNCH_H_
#define KERNELS_ATTENTION_LAUNCH_H_

#include <cstdint>
#include <string>

#include "kernels/dtype.h"
#include "kernels/kx/launch_types.h"

namespace strata::attention {

// Sums of positions, shifts and bounds stay in int32.
inline constexpr int32_t kUnbounded = 1 << 29;
inline constexpr int32_t kSeqMax = 1 << 27;

struct Shape {
  int32_t batch = 0, heads = 0, kv_heads = 0;
  int32_t head_dim = 0;
  int32_t seq_q = 0, seq_k = 0;                   // packed: at least the longest
  int32_t total_q = 0, total_k = 0;               // rows of q and of k; batched: batch * seq
  int32_t left = kUnbounded, right = kUnbounded;  // keys a query sees before and after its own position
  float scale = 0;                                // > 0
};

// Device pointers, multiples of 16, the caller's until the work on the stream is done. Leading dimensions are
// in elements and multiples of 8.
struct ForwardCall {
  Shape shape;
  const int32_t* cu_q = nullptr;  // packed: batch + 1 offsets each, ascending from 0; both or neither
  const int32_t* cu_k = nullptr;
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* out = nullptr;
  float* lse = nullptr;
  int64_t ldq = 0, ldk = 0, ldv = 0, ldo = 0;
  // Of Family::kFa3Fp8: its copies of Q, K and V (Fp8WorkspaceBytes), undefined before and after; and whether
  // Q and K are spread by random signs and a Hadamard transform before they are rounded.
  void* workspace = nullptr;
  int64_t workspace_bytes = 0;
  bool incoherent = true;
};

struct BackwardCall {
  ForwardCall forward;  // out and lse as the forward pass left them
  const void* dout = nullptr;
  float* delta = nullptr;  // workspace of the size of lse; undefined before and after
  void* dq = nullptr;      // overwritten, like dk and dv
  void* dk = nullptr;
  void* dv = nullptr;
  int64_t lddo = 0, lddq = 0, lddk = 0, lddv = 0;
};

enum class Family : uint8_t {
  kFa2,  // sm_80 and later: mma.sync, cp.async
  kFa3,  // sm_90a: TMA, wgmma, warp specialisation
  // sm_90a, forward only: as kFa3, with Q, K, V and the softmax's weights rounded to e4m3 (fa3_fp8.h). q, k,
  // v and out are as for the others. An element that is not finite spoils what its block of rows takes part
  // in.
  kFa3Fp8,
};

int64_t Fp8WorkspaceBytes(const Shape& shape, bool packed);

// "" when there is a kernel for the call, else what it cannot take, naming the field and the remedy. All
// families take any head_dim that is a multiple of 8 up to 256 forward and 128 backward, padded to the next
// of 64, 96, 128, 256.
std::string CheckForward(DType dtype, const ForwardCall& call);
std::string CheckBackward(DType dtype, const BackwardCall& call);

// Of kFa3Fp8, besides: "", or what is wrong with the workspace.
std::string CheckFp8Workspace(const ForwardCall& call);

// Checks and enqueues. The code of a refused call is kInvalidCall, else what the launch returned.
inline constexpr int kInvalidCall = 1;  // cudaErrorInvalidValue
kx::LaunchStatus Forward(kx::Stream stream, Family family, DType dtype, const ForwardCall& call);
kx::LaunchStatus Backward(kx::Stream stream, Family family, DType dtype, const BackwardCall& call);

}  // namespace strata::attention

#endif  // KERNELS_ATTENTION_LAUNCH_H_
